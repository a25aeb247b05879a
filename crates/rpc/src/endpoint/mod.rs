//! The endpoint: one thread's access to all others. It joins the protocol ([`crate::core`]), a transport, handlers and
//! tasks in one event loop.
//!
//! | File | What it holds |
//! |---|---|
//! | [`event_loop`] | one iteration: receive, dispatch, tasks, transmit, timers, sleep |
//! | [`dispatch`] | hands requests to their handlers |
//! | [`control`] | packets that manage sessions |
//! | [`handler`] | what handlers receive and return |
//! | [`registry`] | handlers and continuations by number |
//! | [`session`] | the handle of a session, and calls |
//! | [`executor`], [`alarm`] | tasks of this thread, and their sleep |
//! | [`panics`] | handlers and tasks that panic |
//! | [`worker`] | threads for long handlers |
//! | [`shutdown`] | graceful shutdown |

pub(crate) mod alarm;
pub(crate) mod control;
pub(crate) mod dispatch;
pub(crate) mod event_loop;
pub(crate) mod executor;
pub(crate) mod handler;
pub(crate) mod panics;
pub(crate) mod registry;
pub(crate) mod session;
pub(crate) mod shutdown;
pub(crate) mod worker;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use dunlin_net::poll::Idle;
use dunlin_net::{Addr, BootClock, Transport, TransportCounters};

use crate::config::EndpointConfig;
use crate::congestion::CongestionControl;
use crate::context::{SessionId, SharedTime};
use crate::core::Core;
use crate::error::{EndpointError, RegisterError};
use crate::msgbuf::MsgBuf;
use crate::payload::{HandlerError, IntoResponse};
use crate::stats::EndpointStats;
use executor::Executor;
use handler::{Handler, OwnedRequest, ReplyRight, Request, RequestBurst, WorkerRequest};
use panics::{Origin, Panics, guarded};
use registry::Registry;
use session::{Completion, ConnectOptions, Connecting, ContinuationId, Session};
use worker::{WorkerPool, WorkerReply};

/// A registered continuation.
pub(crate) type Continuation = Box<dyn FnMut(Completion)>;

/// What handles, futures and handlers share with their endpoint. Not generic over the transport.
pub(crate) struct Shared {
    pub core: RefCell<Core>,
    pub executor: Executor,
    pub handlers: Registry<Handler>,
    pub continuations: Registry<Continuation>,
    pub local_addr: Addr,
    pub local_addrs: Vec<Addr>,
    pub boot_clock: BootClock,
    /// As of the last check of timers, for readers while the event loop has the transport.
    pub transport_counters: Cell<TransportCounters>,
    pub worker_replies: (Sender<WorkerReply>, Receiver<WorkerReply>),
    /// Requests that workers have.
    pub at_workers: Cell<u32>,
    /// The clock that contexts of requests read.
    pub time: Arc<SharedTime>,
    pub panics: Panics,
}

impl Shared {
    /// Drops tasks, handlers and continuations: they may hold sessions, which hold this, or the endpoint itself.
    pub fn drop_application(&self) {
        self.executor.clear();
        self.handlers.clear();
        self.continuations.clear();
    }

    /// Drops the application's memory that is no longer needed, with nothing borrowed.
    pub fn drop_discarded(&self) {
        loop {
            let Some(payload) = self.core.borrow_mut().discarded.pop() else { return };
            drop(payload);
        }
    }
}

