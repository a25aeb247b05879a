//! Reservations under a lease of a cluster manager.
//!
//! A sequencer is a *member*: it joins with its addresses, sends heartbeats, and competes for one lease, the office. The
//! end of the reserved numbers and the epoch of the office are an entry of the tree. The holder changes the entry by
//! transactions that compare its lease and the version of the entry, so a former holder changes nothing, however late
//! its transaction arrives.
//!
//! **The term is the time for which the lease is safe**, by the holder's own clock: three quarters of the lease from
//! before the holder asked for it ([`Lease::safe_until`]). Another member gets the lease only after its whole time by
//! the cluster manager's clock. So terms do not overlap as long as no clock runs a quarter faster than another, and a
//! holder that is cut off stops by itself. The epoch rises with each term of office, not with each epoch of the cluster:
//! members of other services come and go without a pause here.
//!
//! **The entry may go back**: somebody deletes it, or restores the cluster manager from an older copy. Each process
//! remembers the highest epoch and the highest end of reserved numbers that it has seen, also while it waits for the
//! office, and begins above them, whatever the entry has. A process that was started afterwards does not know them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::{
    Condition, CoordError, Coordinator, HEARTBEAT_EVERY, LEASE_TTL_MAX, LEASE_TTL_MIN, Lease, MemberId, Revision,
    Standing, Transaction, check_path, join_after_leases,
};
use dunlin_net::clock::nanos;
use futures::future::{LocalBoxFuture, join};

use super::{Reserve, ReserveError, Reserved};
use crate::counter::NUMBERS_END;
use crate::mutation::{Mutation, is_planted};

/// The last epoch: a datagram has 32 bits for it.
const EPOCH_MAX: u64 = u32::MAX as u64;
/// Bytes of a wrong entry that an error shows.
const SHOWN_BYTES: usize = 40;
/// A sequencer that waits for the office asks so often within the time of a lease.
const ASKED_OF_LEASE: u32 = 8;

/// Settings. Name, lease and start must be the same for all sequencers of one office.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoordinatedConfig {
    /// This sequencer as a member: one process at a time.
    pub member: MemberId,
    /// What it says about itself: its addresses, up to 1 KiB.
    pub about: String,
    /// The path of the office: the name of the lease, and the entry with the reserved numbers. Default `/seq`.
    pub name: String,
    /// The time of the lease, 10 ms to 1 h. Default 2 s.
    pub lease: Duration,
    /// The lowest number handed out. Default 0.
    pub start: u64,
}

impl CoordinatedConfig {
    /// The default settings of a member.
    pub fn new(member: MemberId) -> CoordinatedConfig {
        let (about, name) = (String::new(), "/seq".to_owned());
        CoordinatedConfig { member, about, name, lease: Duration::from_secs(2), start: 0 }
    }
}

/// The entry in the tree: `EPOCH RESERVED`, two decimal numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Office {
    /// The epoch of the current or last holder, below 2^32; 0 before the first.
    pub epoch: u64,
    /// All numbers below are reserved.
    pub reserved: u64,
}

impl Office {
    /// Encodes it.
    pub fn encode(&self) -> String {
        format!("{} {}", self.epoch, self.reserved)
    }

    /// Parses it; `None` if the bytes are anything else.
    pub fn parse(bytes: &[u8]) -> Option<Office> {
        let (epoch, reserved) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
        let office = Office { epoch: epoch.parse().ok()?, reserved: reserved.parse().ok()? };
        let is_valid = office.epoch <= EPOCH_MAX && office.reserved <= NUMBERS_END;
        (is_valid && office.encode().as_bytes() == bytes).then_some(office)
    }
}

/// The holder's view of its office.
struct Held {
    lease: Lease,
    office: Office,
    /// The version of the entry; `None` if a change of it is in doubt.
    version: Option<Revision>,
}

struct Shared<C> {
    coordinator: C,
    config: CoordinatedConfig,
    standing: RefCell<Option<Standing>>,
    is_leaving: Cell<bool>,
    /// The highest epoch and end of reserved numbers that this process has seen.
    seen: Cell<Office>,
}

