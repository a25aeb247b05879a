//! Calls to an endpoint that another thread owns. The endpoint calls itself, so that two processors are enough: a
//! separate server would be a third polling thread.

use std::future::poll_fn;
use std::hint::spin_loop;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use dunlin_lab::measure::{Cores, Gaps, Latencies, Percentiles, pin};
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Addr, AnyTransport, Clock};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf, Session};
use dunlin_serve::{CallPolicy, Handle, HandleConfig};
use serde::{Deserialize, Serialize};

use super::ECHO;
use super::setup::Carrier;
use crate::{BenchError, WARM_UP_SHARE};

/// Bytes of request and response.
const BYTES: usize = 32;
/// In place of a count of answers: no more will come.
const FAILED: u64 = u64::MAX;

type Owned = Rc<Endpoint<AnyTransport>>;
type Response = Result<MsgBuf, BenchError>;

/// How a request reaches the endpoint's thread, and its response the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Crossing {
    /// Not at all: that thread makes the calls.
    None,
    /// A counter that wakes a task of the endpoint, and one for the way back: the minimum cost of crossing.
    Counters,
    /// A [`Handle`].
    Handle,
    /// Two channels of std, as in a program without handles.
    Channels,
}

/// Calls in sequence.
#[derive(Debug, Serialize, Deserialize)]
pub struct CrossingCalls {
    /// Transport of the endpoint.
    pub carrier: Carrier,
    /// How calls cross.
    pub crossing: Crossing,
    /// Pauses between calls, if any.
    pub gaps: Option<Gaps>,
    /// The endpoint's owner runs on the server core, the caller on the client core.
    pub cores: Cores,
    /// Length of the measured run.
    pub run: Duration,
}

impl Role for CrossingCalls {
    const NAME: &'static str = "caller of another thread's endpoint";
    type Ready = ();
    /// From before the call until its response arrives.
    type Output = Percentiles;
    type Error = BenchError;

    fn run(self, _: &Control<Self>) -> Result<Percentiles, BenchError> {
        match self.crossing {
            Crossing::None => self.without_crossing(),
            Crossing::Counters => self.beside(own_counters, |counters: &Arc<Counters>| counters.call()),
            Crossing::Handle => self.beside(own_handle, |handle: &Handle| {
                check(&handle.call_blocking(ECHO, request()?, CallPolicy::default())?)
            }),
            Crossing::Channels => self.beside(own_channels, |(ask, answered): &Channels| {
                let ended = |_| BenchError::no_samples("a thread that answers over channels");
                ask.send(request()?).map_err(|_| ended(mpsc::RecvError))?;
                check(&answered.recv().map_err(ended)??)
            }),
        }
    }
}

impl CrossingCalls {
    fn without_crossing(&self) -> Result<Percentiles, BenchError> {
        pin(self.cores.server)?;
        let (endpoint, session) = endpoint_and_session(self.carrier)?;
        self.measure(|| check(&call(&endpoint, &session, request()?)?))
    }

    /// Makes calls with the value that the endpoint's owner sends, while that thread runs `own`.
    fn beside<H: Send>(
        &self,
        own: impl FnOnce(&Owned, Session, mpsc::Sender<H>, &AtomicBool) -> Result<(), BenchError> + Send,
        call: impl Fn(&H) -> Result<(), BenchError>,
    ) -> Result<Percentiles, BenchError> {
        let ended = || BenchError::no_samples("the owner of an endpoint");
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let owner = scope.spawn(move || {
                pin(self.cores.server)?;
                let (endpoint, session) = endpoint_and_session(self.carrier)?;
                own(&endpoint, session, tell, stop)
            });
            // Only after the owner has started, which would otherwise inherit the same core. The received value is
            // dropped before the owner is joined.
            let measured = pin(self.cores.client).map_err(BenchError::from).and_then(move |()| {
                let handle = told.recv().map_err(|_| ended())?;
                self.measure(|| call(&handle))
            });
            stop.store(true, Ordering::Relaxed);
            owner.join().unwrap_or_else(|_| Err(ended())).and(measured)
        })
    }

    fn measure(&self, mut call: impl FnMut() -> Result<(), BenchError>) -> Result<Percentiles, BenchError> {
        let (clock, mut gaps, mut latencies) = (Clock::new(), self.gaps.clone(), Latencies::new());
        let warm = self.run.mul_f64(WARM_UP_SHARE).as_nanos() as u64;
        let end = warm + self.run.as_nanos() as u64;
        loop {
            if let Some(gaps) = &mut gaps {
                let gap_end = clock.now() + gaps.next_gap().as_nanos() as u64;
                while clock.now() < gap_end {
                    spin_loop();
                }
            }
            let before = clock.now();
            call()?;
            let after = clock.now();
            if before >= warm {
                latencies.record(after - before);
            }
            // On a busy machine one call may take longer than the run: it counts then.
            if after >= end && latencies.count() > 0 {
                return Ok(latencies.percentiles()?);
            }
        }
    }
}