/// An endpoint: the papers' `Rpc` object. One thread owns it; it is neither `Send` nor `Sync`.
///
/// Its methods take `&self`, so that handlers, tasks and continuations may use sessions while the event loop runs. The
/// loop itself does not nest: [`Endpoint::run_once`] and everything built on it must not be called from inside a
/// handler.
///
/// # Concurrent calls
///
/// A session has at most eight calls in progress ([`EndpointConfig::slots`]); [`Session::call`] says what happens to
/// further ones. For more calls at the same time, open several sessions to one address.
///
/// # Long handlers
///
/// An endpoint stands still while a handler, a task or a continuation runs, and while the event loop does not run. If
/// that lasts for over a second ([`EndpointConfig::peer_timeout`]), peers that wait for this endpoint take it for dead
/// and end their sessions with it; after some three seconds, so do idle peers. Their calls fail with
/// [`crate::CallError::PeerSilent`], those of this endpoint with [`crate::CallError::PeerReset`]. That holds for
/// clients as well as for servers. Give long work to [`Endpoint::register_worker`], and keep running a client's event
/// loop even while it makes no calls.
///
/// If the handlers, tasks and continuations that packets cause take 10 ms or longer in one iteration, that is counted
/// ([`crate::Counters::loop_stalls`]) and logged as a warning with the time and the request types, at most once a
/// second. Time in which the thread waited for its processor counts, too. The event loop reads no clock for this: it
/// does not detect a long handler whose iteration sends nothing, nor a long task that a timer wakes.
///
/// # Panics
///
/// A panic in a handler of any kind, or in a task of [`Endpoint::spawn`], is caught. It fails what panicked and nothing
/// else: the caller of that request gets [`crate::CallError::HandlerFailed`], and the handler gets the next request
/// with its state as the panic left it. The first panic of each handler is logged with its message; all but those of
/// worker-mode handlers are counted ([`crate::Counters::panics_caught`]). After [`Endpoint::propagate_panics`], a panic
/// ends the event loop instead. With `panic = "abort"` nothing is caught.
///
/// A panic of a continuation, of the future of [`Endpoint::block_on`], or of a waker passes through the event loop to
/// its caller; the loop can be entered again.
///
/// ```
/// use std::time::Duration;
///
/// use dunlin_net::Addr;
/// use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
/// use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf};
///
/// let network = LoopbackNetwork::new(LoopbackConfig::default());
/// let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
/// server.register(7, |request| request.respond(b"pong"))?;
/// let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
///
/// // Two endpoints in one thread: the test drives both.
/// let mut connecting = Box::pin(client.connect(&Addr::Node(1)));
/// let session = loop {
///     network.advance(Duration::from_micros(10));
///     server.run_once();
///     if let Some(session) = client.poll_once(connecting.as_mut()) { break session? }
/// };
/// let mut call = Box::pin(session.call(7, MsgBuf::copy_from(b"ping")?));
/// let reply = loop {
///     network.advance(Duration::from_micros(10));
///     server.run_once();
///     if let Some(reply) = client.poll_once(call.as_mut()) { break reply? }
/// };
/// assert_eq!(&reply.response[..], b"pong");
/// assert_eq!(&reply.request[..], b"ping");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Endpoint<T: Transport> {
    pub(crate) shared: Rc<Shared>,
    pub(crate) transport: RefCell<T>,
    pub(crate) idle: RefCell<Idle>,
    /// Iterations since the clock was read.
    pub(crate) unclocked: Cell<u32>,
    /// Whether no code of the application ran since the clock was read.
    pub(crate) is_clocked: Cell<bool>,
    /// Whether the transport is armed for a sleep in a foreign event loop.
    pub(crate) is_armed: Cell<bool>,
    /// Until when no further stall of the event loop is logged.
    pub(crate) stall_logged: Cell<u64>,
}

impl<T: Transport> Endpoint<T> {
    /// Creates an endpoint on a transport.
    ///
    /// # Errors
    /// [`EndpointError`] if a setting is out of range, or the transport too small for it.
    pub fn new(transport: T, mut config: EndpointConfig) -> Result<Endpoint<T>, EndpointError> {
        config.check()?;
        // If routes differ, each session gets the setting for its own route.
        let is_auto = config.congestion == CongestionControl::Auto;
        config.congestion = config.congestion.chosen(transport.is_local());
        if transport.mtu() < Core::MTU_MIN {
            return Err(EndpointError::MtuTooSmall { mtu: transport.mtu(), min: Core::MTU_MIN });
        }
        let needed = config.credits as usize + config.reverse_credits as usize;
        if transport.rx_queue_len() < needed {
            return Err(EndpointError::QueueTooShort { queue: transport.rx_queue_len(), needed });
        }
        let mut secret = [0; 16];
        match config.seed {
            Some(seed) => secret[..8].copy_from_slice(&seed.to_le_bytes()),
            None => getrandom::fill(&mut secret).map_err(|error| EndpointError::Random(error.to_string()))?,
        }
        let waker = transport.waker();
        let idle = Idle::new(config.poll);
        let mut core = Core::new(config, transport.mtu(), transport.rx_queue_len(), transport.now(), secret);
        if is_auto {
            core.congestion.spare_local();
        }
        let shared = Shared {
            core: RefCell::new(core),
            executor: Executor::new(waker),
            handlers: Registry::with_places(u8::MAX as usize + 1),
            continuations: Registry::with_places(0),
            local_addr: transport.local_addr(),
            local_addrs: transport.local_addrs(),
            boot_clock: transport.boot_clock(),
            transport_counters: Cell::default(),
            worker_replies: crossbeam_channel::unbounded(),
            at_workers: Cell::new(0),
            time: Arc::new(SharedTime::new(transport.clock(), transport.now())),
            panics: Panics::default(),
        };
        Ok(Endpoint {
            shared: Rc::new(shared),
            transport: RefCell::new(transport),
            idle: RefCell::new(idle),
            unclocked: Cell::new(0),
            is_clocked: Cell::new(false),
            is_armed: Cell::new(false),
            stall_logged: Cell::new(0),
        })
    }

