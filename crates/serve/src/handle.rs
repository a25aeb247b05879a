//! A client for programs with threads, or an event loop, of their own: one thread owns the endpoint, and handles reach
//! it from any thread.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_net::{Addr, PollPolicy, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf, Timers};
use thiserror::Error;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::blocking::block_on;
use crate::channel::{CallPolicy, Channel, ChannelConfig, ChannelError, Turning, Why};
use crate::config::ServeConfig;
use crate::error::{ServeError, StartError};
use crate::inline::Inline;
use crate::mailbox::Mailboxes;
use crate::server::Server;
use crate::service::{Core, Pace, Service, Site};
use crate::waiting::within;

/// Calls that may wait for those in progress.
pub const CALLS_WAITING_MAX: usize = 65_536;
/// How long the thread may take to end.
const END_MAX: Duration = Duration::from_secs(1);

/// Settings of a handle.
#[derive(Debug, Clone)]
pub struct HandleConfig {
    /// Settings of its channel.
    pub channel: ChannelConfig,
    /// Settings of its thread's endpoint. [`Handle::on`] does not use them: it gets an endpoint.
    pub endpoint: EndpointConfig,
    /// Calls in progress at a time; further ones wait, up to [`CALLS_WAITING_MAX`]. Default 1024.
    pub calls_max: usize,
    /// How a thread waits in [`Handle::call_blocking`]. By default awake for 150 us: longer than it takes to wake the
    /// thread of the endpoint, also on a virtual machine, so that a call costs one wake-up and not two.
    pub wait: PollPolicy,
}

impl Default for HandleConfig {
    fn default() -> Self {
        HandleConfig {
            channel: ChannelConfig::default(),
            endpoint: EndpointConfig::default(),
            calls_max: 1024,
            wait: PollPolicy::Adaptive { spin: Duration::from_micros(150) },
        }
    }
}

/// Why a call of a handle has no response.
#[derive(Debug, Clone, Error)]
pub enum HandleError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] ChannelError),
    /// The thread has ended. The call may have run.
    #[error("the thread of the endpoint has ended; the call may have run")]
    Ended,
    /// [`CALLS_WAITING_MAX`] calls are waiting already. Nothing ran.
    #[error("{CALLS_WAITING_MAX} calls wait already; call less, or raise HandleConfig::calls_max; nothing ran")]
    TooManyWaiting,
}

/// Reaches a service from any thread. Clones share a thread, its endpoint and its sessions. The thread ends when the
/// last clone is dropped; that drop waits for it.
///
/// A call crosses to the thread and back, which costs about a microsecond while both sides are awake.
/// [`EndpointConfig::poll`] says how long that thread stays awake, [`HandleConfig::wait`] how long a blocking caller
/// does. A side that sleeps is woken. A program of one thread uses a [`Channel`], which does not cross.
///
/// ```
/// # use std::sync::Arc;
/// use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf};
/// use dunlin_serve::channel::CallPolicy;
/// use dunlin_serve::handle::{Handle, HandleConfig};
/// # use dunlin_net::AnyTransport;
/// # use std::sync::atomic::{AtomicBool, Ordering};
/// # let stop = Arc::new(AtomicBool::new(false));
/// # let (told, address) = std::sync::mpsc::channel();
/// # let stopped = stop.clone();
/// # let serving = std::thread::spawn(move || {
/// #     let any = "udp://127.0.0.1:0".parse().unwrap();
/// #     let server = Endpoint::new(AnyTransport::bind(&any).unwrap(), EndpointConfig::default()).unwrap();
/// #     server.register(7, |request| request.respond(b"pong")).unwrap();
/// #     told.send(server.local_addr()).unwrap();
/// #     server.run_until(|| stopped.load(Ordering::Relaxed));
/// # });
/// # let address = address.recv()?;
///
/// let handle = Handle::start(vec![address], HandleConfig::default())?;
/// let call = |request: MsgBuf| {
///     let handle = handle.clone();
///     std::thread::spawn(move || handle.call_blocking(7, request, CallPolicy::default()))
/// };
/// let threads = [call(MsgBuf::copy_from(b"ping")?), call(MsgBuf::copy_from(b"ping")?)];
/// for thread in threads {
///     assert_eq!(&thread.join().expect("it does not panic")?[..], b"pong");
/// }
/// # drop(handle);
/// # stop.store(true, Ordering::Relaxed);
/// # serving.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Handle {
    mailboxes: Mailboxes<Letter>,
    /// Room for calls that are in progress or waiting.
    room: Arc<Semaphore>,
    timeout: Option<Duration>,
    wait: PollPolicy,
    // The last field, so that the thread ends after the others are gone.
    _owner: Arc<dyn Owner>,
}

/// Owns the part that makes the calls, until it is dropped.
trait Owner: Send + Sync {}

impl Owner for Server<Caller> {}

impl<T: Transport + 'static> Owner for Inline<T, Caller> {}

/// A call on its way to the thread.
pub struct Letter {
    req_type: u8,
    request: MsgBuf,
    policy: CallPolicy,
    /// When the caller gives up, wherever the call is at that time.
    deadline: Option<Instant>,
    answer: oneshot::Sender<Result<MsgBuf, ChannelError>>,
}

