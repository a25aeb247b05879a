//! Leading: a member that holds a lease for as long as it can.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use dunlin_net::clock::nanos;

use crate::coordinator::{Coordinator, HEARTBEAT_EVERY};
use crate::either::{Either, either, until};
use crate::error::CoordError;
use crate::limits::check_ttl;
use crate::path::check_path;
use crate::standing::Standing;
use crate::types::{Lease, MemberId, Membership, Token};

/// A leader asks for a renewal, and a candidate for the lease, this many times within the lease's time.
const ASKED_OF_TTL: u32 = 4;
/// Bounds of the interval between two requests, for very short and very long leases.
const ASK_EVERY_MIN: Duration = Duration::from_millis(2);
const ASK_EVERY_MAX: Duration = Duration::from_secs(1);
/// A campaign gives up after this many grants in a row that arrived too late to be relied on.
const LATE_GRANTS_MAX: u32 = 10;

/// Campaigns for a lease as member `id`: joins, waits until the lease is free, and acquires it. It does not give up by
/// itself: see [`campaign_until`].
///
/// ```no_run
/// # use std::time::Duration;
/// # use dunlin_coord::{Coordinator, CoordError, campaign};
/// # async fn serve_as_primary(token: u64) {}
/// # async fn example(coordinator: &impl Coordinator) -> Result<(), CoordError> {
/// let mut leadership = campaign(coordinator, 7, "/counter/primary", Duration::from_secs(10)).await?;
/// let token = leadership.token();
/// if leadership.while_safe(serve_as_primary(token)).await.is_some() {
///     leadership.resign().await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Errors that a retry cannot fix: [`CoordError::BadPath`], [`CoordError::Full`]; [`CoordError::BadTtl`], also if the
/// cluster manager answers so slowly that the lease is no longer safe, ten times in a row. On an error the member has
/// not joined, or has left.
pub async fn campaign<'a, C: Coordinator>(
    coordinator: &'a C,
    id: MemberId,
    name: &str,
    ttl: Duration,
) -> Result<Leadership<'a, C>, CoordError> {
    campaign_within(coordinator, id, name, ttl, None).await
}

/// Campaigns as [`campaign`] does, and gives up at `deadline`, a time of [`Coordinator::now`], with
/// [`CoordError::TimedOut`]. The member then leaves, so it may campaign again at once, and nobody takes it for one that
/// is there: if a future of [`campaign`] is dropped, its member stays live until the failure timeout.
///
/// It ends when the cluster manager has answered what it is asked last, so it may exceed the deadline by two operations.
///
/// # Errors
/// As [`campaign`]. [`CoordError::TimedOut`] with `may_have_run` if it is not known that the member has left: it is then
/// marked as failed after its time.
pub async fn campaign_until<'a, C: Coordinator>(
    coordinator: &'a C,
    id: MemberId,
    name: &str,
    ttl: Duration,
    deadline: u64,
) -> Result<Leadership<'a, C>, CoordError> {
    campaign_within(coordinator, id, name, ttl, Some(deadline)).await
}

async fn campaign_within<'a, C: Coordinator>(
    coordinator: &'a C,
    id: MemberId,
    name: &str,
    ttl: Duration,
    deadline: Option<u64>,
) -> Result<Leadership<'a, C>, CoordError> {
    check_candidacy(name, ttl)?;
    let over = async || match deadline {
        Some(deadline) => coordinator.sleep_until(deadline).await,
        None => pending().await,
    };
    // Whether a join without an answer may have made a member.
    let mut may_have_joined = false;
    loop {
        if deadline.is_some_and(|deadline| coordinator.now() >= deadline) {
            return Err(CoordError::TimedOut { may_have_run: may_have_joined });
        }
        // It is not dropped at the deadline: a member that does not know its incarnation cannot leave.
        let membership = match coordinator.join(id, b"").await {
            Ok(membership) => membership,
            Err(error) if is_to_be_asked_again(&error) => {
                may_have_joined |= error.may_have_run();
                until(sleep(coordinator, ask_every(ttl)), over()).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        match until(campaign_as(coordinator, &Standing::new(&membership), name, ttl), over()).await {
            Some(Ok(leadership)) => return Ok(Leadership { ends_by: EndsBy::Leaving, ..leadership }),
            // It was taken for failed while it waited.
            Some(Err(CoordError::NotLive { .. })) => may_have_joined = false,
            // It joined to lead. If leaving fails, the member is marked as failed later.
            Some(Err(error)) => {
                let _ = coordinator.leave(&membership).await;
                return Err(error);
            }
            None => {
                let has_left = matches!(coordinator.leave(&membership).await, Ok(()) | Err(CoordError::NotLive { .. }));
                return Err(CoordError::TimedOut { may_have_run: !has_left });
            }
        }
    }
}

/// Whether a member may join later: see [`join_after_leases`](crate::coordinator::join_after_leases).
fn is_to_be_asked_again(error: &CoordError) -> bool {
    matches!(error, CoordError::Live { .. } | CoordError::LeasesRun { .. }) || error.is_of_the_moment()
}

/// Campaigns for a lease as a member that has joined already, under its own id and incarnation: waits until the lease
/// is free, and acquires it. Meanwhile, and while [`Leadership::lost`] or [`Leadership::while_safe`] is polled, it
/// sends the member's heartbeats and passes the answers to its standing, so the member need not send any itself.
/// [`Leadership::resign`] releases the lease, and the member stays. After that, and once the lease is lost, the member
/// must send its own heartbeats again, with [`Standing::attend`].
///
/// # Errors
/// As [`campaign`]; [`CoordError::NotLive`] if the member was marked as failed while it waited: its standing has ended.
pub async fn campaign_as<'a, C: Coordinator>(
    coordinator: &'a C,
    standing: &Standing,
    name: &str,
    ttl: Duration,
) -> Result<Leadership<'a, C>, CoordError> {
    check_candidacy(name, ttl)?;
    let membership = standing.membership();
    let elected = win(coordinator, membership, name, ttl);
    let elected = match either(elected, standing.attend(coordinator, HEARTBEAT_EVERY)).await {
        Either::Left(lease) => lease,
        Either::Right(why) => Err(why),
    };
    if matches!(elected, Err(CoordError::NotLive { .. })) {
        standing.end();
    }
    Ok(Leadership::new(coordinator, standing.clone(), elected?))
}