    /// The address at which others reach this endpoint, the first if it has several.
    pub fn local_addr(&self) -> Addr {
        self.shared.local_addr.clone()
    }

    /// All addresses at which others reach this endpoint.
    pub fn local_addrs(&self) -> &[Addr] {
        &self.shared.local_addrs
    }

    fn register_handler(&self, req_type: u8, handler: Handler) -> Result<(), RegisterError> {
        if self.shared.handlers.fill(req_type as usize, handler) { Ok(()) } else { Err(RegisterError { req_type }) }
    }

    /// Registers a dispatch-mode handler: it runs in the event loop, on the request where it was received. For handlers
    /// of up to a few hundred nanoseconds (paper, section 3.2). It responds, or defers ([`Request::defer`]); a request
    /// dropped without either is answered with [`crate::CallError::HandlerFailed`].
    ///
    /// # Errors
    /// [`RegisterError`] if the request type has a handler already.
    pub fn register(&self, req_type: u8, handler: impl FnMut(Request<'_>) + 'static) -> Result<(), RegisterError> {
        self.register_handler(req_type, Handler::Dispatch(Box::new(handler)))
    }

    /// Registers a dispatch-mode handler that gets all requests of its type that arrived in one receive burst at once,
    /// so that it can prefetch for all before it works on each. Requests that it leaves unanswered fail as with
    /// [`Endpoint::register`].
    ///
    /// # Errors
    /// As [`Endpoint::register`].
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{Endpoint, EndpointConfig};
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
    /// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
    /// server.register_burst(7, |burst| {
    ///     // First a look at all of them, for example to prefetch what they ask for; then the answers.
    ///     let total: u8 = (0..burst.len()).map(|i| burst.payload(i)[0]).sum();
    ///     for i in 0..burst.len() {
    ///         burst.respond(i, &[total]);
    ///     }
    /// })?;
    /// let work = async {
    ///     let session = client.connect(&Addr::Node(1)).await?;
    ///     let (first, second) = (session.call(7, vec![1]), session.call(7, vec![2]));
    ///     assert_eq!((&first.await?.response[..], &second.await?.response[..]), (&[3][..], &[3][..]));
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
    pub fn register_burst(
        &self,
        req_type: u8,
        handler: impl FnMut(&mut RequestBurst<'_>) + 'static,
    ) -> Result<(), RegisterError> {
        self.register_handler(req_type, Handler::Burst(Box::new(handler)))
    }

    /// Registers an asynchronous handler: the request is copied into a buffer of its own and the future runs as a task
    /// of this endpoint, where it may call other servers. Its output is the response, or an error: see
    /// [`IntoResponse`].
    ///
    /// # Errors
    /// As [`Endpoint::register`].
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{CallError, Endpoint, EndpointConfig, OwnedRequest};
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
    /// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
    /// // The server calls its caller back before it answers.
    /// server.register_async(7, |request: OwnedRequest| async move {
    ///     let question = b"what is your name?".to_vec();
    ///     let reply = request.session().call(8, question).await?;
    ///     let name = std::str::from_utf8(&reply.response)?;
    ///     // Errors of any type end the handler early; its caller then gets `CallError::HandlerFailed`.
    ///     Ok::<_, Box<dyn std::error::Error>>(format!("hello {name}").into_bytes())
    /// })?;
    /// let mut names = vec![b"\xff no UTF-8".to_vec(), b"dunlin".to_vec()];
    /// client.register(8, move |request| request.respond(&names.pop().unwrap_or_default()))?;
    /// let work = async {
    ///     let session = client.connect(&Addr::Node(1)).await?;
    ///     let reply = session.call(7, b"hi".to_vec()).await?;
    ///     assert_eq!(&reply.response[..], b"hello dunlin");
    ///     let failure = session.call(7, b"hi".to_vec()).await.unwrap_err();
    ///     assert_eq!(failure.error, CallError::HandlerFailed);
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
    pub fn register_async<F, R>(
        &self,
        req_type: u8,
        mut handler: impl FnMut(OwnedRequest) -> F + 'static,
    ) -> Result<(), RegisterError>
    where
        F: Future<Output = R> + 'static,
        R: IntoResponse,
    {
        let start = move |request: OwnedRequest, right: ReplyRight| -> executor::Task {
            let (shared, work) = (right.shared(), handler(request));
            let answer = async move {
                match work.await.into_response() {
                    // It is no error of the handler that a caller gave up.
                    Ok(response) => drop(right.respond(response)),
                    Err(HandlerError::Application(error)) => drop(right.fail(error.code(), error.message())),
                    // Dropping the unused right to reply tells the caller.
                    Err(HandlerError::Failed(error)) => {
                        tracing::debug!(req_type, error, "an async handler failed; its caller got an error");
                    }
                }
            };
            Box::pin(guarded(shared, Origin::Handler(req_type), answer))
        };
        self.register_handler(req_type, Handler::Async(Box::new(start)))
    }

    /// Registers a worker-mode handler: it runs on a thread of `pool`, and its response returns through this endpoint,
    /// or its error: see [`IntoResponse`]. If the pool's queue is full, the request is pushed back with
    /// [`crate::CallError::Busy`]. A request whose caller has given up by the time a thread is free is not run.
    ///
    /// # Errors
    /// As [`Endpoint::register`].
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{Endpoint, EndpointConfig, WorkerPool};
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
    /// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
    /// let pool = WorkerPool::new(2, 64)?;
    /// server.register_worker(7, &pool, |request| {
    ///     // As long as it takes: the event loop goes on meanwhile.
    ///     request.payload().iter().rev().copied().collect::<Vec<u8>>()
    /// })?;
    /// let work = async {
    ///     let session = client.connect(&Addr::Node(1)).await?;
    ///     assert_eq!(&session.call(7, b"abc".to_vec()).await?.response[..], b"cba");
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
    pub fn register_worker<R: IntoResponse>(
        &self,
        req_type: u8,
        pool: &WorkerPool,
        handler: impl Fn(WorkerRequest) -> R + Send + Sync + 'static,
    ) -> Result<(), RegisterError> {
        let handler = Arc::new(move |request: WorkerRequest| handler(request).into_response());
        self.register_handler(req_type, Handler::Worker { pool: pool.queue(), handler })
    }

    /// Registers the code to run when calls of [`crate::Session::enqueue_request`] end: the paper's continuation. One
    /// registration serves any number of calls, distinguished by their tag; so a call allocates nothing.
    pub fn register_continuation(&self, continuation: impl FnMut(Completion) + 'static) -> ContinuationId {
        ContinuationId(self.shared.continuations.push(Box::new(continuation)) as u32)
    }

    /// Opens a session to `addr`, within [`EndpointConfig::connect_timeout`]. The handshake proceeds while the event
    /// loop runs.
    pub fn connect(&self, addr: &Addr) -> Connecting {
        self.connect_with(addr, ConnectOptions::default())
    }

    /// [`Endpoint::connect`] with options: a handler passes on the time that its caller has left
    /// ([`OwnedRequest::time_left`]).
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{ConnectError, ConnectOptions, Endpoint, EndpointConfig};
    /// # use std::time::Duration;
    /// # let network = LoopbackNetwork::new(LoopbackConfig::default());
    /// # let endpoint = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// // Nobody is there.
    /// let connecting = endpoint.connect_with(&Addr::Node(2), ConnectOptions::timeout(Duration::from_millis(20)));
    /// let mut connecting = Box::pin(connecting);
    /// let error = loop {
    ///     network.advance(Duration::from_micros(100));
    ///     if let Some(result) = endpoint.poll_once(connecting.as_mut()) { break result.unwrap_err() }
    /// };
    /// assert!(matches!(error, ConnectError::TimedOut { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect_with(&self, addr: &Addr, options: ConnectOptions) -> Connecting {
        Connecting::new(&self.shared, addr, options)
    }

    /// The handle of a session that a [`crate::RequestContext`] named; `None` once it has ended.
    pub fn session(&self, id: SessionId) -> Option<Session> {
        self.shared.core.borrow().session(id.0)?;
        Some(Session::new(&self.shared, id.0))
    }

    /// Runs a future as a task of this endpoint. If it panics, it ends there: see [`Endpoint#panics`].
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.shared.executor.spawn(Box::pin(guarded(self.shared.clone(), Origin::Task, task)));
    }

