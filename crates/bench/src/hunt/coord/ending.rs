//! What must come true when all faults have ended: those who are there are members and stay it, those who are gone are not, no lease is held for ever, watchers
//! catch up, and all replicas have one state.

use std::rc::Rc;

use dunlin_coord::{Happening, Incarnation, MemberId};
use dunlin_sim::Datacenter;

use super::attendance::{Attendance, member};
use super::{MILLISECOND, Manager, Shared};

/// It does so within this time.
const WITHIN: u64 = 20_000 * MILLISECOND;
/// Between two looks.
const LOOK_EVERY: u64 = 5 * MILLISECOND;
/// For how many failure timeouts nobody who attends may be taken for failed.
const QUIET_TIMEOUTS: u32 = 4;
/// States of each replica that are compared with those of others.
const COMPARED_MIN: u64 = 3;

/// Lets time pass until all of that is true.
///
/// # Panics
/// If it does not come true, or does not stay so.
pub fn end(shared: &Rc<Shared>, datacenter: &mut Datacenter) {
    let manager = &shared.service;
    wait(datacenter, "all clients attend, nobody else is live, and all leases have ended", || {
        manager.read();
        let book = manager.book.borrow();
        let (live, held) = (book.live(), book.held());
        let attending = manager.attending();
        if attending.len() == shared.scenario.clients as usize && live == attending && held.is_empty() {
            return Ok(());
        }
        Err(format!("live are {live:?}, {attending:?} attend, held are {held:?}"))
    });
    stay_members(manager, datacenter);
    manager.witness.compare_from_now();
    wait(datacenter, "the states of all replicas were compared", || {
        let replicas = shared.running_members();
        let missing: Vec<u64> = replicas.into_iter().filter(|id| manager.witness.compared(*id) < COMPARED_MIN).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("those of {missing:?} were not")) }
    });
    wait(datacenter, "all watchers saw the last event", || {
        manager.read();
        let late = manager.book.borrow().late(&manager.testimony);
        if late.is_empty() { Ok(()) } else { Err(format!("those of {late:?} did not")) }
    });
    manager.book.borrow().judge(&manager.testimony);
}

fn stay_members(manager: &Manager, datacenter: &mut Datacenter) {
    let revision = manager.book.borrow().revision();
    let quiet = manager.settings.watchman.failure_timeout * QUIET_TIMEOUTS;
    datacenter.run_until(datacenter.now() + quiet.as_nanos() as u64);
    manager.read();
    let book = manager.book.borrow();
    let failed = book.after(revision).iter().find(|event| matches!(event.happening, Happening::Failed { .. }));
    assert_eq!(failed, None, "a member that attends was taken for failed, though the network healed");
}

impl Manager {
    fn read(&self) {
        self.book.borrow_mut().read(&self.witness);
    }

    /// Clients that attend as members, with their incarnations.
    fn attending(&self) -> Vec<(MemberId, Incarnation)> {
        let attendance = self.attendance.borrow();
        let attending = attendance.iter().enumerate().filter_map(|(number, attendance)| match attendance {
            Attendance::Attends(incarnation) => Some((member(number), *incarnation)),
            Attendance::Away => None,
        });
        attending.collect()
    }
}

/// # Panics
/// If it takes too long.
fn wait(datacenter: &mut Datacenter, what: &str, is_so: impl Fn() -> Result<(), String>) {
    let start = datacenter.now();
    while let Err(why) = is_so() {
        let now = datacenter.now();
        assert!(
            now - start < WITHIN,
            "{} s after the network healed it is not so that {what}: {why}",
            WITHIN / 1000 / MILLISECOND
        );
        datacenter.run_until(now + LOOK_EVERY);
    }
}