/// Reservations under a lease of a cluster manager, of either back end.
///
/// Operations of the coordinator must time out well within a term, so that there is time for a retry.
pub struct Coordinated<C> {
    shared: Rc<Shared<C>>,
    held: Option<Held>,
}

fn failed(why: impl std::fmt::Display) -> ReserveError {
    ReserveError::Failed(why.to_string())
}

fn no_office(path: &str, value: &[u8]) -> ReserveError {
    let shown = String::from_utf8_lossy(&value[..value.len().min(SHOWN_BYTES)]);
    ReserveError::Wrong(format!(
        "the entry {path} is {shown:?}, which is no office of a sequencer; set it to \"EPOCH END\", the last epoch \
         (below {EPOCH_MAX}) and a number above all that were handed out, or choose another --office"
    ))
}

/// What an error says about the office: it is lost, an operator must make room, or the operation may succeed later.
fn judge(error: CoordError) -> ReserveError {
    match error {
        CoordError::LeaseLost { .. } | CoordError::NotLive { .. } => ReserveError::Fenced,
        CoordError::Full { .. } => ReserveError::Wrong(error.to_string()),
        error => failed(error),
    }
}

impl<C: Coordinator> Shared<C> {
    /// Notes an office that was stored. Returns the one to go on from: that, or what was stored before if the entry has
    /// gone back.
    fn note(&self, stored: Office) -> Office {
        let seen = self.seen.get();
        if stored.epoch < seen.epoch || stored.reserved < seen.reserved {
            tracing::warn!(
                ?stored,
                ?seen,
                "the office has gone back: was its entry deleted, or the cluster manager restored? This sequencer goes \
                 on above all that it has seen"
            );
        }
        let office = Office { epoch: stored.epoch.max(seen.epoch), reserved: stored.reserved.max(seen.reserved) };
        self.seen.set(office);
        office
    }

    async fn pause(&self) {
        let pause = nanos(self.config.lease / ASKED_OF_LEASE);
        self.coordinator.sleep_until(self.coordinator.now().saturating_add(pause)).await;
    }

    /// Stays a member until it leaves, and joins again when it was marked as failed.
    async fn attend(&self) {
        let CoordinatedConfig { member, about, .. } = &self.config;
        let mut told = None;
        while !self.is_leaving.get() {
            let every = self.config.lease / ASKED_OF_LEASE;
            match join_after_leases(&self.coordinator, *member, about.as_bytes(), every).await {
                // It was stopped meanwhile.
                Ok(membership) if self.is_leaving.get() => drop(self.coordinator.leave(&membership).await),
                Ok(membership) => {
                    told = None;
                    let standing = Standing::new(&membership);
                    self.standing.replace(Some(standing.clone()));
                    let why = standing.attend(&self.coordinator, HEARTBEAT_EVERY).await;
                    self.standing.take();
                    if !self.is_leaving.get() {
                        tracing::warn!(%why, "this sequencer is no member any more, and joins again");
                    }
                }
                Err(why) => {
                    if told.replace(why.clone()).as_ref() != Some(&why) {
                        tracing::warn!(%why, "this sequencer is no member yet, and hands out no numbers");
                    }
                    self.pause().await;
                }
            }
        }
    }

    /// The standing, when it has joined.
    async fn joined(&self) -> Standing {
        loop {
            let standing = self.standing.borrow().clone();
            match standing {
                Some(standing) => return standing,
                None => self.pause().await,
            }
        }
    }

    /// The entry and its version; `None` before the first reservation.
    async fn read(&self) -> Result<Option<(Office, Revision)>, ReserveError> {
        let path = &self.config.name;
        let Some(entry) = self.coordinator.get(path).await.map_err(judge)? else { return Ok(None) };
        match Office::parse(&entry.value) {
            Some(office) => Ok(Some((office, entry.version))),
            None => Err(no_office(path, &entry.value)),
        }
    }

