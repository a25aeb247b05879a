//! Conditions that must become true after all faults have ended: clients that are present are members and remain so,
//! absent ones are not, no lease is held forever, watchers catch up, and all replicas have one state.

use std::rc::Rc;

use dunlin_coord::{Happening, Incarnation, MemberId};
use dunlin_sim::Datacenter;

use super::attendance::member;
use super::{MILLISECOND, Manager, Shared};

/// Time limit for that.
const WITHIN: u64 = 20_000 * MILLISECOND;
/// A waiting watcher is told of an event within this time: events are pushed. It is less than the time after which a
/// lost query is repeated.
const TOLD_WITHIN: u64 = 1_000 * MILLISECOND;
/// Events that watchers are told of one by one.
const ROUNDS: u64 = 3;
/// Interval of checks.
const LOOK_EVERY: u64 = 5 * MILLISECOND;
/// Number of failure timeouts in which no attending member may be marked as failed.
const QUIET_TIMEOUTS: u32 = 4;
/// States of each replica that are compared with those of others.
const COMPARED_MIN: u64 = 3;

/// Lets time pass until all of these conditions hold.
///
/// # Panics
/// If one does not become true, or does not stay true.
pub fn end(shared: &Rc<Shared>, datacenter: &mut Datacenter) {
    let manager = &shared.service;
    wait(datacenter, WITHIN, "all clients attend, nobody else is live, and all leases have ended", || {
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
    wait(datacenter, WITHIN, "the states of all replicas were compared", || {
        let replicas = shared.running_members();
        let missing: Vec<u64> =
            replicas.into_iter().filter(|id| manager.witness.compared(*id) < COMPARED_MIN).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("those of {missing:?} were not")) }
    });
    (1..=ROUNDS).for_each(|round| tell(manager, datacenter, round));
    catch_up(manager, datacenter);
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

/// Lets watchers that have just begun read the history: only those that wait are told at once, and only a complete one
/// can be judged.
fn catch_up(manager: &Manager, datacenter: &mut Datacenter) {
    wait(datacenter, WITHIN, "all watchers saw the last event", || manager.have_seen_all(usize::MAX));
}

/// Causes a single event. All earlier watchers must be told of it.
fn tell(manager: &Manager, datacenter: &mut Datacenter, round: u64) {
    catch_up(manager, datacenter);
    let watchers = manager.testimony.watched.borrow().len();
    manager.rounds.wanted.set(round);
    wait(datacenter, WITHIN, "something happens", || match manager.rounds.done.get() {
        done if done == round => Ok(()),
        done => Err(format!("round {round} is wanted, and {done} is done")),
    });
    wait(datacenter, TOLD_WITHIN, "watchers that wait were told of one event", || manager.have_seen_all(watchers));
}

impl Manager {
    /// Checks that those of the first watchers that are still running have seen all events in their scopes.
    fn have_seen_all(&self, watchers: usize) -> Result<(), String> {
        self.read();
        let late = self.book.borrow().late(&self.testimony, watchers);
        if late.is_empty() { Ok(()) } else { Err(format!("those of {late:?} did not")) }
    }

    /// When an incarnation was gone, in nanoseconds of virtual time.
    pub fn gone(&self, incarnation: Incarnation) -> Option<u64> {
        self.read();
        self.book.borrow().gone(incarnation)
    }

    fn read(&self) {
        self.book.borrow_mut().read(&self.witness);
    }

    /// Clients that attend as members, with their incarnations.
    fn attending(&self) -> Vec<(MemberId, Incarnation)> {
        let attendance = self.attendance.borrow();
        let attending = attendance.iter().enumerate();
        attending.filter_map(|(number, incarnation)| Some((member(number), (*incarnation)?))).collect()
    }
}

/// # Panics
/// If it takes too long.
fn wait(datacenter: &mut Datacenter, within: u64, what: &str, is_so: impl Fn() -> Result<(), String>) {
    let start = datacenter.now();
    while let Err(why) = is_so() {
        let now = datacenter.now();
        assert!(
            now - start < within,
            "{} s after the network healed it is not so that {what}: {why}",
            within / 1000 / MILLISECOND
        );
        datacenter.run_until(now + LOOK_EVERY);
    }
}
