//! What a handler may know about its request besides its bytes: the same for handlers of all kinds, and on any thread.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dunlin_net::{Addr, Clock};

use crate::core::call::NO_DEADLINE;
use crate::core::session::SessionRef;

/// Identifies a session of one endpoint, on any thread. [`crate::Endpoint::session`] returns its handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub(crate) SessionRef);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({}.{})", self.0.index, self.0.generation)
    }
}

/// The clock of an endpoint, for other threads.
pub(crate) struct SharedTime {
    clock: Option<Clock>,
    /// The last time that the event loop published, if no clock can be read from other threads.
    told: AtomicU64,
}

impl SharedTime {
    pub fn new(clock: Option<Clock>, now: u64) -> SharedTime {
        SharedTime { clock, told: AtomicU64::new(now) }
    }

    /// Publishes the time; from the endpoint's thread.
    #[inline]
    pub fn tell(&self, now: u64) {
        self.told.store(now, Relaxed);
    }

    fn now(&self) -> u64 {
        self.clock.as_ref().map_or_else(|| self.told.load(Relaxed), Clock::now)
    }
}

/// What a request is, and whether its caller still waits. Handlers of all kinds get it. It is `Send`, clones share it,
/// and it may outlive the request.
///
/// ```
/// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
/// # use dunlin_rpc::{CallOptions, Endpoint, EndpointConfig, WorkerPool};
/// # use std::time::Duration;
/// # let network = LoopbackNetwork::new(LoopbackConfig { delay: Duration::ZERO, ..Default::default() });
/// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
/// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
/// let pool = WorkerPool::new(2, 64)?;
/// server.register_worker(7, &pool, |request| {
///     let mut sum = 0u64;
///     for chunk in request.payload().chunks(1000) {
///         // Long work looks now and then whether anybody waits for it.
///         if !request.context().is_waited_for() {
///             return Vec::new();
///         }
///         sum += chunk.iter().map(|byte| u64::from(*byte)).sum::<u64>();
///     }
///     sum.to_le_bytes().to_vec()
/// })?;
/// let work = async {
///     let session = client.connect(&Addr::Node(1)).await?;
///     let options = CallOptions::timeout(Duration::from_secs(10));
///     let reply = session.call_with(7, vec![1; 5000], options).await?;
///     assert_eq!(reply.response[..], 5000u64.to_le_bytes());
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
#[derive(Clone)]
pub struct RequestContext(Arc<Facts>);

struct Facts {
    req_type: u8,
    session: SessionId,
    peer: Option<Arc<Addr>>,
    /// On the endpoint's clock; [`NO_DEADLINE`] for none.
    deadline: u64,
    /// Whether the request was answered, cancelled, or cut off with its session.
    is_over: AtomicBool,
    waiting: Mutex<Waiting>,
    time: Arc<SharedTime>,
}

/// The wakers to call when the request is over.
#[derive(Default)]
struct Waiting {
    /// Futures that have registered.
    asked: u64,
    wakers: Vec<(u64, Waker)>,
}

/// The endpoint's description of a request.
pub(crate) struct Request {
    pub req_type: u8,
    pub session: SessionRef,
    pub peer: Option<Arc<Addr>>,
    pub deadline: u64,
}

impl RequestContext {
    pub(crate) fn new(request: Request, time: &Arc<SharedTime>) -> RequestContext {
        let Request { req_type, session, peer, deadline } = request;
        let (session, is_over) = (SessionId(session), AtomicBool::new(false));
        let (waiting, time) = (Mutex::default(), time.clone());
        RequestContext(Arc::new(Facts { req_type, session, peer, deadline, is_over, waiting, time }))
    }

    /// Marks the request as over, and adds the wakers to call.
    pub(crate) fn end(&self, woken: &mut Vec<Waker>) {
        self.0.is_over.store(true, Relaxed);
        woken.extend(self.0.waiting().wakers.drain(..).map(|(_, waker)| waker));
    }

    /// When the caller gives up, on the endpoint's clock.
    pub(crate) fn deadline(&self) -> Option<u64> {
        (self.0.deadline != NO_DEADLINE).then_some(self.0.deadline)
    }

    /// Completes when the caller no longer waits: it cancelled, timed out, went away, or has its answer. Works on any
    /// thread, and in any runtime.
    ///
    /// At a deadline it completes when the caller's message that it gave up arrives, which may be lost;
    /// [`crate::OwnedRequest::gone`] also completes at the deadline itself. It costs nothing unless it is used.
    pub fn gone(&self) -> Gone {
        Gone { context: self.clone(), number: None }
    }

    /// The time on the endpoint's clock.
    pub(crate) fn now(&self) -> u64 {
        self.0.time.now()
    }

    /// The request type.
    pub fn req_type(&self) -> u8 {
        self.0.req_type
    }

    /// The session that the request came on.
    pub fn session(&self) -> SessionId {
        self.0.session
    }