    /// Sets the entry under the lease.
    async fn write(&self, lease: &Lease, condition: Condition, office: Office) -> Result<Revision, CoordError> {
        let path = &self.config.name;
        let change = Transaction::new().if_lease(lease).if_entry(path, condition).set(path, office.encode());
        self.coordinator.transact(&change).await
    }

    /// When a term under this lease ends.
    fn until(&self, lease: &Lease) -> u64 {
        let more = if is_planted(Mutation::TermBeyondLease) { nanos(self.config.lease) } else { 0 };
        lease.safe_until.saturating_add(more)
    }
}

impl<C: Coordinator> Coordinated<C> {
    /// Makes reservations through a cluster manager. Nothing is sent yet.
    ///
    /// # Errors
    /// [`ReserveError::Failed`] if the name is no path, or the lease is too short or too long.
    pub fn new(coordinator: C, config: CoordinatedConfig) -> Result<Coordinated<C>, ReserveError> {
        check_path(&config.name).map_err(failed)?;
        if !(LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&config.lease) {
            let why = format!("a lease of {:?}: choose {LEASE_TTL_MIN:?} to {LEASE_TTL_MAX:?}", config.lease);
            return Err(failed(why));
        }
        let (standing, is_leaving, seen) = (RefCell::default(), Cell::new(false), Cell::default());
        let shared = Rc::new(Shared { coordinator, config, standing, is_leaving, seen });
        Ok(Coordinated { shared, held: None })
    }

    /// Acquires the lease when it is free.
    async fn acquire(&self) -> Result<Lease, ReserveError> {
        let Shared { coordinator, config, is_leaving, .. } = &*self.shared;
        loop {
            if is_leaving.get() {
                return Err(failed("this sequencer has left"));
            }
            let standing = self.shared.joined().await;
            match coordinator.acquire(standing.membership(), &config.name, config.lease).await {
                Ok(lease) => return Ok(lease),
                // It joins again meanwhile, or sees how far the holder has come.
                Err(CoordError::Held { .. } | CoordError::NotLive { .. }) => {
                    self.shared.pause().await;
                    if let Ok(Some((office, _))) = self.shared.read().await {
                        self.shared.note(office);
                    }
                }
                Err(error) => return Err(judge(error)),
            }
        }
    }

    /// Begins a term under a lease.
    async fn begin(&mut self, lease: &Lease, count: u64) -> Result<Reserved, ReserveError> {
        let known = self.shared.read().await?;
        let condition = known.map_or(Condition::Absent, |(_, version)| Condition::Version { version });
        let Office { epoch, mut reserved } = self.shared.note(known.map(|(office, _)| office).unwrap_or_default());
        if is_planted(Mutation::BeginsBelowEntry) {
            reserved = reserved.saturating_sub(count);
        }
        let epoch = epoch.checked_add(1).filter(|epoch| *epoch <= EPOCH_MAX).ok_or_else(|| {
            let path = &self.shared.config.name;
            ReserveError::Wrong(format!(
                "the epochs of {path} are used up: choose another --office, and a --start above {reserved}, for all \
                 sequencers, and start their clients again"
            ))
        })?;
        let reserved = reserved.max(self.shared.config.start);
        let (from, office) = next(Office { epoch, reserved }, count);
        let version = Some(self.shared.write(lease, condition, office).await.map_err(judge)?);
        self.shared.note(office);
        let until = self.shared.until(lease);
        self.held = Some(Held { lease: lease.clone(), office, version });
        Ok(Reserved { range: from..office.reserved, until, epoch })
    }
}

/// The next numbers, with the office after it.
fn next(office: Office, count: u64) -> (u64, Office) {
    (office.reserved, Office { reserved: office.reserved.saturating_add(count).min(NUMBERS_END), ..office })
}