impl Handle {
    /// Starts a thread for calls to the service at these addresses, which must all be of one kind. It connects with its
    /// first call.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn start(addresses: Vec<Addr>, config: HandleConfig) -> Result<Handle, ServeError> {
        let peer = addresses.first().cloned().ok_or(ServeError::NoAddress)?;
        let caller = Caller::new(addresses, &config);
        let serving = ServeConfig {
            peer: Some(peer),
            endpoint: config.endpoint,
            patience: Duration::ZERO,
            drain_max: END_MAX,
            answer_max: END_MAX,
            ..ServeConfig::named("handle")
        };
        let server = Server::start(caller.clone(), serving).map_err(|StartError { error, .. }| error)?;
        Ok(Handle::to(server.mailboxes().clone(), &caller, config.wait, server))
    }

    /// Lets other threads call through an endpoint of this thread, which must turn it all the time; also for a server
    /// that calls another service. The calls are tasks of the endpoint. They keep it alive until the last clone is
    /// dropped and the endpoint is turned again.
    ///
    /// # Errors
    /// [`ServeError::NoAddress`].
    pub fn on<T: Transport + 'static>(
        endpoint: &Rc<Endpoint<T>>,
        addresses: Vec<Addr>,
        config: &HandleConfig,
    ) -> Result<Handle, ServeError> {
        if addresses.is_empty() {
            return Err(ServeError::NoAddress);
        }
        let caller = Caller::new(addresses, config);
        let core = Inline::start_beside(caller.clone(), endpoint)?;
        Ok(Handle::to(core.mailboxes().clone(), &caller, config.wait, core))
    }

    fn to(mailboxes: Mailboxes<Letter>, caller: &Caller, wait: PollPolicy, owner: impl Owner + 'static) -> Handle {
        let room = Arc::new(Semaphore::new(caller.calls_max + CALLS_WAITING_MAX));
        Handle { mailboxes, room, timeout: caller.channel.timeout, wait, _owner: Arc::new(owner) }
    }

    /// Calls the service, from a task of any event loop. Its time limit starts here and includes the wait for other
    /// calls. Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`HandleError`].
    pub async fn call(&self, req_type: u8, request: MsgBuf, policy: CallPolicy) -> Result<MsgBuf, HandleError> {
        let _room = self.room.try_acquire().map_err(|_| HandleError::TooManyWaiting)?;
        let deadline = policy.timeout.or(self.timeout).and_then(|time| Instant::now().checked_add(time));
        let (answer, answered) = oneshot::channel();
        let letter = Letter { req_type, request, policy, deadline, answer };
        self.mailboxes.send(0, letter).await.map_err(|_| HandleError::Ended)?;
        Ok(answered.await.map_err(|_| HandleError::Ended)??)
    }

    /// Calls the service, and blocks this thread until the response, as [`HandleConfig::wait`] says. Do not call it on
    /// the thread that turns the endpoint: it would wait for itself.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn call_blocking(&self, req_type: u8, request: MsgBuf, policy: CallPolicy) -> Result<MsgBuf, HandleError> {
        block_on(self.call(req_type, request, policy), self.wait)
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// The service behind a handle: one core, which calls another service.
struct Caller {
    addresses: Vec<Addr>,
    channel: ChannelConfig,
    calls_max: usize,
}

impl Caller {
    fn new(addresses: Vec<Addr>, config: &HandleConfig) -> Arc<Caller> {
        let channel = ChannelConfig { turning: Turning::Always, ..config.channel };
        let calls_max = config.calls_max.clamp(1, Semaphore::MAX_PERMITS - CALLS_WAITING_MAX);
        Arc::new(Caller { addresses, channel, calls_max })
    }
}

struct CallerCore<T: Transport> {
    endpoint: Rc<Endpoint<T>>,
    channel: Channel<T>,
    /// Permits for calls in progress.
    calls: Rc<Semaphore>,
}

impl<T: Transport + 'static> Service<T> for Caller {
    type Core = CallerCore<T>;
    type Ready = ();
    type Finish = ();

    fn build(&self, site: Site<T, Letter>) -> Result<(CallerCore<T>, ()), ServeError> {
        let channel = Channel::new(&site.endpoint, self.addresses.clone(), self.channel);
        let calls = Rc::new(Semaphore::new(self.calls_max));
        Ok((CallerCore { endpoint: site.endpoint, channel, calls }, ()))
    }

    fn plan(&self, _: Vec<()>) -> Result<(), ServeError> {
        Ok(())
    }
}

impl<T: Transport + 'static> Core for CallerCore<T> {
    type Letter = Letter;
    type Plan = ();
    type Error = ServeError;

    fn read(&mut self, letter: Letter) -> Pace {
        let Letter { req_type, request, policy, deadline, mut answer } = letter;
        let (channel, calls, timers) = (self.channel.clone(), self.calls.clone(), self.endpoint.timers());
        self.endpoint.spawn(async move {
            let call = async {
                let _permit = permit(&calls, &timers, deadline).await?;
                let policy = time_left(deadline).map_or(policy, |left| policy.within(left));
                channel.call_with(req_type, request, policy).await
            };
            let result = tokio::select! {
                biased;
                result = call => result,
                // The caller no longer waits for it.
                () = answer.closed() => return,
            };
            let _ = answer.send(result);
        });
        Pace::Go
    }
}

/// Waits until a call may begin.
async fn permit<'a>(
    calls: &'a Semaphore,
    timers: &Timers,
    deadline: Option<Instant>,
) -> Result<SemaphorePermit<'a>, ChannelError> {
    if let Ok(permit) = calls.try_acquire() {
        return Ok(permit);
    }
    let acquired = match time_left(deadline) {
        Some(left) => within(timers, left, calls.acquire()).await,
        None => Some(calls.acquire().await),
    };
    let late = ChannelError { why: Why::Late, attempts: 0, may_have_run: false };
    acquired.and_then(Result::ok).ok_or(late)
}

fn time_left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}
