//! The interface of the cluster manager, whatever is behind it.

use std::future::Future;
use std::time::Duration;

use crate::error::CoordError;
use crate::transaction::Transaction;
use crate::types::{
    Changes, Condition, Entry, Epochs, Event, Heartbeat, Holder, Lease, Leases, Listing, MemberId, Members, Membership,
    Revision, Scope, View,
};

/// How often a member says that it is there, unless it is told otherwise (Assise, section 5.3).
pub const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);

/// The cluster manager. Its operations are linearizable: each has its effect, or sees the state, at one moment between its call and its end.
///
/// Futures need not be `Send`: those of the embedded back end run on the thread of an endpoint, others wherever they are polled. Dropping one gives the operation up; it may be done nevertheless.
#[allow(async_fn_in_trait)]
pub trait Coordinator {
    /// Joins the cluster, or joins it again after a failure or a restart. An epoch begins. An earlier incarnation of the same member is not live
    /// any more, so a process must not join under an id that another uses. A member whose earlier incarnation holds leases joins when these have ended:
    /// see [`join_after_leases`].
    ///
    /// # Errors
    /// [`CoordError::LeasesRun`], [`CoordError::TooLarge`], [`CoordError::Full`], or what any operation may give: [`CoordError::TimedOut`], [`CoordError::Backend`].
    async fn join(&self, member: MemberId, about: &[u8]) -> Result<Membership, CoordError>;

    /// Says that a member is there, and learns the epoch and until when it may work as a member. [`attend`] does so regularly.
    ///
    /// # Errors
    /// [`CoordError::NotLive`]: it was taken for failed, or has left, or another joined in its place.
    async fn heartbeat(&self, membership: &Membership) -> Result<Heartbeat, CoordError>;

    /// Leaves the cluster, which ends the member's leases at once. An epoch begins.
    ///
    /// # Errors
    /// [`CoordError::NotLive`].
    async fn leave(&self, membership: &Membership) -> Result<(), CoordError>;

    /// Takes a member that has failed from the list.
    ///
    /// # Errors
    /// [`CoordError::NotFound`]; [`CoordError::Live`] if it has not failed.
    async fn forget(&self, member: MemberId) -> Result<(), CoordError>;

    /// All members, and the epoch.
    ///
    /// # Errors
    /// What any operation may give.
    async fn members(&self) -> Result<Members, CoordError>;

    /// A page of the epochs after one: who came and went in each. A member that comes back learns what it missed by the epoch of its failure
    /// ([`Member::epoch`](crate::Member::epoch)).
    ///
    /// # Errors
    /// [`CoordError::EpochsCut`]: some of these epochs are known no more.
    async fn epochs(&self, after: u64) -> Result<Epochs, CoordError>;

    /// Has the epochs up to one forgotten: nobody needs them any more.
    ///
    /// # Errors
    /// [`CoordError::EpochChanged`] if it has not begun.
    async fn cut_epochs(&self, up_to: u64) -> Result<(), CoordError>;

    /// Asks for a lease, named like a path. `ttl` is between 10 ms and 1 h, in whole milliseconds. Who holds it already gets it anew, with a higher token, and for no
    /// shorter time than before: release it first for that. So the grant before is good until its time, also if the answer is lost.
    ///
    /// # Errors
    /// [`CoordError::Held`] by another; [`CoordError::NotLive`], [`CoordError::BadTtl`], [`CoordError::BadPath`], [`CoordError::Full`].
    async fn acquire(&self, membership: &Membership, name: &str, ttl: Duration) -> Result<Lease, CoordError>;

    /// Begins the time of a lease anew, and moves [`Lease::safe_until`].
    ///
    /// # Errors
    /// [`CoordError::LeaseLost`]; [`CoordError::NotLive`] if the holder was taken for failed: the lease then ends with its time.
    async fn renew(&self, lease: &mut Lease) -> Result<(), CoordError>;

    /// Gives a lease up.
    ///
    /// # Errors
    /// [`CoordError::LeaseLost`]: it had ended.
    async fn release(&self, lease: &Lease) -> Result<(), CoordError>;

    /// Who holds a lease.
    ///
    /// # Errors
    /// [`CoordError::BadPath`].
    async fn holder(&self, name: &str) -> Result<Option<Holder>, CoordError>;

    /// A page of the leases that are held, after the name that the page before gave.
    ///
    /// # Errors
    /// What any operation may give.
    async fn leases(&self, after: Option<&str>) -> Result<Leases, CoordError>;

    /// An entry of the tree.
    ///
    /// # Errors
    /// [`CoordError::BadPath`].
    async fn get(&self, path: &str) -> Result<Option<Entry>, CoordError>;

    /// Does all writes of a transaction if every compare holds, and gives their revision, which is the version of each entry that was set. Without writes
    /// it gives the revision of the moment.
    ///
    /// # Errors
    /// What does not hold, or cannot be: [`CoordError::EpochChanged`], [`CoordError::LeaseLost`], [`CoordError::Exists`], [`CoordError::Changed`];
    /// [`CoordError::NotFound`] for an entry that is to have a version, or to be deleted; [`CoordError::BadTransaction`], [`CoordError::BadPath`],
    /// [`CoordError::TooLarge`], [`CoordError::Full`].
    async fn transact(&self, transaction: &Transaction) -> Result<Revision, CoordError>;

    /// All members, and the leases and entries at a path and below it (`/` for all), as of one moment.
    ///
    /// # Errors
    /// [`CoordError::BadPath`]; [`CoordError::TooLarge`] if it has more than [`VIEW_BYTES_MAX`](crate::VIEW_BYTES_MAX) bytes.
    async fn view(&self, root: &str) -> Result<View, CoordError>;