impl<C: Coordinator + 'static> Reserve for Coordinated<C> {
    async fn take(&mut self, count: u64) -> Result<Reserved, ReserveError> {
        self.held = None;
        let lease = self.acquire().await?;
        let begun = self.begin(&lease, count).await;
        if let Err(ReserveError::Wrong(_)) = begun {
            // If this fails, the lease ends by itself.
            let _ = self.shared.coordinator.release(&lease).await;
        }
        begun
    }

    async fn extend(&mut self, count: u64) -> Result<Reserved, ReserveError> {
        let (shared, held) = (self.shared.clone(), self.held.as_mut().ok_or(ReserveError::Fenced)?);
        if held.version.is_none() {
            // Only the holder of the lease changes the entry: if the epoch is the same, the change was its own.
            match shared.read().await? {
                Some((office, version)) if office.epoch == held.office.epoch => {
                    (held.office, held.version) = (shared.note(office), Some(version));
                }
                _ => {
                    self.held = None;
                    return Err(ReserveError::Fenced);
                }
            }
        }
        let (from, office) = next(held.office, count);
        let (mut lease, version) = (held.lease.clone(), held.version);
        let renewing = shared.coordinator.renew(&mut lease);
        let reserving = async {
            match version {
                Some(version) if count > 0 => {
                    shared.write(&held.lease, Condition::Version { version }, office).await.map(Some)
                }
                _ => Ok(version),
            }
        };
        let (renewed, reserved) = join(renewing, reserving).await;
        let renewed = renewed.map_err(judge);
        match reserved {
            Ok(version) => (held.version, held.office) = (version, shared.note(office)),
            Err(_) => held.version = None,
        }
        if renewed.is_ok() {
            held.lease = lease;
        }
        let (until, epoch) = (shared.until(&held.lease), held.office.epoch);
        match (renewed, reserved.map_err(judge)) {
            (Err(ReserveError::Fenced), _) | (_, Err(ReserveError::Fenced)) => {
                self.held = None;
                Err(ReserveError::Fenced)
            }
            // The numbers are reserved, though the term is not extended.
            (Ok(()), Ok(_)) => Ok(Reserved { range: from..office.reserved, until, epoch }),
            (Err(_), Ok(_)) if count > 0 => Ok(Reserved { range: from..office.reserved, until, epoch }),
            (Err(why), _) | (_, Err(why)) => Err(why),
        }
    }

    /// Leaves the cluster, which ends the lease at once. This sequencer does not join again.
    async fn release(&mut self) -> Result<(), ReserveError> {
        self.shared.is_leaving.set(true);
        let held = self.held.take();
        let standing = self.shared.standing.take();
        let Some(standing) = standing else { return Err(ReserveError::Fenced) };
        standing.end();
        self.shared.coordinator.leave(standing.membership()).await.map_err(judge)?;
        held.map(|_| ()).ok_or(ReserveError::Fenced)
    }

    fn attend(&self) -> LocalBoxFuture<'static, ()> {
        let shared = self.shared.clone();
        Box::pin(async move { shared.attend().await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_is_two_numbers_and_nothing_else() {
        let office = Office { epoch: 3, reserved: 2_000_000 };
        assert_eq!(office.encode(), "3 2000000");
        assert_eq!(Office::parse(b"3 2000000"), Some(office));
        assert_eq!(Office::parse(Office { epoch: 1, reserved: NUMBERS_END }.encode().as_bytes()).unwrap().epoch, 1);
        let others = [
            "",
            " ",
            "3",
            "3 ",
            " 3",
            "3 4 5",
            "+3 4",
            "03 4",
            "3 4\n",
            "3  4",
            "-1 4",
            "3 18446744073709551615",
            "4294967296 4",
            "18446744073709551615 4",
        ];
        assert_eq!(Office::parse(b"4294967295 4").unwrap().epoch, EPOCH_MAX);
        for other in others.map(str::as_bytes).iter().chain(&[&b"\xff 1"[..]]) {
            assert_eq!(Office::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_last_range_is_shorter() {
        let office = Office { epoch: 1, reserved: NUMBERS_END - 3 };
        assert_eq!(next(office, 10), (NUMBERS_END - 3, Office { epoch: 1, reserved: NUMBERS_END }));
    }
}
