//! Channels: how a client reaches a service that may be restarted, busy, or elsewhere.
//!
//! | File | What it holds |
//! |---|---|
//! | `connection` | one attempt at a time to connect, shared by all waiting calls |
//! | `pool` | sessions with one server |
//! | `retry` | when a call is retried |

pub mod connection;
mod pool;
mod retry;

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dunlin_net::clock::nanos;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Call, CallError, CallFailure, CallOptions, ConnectError, Endpoint, MsgBuf, Payload, Session, Timers};
use thiserror::Error;

use self::connection::{Connected, Connection};
pub use self::pool::SLOTS;
use self::pool::{Place, Pool};
use self::retry::Budget;
pub use self::retry::Retry;
use crate::epoch::refusal;
use crate::joint::Joint;
use crate::waiting::until;

/// Sessions on an endpoint that was not turned are not trusted for longer than this, in nanoseconds: less than the
/// shortest time after which a server with default settings gives up a client,
/// [`dunlin_rpc::EndpointConfig::peer_timeout`], and so long that opening a new session costs little beside it.
pub const UNUSED_NANOS_MAX: u64 = 200_000_000;

/// How often the use of sessions is noted while there are calls on them.
const NOTE_USE_EVERY: Duration = Duration::from_nanos(UNUSED_NANOS_MAX / 2);

/// Least time that each address has to answer: some retransmissions of a lost handshake. A call with less time does not
/// reach the next address. The calls that wait with it do, or else the call after it begins there.
const CONNECT_MIN: Duration = Duration::from_millis(100);

/// When the endpoint of a channel is turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Turning {
    /// Only while calls are in progress, as [`Endpoint::block_on`] does. After a pause, sessions are reopened before
    /// anything is sent.
    #[default]
    DuringCalls,
    /// All the time, as in a server. Sessions are trusted until they are known to be over.
    Always,
}

/// Whether a call may run twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Repeat {
    /// Retry only if nothing ran.
    #[default]
    IfNothingRan,
    /// Running it twice does no harm: retry even if it may have run.
    Always,
}

/// Settings of a channel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChannelConfig {
    /// Sessions with the server, each with up to 8 calls in flight ([`SLOTS`]); they are opened when calls need them.
    /// Default 4.
    pub sessions_max: usize,
    /// How long a call may take, all attempts together; the handler is told how much is left. Default 2 s; `None` for
    /// as long as the server lives.
    pub timeout: Option<Duration>,
    /// When calls are retried.
    pub retry: Retry,
    /// When the endpoint is turned.
    pub turning: Turning,
    /// Seed of the random pauses. By default from the clock; set one to make runs repeatable.
    pub seed: Option<u64>,
}

impl Default for ChannelConfig {
    fn default() -> Self {
        let timeout = Some(Duration::from_secs(2));
        ChannelConfig { sessions_max: 4, timeout, retry: Retry::default(), turning: Turning::default(), seed: None }
    }
}

/// Options of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallPolicy {
    /// How long it may take; `None` for the channel's setting. A handler that calls others has to pass on its remaining
    /// time itself.
    pub timeout: Option<Duration>,
    /// Whether it may run twice.
    pub repeat: Repeat,
}

impl CallPolicy {
    /// For calls that may run twice without harm, such as reads.
    pub fn repeatable() -> CallPolicy {
        CallPolicy { repeat: Repeat::Always, ..CallPolicy::default() }
    }

    /// The same with another timeout.
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
    /// All sessions ended before anything was sent.
    #[error("the sessions are over")]
    Lost,
    /// The time was up before an attempt could begin.
    #[error("the deadline passed")]
    Late,
    /// The channel has no address.
    #[error("the channel has no address: give one or more")]
    NoAddress,
}

/// Why a call has no response.
#[derive(Debug, Clone, Error)]
#[error("{why} (attempts: {attempts}; {})", ran(*may_have_run))]
pub struct ChannelError {
    /// Why the last attempt failed.
    pub why: Why,
    /// Number of attempts.
    pub attempts: u32,
    /// Whether the handler may have run in any attempt, or may still run.
    pub may_have_run: bool,
}

