//! Errors of sessions and calls.

use dunlin_net::{Addr, NetError};

use crate::config::ConfigError;
use crate::msgbuf::AllocError;
use crate::payload::Payload;
use crate::wire::control::RefuseReason;
use crate::wire::failure::Failure;

/// Why an endpoint could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The transport's packets are too small for the protocol.
    #[error("the transport carries packets of {mtu} bytes, at least {min} are needed")]
    MtuTooSmall {
        /// The transport's MTU.
        mtu: usize,
        /// The MTU needed.
        min: usize,
    },
    /// The receive queue is shorter than the credits of a single session.
    #[error("the receive queue holds {queue} packets, one session needs {needed}: lower credits or lengthen the queue")]
    QueueTooShort {
        /// Length of the queue.
        queue: usize,
        /// Credits of one session.
        needed: usize,
    },
    /// The operating system returned no random numbers.
    #[error("no random numbers from the operating system: {0}")]
    Random(String),
}

/// Why a session did not open.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address cannot be reached, or nobody listens there.
    #[error("cannot connect to {addr}: {why}")]
    Unreachable {
        /// The address.
        addr: Addr,
        /// The transport's error.
        why: String,
    },
    /// The server did not answer.
    #[error("{addr} did not answer: check that the server runs its event loop")]
    TimedOut {
        /// The address.
        addr: Addr,
    },
    /// The server refused the session.
    #[error("{addr} refused the session: {}", refusal(*.reason))]
    Refused {
        /// The address.
        addr: Addr,
        /// Why.
        reason: RefuseReason,
    },
    /// This endpoint has as many sessions as it allows.
    #[error("this endpoint already has {sessions} sessions: close some, or raise sessions_max")]
    TooManySessions {
        /// Present number of sessions.
        sessions: u32,
    },
    /// This endpoint's receive queue has no room for the credits of another session.
    #[error(
        "the receive queue of {queue} packets has {reserved} reserved for credits, and another session needs {needed}: lengthen the queue or lower credits"
    )]
    NoCredits {
        /// Length of the queue.
        queue: usize,
        /// Credits of the existing sessions.
        reserved: usize,
        /// Credits of the new one.
        needed: usize,
    },
    /// The endpoint was shut down in the meantime.
    #[error("the endpoint was shut down")]
    ShutDown,
}

fn refusal(reason: RefuseReason) -> &'static str {
    match reason {
        RefuseReason::Version => "it speaks another version of the protocol",
        RefuseReason::NoCredits => {
            "its receive queue has no room for more credits; lower credits or lengthen its queue"
        }
        RefuseReason::TooManySessions => "it has as many sessions as it allows",
        RefuseReason::Settings => "packet size, slots or credits cannot be agreed on",
        RefuseReason::ShuttingDown => "it is shutting down",
        RefuseReason::PeerSessions => "this endpoint's host has as many sessions with it as it allows one host",
        RefuseReason::PeerCredits => "this endpoint's host holds as much of its receive queue as it allows one host",
    }
}

impl ConnectError {
    pub(crate) fn unreachable(addr: &Addr, error: &NetError) -> Self {
        match error {
            // These errors name the address, with which the message begins already.
            NetError::NotFound { .. } => ConnectError::nobody_listens(addr),
            NetError::WrongKind { transport, .. } => {
                ConnectError::Unreachable { addr: addr.clone(), why: format!("it cannot be reached over {transport}") }
            }
            other => ConnectError::Unreachable { addr: addr.clone(), why: other.to_string() },
        }
    }

    pub(crate) fn nobody_listens(addr: &Addr) -> Self {
        let why = "nobody listens there; start the server first, or check the address".into();
        ConnectError::Unreachable { addr: addr.clone(), why }
    }
}

