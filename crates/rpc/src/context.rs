//! What a handler may know of its request beside its bytes: the same for handlers of all kinds, and on any thread.

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

/// Names a session of one endpoint, on any thread. [`crate::Endpoint::session`] gives its handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub(crate) SessionRef);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({}.{})", self.0.index, self.0.generation)
    }
}

/// The time of an endpoint, for other threads.
pub(crate) struct SharedTime {
    clock: Option<Clock>,
    /// What the event loop last told, where there is no clock that other threads can read.
    told: AtomicU64,
}

impl SharedTime {
    pub fn new(clock: Option<Clock>, now: u64) -> SharedTime {
        SharedTime { clock, told: AtomicU64::new(now) }
    }

    /// Tells the time; from the endpoint's thread.
    #[inline]
    pub fn tell(&self, now: u64) {
        self.told.store(now, Relaxed);
    }

    fn now(&self) -> u64 {
        self.clock.as_ref().map_or_else(|| self.told.load(Relaxed), Clock::now)
    }
}

/// What a request is, and whether its caller still waits. Handlers of all kinds get it: it is `Send`, clones are the same, and it may outlive
/// the request.
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

/// Who is to be woken when the request is over.
#[derive(Default)]
struct Waiting {
    /// Futures that have asked.
    asked: u64,
    wakers: Vec<(u64, Waker)>,
}

/// What the endpoint says of a request.
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

    /// Nobody waits any more: adds whom to wake.
    pub(crate) fn end(&self, woken: &mut Vec<Waker>) {
        self.0.is_over.store(true, Relaxed);
        woken.extend(self.0.waiting().wakers.drain(..).map(|(_, waker)| waker));
    }

    /// When the caller gives up, on the endpoint's clock.
    pub(crate) fn deadline(&self) -> Option<u64> {
        (self.0.deadline != NO_DEADLINE).then_some(self.0.deadline)
    }

    /// Ends when nobody waits any more: the caller cancelled, timed out, went away, or has its answer. On any thread, and in any runtime.
    ///
    /// At a deadline it ends when the caller says that it gave up, which may be lost on the way; [`crate::OwnedRequest::gone`] also ends at the deadline
    /// itself. It costs nothing if nobody asks.
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

    /// The address of the endpoint that sent it; `None` if its session had ended before the handler asked.
    pub fn peer(&self) -> Option<&Addr> {
        self.0.peer.as_deref()
    }

    /// How long the caller still waits, if it set a deadline; zero if it does not wait any more. Where a test or a simulation moves the clock, it is
    /// that of the event loop's last look.
    pub fn time_left(&self) -> Option<Duration> {
        if self.0.is_over.load(Relaxed) {
            return Some(Duration::ZERO);
        }
        (self.0.deadline != NO_DEADLINE).then(|| Duration::from_nanos(self.0.deadline.saturating_sub(self.0.time.now())))
    }

    /// Whether the caller still waits: false once it has its answer, cancelled, timed out or went away.
    pub fn is_waited_for(&self) -> bool {
        self.time_left().is_none_or(|left| !left.is_zero())
    }
}

impl Facts {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // A list of wakers is sound whatever panicked meanwhile.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The future of [`RequestContext::gone`].
#[must_use = "it waits only while it is awaited"]
#[derive(Debug)]
pub struct Gone {
    context: RequestContext,
    /// That of its waker, once it has asked.
    number: Option<u64>,
}

impl Future for Gone {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Gone { context: request, number } = self.get_mut();
        let mut waiting = request.0.waiting();
        // Looked at while the list is locked: who ends the request takes it afterwards.
        if !request.is_waited_for() {
            return Poll::Ready(());
        }
        let waiting = &mut *waiting;
        let own = *number.get_or_insert_with(|| {
            waiting.asked += 1;
            waiting.asked
        });
        match waiting.wakers.iter_mut().find(|(number, _)| *number == own) {
            Some((_, waker)) => waker.clone_from(context.waker()),
            None => waiting.wakers.push((own, context.waker().clone())),
        }
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
        // Last: what it owns may come back here.
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
        // One of a task that has two of them.
        drop(other);
        let mut woken = Vec::new();
        request.end(&mut woken);
        woken.into_iter().for_each(Waker::wake);
        assert_eq!((kept.0.load(Relaxed), dropped.0.load(Relaxed)), (1, 0));
        assert!(poll(&mut one, &kept).is_ready());
    }
}