/// The part of an error message about what ran.
pub(crate) fn ran(may_have_run: bool) -> &'static str {
    if may_have_run { "it may have run" } else { "nothing ran" }
}

/// A handle to a service at one or more addresses, all of which provide the same. It connects with its first call,
/// reconnects when the service was restarted, and switches to the next address when one does not answer or shuts down.
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
    /// The address to try first.
    first: Cell<usize>,
    connection: Connection<Pool, ConnectError>,
    /// The attempt to connect, with the time of the call that began it: it goes on for those that have longer.
    connecting: Joint<Result<Rc<Pool>, ConnectError>>,
    config: ChannelConfig,
    budget: Budget,
    /// Whether a task is noting the use of sessions.
    is_noting_use: Cell<bool>,
}

/// A failed attempt, with its request.
struct Failed {
    why: Why,
    request: Payload,
}

/// A call that was begun: the future of its response. Dropping it cancels the call.
#[must_use = "dropping a call cancels it"]
pub struct Begun<T: Transport + 'static>(Begin<T>);

enum Begin<T: Transport + 'static> {
    /// It is on a session.
    Sent(Sent<T>),
    /// It waits for a session, or for another attempt.
    Waiting(Waiting),
}

type Waiting = Pin<Box<dyn Future<Output = Result<MsgBuf, ChannelError>>>>;

struct Sent<T: Transport> {
    channel: Channel<T>,
    req_type: u8,
    pool: Rc<Pool>,
    /// Reserved for the call while this lives.
    _place: Place,
    call: Call<Payload>,
}

impl<T: Transport + 'static> Future for Begun<T> {
    type Output = Result<MsgBuf, ChannelError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Begin::Sent(sent) = &mut self.0 {
            let failure = match ready!(Pin::new(&mut sent.call).poll(context)) {
                Ok(reply) => {
                    sent.channel.0.budget.refund();
                    return Poll::Ready(Ok(reply.response));
                }
                Err(failure) => failure,
            };
            let (channel, req_type) = (sent.channel.clone(), sent.req_type);
            let failed = channel.0.failed(&sent.pool, failure);
            self.0 = Begin::Waiting(Box::pin(async move {
                channel.try_again(req_type, failed, None, Repeat::IfNothingRan).await
            }));
        }
        match &mut self.0 {
            Begin::Waiting(waiting) => waiting.as_mut().poll(context),
            Begin::Sent(_) => Poll::Pending,
        }
    }
}