/// An error of the application: a handler's answer in place of a response, which its caller then gets.
///
/// Asynchronous and worker-mode handlers return it ([`crate::IntoResponse`]), also boxed as one of several errors; the
/// others have methods for it ([`crate::Request::fail`]). Codes are the application's own. The caller gets at most
/// 1,024 bytes of the message, and no more than fits one packet of its session: 220 bytes if packets are as short as
/// possible. The rest is cut off at a character boundary.
///
/// ```
/// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
/// # use dunlin_rpc::{ApplicationError, CallError, Endpoint, EndpointConfig, OwnedRequest};
/// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
/// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
/// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
/// const NO_SUCH_BIRD: u32 = 404;
///
/// server.register_async(7, |request: OwnedRequest| async move {
///     match request.payload() {
///         b"dunlin" => Ok(b"Calidris alpina".to_vec()),
///         _ => Err(ApplicationError::new(NO_SUCH_BIRD, "no bird has this name")),
///     }
/// })?;
/// let work = async {
///     let session = client.connect(&Addr::Node(1)).await?;
///     let failure = session.call(7, b"dodo".to_vec()).await.unwrap_err();
///     let CallError::Application(error) = failure.error else { panic!("{failure}") };
///     assert_eq!((error.code(), error.message()), (NO_SUCH_BIRD, "no bird has this name"));
/// #     Ok::<(), Box<dyn std::error::Error>>(())
/// };
/// # // One thread drives both endpoints.
/// # let mut work = Box::pin(work);
/// # loop {
/// #     server.run_once();
/// #     if let Some(done) = client.poll_once(work.as_mut()) {
/// #         break done?;
/// #     }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{} (code {})", .0.message, .0.code)]
pub struct ApplicationError(Box<CodeAndMessage>);

/// Behind a pointer, so that results of calls stay as small as without it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CodeAndMessage {
    code: u32,
    message: String,
}

impl ApplicationError {
    /// An error with the application's code and message.
    pub fn new(code: u32, message: impl Into<String>) -> ApplicationError {
        ApplicationError(Box::new(CodeAndMessage { code, message: message.into() }))
    }

    /// Its code.
    pub fn code(&self) -> u32 {
        self.0.code
    }

    /// Its message.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl From<Failure<'_>> for ApplicationError {
    fn from(failure: Failure<'_>) -> ApplicationError {
        ApplicationError::new(failure.code, failure.message)
    }
}

/// Why a call has no response. Each call ends exactly once: with a response or with one of these.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The deadline passed. The handler may have run, may still run, or may never run.
    #[error("the deadline passed before the response came; the handler may or may not have run")]
    DeadlineExceeded,
    /// The session's queue of waiting calls is full. Nothing was sent.
    #[error("too many calls wait on this session: await some responses before issuing more")]
    QueueFull,
    /// The server is overloaded and pushed the request back before its handler started: workers are busy, or limits are
    /// reached. Nothing ran; retry later.
    #[error("the server is overloaded; nothing ran, try again later")]
    Busy,
    /// The server is shutting down and pushed the request back before its handler started. Nothing ran; retry at
    /// another server, or when this one is back.
    #[error("the server is shutting down; nothing ran, try another one, or this one later")]
    ShuttingDown,
    /// The handler ran and answered with an error of the application.
    #[error("the server answered with an error: {0}")]
    Application(ApplicationError),
    /// The handler started, and had no room to keep the request for later ([`crate::Request::defer`]). It may have run
    /// in part.
    #[error(
        "the server had no room to keep the request; its handler may have run in part, try again later if that does no harm"
    )]
    Overloaded,
    /// The server has no handler for the request type. Nothing ran.
    #[error("the server has no handler for this request type")]
    NoHandler,
    /// The handler failed, ended without a response, or panicked. It ran, at least in part.
    #[error("the handler failed or ended without a response")]
    HandlerFailed,
    /// The request exceeds what the session allows. Nothing was sent.
    #[error("the request exceeds the session's largest message")]
    RequestTooLarge,
    /// The response exceeds what the session allows, or the server had no buffer for it. The handler ran.
    #[error("the response exceeds the session's largest message, or its server has no memory for it")]
    ResponseTooLarge,
    /// The response came, but message buffers here are at their limit ([`crate::msgbuf::set_limit_bytes`]). The handler
    /// ran.
    #[error("there is no message buffer for the response here: give buffers back, or raise their limit")]
    NoBuffer,
    /// The peer's process died, or its address refuses packets and the peer does not answer. The handler may have run.
    #[error("the peer died; the handler may or may not have run")]
    PeerDied,
    /// The peer was silent for too long. The handler may have run.
    #[error("the peer is silent; the handler may or may not have run")]
    PeerSilent,
    /// The peer lives, but nothing answered this call however often it was sent
    /// ([`crate::EndpointConfig::retransmissions_max`]): something on the path drops its packets, or the peer has no
    /// memory for them. The handler may have run.
    #[error(
        "the peer lives, but nothing answered this call however often it was sent: check that the path carries packets of 1,200 bytes and that the server has memory for messages; the handler may or may not have run"
    )]
    Unanswered,
    /// The peer was restarted or forgot the session. The handler may have run.
    #[error("the peer was restarted or forgot this session; the handler may or may not have run")]
    PeerReset,
    /// The session was closed by either side.
    #[error("the session is closed")]
    Closed,
    /// The session granted no credits for calls in this direction. Nothing was sent.
    #[error("the opener of this session granted no reverse_credits, so its server cannot call it")]
    NoReverseCredits,
}

