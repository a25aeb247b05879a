//! The interface of the cluster manager, independent of the back end.

use std::future::Future;
use std::time::Duration;

use dunlin_net::clock::nanos;

use crate::error::CoordError;
use crate::transaction::Transaction;
use crate::types::{
    Changes, Condition, Entry, Epochs, Event, Heartbeat, Holder, Lease, Leases, Listing, MemberId, Members, Membership,
    Revision, Scope, View,
};

/// Default interval between a member's heartbeats (Assise, section 5.3).
pub const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);

/// The cluster manager. Its operations are linearizable: each takes effect, or sees the state, at one moment between
/// its call and its return.
///
/// Futures need not be `Send`: those of the embedded back end run on the thread of an endpoint, others wherever they
/// are polled. Dropping a future gives the operation up; it may still be executed.
#[allow(async_fn_in_trait)]
pub trait Coordinator {
    /// Joins the cluster, or joins it again after a failure or a restart. An epoch begins. It is refused while an
    /// earlier incarnation of the same member is live, or holds leases: [`join_after_leases`] waits.
    ///
    /// # Errors
    /// [`CoordError::Live`], [`CoordError::LeasesRun`], [`CoordError::TooLarge`], [`CoordError::Full`], or what any
    /// operation may give: [`CoordError::TimedOut`], [`CoordError::Backend`].
    async fn join(&self, member: MemberId, about: &[u8]) -> Result<Membership, CoordError>;

    /// Reports that a member is alive and knows the epoch of its [`Membership`]. Returns the current epoch and until
    /// when the member may work as one. [`attend`] calls it regularly. An epoch is settled when all live members have
    /// reported that they know it.
    ///
    /// # Errors
    /// [`CoordError::NotLive`]: the member was marked as failed, has left, or another process joined under its id.
    async fn heartbeat(&self, membership: &Membership) -> Result<Heartbeat, CoordError>;

    /// Leaves the cluster, which ends the member's leases at once. An epoch begins. A caller that knows that the process
    /// of an incarnation has ended may leave for it, so that the next one need not wait until it has failed.
    ///
    /// # Errors
    /// [`CoordError::NotLive`].
    async fn leave(&self, membership: &Membership) -> Result<(), CoordError>;

    /// Removes a failed member from the list.
    ///
    /// # Errors
    /// [`CoordError::NotFound`]; [`CoordError::Live`] if it has not failed.
    async fn forget(&self, member: MemberId) -> Result<(), CoordError>;

    /// All members, and the epoch.
    ///
    /// # Errors
    /// Those of every operation.
    async fn members(&self) -> Result<Members, CoordError>;

    /// A page of the epochs after one, each with the members that came and went. A member that comes back uses the
    /// epoch of its failure ([`Member::epoch`](crate::Member::epoch)) to learn what it missed.
    ///
    /// # Errors
    /// [`CoordError::EpochsCut`]: some of these epochs have been discarded.
    async fn epochs(&self, after: u64) -> Result<Epochs, CoordError>;

    /// Discards the epochs up to this one.
    ///
    /// # Errors
    /// [`CoordError::EpochAhead`] if it has not begun.
    async fn cut_epochs(&self, up_to: u64) -> Result<(), CoordError>;

    /// Acquires a lease; its name is a path. `ttl` is between 10 ms and 1 h, in whole milliseconds. If the member holds
    /// the lease already, it is granted again with a higher token and no shorter time, so that the earlier grant stays
    /// good until its time even if this answer is lost. To shorten the time, release the lease first.
    ///
    /// # Errors
    /// [`CoordError::Held`] by another member; [`CoordError::NotLive`], [`CoordError::BadTtl`],
    /// [`CoordError::BadPath`], [`CoordError::Full`].
    async fn acquire(&self, membership: &Membership, name: &str, ttl: Duration) -> Result<Lease, CoordError>;

    /// Restarts the time of a lease, and moves [`Lease::safe_until`].
    ///
    /// # Errors
    /// [`CoordError::LeaseLost`]; [`CoordError::NotLive`] if the holder was marked as failed: the lease then runs out
    /// at its normal time.
    async fn renew(&self, lease: &mut Lease) -> Result<(), CoordError>;