impl<T: Transport + 'static> Channel<T> {
    /// Creates a channel, which connects with its first call.
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
            connecting: Joint::new(),
            config,
            budget: Budget::new(config.retry, config.seed.unwrap_or_else(|| endpoint.now())),
            is_noting_use: Cell::new(false),
        }))
    }

    /// Calls the service, with the settings of the channel. The call is retried only if nothing ran. Dropping the
    /// future cancels the call.
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
        let inner = &self.0;
        let timeout = policy.timeout.or(inner.config.timeout);
        let deadline = timeout.map(|time| inner.endpoint.now().saturating_add(nanos(time)));
        match inner.attempt(req_type, request.into(), deadline).await {
            Ok(response) => Ok(response),
            Err(failed) => self.try_again(req_type, failed, deadline, policy.repeat).await,
        }
    }

    /// Begins a call at once, whether or not its future is polled, if a session is open and the channel has no timeout;
    /// else as [`Channel::call`]. So several calls leave together.
    pub fn begin(&self, req_type: u8, request: impl Into<Payload>) -> Begun<T> {
        let (inner, request) = (&self.0, request.into());
        let channel = self.clone();
        let now = match inner.config.turning {
            // No session is too old.
            Turning::Always => inner.endpoint.loop_time(),
            Turning::DuringCalls => inner.endpoint.now(),
        };
        if inner.config.timeout.is_none()
            && let Some(pool) = inner.connection.current(now)
            && let Some(place) = pool.place(&inner.endpoint)
        {
            inner.note_use();
            let call = place.session.call(req_type, request);
            return Begun(Begin::Sent(Sent { channel, req_type, pool, _place: place, call }));
        }
        Begun(Begin::Waiting(Box::pin(async move { channel.call(req_type, request).await })))
    }

    /// Goes on after a first attempt has failed.
    async fn try_again(
        &self,
        req_type: u8,
        mut failed: Failed,
        deadline: Option<u64>,
        repeat: Repeat,
    ) -> Result<MsgBuf, ChannelError> {
        let (inner, mut attempts, mut may_have_run) = (&self.0, 1, false);
        loop {
            may_have_run |= failed.why.may_have_run();
            let error = |why| ChannelError { why, attempts, may_have_run };
            if !failed.why.may_be_repeated(repeat) {
                return Err(error(failed.why));
            }
            let left = inner.time_left(deadline);
            let Some(pause) = inner.budget.spend(attempts, left) else { return Err(error(failed.why)) };
            tracing::debug!(req_type, attempts, why = %failed.why, ?pause, "a call is tried again");
            inner.endpoint.timers().sleep(pause).await;
            attempts += 1;
            failed = match inner.attempt(req_type, failed.request, deadline).await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
        }
    }

    /// Timers of its endpoint, for sleeping.
    pub fn timers(&self) -> Timers {
        self.0.endpoint.timers()
    }

    /// How many sessions are open now.
    pub fn sessions(&self) -> usize {
        self.0.connection.peek(self.0.endpoint.now()).map_or(0, |pool| pool.sessions())
    }

    /// Closes the sessions; a later call opens them again. Calls in progress fail, except those at a server that is
    /// shutting down and that the channel has left.
    pub fn close(&self) {
        self.0.connection.forget();
    }
}

