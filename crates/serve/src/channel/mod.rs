//! Channels: how a client reaches a service that may be restarted, busy, or elsewhere.
//!
//! | File | What it holds |
//! |---|---|
//! | `connection` | one attempt at a time to connect, shared by all who wait |
//! | `pool` | sessions with one server |
//! | `retry` | when a call is tried again |

pub mod connection;
mod pool;
mod retry;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{CallError, CallOptions, ConnectError, Endpoint, MsgBuf, Payload, Session, Timers};
use thiserror::Error;

use self::connection::{Connected, Connection};
pub use self::pool::SLOTS;
use self::pool::{Place, Pool};
use self::retry::Budget;
pub use self::retry::Retry;
use crate::waiting::within;

/// Sessions that nobody turned are not trusted longer than this, in nanoseconds: less than the shortest time after
/// which a server of default settings gives up a client, [`dunlin_rpc::EndpointConfig::peer_timeout`], and so long that
/// a new session is nothing beside it.
pub const UNUSED_NANOS_MAX: u64 = 200_000_000;

/// Least time that an address has to answer, of several: some repetitions of a lost handshake. A call with less time does
/// not get to the next address, but the call after it begins there.
const CONNECT_MIN: Duration = Duration::from_millis(100);

/// When the endpoint of a channel is turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Turning {
    /// While calls are in progress only, as [`Endpoint::block_on`] does. After a pause sessions are opened anew, before
    /// anything is sent.
    #[default]
    DuringCalls,
    /// All the time, as in a server. Sessions are trusted until they are known to be over.
    Always,
}

/// Whether a call may run twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Repeat {
    /// It is tried again only if nothing ran.
    #[default]
    IfNothingRan,
    /// It does no harm to run it twice: it is tried again also if it may have run.
    Always,
}

/// Settings of a channel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChannelConfig {
    /// Sessions with the server, each with 8 calls on the way at a time ([`SLOTS`]); they are opened when calls need
    /// them. Default 4.
    pub sessions_max: usize,
    /// How long a call may take, all attempts together; the handler is told what is left. Default 2 s; `None` for as
    /// long as the server is there.
    pub timeout: Option<Duration>,
    /// When calls are tried again.
    pub retry: Retry,
    /// When the endpoint is turned.
    pub turning: Turning,
    /// What pauses are drawn from. Default from the time; give one where runs are to be repeated.
    pub seed: Option<u64>,
}

impl Default for ChannelConfig {
    fn default() -> Self {
        let timeout = Some(Duration::from_secs(2));
        ChannelConfig { sessions_max: 4, timeout, retry: Retry::default(), turning: Turning::default(), seed: None }
    }
}

/// What one call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallPolicy {
    /// How long it may take; `None` for what the channel says. A handler passes on what it has left itself.
    pub timeout: Option<Duration>,
    /// Whether it may run twice.
    pub repeat: Repeat,
}

impl CallPolicy {
    /// For calls that do no harm if they run twice, such as reads.
    pub fn repeatable() -> CallPolicy {
        CallPolicy { repeat: Repeat::Always, ..CallPolicy::default() }
    }

    /// The same with another time.
    #[must_use]
    pub fn within(self, timeout: Duration) -> CallPolicy {
        CallPolicy { timeout: Some(timeout), ..self }
    }
}

/// Why the last attempt of a call failed.
#[derive(Debug, Clone, Error)]
pub enum Why {
    /// There is no session. Nothing was sent.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The call failed.
    #[error("{0}")]
    Call(CallError),
    /// All sessions were over before anything was sent.
    #[error("the sessions are over")]
    Lost,
    /// The time was over before an attempt could begin.
    #[error("the deadline passed")]
    Late,
    /// The channel has no address.
    #[error("the channel has no address: give one or more")]
    NoAddress,
}

/// Why a call has no response.
#[derive(Debug, Clone, Error)]
#[error("{why} (attempts: {attempts}; {})", if *may_have_run { "it may have run" } else { "nothing ran" })]
pub struct ChannelError {
    /// Why the last attempt failed.
    pub why: Why,
    /// Attempts that were made.
    pub attempts: u32,
    /// Whether the handler may have run in any attempt, or may run yet.
    pub may_have_run: bool,
}