fn endpoint_and_session(carrier: Carrier) -> Result<(Owned, Session), BenchError> {
    let listen: Addr = match carrier {
        Carrier::Shm => format!("shm:dunlin-bench-{}", std::process::id()).parse()?,
        Carrier::Udp => "udp://127.0.0.1:0".parse()?,
    };
    let endpoint = Rc::new(Endpoint::new(AnyTransport::bind(&listen)?, EndpointConfig::default())?);
    endpoint.register(ECHO, |request| {
        let payload = request.payload();
        request.respond(payload);
    })?;
    let session = endpoint.block_on(endpoint.connect(&endpoint.local_addr()))?;
    Ok((endpoint, session))
}

fn request() -> Response {
    Ok(MsgBuf::copy_from(&[7; BYTES])?)
}

/// A wrong echo would make the measurement meaningless.
fn check(response: &[u8]) -> Result<(), BenchError> {
    if response == [7; BYTES] { Ok(()) } else { Err(BenchError::WrongEcho) }
}

fn call(endpoint: &Owned, session: &Session, request: MsgBuf) -> Response {
    Ok(endpoint.block_on(session.call(ECHO, request)).map_err(|failure| failure.error)?.response)
}

fn own_handle(endpoint: &Owned, _: Session, tell: mpsc::Sender<Handle>, stop: &AtomicBool) -> Result<(), BenchError> {
    let handle = Handle::on(endpoint, endpoint.local_addrs().to_vec(), &HandleConfig::default())?;
    // The caller may have given up.
    let _ = tell.send(handle);
    endpoint.run_until(|| stop.load(Ordering::Relaxed));
    Ok(())
}

/// The channels of requests and of responses.
type Channels = (mpsc::Sender<MsgBuf>, mpsc::Receiver<Response>);

fn own_channels(
    endpoint: &Owned,
    session: Session,
    tell: mpsc::Sender<Channels>,
    _: &AtomicBool,
) -> Result<(), BenchError> {
    let ((ask, asked), (answer, answered)) = (mpsc::channel(), mpsc::channel());
    let _ = tell.send((ask, answered));
    for request in asked {
        let _ = answer.send(call(endpoint, &session, request));
    }
    Ok(())
}

fn own_counters(
    endpoint: &Owned,
    session: Session,
    tell: mpsc::Sender<Arc<Counters>>,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let counters = Arc::new(Counters::default());
    endpoint.spawn(counters.clone().answer(session));
    let _ = tell.send(counters);
    endpoint.run_until(|| stop.load(Ordering::Relaxed));
    Ok(())
}

/// Calls requested and answered; at most one is in progress.
#[derive(Default)]
struct Counters {
    asked: AtomicU64,
    answered: AtomicU64,
    waker: Mutex<Option<Waker>>,
}

impl Counters {
    fn call(&self) -> Result<(), BenchError> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        waker.iter().for_each(Waker::wake_by_ref);
        drop(waker);
        loop {
            match self.answered.load(Ordering::Acquire) {
                FAILED => return Err(BenchError::WrongEcho),
                answered if answered >= number => return Ok(()),
                _ => spin_loop(),
            }
        }
    }

    async fn answer(self: Arc<Self>, session: Session) {
        while self.answer_one(&session).await.is_ok() {
            self.answered.fetch_add(1, Ordering::Release);
        }
        self.answered.store(FAILED, Ordering::Release);
    }

    async fn answer_one(&self, session: &Session) -> Result<(), BenchError> {
        poll_fn(|context| {
            let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
            waker.get_or_insert_with(|| context.waker().clone());
            drop(waker);
            let is_asked = self.asked.load(Ordering::SeqCst) > self.answered.load(Ordering::Relaxed);
            if is_asked { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        check(&session.call(ECHO, request()?).await.map_err(|failure| failure.error)?.response)
    }
}
