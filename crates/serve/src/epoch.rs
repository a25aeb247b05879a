//! Epochs in requests: a server refuses a request of another epoch, and the refusal names the server's epoch.
//!
//! The epoch of a cluster determines which server serves what. A client that chose its server in an earlier epoch may
//! send the request to a server that must not serve it any more, or that does not yet know about a change that it must
//! see. So each request begins with its client's epoch ([`stamp`]), and a server serves only requests of its own epoch
//! ([`admit`]). For any other epoch nothing runs:
//!
//! - **The request is older.** The client learns the later epoch, looks up the server again, and retries:
//!   [`EpochClient`] does that.
//! - **The server is behind.** It has not heard of the epoch yet, and another server may own its data by now. The
//!   client waits and retries. The server passes [`Refused::asked`] to `Standing::heard_of` of `dunlin-coord`, which
//!   sends its next heartbeat at once; otherwise it learns of the epoch when its next heartbeat is due.
//!
//! The server takes its epoch from its view of the cluster, and must know how long it may rely on that: `Standing` of
//! `dunlin-coord` provides both.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_net::clock::nanos;
use dunlin_rpc::msgbuf::AllocError;
use dunlin_rpc::{CallError, Endpoint, MsgBuf, Request};
use futures::future::LocalBoxFuture;

use crate::channel::{CallPolicy, Channel, Why, ran};
use crate::joint::Joint;
use crate::owned_task::OwnedTask;
use crate::waiting::until;

/// Bytes before the body of a request: the epoch, little-endian.
pub const EPOCH_BYTES: usize = 8;
/// The error code with which a request of another epoch is refused. Its message is the epoch of the server, in digits.
pub const OTHER_EPOCH: u32 = u32::from_le_bytes(*b"epoc");

/// Pauses of a client before a retry: the first, and the longest. Each is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long a call may take including its retries, unless its policy says otherwise.
const PATIENCE: Duration = Duration::from_secs(5);
/// If a call fails without an answer of a handler, and the last look-up is older than this, the next call looks up
/// anew. Neither a service that fails for its own reasons nor calls with too little time cost more look-ups than that.
const DOUBT_AFTER: Duration = Duration::from_secs(1);
/// How long a look-up may take before it begins anew, if no call that waited for it has longer. Each time it may take
/// twice as long as before, up to [`PATIENCE`].
const LOOK_UP_MIN: Duration = Duration::from_secs(1);

/// The refusal of a request whose epoch is not the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The epoch of the request; 0 if it has none.
    pub asked: u64,
    /// The epoch of the server.
    pub epoch: u64,
}

impl Refused {
    /// Whether the server has not heard of the request's epoch yet. The server must check that the epoch has begun, as
    /// any client may invent one.
    pub fn is_behind(&self) -> bool {
        self.asked > self.epoch
    }

    /// Answers the request with the epoch of the server.
    pub fn answer(&self, request: Request<'_>) {
        request.fail(OTHER_EPOCH, &self.epoch.to_string());
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refused { asked, epoch } = self;
        write!(
            f,
            "the request is of epoch {asked}, and the server is in epoch {epoch}: look up who serves now, and ask again"
        )
    }
}

impl std::error::Error for Refused {}

/// A request with this body, stamped with an epoch.
///
/// # Errors
/// If there is no memory for it.
pub fn stamp(epoch: u64, body: &[u8]) -> Result<MsgBuf, AllocError> {
    MsgBuf::written(EPOCH_BYTES + body.len(), |out| {
        let (head, rest) = out.split_at_mut(EPOCH_BYTES);
        head.copy_from_slice(&epoch.to_le_bytes());
        rest.copy_from_slice(body);
        EPOCH_BYTES + body.len()
    })
}

/// The body of a request, if the request is of this server's epoch. A handler that takes long must check again, with
/// the epoch at that time, before its effect.
///
/// # Errors
/// [`Refused`]: nothing must run. [Answer](Refused::answer) with it.
pub fn admit(epoch: u64, request: &[u8]) -> Result<&[u8], Refused> {
    let (head, body) = request.split_first_chunk().ok_or(Refused { asked: 0, epoch })?;
    match u64::from_le_bytes(*head) {
        asked if asked == epoch => Ok(body),
        asked => Err(Refused { asked, epoch }),
    }
}