    /// Releases a lease.
    ///
    /// # Errors
    /// [`CoordError::LeaseLost`]: it had ended.
    async fn release(&self, lease: &Lease) -> Result<(), CoordError>;

    /// The holder of a lease.
    ///
    /// # Errors
    /// [`CoordError::BadPath`].
    async fn holder(&self, name: &str) -> Result<Option<Holder>, CoordError>;

    /// A page of the leases that are held, after the name that the previous page returned.
    ///
    /// # Errors
    /// Those of every operation.
    async fn leases(&self, after: Option<&str>) -> Result<Leases, CoordError>;

    /// An entry of the tree.
    ///
    /// # Errors
    /// [`CoordError::BadPath`].
    async fn get(&self, path: &str) -> Result<Option<Entry>, CoordError>;

    /// Does all writes of a transaction if every compare holds. Returns their revision, which is the version of each
    /// entry that was set. Without writes it returns the current revision.
    ///
    /// # Errors
    /// The compare that does not hold, or the write that is impossible: [`CoordError::EpochChanged`],
    /// [`CoordError::LeaseLost`], [`CoordError::Exists`], [`CoordError::Changed`]; [`CoordError::NotFound`] if an entry
    /// to compare by version or to delete does not exist; [`CoordError::BadTransaction`], [`CoordError::BadPath`],
    /// [`CoordError::TooLarge`], [`CoordError::Full`].
    async fn transact(&self, transaction: &Transaction) -> Result<Revision, CoordError>;

    /// All members, and the leases and entries at a path and below it (`/` for all), as of one moment.
    ///
    /// # Errors
    /// [`CoordError::BadPath`]; [`CoordError::TooLarge`] if the view exceeds [`VIEW_BYTES_MAX`](crate::VIEW_BYTES_MAX)
    /// bytes.
    async fn view(&self, root: &str) -> Result<View, CoordError>;

    /// Sets an entry on a condition, and returns its version. To set it under a lease, see [`Transaction::if_lease`].
    ///
    /// # Errors
    /// [`CoordError::Exists`], [`CoordError::NotFound`] or [`CoordError::Changed`] if the condition is not met;
    /// [`CoordError::BadPath`], [`CoordError::TooLarge`], [`CoordError::Full`].
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

    /// A page of the entries strictly below a path (`/` for all), after the path that the previous page returned.
    ///
    /// # Errors
    /// [`CoordError::BadPath`].
    async fn list(&self, root: &str, after: Option<&str>) -> Result<Listing, CoordError>;

    /// Waits for events in a scope after a revision, and returns them or the first part of them. From time to time it
    /// returns no event, only a later revision up to which nothing has happened, so that a watch does not fall behind
    /// the history. [`Watch`] continues from there.
    ///
    /// # Errors
    /// [`CoordError::Compacted`]: the history no longer goes back to that revision; [`CoordError::BadPath`].
    async fn changes(&self, scope: &Scope, after: Revision) -> Result<Changes, CoordError>;

    /// The clock of [`Lease::safe_until`], in nanoseconds. It advances while the machine is suspended. Each call reads
    /// it afresh: a caller that computes for long between reading it and acting on it must add that time.
    fn now(&self) -> u64;

    /// Waits until [`Coordinator::now`] reaches `time`.
    async fn sleep_until(&self, time: u64);
}

/// The events of a scope, in order and without gaps.
pub struct Watch<'a, C> {
    coordinator: &'a C,
    scope: Scope,
    /// All events up to here were returned, or wait in `ready`.
    up_to: Revision,
    /// In reverse order.
    ready: Vec<Event>,
}