impl CallError {
    /// Whether the handler may have run, completely or in part. If not, nothing happened at the server, and nothing
    /// will: the call may be repeated, here or elsewhere, whatever it does.
    ///
    /// ```
    /// use dunlin_rpc::CallError;
    ///
    /// assert!(!CallError::Busy.may_have_run());
    /// assert!(CallError::DeadlineExceeded.may_have_run());
    /// ```
    pub fn may_have_run(&self) -> bool {
        match self {
            CallError::QueueFull
            | CallError::Busy
            | CallError::ShuttingDown
            | CallError::NoHandler
            | CallError::RequestTooLarge
            | CallError::NoReverseCredits => false,
            CallError::DeadlineExceeded
            | CallError::Overloaded
            | CallError::HandlerFailed
            | CallError::Application(_)
            | CallError::ResponseTooLarge
            | CallError::NoBuffer
            | CallError::PeerDied
            | CallError::PeerSilent
            | CallError::Unanswered
            | CallError::PeerReset
            | CallError::Closed => true,
        }
    }
}

/// A call that ended without a response, with the request's buffer.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CallFailure<B = Payload> {
    /// The error. Not the source of this one, which displays the same.
    pub error: CallError,
    /// The request's buffer.
    pub request: B,
}

/// Why a handler could not be registered, or a request type could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("request type {req_type} already has a handler")]
pub struct RegisterError {
    /// The request type.
    pub req_type: u8,
}

/// A request cannot be kept for later. The handler must still answer it: with a response, or by pushing it back if
/// nothing was done for it. If it does not, the caller gets [`CallError::Overloaded`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "too many requests are held already, or there is no buffer for this one; raise deferred_requests_max, or answer it at once"
)]
pub struct CannotDefer;

/// Why a response could not be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RespondError {
    /// The caller gave up, or its session ended, so it no longer waits for this response.
    #[error("nobody waits for this response any more")]
    Orphaned,
    /// The response exceeds what the session allows; the caller gets an error.
    #[error("a response of {len} bytes exceeds the session's limit of {max}")]
    TooLarge {
        /// Its bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The caller's host makes this endpoint, or all of its process, hold as much as its share of
    /// [`crate::EndpointConfig::held_bytes_max`] allows; the caller gets an error.
    #[error(
        "a response of {len} bytes exceeds what its caller's host may make this endpoint hold: raise held_bytes_max or msgbuf::set_limit_bytes"
    )]
    OverShare {
        /// Its bytes.
        len: usize,
    },
    /// No buffer for it; the caller gets an error.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}