/// Refuses an invalid name or time before anything joins.
fn check_candidacy(name: &str, ttl: Duration) -> Result<(), CoordError> {
    check_path(name)?;
    check_ttl(millis(ttl))
}

fn millis(ttl: Duration) -> u64 {
    ttl.as_millis().try_into().unwrap_or(u64::MAX)
}

/// Gives an operation up at a time of [`Coordinator::now`], with [`CoordError::TimedOut`]. A handler uses it to pass on
/// its remaining time. A campaign has [`campaign_until`], which also leaves.
///
/// # Errors
/// Those of the operation.
pub async fn with_deadline<C: Coordinator, T>(
    coordinator: &C,
    deadline: u64,
    operation: impl Future<Output = Result<T, CoordError>>,
) -> Result<T, CoordError> {
    let in_time = until(operation, coordinator.sleep_until(deadline)).await;
    in_time.unwrap_or(Err(CoordError::TimedOut { may_have_run: true }))
}

/// Renews a lease for as long as it is safe, and reports each renewal. Returns the error by which the lease was lost,
/// or `None` when its safe time is over: another member may get it soon.
pub async fn keep<C: Coordinator>(
    coordinator: &C,
    lease: &mut Lease,
    mut on_renewed: impl FnMut(&Lease),
) -> Option<CoordError> {
    let every = ask_every(Duration::from_millis(lease.ttl_ms));
    while coordinator.now() < lease.safe_until {
        let safe_until = lease.safe_until;
        let renewed = async {
            sleep(coordinator, every).await;
            coordinator.renew(lease).await
        };
        match until(renewed, coordinator.sleep_until(safe_until)).await? {
            Ok(()) => on_renewed(lease),
            Err(error) if error.is_of_the_moment() => {}
            Err(error) => return Some(error),
        }
    }
    None
}

fn ask_every(ttl: Duration) -> Duration {
    (ttl / ASKED_OF_TTL).clamp(ASK_EVERY_MIN, ASK_EVERY_MAX)
}

async fn sleep<C: Coordinator>(coordinator: &C, time: Duration) {
    coordinator.sleep_until(coordinator.now().saturating_add(nanos(time))).await;
}

/// Asks for a lease until it is granted, and safe.
async fn win<C: Coordinator>(
    coordinator: &C,
    membership: &Membership,
    name: &str,
    ttl: Duration,
) -> Result<Lease, CoordError> {
    let mut late_grants = 0;
    loop {
        match coordinator.acquire(membership, name, ttl).await {
            Ok(lease) if coordinator.now() < lease.safe_until => return Ok(lease),
            // The answer took too long: ask again.
            Ok(_) => late_grants += 1,
            Err(error) if matches!(error, CoordError::Held { .. }) || error.is_of_the_moment() => late_grants = 0,
            Err(error) => return Err(error),
        }
        if late_grants == LATE_GRANTS_MAX {
            return Err(CoordError::BadTtl { millis: millis(ttl) });
        }
        sleep(coordinator, ask_every(ttl)).await;
    }
}

/// A member that leads: it holds the lease. [`Leadership::lost`] renews it, and must be polled beside the work.
pub struct Leadership<'a, C> {
    coordinator: &'a C,
    standing: Standing,
    lease: Lease,
    safe_until: Arc<AtomicU64>,
    ends_by: EndsBy,
}