    /// Sets an entry on a condition, and gives its version. To set it under a lease, see [`Transaction::if_lease`].
    ///
    /// # Errors
    /// [`CoordError::Exists`], [`CoordError::NotFound`] or [`CoordError::Changed`] if the condition is not met; [`CoordError::BadPath`],
    /// [`CoordError::TooLarge`], [`CoordError::Full`].
    async fn set(&self, path: &str, value: &[u8], condition: Condition) -> Result<Revision, CoordError> {
        self.transact(&Transaction::new().if_entry(path, condition).set(path, value)).await
    }

    /// Deletes an entry on a condition.
    ///
    /// # Errors
    /// As [`Coordinator::set`]; [`CoordError::NotFound`] if there is none, whatever the condition.
    async fn delete(&self, path: &str, condition: Condition) -> Result<Revision, CoordError> {
        self.transact(&Transaction::new().if_entry(path, condition).delete(path)).await
    }

    /// A page of the entries strictly below a path (`/` for all), after the path that the page before gave.
    ///
    /// # Errors
    /// [`CoordError::BadPath`].
    async fn list(&self, root: &str, after: Option<&str>) -> Result<Listing, CoordError>;

    /// Waits until something has happened in a scope after a revision, and gives that, or the first part of it. Now and then it gives nothing but a later revision up to
    /// which nothing has happened, so that a watch does not fall behind what is remembered. [`Watch`] goes on from there.
    ///
    /// # Errors
    /// [`CoordError::Compacted`]: too much has happened since; [`CoordError::BadPath`].
    async fn changes(&self, scope: &Scope, after: Revision) -> Result<Changes, CoordError>;

    /// Nanoseconds of the clock that [`Lease::safe_until`] is of, which goes on while the machine is suspended. It is read afresh: a caller that computes for long
    /// between looking at it and what rests on it adds that time.
    fn now(&self) -> u64;

    /// Waits until [`Coordinator::now`] is this or more.
    async fn sleep_until(&self, time: u64);
}

/// What happens in a scope, one event after the other, none left out.
pub struct Watch<'a, C> {
    coordinator: &'a C,
    scope: Scope,
    /// All up to here was given, or waits in `ready`.
    up_to: Revision,
    /// In reverse.
    ready: Vec<Event>,
}

impl<'a, C: Coordinator> Watch<'a, C> {
    /// Watches a scope after a revision: that of what was read before.
    pub fn new(coordinator: &'a C, scope: Scope, after: Revision) -> Watch<'a, C> {
        Watch { coordinator, scope, up_to: after, ready: Vec::new() }
    }

    /// Waits for the next event. After an error it may be called again, and leaves nothing out; after [`CoordError::Compacted`] it gives
    /// that for ever: read anew what is there, and begin another watch.
    ///
    /// # Errors
    /// As [`Coordinator::changes`].
    pub async fn next(&mut self) -> Result<Event, CoordError> {
        loop {
            if let Some(event) = self.ready.pop() {
                return Ok(event);
            }
            let changes = self.coordinator.changes(&self.scope, self.up_to).await?;
            self.up_to = changes.up_to;
            self.ready = changes.events;
            self.ready.reverse();
        }
    }
}

/// Sends a heartbeat `every` so often until that is of no use any more, and gives the error that says why: [`CoordError::NotLive`], after which the member must
/// stop what it does as a member, and may join again. Answers that do not come in time are asked for again. `on_heartbeat` is given each
/// answer; [`Standing::attend`](crate::Standing::attend) keeps it for the rest of the process.
pub async fn attend<C: Coordinator>(
    coordinator: &C,
    membership: &Membership,
    every: Duration,
    mut on_heartbeat: impl FnMut(&Heartbeat),
) -> CoordError {
    loop {
        let due = coordinator.now().saturating_add(every.as_nanos().try_into().unwrap_or(u64::MAX));
        match coordinator.heartbeat(membership).await {
            Ok(heartbeat) => on_heartbeat(&heartbeat),
            Err(error) if error.is_of_the_moment() => {}
            Err(error) => return error,
        }
        coordinator.sleep_until(due).await;
    }
}

/// Joins as soon as the leases have ended that an earlier incarnation held, and asks `every` so often. They end with their time: a process that
/// holds leases of an hour and is killed joins up to an hour later.
///
/// # Errors
/// As [`Coordinator::join`], but for [`CoordError::LeasesRun`].
pub async fn join_after_leases<C: Coordinator>(
    coordinator: &C,
    member: MemberId,
    about: &[u8],
    every: Duration,
) -> Result<Membership, CoordError> {
    loop {
        match coordinator.join(member, about).await {
            Err(CoordError::LeasesRun { .. }) => {
                let every = every.as_nanos().try_into().unwrap_or(u64::MAX);
                coordinator.sleep_until(coordinator.now().saturating_add(every)).await;
            }
            joined => return joined,
        }
    }
}

/// After a suspension of the machine, a sleep ends so late at most.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Sleeps until a clock that goes on while the machine is suspended says this time, in nanoseconds. `sleep` need not count a suspension.
pub(crate) async fn sleep_until<F: Future<Output = ()>>(time: u64, now: impl Fn() -> u64, sleep: impl Fn(Duration) -> F) {
    loop {
        let left = Duration::from_nanos(time.saturating_sub(now()));
        if left.is_zero() {
            return;
        }
        sleep(left.min(SLEEP_MAX)).await;
    }
}