impl<T: Transport + 'static> Inner<T> {
    async fn attempt(self: &Rc<Self>, req_type: u8, request: Payload, deadline: Option<u64>) -> Result<MsgBuf, Failed> {
        let (pool, place) = match self.place(deadline).await {
            Ok(place) => place,
            Err(why) => return Err(Failed { why, request }),
        };
        let options = match self.time_left(deadline) {
            Some(left) if left.is_zero() => return Err(Failed { why: Why::Late, request }),
            Some(left) => CallOptions::timeout(left),
            None => CallOptions::default(),
        };
        self.note_use();
        match place.session.call_with(req_type, request, options).await {
            Ok(reply) => {
                self.budget.refund();
                Ok(reply.response)
            }
            Err(failure) => Err(self.failed(&pool, failure)),
        }
    }

    /// Leaves sessions that are over.
    fn failed(&self, pool: &Rc<Pool>, failure: CallFailure) -> Failed {
        match failure.error {
            CallError::ShuttingDown => self.leave(pool),
            // The server does not know the session. If it gave up the client, it knows none of the pool, but reports
            // one at a time.
            CallError::PeerReset => _ = self.connection.detach(pool),
            // If the whole server is gone, its other sessions are over too, and the next call finds none.
            _ => {}
        }
        if is_session_over(&failure.error) {
            tracing::debug!(why = %failure.error, "a session with a service is over");
        }
        Failed { why: Why::Call(failure.error), request: failure.request }
    }

    /// Notes repeatedly that the sessions are in use, while there are calls on them, because the endpoint is turned
    /// then. If the endpoint stands still, nothing is noted.
    fn note_use(self: &Rc<Self>) {
        if self.config.turning == Turning::Always || self.is_noting_use.replace(true) {
            return;
        }
        let (channel, timers) = (Rc::downgrade(self), self.endpoint.timers());
        self.endpoint.spawn(async move {
            loop {
                timers.sleep(NOTE_USE_EVERY).await;
                let Some(channel) = channel.upgrade() else { return };
                if !channel.connection.current(channel.endpoint.now()).is_some_and(|pool| pool.has_calls()) {
                    return channel.is_noting_use.set(false);
                }
            }
        });
    }

    /// Switches to the next address, since this server is draining. It still answers the calls in progress, which hold
    /// the pool; the last of them closes it.
    fn leave(&self, pool: &Rc<Pool>) {
        if self.connection.detach(pool) {
            tracing::debug!("a service shuts down; the next call connects elsewhere");
            self.first.set((self.first.get() + 1) % self.addresses.len());
        }
    }

    /// A session for a call. Sessions that are already over are replaced: nothing was sent on them.
    async fn place(self: &Rc<Self>, deadline: Option<u64>) -> Result<(Rc<Pool>, Place), Why> {
        for _ in 0..2 {
            let pool = match self.connection.current(self.endpoint.now()) {
                Some(pool) => pool,
                // Boxed, so that the future of a call is small: most calls find a session.
                None => Box::pin(self.pool(deadline)).await?,
            };
            if let Some(place) = pool.place(&self.endpoint) {
                return Ok((pool, place));
            }
            self.connection.lost(&pool);
        }
        Err(Why::Lost)
    }

    async fn pool(self: &Rc<Self>, deadline: Option<u64>) -> Result<Rc<Pool>, Why> {
        if self.addresses.is_empty() {
            return Err(Why::NoAddress);
        }
        let connecting = self.connecting.get(|| self.clone().reconnect(deadline), drop);
        let Some(deadline) = deadline else { return Ok(connecting.await?) };
        let connected = until(&self.endpoint.timers(), deadline, connecting).await;
        connected.ok_or(Why::Late)?.map_err(Why::from)
    }

    async fn reconnect(self: Rc<Self>, deadline: Option<u64>) -> Result<Rc<Pool>, ConnectError> {
        let open = async |unused: Option<Rc<Pool>>| {
            // Calls in progress on it end in their own way.
            if let Some(unused) = unused.filter(|unused| !unused.has_calls()) {
                unused.close();
            }
            self.connect(deadline).await
        };
        self.connection.get(|| self.endpoint.now(), open).await
    }

    /// Opens a session with the first address that answers, beginning with the last one that did. Each address gets its
    /// share of the remaining time.
    async fn connect(&self, deadline: Option<u64>) -> Result<Rc<Pool>, ConnectError> {
        let mut error = None;
        for left in (1..=self.addresses.len() as u32).rev() {
            let place = self.first.get();
            // An attempt that is dropped half-way counts as failed, too.
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

    /// Opens a session within the endpoint's own time limit, or within `limit` if that is shorter.
    async fn open(&self, addr: &Addr, limit: Option<Duration>) -> Result<Session, ConnectError> {
        let Some(limit) = limit else { return self.endpoint.connect(addr).await };
        // Outside of a turn, as in a foreign event loop, the timers do not know the time.
        let end = self.endpoint.now().saturating_add(nanos(limit));
        let opened = until(&self.endpoint.timers(), end, self.endpoint.connect(addr)).await;
        opened.unwrap_or_else(|| Err(ConnectError::TimedOut { addr: addr.clone() }))
    }

    fn time_left(&self, deadline: Option<u64>) -> Option<Duration> {
        deadline.map(|deadline| Duration::from_nanos(deadline.saturating_sub(self.endpoint.now())))
    }
}

impl Why {
    /// The epoch of a server that refused the attempt because of its epoch: the handler did nothing.
    pub(crate) fn refusal(&self) -> Option<u64> {
        match self {
            Why::Call(error) => refusal(error),
            _ => None,
        }
    }

    /// Whether the server was not reached, or is shutting down: another may serve by now. If the time was up, the call
    /// may just have had too little.
    pub(crate) fn is_unreached(&self) -> bool {
        match self {
            Why::Call(error) => is_session_over(error) || matches!(error, CallError::ShuttingDown),
            Why::Connect(_) | Why::Lost | Why::NoAddress => true,
            Why::Late => false,
        }
    }

    fn may_have_run(&self) -> bool {
        match self {
            Why::Call(error) => self.refusal().is_none() && error.may_have_run(),
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;

    use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
    use dunlin_rpc::{DeferredRequest, EndpointConfig};
    use futures::future::join_all;

    use super::*;

    const KEEP: u8 = 2;

    #[test]
    fn calls_that_were_begun_leave_together() {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let endpoint =
            |node| Rc::new(Endpoint::new(network.endpoint(node).unwrap(), EndpointConfig::default()).unwrap());
        let (server, client) = (endpoint(1), endpoint(2));
        let handled = Rc::<Cell<u32>>::default();
        let counting = handled.clone();
        let echo = move |request: dunlin_rpc::Request<'_>| {
            counting.set(counting.get() + 1);
            let payload = request.payload();
            request.respond(payload);
        };
        server.register(KEEP, echo).unwrap();
        let config = ChannelConfig { timeout: None, seed: Some(1), ..ChannelConfig::default() };
        let channel = Channel::new(&client, vec![Addr::Node(1)], config);
        let work = async {
            // There is no session yet, so the first call waits for one.
            assert_eq!(channel.begin(KEEP, vec![1]).await.unwrap()[..], [1]);
            let (first, second) = (channel.begin(KEEP, vec![2]), channel.begin(KEEP, vec![3]));
            client.timers().sleep(Duration::from_millis(1)).await;
            assert_eq!(handled.get(), 3, "nobody has polled them");
            assert_eq!(second.await.unwrap()[..], [3]);
            assert_eq!(first.await.unwrap()[..], [2]);
            // A call whose session is over before it is answered ends with an error.
            let last = channel.begin(KEEP, vec![4]);
            channel.close();
            assert!(matches!(last.await.unwrap_err().why, Why::Call(CallError::Closed)));
            assert_eq!(channel.begin(KEEP, vec![5]).await.unwrap()[..], [5]);
        };
        let mut work = pin!(work);
        while client.poll_once(work.as_mut()).is_none() {
            network.advance(Duration::from_micros(10));
            server.run_once();
        }
    }

    #[test]
    fn a_session_that_is_lost_leaves_the_calls_on_others_alone() {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let endpoint =
            |node| Rc::new(Endpoint::new(network.endpoint(node).unwrap(), EndpointConfig::default()).unwrap());
        let (server, client) = (endpoint(1), endpoint(2));
        let kept = Rc::<RefCell<Vec<DeferredRequest>>>::default();
        let keep = kept.clone();
        server.register(KEEP, move |request| keep.borrow_mut().extend(request.defer())).unwrap();
        let config =
            ChannelConfig { sessions_max: 2, turning: Turning::Always, seed: Some(1), ..ChannelConfig::default() };
        let channel = Channel::new(&client, vec![Addr::Node(1)], config);
        let work = async {
            let pause = || client.timers().sleep(Duration::from_millis(1));
            let calls = |count| join_all((0..count).map(|_| channel.call(KEEP, vec![1])));
            let later = async {
                pause().await;
                // A second session is opened for these.
                let (results, ()) = futures::join!(calls(4), async {
                    pause().await;
                    let pool = channel.0.connection.current(client.now()).unwrap();
                    assert_eq!(pool.sessions(), 2);
                    drop(pool.first().close());
                    pause().await;
                    let kept = kept.take().into_iter();
                    kept.for_each(|request| request.enqueue_response(vec![3]).unwrap_or_default());
                });
                results
            };
            futures::join!(calls(SLOTS as usize + 1), later)
        };
        let mut work = pin!(work);
        let (first, second) = loop {
            network.advance(Duration::from_micros(10));
            server.run_once();
            if let Some(results) = client.poll_once(work.as_mut()) {
                break results;
            }
        };
        let is_lost = |result: &Result<MsgBuf, ChannelError>| match result {
            Ok(_) => false,
            Err(error) => matches!(error.why, Why::Call(CallError::Closed)),
        };
        assert!(first.iter().all(is_lost), "all were on the session that is over");
        assert!(second.iter().all(Result::is_ok), "{second:?}");
        assert_eq!(channel.sessions(), 1);
    }
}