    /// The address of the endpoint that sent it; `None` if its session ended before this was called.
    pub fn peer(&self) -> Option<&Addr> {
        self.0.peer.as_deref()
    }

    /// How long the caller still waits, if it set a deadline; zero if it does not wait any more. If a test or a
    /// simulation moves the clock, the time is the one that the event loop last published.
    pub fn time_left(&self) -> Option<Duration> {
        if self.0.is_over.load(Relaxed) {
            return Some(Duration::ZERO);
        }
        (self.0.deadline != NO_DEADLINE)
            .then(|| Duration::from_nanos(self.0.deadline.saturating_sub(self.0.time.now())))
    }

    /// Whether the caller still waits: false once it has its answer, cancelled, timed out or went away.
    pub fn is_waited_for(&self) -> bool {
        self.time_left().is_none_or(|left| !left.is_zero())
    }
}

impl Facts {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // The list of wakers is valid, whatever panicked meanwhile.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The future of [`RequestContext::gone`].
#[must_use = "it waits only while it is awaited"]
#[derive(Debug)]
pub struct Gone {
    context: RequestContext,
    /// The number of its waker, once it has registered.
    number: Option<u64>,
}

impl Future for Gone {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Gone { context: request, number } = self.get_mut();
        // Clone before locking the list, and drop the replaced waker after unlocking: a waker may own another `Gone`.
        let mut waker = context.waker().clone();
        let mut waiting = request.0.waiting();
        // Check while the list is locked: the code that ends the request locks it only afterwards.
        if !request.is_waited_for() {
            return Poll::Ready(());
        }
        let own = *number.get_or_insert_with(|| {
            waiting.asked += 1;
            waiting.asked
        });
        match waiting.wakers.iter_mut().find(|(number, _)| *number == own) {
            Some((_, noted)) => std::mem::swap(noted, &mut waker),
            None => waiting.wakers.push((own, std::mem::replace(&mut waker, Waker::noop().clone()))),
        }
        drop(waiting);
        drop(waker);
        Poll::Pending
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        let Some(own) = self.number else { return };
        let mut waiting = self.context.0.waiting();
        let place = waiting.wakers.iter().position(|(number, _)| *number == own);
        let waker = place.map(|place| waiting.wakers.swap_remove(place));
        drop(waiting);
        // Last: dropping what it owns may call back into this code.
        drop(waker);
    }
}

impl fmt::Debug for RequestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestContext")
            .field("req_type", &self.0.req_type)
            .field("session", &self.0.session)
            .field("peer", &self.peer())
            .field("time_left", &self.time_left())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicU32);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn context() -> RequestContext {
        let session = SessionRef { index: 0, generation: 0 };
        let request = Request { req_type: 1, session, peer: None, deadline: NO_DEADLINE };
        RequestContext::new(request, &Arc::new(SharedTime::new(None, 0)))
    }

    /// A waker that itself waits for the same request.
    struct Owning(#[allow(dead_code, reason = "it is there to be dropped")] Mutex<Gone>);

    impl Wake for Owning {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_waker_that_is_replaced_may_wait_for_the_same_request() {
        let request = context();
        let (mut one, mut owned, counting) = (request.gone(), request.gone(), Arc::default());
        assert!(poll(&mut owned, &counting).is_pending());
        let owning: Waker = Arc::new(Owning(Mutex::new(owned))).into();
        assert!(Pin::new(&mut one).poll(&mut Context::from_waker(&owning)).is_pending());
        drop(owning);
        // The waker in the list is the last reference. If it were dropped while the list is locked, this would not
        // return.
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            assert!(poll(&mut one, &counting).is_pending());
            done.send(one).unwrap();
        });
        let _one = is_done.recv_timeout(Duration::from_secs(60)).expect("the list is locked for good");
        assert_eq!(request.0.waiting().wakers.len(), 1);
    }

    fn poll(gone: &mut Gone, counting: &Arc<Counting>) -> Poll<()> {
        Pin::new(gone).poll(&mut Context::from_waker(&counting.clone().into()))
    }

    #[test]
    fn only_futures_that_live_are_woken() {
        let request = context();
        let (kept, dropped): (Arc<Counting>, Arc<Counting>) = Default::default();
        let (mut one, mut other) = (request.gone(), request.gone());
        assert!(poll(&mut one, &kept).is_pending() && poll(&mut other, &kept).is_pending());
        for _ in 0..10_000 {
            let mut gone = request.gone();
            assert!(poll(&mut gone, &dropped).is_pending());
            assert!(poll(&mut one, &kept).is_pending());
        }
        assert_eq!(request.0.waiting().wakers.len(), 2);
        assert_eq!(Arc::strong_count(&dropped), 1);
        // One of two futures of the same task.
        drop(other);
        let mut woken = Vec::new();
        request.end(&mut woken);
        woken.into_iter().for_each(Waker::wake);
        assert_eq!((kept.0.load(Relaxed), dropped.0.load(Relaxed)), (1, 0));
        assert!(poll(&mut one, &kept).is_ready());
    }
}
