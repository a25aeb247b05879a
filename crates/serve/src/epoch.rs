//! Epochs in requests: a request of a configuration that is over is refused, and the refusal names the epoch of the server.
//!
//! Who serves what changes with the epoch of a cluster. A client that decided where to send a request in an earlier epoch may send it to a server that must not
//! serve it any more, or not yet know of one that it must see. So each request begins with the epoch that its client goes by ([`stamp`]), and a server
//! serves those of its own epoch only ([`admit`]). Nothing runs for any other:
//!
//! - **The request is older.** The client learns the later epoch, looks up who serves now, and asks again: [`EpochClient`] does that.
//! - **The server is behind.** It has not heard of the epoch yet, and might serve what is another's by now. The client waits and asks again. A server that is asked
//!   in a later epoch sends its next heartbeat at once.
//!
//! The server takes its epoch from whatever watches the cluster, and must know how long it may rely on that: `Standing` of `dunlin-coord` says both.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::msgbuf::AllocError;
use dunlin_rpc::{CallError, MsgBuf, Request};

use crate::channel::{CallPolicy, Channel, ChannelError, Why};

/// Bytes before the body of a request: the epoch, little-endian.
pub const EPOCH_BYTES: usize = 8;
/// The code of the error with which a request of another epoch is refused. Its message is the epoch of the server, in digits.
pub const OTHER_EPOCH: u32 = u32::from_le_bytes(*b"epoc");

/// Pauses of a client before it asks again: the first, and the longest. Each is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long a call may take with all that it is asked again, unless its policy says otherwise.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request of another epoch than the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// That of the request; 0 if it has none.
    pub asked: u64,
    /// That of the server.
    pub epoch: u64,
}

impl Refused {
    /// Whether the server has not heard of the epoch yet.
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

/// A request with this body in an epoch.
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

/// The body of a request, if it is of the epoch of this server. What takes long asks again, with the epoch of then, before it has its effect.
///
/// # Errors
/// [`Refused`]: nothing is to run. [Answer](Refused::answer) with it.
pub fn admit(epoch: u64, request: &[u8]) -> Result<&[u8], Refused> {
    let (head, body) = request.split_first_chunk().ok_or(Refused { asked: 0, epoch })?;
    match u64::from_le_bytes(*head) {
        asked if asked == epoch => Ok(body),
        asked => Err(Refused { asked, epoch }),
    }
}

/// The epoch of a server that refused a call for that; `None` if the call failed for something else.
pub fn refusal(error: &CallError) -> Option<u64> {
    match error {
        CallError::Application(error) if error.code() == OTHER_EPOCH => error.message().parse().ok(),
        _ => None,
    }
}

/// Where a service is in an epoch.
pub struct Found<T: Transport> {
    /// The epoch.
    pub epoch: u64,
    /// The way to the server.
    pub channel: Channel<T>,
}

impl<T: Transport> Clone for Found<T> {
    fn clone(&self) -> Self {
        Found { epoch: self.epoch, channel: self.channel.clone() }
    }
}

/// Why a call has no response.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EpochError<E> {
    /// It could not be found out who serves.
    #[error("who serves now is not known: {0}")]
    NotFound(E),
    /// The call failed.
    #[error(transparent)]
    Call(#[from] ChannelError),
    /// The server and the look-up did not agree on an epoch in time. Nothing ran.
    #[error("the server was in epoch {server} and the cluster in epoch {cluster} until the time was over; nothing ran")]
    Apart {
        /// That of the server, as it said last.
        server: u64,
        /// That of the last look-up.
        cluster: u64,
    },
    /// There is no memory for the request. Nothing ran.
    #[error(transparent)]
    NoBuffer(#[from] AllocError),
}

/// A client of a service whose place depends on the epoch. It looks the service up with its first call, and again when a server refuses its epoch or cannot be reached.
pub struct EpochClient<T: Transport, L> {
    look_up: L,
    found: RefCell<Option<Found<T>>>,
}

impl<T, L, E> EpochClient<T, L>
where
    T: Transport + 'static,
    L: AsyncFn() -> Result<Found<T>, E>,
{
    /// A client that finds out by `look_up` who serves, and in which epoch: both as of one moment, no earlier than when it is called.
    pub fn new(look_up: L) -> EpochClient<T, L> {
        EpochClient { look_up, found: RefCell::default() }
    }

    /// The epoch that it goes by; `None` before its first call, and after a refusal.
    pub fn epoch(&self) -> Option<u64> {
        self.found.borrow().as_ref().map(|found| found.epoch)
    }

    /// Calls the service. A call that a server refuses for its epoch is made again, in the time of the policy, or 5 s. One that fails otherwise is not; the
    /// next call looks up anew.
    ///
    /// # Errors
    /// [`EpochError`].
    pub async fn call(&self, req_type: u8, body: &[u8], policy: CallPolicy) -> Result<MsgBuf, EpochError<E>> {
        let (mut begun, mut pause, mut was_refused) = (None, PAUSE_MIN, false);
        loop {
            let found = self.find().await.map_err(EpochError::NotFound)?;
            let timers = found.channel.timers();
            let begun = *begun.get_or_insert_with(|| timers.now());
            let error = match found.channel.call_with(req_type, stamp(found.epoch, body)?, policy).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            self.forget(found.epoch);
            let Why::Call(why) = &error.why else { return Err(error.into()) };
            let Some(server) = refusal(why) else { return Err(error.into()) };
            let taken = Duration::from_nanos(timers.now().saturating_sub(begun));
            if taken + pause > policy.timeout.unwrap_or(PATIENCE) {
                return Err(EpochError::Apart { server, cluster: found.epoch });
            }
            // After the first refusal of an older epoch, the next look-up most likely finds the later one.
            if server < found.epoch || std::mem::replace(&mut was_refused, true) {
                timers.sleep(pause).await;
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
    }

    async fn find(&self) -> Result<Found<T>, E> {
        let known = self.found.borrow().clone();
        if let Some(found) = known {
            return Ok(found);
        }
        let found = (self.look_up)().await?;
        self.found.replace(Some(found.clone()));
        Ok(found)
    }

    /// What was found in an epoch is over, unless another call has found a later one.
    fn forget(&self, epoch: u64) {
        self.found.borrow_mut().take_if(|found| found.epoch <= epoch);
    }
}
