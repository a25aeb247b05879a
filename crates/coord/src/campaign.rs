//! Leading: a member that holds a lease for as long as it can.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::coordinator::{Coordinator, HEARTBEAT_EVERY, attend, join_after_leases};
use crate::either::{Either, either, until};
use crate::error::CoordError;
use crate::types::{Lease, MemberId, Membership, Token};

/// A renewal is asked for so many times within the time of a lease, and so is a lease that another holds.
const ASKED_OF_TTL: u32 = 4;
/// The same for longer and shorter ones.
const ASK_EVERY_MIN: Duration = Duration::from_millis(2);
const ASK_EVERY_MAX: Duration = Duration::from_secs(1);
/// How often a leader is heard within the failure timeout.
const HEARTBEATS_OF_TIMEOUT: u32 = 5;

/// Campaigns for a lease as member `id`: joins, waits until the lease is free, and acquires it. It goes on until it has it; drop it to give up, or see
/// [`with_deadline`].
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
/// What asking again does not mend: [`CoordError::BadPath`], [`CoordError::BadTtl`], [`CoordError::Full`].
pub async fn campaign<'a, C: Coordinator>(
    coordinator: &'a C,
    id: MemberId,
    name: &str,
    ttl: Duration,
) -> Result<Leadership<'a, C>, CoordError> {
    let pause = ask_every(ttl);
    loop {
        let membership = match join_after_leases(coordinator, id, b"", pause).await {
            Ok(membership) => membership,
            Err(error) if error.is_of_the_moment() => {
                sleep(coordinator, pause).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        match campaign_as(coordinator, &membership, name, ttl).await {
            Ok(leadership) => return Ok(Leadership { ends_by: EndsBy::Leaving, ..leadership }),
            // It was taken for failed while it waited.
            Err(CoordError::NotLive { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Campaigns for a lease as a member that has joined already, under its own id and incarnation: waits until the lease is free, and acquires it. Heartbeats are
/// sent meanwhile and while it leads, so the member need not send any beside it. [`Leadership::resign`] releases the lease, and the member stays.
///
/// # Errors
/// As [`campaign`]; [`CoordError::NotLive`] if the member was taken for failed while it waited.
pub async fn campaign_as<'a, C: Coordinator>(
    coordinator: &'a C,
    membership: &Membership,
    name: &str,
    ttl: Duration,
) -> Result<Leadership<'a, C>, CoordError> {
    let elected = win(coordinator, membership, name, ttl);
    match either(elected, attend(coordinator, membership, heartbeat_every(membership), |_| ())).await {
        Either::Left(lease) => Ok(Leadership::new(coordinator, *membership, lease?)),
        Either::Right(why) => Err(why),
    }
}

/// Gives an operation up at a time of [`Coordinator::now`], with [`CoordError::TimedOut`]: a handler passes on the time that it has left.
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

/// Renews a lease for as long as it is safe, and tells of each renewal. Gives the error that says why it is lost, or `None` when its safe time is over: another may have
/// it soon.
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

/// Several heartbeats fit the failure timeout.
fn heartbeat_every(membership: &Membership) -> Duration {
    match membership.failure_timeout_ms {
        0 => HEARTBEAT_EVERY,
        told => (Duration::from_millis(told) / HEARTBEATS_OF_TIMEOUT).min(HEARTBEAT_EVERY),
    }
}

fn ask_every(ttl: Duration) -> Duration {
    (ttl / ASKED_OF_TTL).clamp(ASK_EVERY_MIN, ASK_EVERY_MAX)
}

async fn sleep<C: Coordinator>(coordinator: &C, time: Duration) {
    coordinator.sleep_until(coordinator.now().saturating_add(time.as_nanos() as u64)).await;
}

/// Asks for a lease until it is granted, and safe.
async fn win<C: Coordinator>(
    coordinator: &C,
    membership: &Membership,
    name: &str,
    ttl: Duration,
) -> Result<Lease, CoordError> {
    loop {
        match coordinator.acquire(membership, name, ttl).await {
            Ok(lease) if coordinator.now() < lease.safe_until => return Ok(lease),
            // The answer took too long: it is asked for anew.
            Ok(_) => {}
            Err(CoordError::Held { .. }) => sleep(coordinator, ask_every(ttl)).await,
            Err(error) if error.is_of_the_moment() => sleep(coordinator, ask_every(ttl)).await,
            Err(error) => return Err(error),
        }
    }
}

/// A member that leads: it holds the lease. [`Leadership::lost`] keeps it so, and must be polled beside the work.
pub struct Leadership<'a, C> {
    coordinator: &'a C,
    membership: Membership,
    lease: Lease,
    safe_until: Arc<AtomicU64>,
    ends_by: EndsBy,
}

/// What resigning is.
enum EndsBy {
    /// The member joined to lead.
    Leaving,
    /// It was one before.
    Releasing,
}

/// What the threads that do a leader's work ask first. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Mandate {
    token: Token,
    safe_until: Arc<AtomicU64>,
}

impl Mandate {
    /// Goes with everything that is done under it: see [`Lease::token`].
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether nobody else leads `now`, which is [`Coordinator::now`], or [`dunlin_net::clock::boot_nanos`] on a thread without a coordinator.
    pub fn is_safe(&self, now: u64) -> bool {
        now < self.safe_until.load(Ordering::Acquire)
    }
}

impl<'a, C: Coordinator> Leadership<'a, C> {
    fn new(coordinator: &'a C, membership: Membership, lease: Lease) -> Leadership<'a, C> {
        let safe_until = Arc::new(AtomicU64::new(lease.safe_until));
        Leadership { coordinator, membership, lease, safe_until, ends_by: EndsBy::Releasing }
    }

    /// The fencing token: above that of every leader before.
    pub fn token(&self) -> Token {
        self.lease.token
    }

    /// The lease, for [`Transaction::if_lease`](crate::Transaction::if_lease).
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The member that leads.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Whether nobody else leads now.
    pub fn is_safe(&self) -> bool {
        self.coordinator.now() < self.lease.safe_until
    }

    /// For other threads.
    pub fn mandate(&self) -> Mandate {
        Mandate { token: self.token(), safe_until: self.safe_until.clone() }
    }

    /// Sends heartbeats and renews the lease until it is lost: then what rests on it stops. It is lost before another can have it. Gives the error that says
    /// why; none if the cluster manager was not reached for too long. Dropping the future and asking again goes on.
    pub async fn lost(&mut self) -> Option<CoordError> {
        let Leadership { coordinator, membership, lease, safe_until, .. } = self;
        let kept = keep(*coordinator, lease, |lease| safe_until.store(lease.safe_until, Ordering::Release));
        let lost = match either(kept, attend(*coordinator, membership, heartbeat_every(membership), |_| ())).await {
            Either::Left(why) => why,
            Either::Right(why) => Some(why),
        };
        self.end();
        lost
    }

    /// Works for as long as it leads. `None` if that ended first: the work was dropped where it waited. The clock is read each time before the work goes on, since
    /// this process may have stood still.
    pub async fn while_safe<F: Future>(&mut self, work: F) -> Option<F::Output> {
        let (coordinator, safe_until) = (self.coordinator, self.safe_until.clone());
        let mut work = pin!(work);
        let work = poll_fn(|context| match coordinator.now() < safe_until.load(Ordering::Acquire) {
            true => work.as_mut().poll(context),
            // What it waits for ends at once: a time that is over.
            false => Poll::Pending,
        });
        match either(self.lost(), work).await {
            Either::Left(_) => None,
            Either::Right(output) => Some(output),
        }
    }

    /// Leads no more, and the next may at once. Stop what rests on the lease first. A member that joined by [`campaign`] leaves; one of [`campaign_as`] stays, and
    /// releases the lease.
    ///
    /// # Errors
    /// As [`Coordinator::leave`] or [`Coordinator::release`]; the lease then ends with its time.
    pub async fn resign(mut self) -> Result<(), CoordError> {
        self.end();
        match self.ends_by {
            EndsBy::Leaving => self.coordinator.leave(&self.membership).await,
            EndsBy::Releasing => self.coordinator.release(&self.lease).await,
        }
    }

    fn end(&mut self) {
        self.lease.safe_until = 0;
        self.safe_until.store(0, Ordering::Release);
    }
}