    /// From now on propagates panics of handlers and tasks to the caller of the event loop, instead of catching them.
    /// For services whose handlers share state that a panic may leave half changed: they end rather than continue with
    /// it. The request whose handler panicked is answered with [`crate::CallError::HandlerFailed`] all the same; those
    /// of the same burst whose handlers have not started are answered with [`crate::CallError::Busy`].
    ///
    /// ```
    /// # use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
    /// # use dunlin_rpc::{Endpoint, EndpointConfig};
    /// use std::panic::{AssertUnwindSafe, catch_unwind};
    ///
    /// # let network = LoopbackNetwork::new(LoopbackConfig::default());
    /// let endpoint = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// endpoint.spawn(async { panic!("this one is caught") });
    /// endpoint.run_once();
    /// endpoint.propagate_panics();
    /// endpoint.spawn(async { panic!("and this one is not") });
    /// assert!(catch_unwind(AssertUnwindSafe(|| endpoint.run_once())).is_err());
    /// assert_eq!(endpoint.stats().counters.panics_caught, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn propagate_panics(&self) {
        self.shared.panics.are_propagated.set(true);
    }

    /// Timers for sleeping in tasks.
    pub fn timers(&self) -> alarm::Timers {
        alarm::Timers::new(&self.shared)
    }

    /// Nanoseconds on the transport's clock; in handlers, tasks and continuations, as the event loop last read it.
    pub fn now(&self) -> u64 {
        match self.transport.try_borrow() {
            Ok(transport) => transport.now(),
            Err(_) => self.shared.core.borrow().now,
        }
    }

    /// [`Endpoint::now`] as the event loop last read it: up to a receive burst or 16 empty polls ago. Costs one load,
    /// for loops that ask after each turn.
    #[inline]
    pub fn loop_time(&self) -> u64 {
        self.shared.core.borrow().now
    }

    /// A buffer for a message: [`MsgBuf::with_len`].
    ///
    /// # Errors
    /// As [`MsgBuf::with_len`].
    pub fn alloc(&self, len: usize) -> Result<MsgBuf, crate::msgbuf::AllocError> {
        MsgBuf::with_len(len)
    }

    /// All counts so far. In handlers, tasks and continuations, the transport's counts are some microseconds old.
    pub fn stats(&self) -> EndpointStats {
        let core = self.shared.core.borrow();
        EndpointStats {
            counters: core.counters,
            transport: match self.transport.try_borrow() {
                Ok(transport) => transport.counters(),
                Err(_) => self.shared.transport_counters.get(),
            },
            rtt: core.rtt.clone(),
            packet_rtt: core.congestion.packet_rtt().cloned(),
            handlers: core.handlers.stats(),
            sessions: core.session_count,
            calls_pending: core.calls_pending(),
            requests_held: core.requests_held(),
            held_bytes: core.held_bytes,
            credits_reserved: core.queue.reserved,
            credits_unplaced: core.queue.unplaced,
            tasks: self.shared.executor.len(),
        }
    }

    /// Lends the transport, for its own settings and counters.
    ///
    /// # Panics
    /// If called from inside a handler.
    pub fn with_transport<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.transport.borrow_mut())
    }
}

impl<T: Transport> Drop for Endpoint<T> {
    /// Tells every peer that its sessions end. Calls end with [`crate::CallError::Closed`]: continuations run, futures
    /// complete, and handles that outlive the endpoint see it. This does not wait for the peers; [`Endpoint::shutdown`]
    /// does.
    fn drop(&mut self) {
        self.shared.executor.clear();
        if let (Ok(mut core), Ok(mut transport)) = (self.shared.core.try_borrow_mut(), self.transport.try_borrow_mut())
        {
            core.close_all();
            core.transmit(&mut *transport);
        }
        event_loop::wake_waiting(&self.shared);
        event_loop::run_continuations(&self.shared);
        self.shared.drop_discarded();
        self.shared.drop_application();
    }
}