/// The epoch of a server that refused a call because of its epoch; `None` if the call failed for another reason.
pub fn refusal(error: &CallError) -> Option<u64> {
    match error {
        CallError::Application(error) if error.code() == OTHER_EPOCH => error.message().parse().ok(),
        _ => None,
    }
}

/// The server of a service in an epoch.
pub struct Found<T: Transport> {
    /// The epoch.
    pub epoch: u64,
    /// The channel to the server.
    pub channel: Channel<T>,
}

impl<T: Transport> Clone for Found<T> {
    fn clone(&self) -> Self {
        Found { epoch: self.epoch, channel: self.channel.clone() }
    }
}

/// The result of a look-up.
struct Known<T: Transport> {
    place: Found<T>,
    /// When the look-up began.
    at: u64,
}

/// Why a call has no response.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{why} ({})", ran(*may_have_run))]
pub struct EpochError<E> {
    /// Why it ended.
    pub why: Cause<E>,
    /// Whether the handler may have run in any attempt, or may still run. In an attempt that was refused because of its
    /// epoch it has not run.
    pub may_have_run: bool,
}

/// Why a call ended without a response.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Cause<E> {
    /// The look-up of the server failed.
    #[error("who serves now is not known: {0}")]
    NotFound(E),
    /// The look-up did not end in time.
    #[error("who serves now was not found out before the deadline")]
    Late,
    /// The last attempt failed.
    #[error(transparent)]
    Call(Why),
    /// The server and the look-up did not agree on an epoch in time.
    #[error("the server was in epoch {server} and the cluster in epoch {cluster} until the deadline")]
    Apart {
        /// The server's epoch, as last reported.
        server: u64,
        /// The epoch of the last look-up before that.
        cluster: u64,
    },
    /// There is no memory for the request.
    #[error(transparent)]
    NoBuffer(#[from] AllocError),
}

/// What a look-up finds. `None` if it took too long, and is to begin anew.
type Looked<T, E> = Option<Result<Rc<Known<T>>, E>>;

/// A client of a service whose place depends on the epoch. It looks the service up with its first call, and again when
/// a server refuses its epoch or cannot be reached. It also looks it up again, at most once a second, when a call fails
/// otherwise without an answer of a handler: it times out, say, or there is no handler.
pub struct EpochClient<T: Transport, E> {
    endpoint: Rc<Endpoint<T>>,
    look_up: Box<dyn Fn() -> LocalBoxFuture<'static, Result<Found<T>, E>>>,
    found: Rc<RefCell<Option<Rc<Known<T>>>>>,
    looking: Joint<Looked<T, E>>,
    /// Goes on with the look-up when no call waits for it: it may hold locks that others wait for.
    going_on: RefCell<Option<OwnedTask>>,
    /// How long the look-up may take.
    look_up_max: Rc<Cell<Duration>>,
}