/// A handle to a service at one or more addresses, all of which give the same. It connects with its first call,
/// connects again when the service was restarted, and turns to the next address when one does not answer or shuts down.
/// Clones share its sessions, which are closed when the last clone is dropped.
///
/// ```
/// # use std::{rc::Rc, time::Duration};
/// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
/// # use dunlin_rpc::{Endpoint, EndpointConfig};
/// use dunlin_serve::channel::{CallPolicy, Channel, ChannelConfig};
///
/// # let network = LoopbackNetwork::new(LoopbackConfig { delay: Duration::ZERO, ..Default::default() });
/// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
/// # server.register(7, |request| request.respond(b"pong"))?;
/// # let endpoint = Rc::new(Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?);
/// let channel = Channel::new(&endpoint, vec![Addr::Node(1)], ChannelConfig::default());
/// let work = async {
///     let response = channel.call(7, b"ping".to_vec()).await?;
///     assert_eq!(&response[..], b"pong");
///     let read = CallPolicy::repeatable().within(Duration::from_millis(500));
///     channel.call_with(7, b"ping".to_vec(), read).await
/// };
/// # let mut work = Box::pin(work);
/// # loop {
/// #     server.run_once();
/// #     if let Some(done) = endpoint.poll_once(work.as_mut()) {
/// #         break done?;
/// #     }
/// # };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Channel<T: Transport>(Rc<Inner<T>>);

impl<T: Transport> Clone for Channel<T> {
    fn clone(&self) -> Self {
        Channel(self.0.clone())
    }
}

struct Inner<T: Transport> {
    endpoint: Rc<Endpoint<T>>,
    addresses: Vec<Addr>,
    /// The address that is tried first.
    first: Cell<usize>,
    connection: Connection<Pool, ConnectError>,
    config: ChannelConfig,
    budget: Budget,
}

/// An attempt that failed, with the request given back.
struct Failed {
    why: Why,
    request: Payload,
}

impl<T: Transport + 'static> Channel<T> {
    /// A channel that connects with its first call.
    pub fn new(endpoint: &Rc<Endpoint<T>>, addresses: Vec<Addr>, config: ChannelConfig) -> Channel<T> {
        let unused_nanos_max = match config.turning {
            Turning::DuringCalls => UNUSED_NANOS_MAX,
            Turning::Always => u64::MAX,
        };
        Channel(Rc::new(Inner {
            endpoint: endpoint.clone(),
            addresses,
            first: Cell::new(0),
            connection: Connection::new(unused_nanos_max),
            config,
            budget: Budget::new(config.retry, config.seed.unwrap_or_else(|| endpoint.now())),
        }))
    }

    /// Calls the service, with the settings of the channel. It is tried again only if nothing ran. Dropping the future
    /// gives the call up.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn call(&self, req_type: u8, request: impl Into<Payload>) -> Result<MsgBuf, ChannelError> {
        self.call_with(req_type, request, CallPolicy::default()).await
    }

    /// [`Channel::call`] with a policy.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn call_with(
        &self,
        req_type: u8,
        request: impl Into<Payload>,
        policy: CallPolicy,
    ) -> Result<MsgBuf, ChannelError> {
        let inner = &*self.0;
        let nanos = |time: Duration| time.as_nanos().try_into().unwrap_or(u64::MAX);
        let timeout = policy.timeout.or(inner.config.timeout);
        let deadline = timeout.map(|time| inner.endpoint.now().saturating_add(nanos(time)));
        let (mut request, mut attempts, mut may_have_run) = (request.into(), 0, false);
        loop {
            attempts += 1;
            let failed = match inner.attempt(req_type, request, deadline).await {
                Ok(response) => {
                    inner.budget.refund();
                    return Ok(response);
                }
                Err(failed) => failed,
            };
            may_have_run |= failed.why.may_have_run();
            let error = |why| ChannelError { why, attempts, may_have_run };
            if !failed.why.may_be_repeated(policy.repeat) {
                return Err(error(failed.why));
            }
            let Some(pause) = inner.budget.spend(attempts) else { return Err(error(failed.why)) };
            if deadline.is_some_and(|deadline| inner.endpoint.now().saturating_add(nanos(pause)) >= deadline) {
                return Err(error(failed.why));
            }
            tracing::debug!(req_type, attempts, why = %failed.why, ?pause, "a call is tried again");
            inner.endpoint.timers().sleep(pause).await;
            request = failed.request;
        }
    }

    /// Sleeping, on its endpoint.
    pub fn timers(&self) -> Timers {
        self.0.endpoint.timers()
    }

    /// How many sessions it has now.
    pub fn sessions(&self) -> usize {
        self.0.connection.current(self.0.endpoint.now()).map_or(0, |pool| pool.sessions())
    }

    /// Closes the sessions; a later call opens them again. Calls in progress fail, except those at a server that shuts
    /// down and that the channel has left.
    pub fn close(&self) {
        self.0.connection.forget();
    }
}