impl<'a, C: Coordinator> Watch<'a, C> {
    /// Watches a scope after a revision: that of the state that was read before.
    pub fn new(coordinator: &'a C, scope: Scope, after: Revision) -> Watch<'a, C> {
        Watch { coordinator, scope, up_to: after, ready: Vec::new() }
    }

    /// Waits for the next event. After an error, call it again; no event is skipped. After [`CoordError::Compacted`] it
    /// returns that error forever: read the state again, and begin another watch.
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

/// Minimum number of heartbeats within a member's failure timeout.
const HEARTBEATS_OF_TIMEOUT: u32 = 5;

/// Interval between two heartbeats: [`HEARTBEAT_EVERY`], or less if the member's failure timeout is short.
pub fn heartbeat_every(membership: &Membership) -> Duration {
    often_enough(membership, HEARTBEAT_EVERY)
}

fn often_enough(membership: &Membership, every: Duration) -> Duration {
    match membership.failure_timeout_ms {
        0 => every,
        told => every.min(Duration::from_millis(told) / HEARTBEATS_OF_TIMEOUT),
    }
}

/// Sends a heartbeat at interval `every`, but at least five times in the failure timeout, until that is pointless.
/// Returns the error that says why: after [`CoordError::NotLive`] the member must stop its work as a member, and may
/// join again. A heartbeat without a timely answer is sent again. `on_heartbeat` gets each answer: when it returns, the
/// member must no longer work in an earlier epoch, and the next heartbeat says so.
/// [`Standing::attend`](crate::Standing::attend) shares the answers with the rest of the process.
pub async fn attend<C: Coordinator>(
    coordinator: &C,
    membership: &Membership,
    every: Duration,
    on_heartbeat: impl FnMut(&Heartbeat),
) -> CoordError {
    attend_between(coordinator, membership, every, on_heartbeat, async |sent_at: u64, every: Duration| {
        coordinator.sleep_until(sent_at.saturating_add(nanos(every))).await;
    })
    .await
}

/// Like [`attend`], with `pause` called between two heartbeats. Its arguments are when the first was sent, and the
/// interval.
pub(crate) async fn attend_between<C: Coordinator>(
    coordinator: &C,
    membership: &Membership,
    every: Duration,
    mut on_heartbeat: impl FnMut(&Heartbeat),
    mut pause: impl AsyncFnMut(u64, Duration),
) -> CoordError {
    let mut membership = *membership;
    loop {
        let sent_at = coordinator.now();
        match coordinator.heartbeat(&membership).await {
            Ok(heartbeat) => {
                on_heartbeat(&heartbeat);
                // The next heartbeat acknowledges it.
                membership.epoch = membership.epoch.max(heartbeat.epoch);
                membership.failure_timeout_ms = heartbeat.failure_timeout_ms;
            }
            Err(error) if error.is_of_the_moment() => {}
            Err(error) => return error,
        }
        pause(sent_at, often_enough(&membership, every)).await;
    }
}

/// Joins as soon as an earlier incarnation has left or failed, and its leases have ended, and asks `every` so often. If
/// the process before was killed, that is after the failure timeout, and after the time of its leases: up to an hour if
/// it held leases of an hour. For as long as another process of the same id is heard, it does not join.
///
/// # Errors
/// As [`Coordinator::join`], but for [`CoordError::Live`] and [`CoordError::LeasesRun`].
pub async fn join_after_leases<C: Coordinator>(
    coordinator: &C,
    member: MemberId,
    about: &[u8],
    every: Duration,
) -> Result<Membership, CoordError> {
    loop {
        match coordinator.join(member, about).await {
            Err(CoordError::Live { .. } | CoordError::LeasesRun { .. }) => {
                coordinator.sleep_until(coordinator.now().saturating_add(nanos(every))).await;
            }
            joined => return joined,
        }
    }
}

/// After a suspension of the machine, a sleep ends at most this late.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Sleeps until a clock that advances while the machine is suspended reaches this time, in nanoseconds. `sleep` need
/// not count a suspension.
pub(crate) async fn sleep_until<F: Future<Output = ()>>(
    time: u64,
    now: impl Fn() -> u64,
    sleep: impl Fn(Duration) -> F,
) {
    loop {
        let left = Duration::from_nanos(time.saturating_sub(now()));
        if left.is_zero() {
            return;
        }
        sleep(left.min(SLEEP_MAX)).await;
    }
}