/// What resigning does.
enum EndsBy {
    /// The member joined in order to lead: it leaves.
    Leaving,
    /// It was a member before: it releases the lease.
    Releasing,
}

/// Lets the threads that do a leader's work check that it still leads. Clones share one state.
#[derive(Debug, Clone)]
pub struct Mandate {
    token: Token,
    safe_until: Arc<AtomicU64>,
}

impl Mandate {
    /// Accompanies everything that is done under the lease: see [`Lease::token`].
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether nobody else leads `now`, which is [`Coordinator::now`], or [`dunlin_net::clock::boot_nanos`] on a thread
    /// without a coordinator.
    pub fn is_safe(&self, now: u64) -> bool {
        now < self.safe_until.load(Ordering::Acquire)
    }
}

impl<'a, C: Coordinator> Leadership<'a, C> {
    fn new(coordinator: &'a C, standing: Standing, lease: Lease) -> Leadership<'a, C> {
        let safe_until = Arc::new(AtomicU64::new(lease.safe_until));
        Leadership { coordinator, standing, lease, safe_until, ends_by: EndsBy::Releasing }
    }

    /// The fencing token: higher than that of every earlier leader.
    pub fn token(&self) -> Token {
        self.lease.token
    }

    /// The lease, for [`Transaction::if_lease`](crate::Transaction::if_lease).
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The member that leads.
    pub fn membership(&self) -> &Membership {
        self.standing.membership()
    }

    /// Its standing as a member: the epoch, and whether it may work as one.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Whether nobody else leads now.
    pub fn is_safe(&self) -> bool {
        self.coordinator.now() < self.lease.safe_until
    }

    /// For other threads.
    pub fn mandate(&self) -> Mandate {
        Mandate { token: self.token(), safe_until: self.safe_until.clone() }
    }

    /// Sends heartbeats and renews the lease until it is lost: then what rests on it stops. It is lost before another
    /// can have it. Gives the error that says why; none if the cluster manager was not reached for too long. Dropping
    /// the future and asking again goes on. A member that joined by [`campaign`] stays one until it
    /// [resigns](Leadership::resign) or fails, and cannot campaign again before.
    pub async fn lost(&mut self) -> Option<CoordError> {
        let Leadership { coordinator, standing, lease, safe_until, .. } = self;
        let kept = keep(*coordinator, lease, |lease| safe_until.store(lease.safe_until, Ordering::Release));
        let lost = match either(kept, standing.attend(*coordinator, HEARTBEAT_EVERY)).await {
            Either::Left(why) => why,
            Either::Right(why) => Some(why),
        };
        self.end();
        lost
    }

    /// Runs `work` for as long as the member leads. Returns `None` if leadership ended first: the work was dropped
    /// where it waited. The clock is read each time before the work continues, since this process may have been
    /// stopped.
    pub async fn while_safe<F: Future>(&mut self, work: F) -> Option<F::Output> {
        let (coordinator, safe_until) = (self.coordinator, self.safe_until.clone());
        let mut work = pin!(work);
        let work = poll_fn(|context| match coordinator.now() < safe_until.load(Ordering::Acquire) {
            true => work.as_mut().poll(context),
            // The future below ends at once, because its time is over.
            false => Poll::Pending,
        });
        match either(self.lost(), work).await {
            Either::Left(_) => None,
            Either::Right(output) => Some(output),
        }
    }

    /// Stops leading; another member may lead at once. Stop the work that relies on the lease first. A member that
    /// joined by [`campaign`] leaves; one of [`campaign_as`] stays, and releases the lease.
    ///
    /// # Errors
    /// As [`Coordinator::leave`] or [`Coordinator::release`]; the lease then ends with its time.
    pub async fn resign(mut self) -> Result<(), CoordError> {
        self.end();
        match self.ends_by {
            EndsBy::Leaving => {
                self.standing.end();
                self.coordinator.leave(self.standing.membership()).await
            }
            EndsBy::Releasing => self.coordinator.release(&self.lease).await,
        }
    }

    fn end(&mut self) {
        self.lease.safe_until = 0;
        self.safe_until.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::executor::block_on;

    use super::*;
    use crate::transaction::Transaction;
    use crate::types::{
        Changes, Entry, Epochs, Heartbeat, Holder, Joined, Leases, Listing, Members, Revision, Scope, View,
    };

    const MILLISECOND: u64 = 1_000_000;

    /// A cluster manager that takes some time to grant a lease; its clock advances with each sleep.
    #[derive(Default)]
    struct Slow {
        now: Cell<u64>,
        grant_ms: u64,
        /// Another holds the lease for good.
        is_held: bool,
        joins: Cell<u32>,
        grants: Cell<u32>,
        leaves: Cell<u32>,
    }

    fn count(cell: &Cell<u32>) {
        cell.set(cell.get() + 1);
    }

    /// Operations that a campaign never calls.
    macro_rules! unused {
        ($($name:ident($($argument:ty),*) -> $output:ty;)*) => {
            $( async fn $name(&self, $(_: $argument),*) -> Result<$output, CoordError> {
                unreachable!("a campaign does not ask for it")
            } )*
        };
    }

    impl Coordinator for Slow {
        async fn join(&self, member: MemberId, _: &[u8]) -> Result<Membership, CoordError> {
            count(&self.joins);
            let joined = Joined { incarnation: 1, epoch: 1, failure_timeout_ms: 100 };
            Ok(Membership::joined(member, joined, self.now()))
        }

        async fn heartbeat(&self, _: &Membership) -> Result<Heartbeat, CoordError> {
            Ok(Heartbeat::heard(1, true, 100, self.now()))
        }

        async fn leave(&self, _: &Membership) -> Result<(), CoordError> {
            count(&self.leaves);
            Ok(())
        }

        async fn acquire(&self, _: &Membership, name: &str, ttl: Duration) -> Result<Lease, CoordError> {
            count(&self.grants);
            let sent_at = self.now();
            self.now.set(sent_at + self.grant_ms * MILLISECOND);
            if self.is_held {
                return Err(CoordError::Held { name: name.into(), holder: 8, token: 1 });
            }
            Ok(Lease::granted(name, self.grants.get().into(), millis(ttl), sent_at))
        }

        unused! {
            forget(MemberId) -> ();
            members() -> Members;
            epochs(u64) -> Epochs;
            cut_epochs(u64) -> ();
            renew(&mut Lease) -> ();
            release(&Lease) -> ();
            holder(&str) -> Option<Holder>;
            leases(Option<&str>) -> Leases;
            get(&str) -> Option<Entry>;
            transact(&Transaction) -> Revision;
            view(&str) -> View;
            list(&str, Option<&str>) -> Listing;
            changes(&Scope, Revision) -> Changes;
        }

        fn now(&self) -> u64 {
            self.now.get()
        }

        async fn sleep_until(&self, time: u64) {
            let mut has_slept = false;
            poll_fn(|context| match std::mem::replace(&mut has_slept, true) {
                true => Poll::Ready(()),
                false => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            })
            .await;
            self.now.set(self.now().max(time));
        }
    }

    #[test]
    fn a_lease_that_is_granted_too_late_each_time_is_given_up() {
        let slow = Slow { grant_ms: 8, ..Slow::default() };
        let ttl = Duration::from_millis(10);
        let given_up = block_on(campaign(&slow, 7, "/leader", ttl)).err();
        assert_eq!(given_up, Some(CoordError::BadTtl { millis: 10 }));
        assert_eq!((slow.grants.get(), slow.joins.get(), slow.leaves.get()), (LATE_GRANTS_MAX, 1, 1));
        let pauses = u64::from(LATE_GRANTS_MAX - 1) * nanos(ask_every(ttl));
        assert!(slow.now() >= u64::from(LATE_GRANTS_MAX) * 8 * MILLISECOND + pauses, "it asks again after a pause");
        let quick = Slow { grant_ms: 7, ..Slow::default() };
        assert!(block_on(campaign(&quick, 7, "/leader", ttl)).unwrap().is_safe());
    }

    #[test]
    fn a_candidate_that_gives_up_leaves() {
        let held = Slow { grant_ms: 1, is_held: true, ..Slow::default() };
        let ttl = Duration::from_millis(10);
        for campaigns in 1..=2 {
            let deadline = held.now() + 100 * MILLISECOND;
            let given_up = block_on(campaign_until(&held, 7, "/leader", ttl, deadline)).err();
            assert_eq!(given_up, Some(CoordError::TimedOut { may_have_run: false }));
            assert_eq!((held.joins.get(), held.leaves.get()), (campaigns, campaigns));
            assert!(held.now() >= deadline);
        }
        let late = block_on(campaign_until(&held, 7, "/leader", ttl, held.now())).err();
        assert_eq!((late, held.joins.get()), (Some(CoordError::TimedOut { may_have_run: false }), 2));
    }

    #[test]
    fn who_can_hold_no_such_lease_does_not_join() {
        let slow = Slow::default();
        for (name, ttl) in [("leader", 10), ("/leader", 9), ("/leader", 3_600_001)] {
            let refused = block_on(campaign(&slow, 7, name, Duration::from_millis(ttl))).err();
            assert!(matches!(refused, Some(CoordError::BadPath { .. } | CoordError::BadTtl { .. })), "{refused:?}");
        }
        assert_eq!((slow.joins.get(), slow.grants.get()), (0, 0));
    }
}