impl<T: Transport + 'static> Inner<T> {
    async fn attempt(&self, req_type: u8, request: Payload, deadline: Option<u64>) -> Result<MsgBuf, Failed> {
        let (pool, place) = match self.place(deadline).await {
            Ok(place) => place,
            Err(why) => return Err(Failed { why, request }),
        };
        let options = match self.time_left(deadline) {
            Some(left) if left.is_zero() => return Err(Failed { why: Why::Late, request }),
            Some(left) => CallOptions::timeout(left),
            None => CallOptions::default(),
        };
        match place.session.call_with(req_type, request, options).await {
            Ok(reply) => Ok(reply.response),
            Err(failure) => {
                if is_session_over(&failure.error) {
                    tracing::debug!(why = %failure.error, "the sessions with a service are over");
                    self.connection.lost(&pool);
                } else if matches!(failure.error, CallError::ShuttingDown) {
                    self.leave(&pool);
                }
                Err(Failed { why: Why::Call(failure.error), request: failure.request })
            }
        }
    }

    /// Turns to the next address, since this server drains. It still answers the calls in progress, which hold the pool;
    /// the last of them closes it.
    fn leave(&self, pool: &Rc<Pool>) {
        if self.connection.detach(pool) {
            tracing::debug!("a service shuts down; the next call connects elsewhere");
            self.first.set((self.first.get() + 1) % self.addresses.len());
        }
    }

    /// A session. Sessions that are over already are opened again: nothing was sent on them.
    async fn place(&self, deadline: Option<u64>) -> Result<(Rc<Pool>, Place), Why> {
        for _ in 0..2 {
            let pool = match self.connection.current(self.endpoint.now()) {
                Some(pool) => pool,
                // Apart, so that the future of a call is small: most find a session.
                None => Box::pin(self.pool(deadline)).await?,
            };
            if let Some(place) = pool.place(&self.endpoint) {
                return Ok((pool, place));
            }
            self.connection.lost(&pool);
        }
        Err(Why::Lost)
    }

    async fn pool(&self, deadline: Option<u64>) -> Result<Rc<Pool>, Why> {
        if self.addresses.is_empty() {
            return Err(Why::NoAddress);
        }
        let connecting = self.connection.get(
            || self.endpoint.now(),
            async |unused: Option<Rc<Pool>>| {
                if let Some(unused) = unused {
                    // A call in progress turns the endpoint.
                    if unused.has_calls() {
                        return Ok(unused);
                    }
                    unused.close();
                }
                self.connect(deadline).await
            },
        );
        let Some(left) = self.time_left(deadline) else { return Ok(connecting.await?) };
        let connected = within(&self.endpoint.timers(), left, connecting).await;
        connected.ok_or(Why::Late)?.map_err(Why::from)
    }

    /// Opens a session with the first address that answers, beginning with the one that did last. Each has its share of
    /// the time that is left.
    async fn connect(&self, deadline: Option<u64>) -> Result<Rc<Pool>, ConnectError> {
        let mut error = None;
        for left in (1..=self.addresses.len() as u32).rev() {
            let place = self.first.get();
            // An attempt that is dropped half-way has failed, too.
            self.first.set((place + 1) % self.addresses.len());
            let addr = &self.addresses[place];
            let share = self.time_left(deadline).map(|time| (time / left).max(CONNECT_MIN));
            match self.open(addr, share).await {
                Ok(session) => {
                    self.first.set(place);
                    tracing::debug!(%addr, "connected to a service");
                    return Ok(Rc::new(Pool::new(addr.clone(), session, self.config.sessions_max.max(1))));
                }
                Err(why) => {
                    tracing::debug!(%addr, %why, "cannot connect to a service");
                    error = error.or(Some(why));
                }
            }
        }
        Err(error.unwrap_or(ConnectError::ShutDown))
    }

    /// Opens a session, for as long as the endpoint says, or `limit` if that is less.
    async fn open(&self, addr: &Addr, limit: Option<Duration>) -> Result<Session, ConnectError> {
        let Some(limit) = limit else { return self.endpoint.connect(addr).await };
        let opened = within(&self.endpoint.timers(), limit, self.endpoint.connect(addr)).await;
        opened.unwrap_or_else(|| Err(ConnectError::TimedOut { addr: addr.clone() }))
    }

    fn time_left(&self, deadline: Option<u64>) -> Option<Duration> {
        deadline.map(|deadline| Duration::from_nanos(deadline.saturating_sub(self.endpoint.now())))
    }
}

impl Why {
    fn may_have_run(&self) -> bool {
        match self {
            Why::Call(error) => error.may_have_run(),
            Why::Connect(_) | Why::Lost | Why::Late | Why::NoAddress => false,
        }
    }

    fn may_be_repeated(&self, repeat: Repeat) -> bool {
        match self {
            // Nothing ran, and the next attempt may find more room, or another server.
            Why::Connect(_) | Why::Lost => true,
            Why::Call(CallError::Busy | CallError::ShuttingDown | CallError::QueueFull) => true,
            Why::Call(CallError::Overloaded | CallError::Unanswered) => repeat == Repeat::Always,
            Why::Call(error) => repeat == Repeat::Always && is_session_over(error),
            Why::Late | Why::NoAddress => false,
        }
    }
}

/// Whether a call failed because its session is over.
pub fn is_session_over(error: &CallError) -> bool {
    matches!(error, CallError::PeerDied | CallError::PeerSilent | CallError::PeerReset | CallError::Closed)
}