impl<T: Transport + 'static, E: Clone + 'static> EpochClient<T, E> {
    /// A client that finds out by `look_up` who serves, and in which epoch: both as of one moment, no earlier than when
    /// it is called. A look-up that no call waits for any more goes on as a task of the endpoint, and ends with the
    /// client. It is dropped when it takes longer than 1 s and than the calls that need it may take, and begun anew if
    /// any call waits for it. If it panics, that ends one call, and the others look up again. Both use this endpoint.
    pub fn new(
        endpoint: &Rc<Endpoint<T>>,
        look_up: impl AsyncFn() -> Result<Found<T>, E> + 'static,
    ) -> EpochClient<T, E> {
        let look_up = Rc::new(look_up);
        let look_up = move || -> LocalBoxFuture<'static, Result<Found<T>, E>> {
            let look_up = look_up.clone();
            Box::pin(async move { (*look_up)().await })
        };
        EpochClient {
            endpoint: endpoint.clone(),
            look_up: Box::new(look_up),
            found: Rc::default(),
            looking: Joint::new(),
            going_on: RefCell::default(),
            look_up_max: Rc::new(Cell::new(LOOK_UP_MIN)),
        }
    }

    /// The epoch that it goes by; `None` before its first call, and after a failure for which the next call looks up
    /// anew.
    pub fn epoch(&self) -> Option<u64> {
        self.found.borrow().as_ref().map(|found| found.place.epoch)
    }

    /// Calls the service. A call that a server refuses for its epoch is made again. All attempts and look-ups together
    /// take no longer than the policy says, or 5 s. A call that fails otherwise is not made again. Calls that need a
    /// look-up at one time share it.
    ///
    /// # Errors
    /// [`EpochError`].
    pub async fn call(&self, req_type: u8, body: &[u8], policy: CallPolicy) -> Result<MsgBuf, EpochError<E>> {
        let (now, timers) = (|| self.endpoint.now(), self.endpoint.timers());
        let deadline = now().saturating_add(nanos(policy.timeout.unwrap_or(PATIENCE)));
        let left = || Duration::from_nanos(deadline.saturating_sub(now()));
        let (mut pause, mut may_have_run, mut refused) = (PAUSE_MIN, false, None);
        loop {
            let failed = |why| EpochError { why, may_have_run };
            let found = match until(&timers, deadline, self.find(left())).await {
                Some(found) => found.map_err(|why| failed(Cause::NotFound(why)))?,
                None => return Err(failed(refused.unwrap_or(Cause::Late))),
            };
            let Found { epoch, channel } = &found.place;
            let request = stamp(*epoch, body).map_err(|why| failed(why.into()))?;
            let error = match channel.call_with(req_type, request, policy.within(left())).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            may_have_run |= error.may_have_run;
            let refusal = error.why.refusal();
            let believed = match refusal {
                // Most likely the server will have heard of it soon: all calls that wait for that look up now and then.
                Some(server) if server < *epoch => PAUSE_MAX,
                Some(_) => Duration::ZERO,
                None if error.why.is_unreached() => Duration::ZERO,
                None if matches!(error.why, Why::Call(CallError::Application(_))) => Duration::MAX,
                None => DOUBT_AFTER,
            };
            if now().saturating_sub(found.at) >= nanos(believed) {
                self.forget(&found);
            }
            let Some(server) = refusal else {
                return Err(EpochError { why: Cause::Call(error.why), may_have_run });
            };
            let apart = Cause::Apart { server, cluster: *epoch };
            if left() <= pause {
                return Err(EpochError { why: apart, may_have_run });
            }
            // After the first refusal of an older epoch, the next look-up most likely finds the later one.
            if server < *epoch || refused.replace(apart).is_some() {
                timers.sleep(pause).await;
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
    }

    /// What is known, or else what a look-up finds: one for all calls that wait for it. If none is in progress, one
    /// begins. It may take as long as this call has.
    async fn find(&self, time: Duration) -> Result<Rc<Known<T>>, E> {
        let begin = || {
            let (found, max) = (self.found.clone(), self.look_up_max.clone());
            look_for(self.endpoint.clone(), (self.look_up)(), found, max)
        };
        let begun = |look_up| drop(self.going_on.replace(Some(OwnedTask::spawn(&self.endpoint, look_up))));
        loop {
            if let Some(found) = &*self.found.borrow() {
                return Ok(found.clone());
            }
            self.look_up_max.set(self.look_up_max.get().max(time));
            if let Some(found) = self.looking.get(begin, begun).await {
                return found;
            }
        }
    }

    /// Drops the result of a look-up, unless another call has looked up again since.
    fn forget(&self, over: &Rc<Known<T>>) {
        self.found.borrow_mut().take_if(|found| Rc::ptr_eq(found, over));
    }
}

/// Looks up who serves, and notes it in `found`.
async fn look_for<T: Transport, E>(
    endpoint: Rc<Endpoint<T>>,
    mut look_up: LocalBoxFuture<'static, Result<Found<T>, E>>,
    found: Rc<RefCell<Option<Rc<Known<T>>>>>,
    max: Rc<Cell<Duration>>,
) -> Looked<T, E> {
    let at = endpoint.now();
    let end = || at.saturating_add(nanos(max.get()));
    // The time comes first: if nobody turned the endpoint for long, what it waited for has failed meanwhile.
    let mut in_time = pin!(poll_fn(|context| match endpoint.now() < end() {
        true => look_up.as_mut().poll(context).map(Some),
        false => Poll::Ready(None),
    }));
    // Calls that join it may give it more time.
    let place = loop {
        if let Some(place) = until(&endpoint.timers(), end(), in_time.as_mut()).await {
            break place;
        }
    };
    // One that is slower than all calls ends nevertheless.
    max.set(if place.is_some() { LOOK_UP_MIN } else { max.get().max(max.get().saturating_mul(2).min(PATIENCE)) });
    Some(place?.map(|place| {
        let known = Rc::new(Known { place, at });
        found.replace(Some(known.clone()));
        known
    }))
}
