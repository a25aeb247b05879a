//! What an idle endpoint costs, and how it wakes up.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use dunlin_net::{Addr, AnyTransport, PollPolicy, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig, WorkerPool};

use crate::pair::Lab;
use crate::{ECHO, echo};

const IDLE: Duration = Duration::from_secs(1);
/// Share of a core that an idle endpoint may use: 1 % is promised. It is processor time, whatever else the machine
/// does.
const IDLE_SHARE_MAX: f64 = 0.01;
/// An idle endpoint with a session sleeps until it checks its peer again, every 100 ms; a keep-alive of the peer, or an
/// answer to its own, ends a sleep early, four times a second.
const IDLE_SLEEPS: std::ops::RangeInclusive<u64> = 4..=40;
/// Seconds of which one must be as an idle one is.
const IDLE_TRIES: usize = 5;
const CALLS: u64 = 20;

/// Processor time of this thread.
fn thread_time() -> Duration {
    // SAFETY: `rusage` is plain numbers, for which zero is valid, and the call writes only to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn share(work: impl FnOnce()) -> f64 {
    let (cpu, wall) = (thread_time(), Instant::now());
    work();
    (thread_time() - cpu).as_secs_f64() / wall.elapsed().as_secs_f64()
}

/// What an endpoint used.
#[derive(Debug, Clone, Copy)]
struct Usage {
    /// Share of a core.
    share: f64,
    /// Times its transport slept.
    sleeps: u64,
}

fn sleeps(endpoint: &Endpoint<AnyTransport>) -> u64 {
    endpoint.stats().transport.waits
}

/// A server with its own thread, until dropped.
struct Server {
    address: Addr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<Usage>>,
}

impl Server {
    fn start(address: Addr) -> Server {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, address_of) = std::sync::mpsc::channel();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let transport = AnyTransport::bind(&address).unwrap();
            let server = Endpoint::new(transport, EndpointConfig::default()).unwrap();
            echo(&server);
            ready.send(server.local_addr()).unwrap();
            let share = share(|| server.run_until(|| stopped.load(SeqCst)));
            Usage { share, sleeps: sleeps(&server) }
        });
        let address = address_of.recv().unwrap();
        Server { address, stop, thread: Some(thread) }
    }

    /// What it used.
    fn stop(mut self) -> Usage {
        self.stop.store(true, SeqCst);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn an_idle_endpoint_is_cheap_and_wakes(address: Addr) {
    let server = Server::start(address);
    let address = server.address.clone();
    let client = Endpoint::new(AnyTransport::for_peer(&address).unwrap(), EndpointConfig::default()).unwrap();
    let session = client.block_on(client.connect(&address)).unwrap();
    client.block_on(session.call(ECHO, vec![1; 32])).unwrap();
    // With an open session, so with its keep-alive. Again if the machine stood still for most of a second.
    let mut tries = Vec::new();
    let is_idle = |usage: &Usage| usage.share < IDLE_SHARE_MAX && IDLE_SLEEPS.contains(&usage.sleeps);
    while tries.len() < IDLE_TRIES && !tries.last().is_some_and(is_idle) {
        let before = sleeps(&client);
        let share = share(|| client.run_for(IDLE));
        tries.push(Usage { share, sleeps: sleeps(&client) - before });
    }
    println!("{address}: an idle client used {tries:?}");
    assert!(tries.last().is_some_and(is_idle), "{tries:?}");
    // Both sleep now. A call wakes the server, and its answer the client.
    let mut times = Vec::new();
    let before = sleeps(&client);
    for _ in 0..CALLS {
        client.run_for(Duration::from_millis(2));
        let start = Instant::now();
        client.block_on(session.call(ECHO, vec![1; 32])).unwrap();
        times.push(start.elapsed());
    }
    // Not each time: other work may have had the core for those 2 ms.
    let slept = sleeps(&client) - before;
    assert!(slept >= CALLS / 2, "{slept}");
    times.sort_unstable();
    println!("{address}: a call that wakes both took {:?} (median)", times[10]);
    // Below the cost of a lost wake-up, which is the longest sleep: 100 ms. `dunlin bench run rpc-wakeup` measures it.
    assert!(times[10] < Duration::from_millis(60), "{times:?}");
    let usage = server.stop();
    println!("{address}: its server used {:.2} % and slept {} times", usage.share * 100.0, usage.sleeps);
    // It slept while the client was idle, and again before most calls.
    assert!(usage.sleeps >= CALLS / 2 + IDLE_SLEEPS.start(), "{usage:?}");
    assert!(usage.share < 2.0 * IDLE_SHARE_MAX, "{usage:?}");
}

#[test]
fn an_idle_endpoint_is_cheap_and_wakes_over_udp() {
    an_idle_endpoint_is_cheap_and_wakes("udp://127.0.0.1:0".parse().unwrap());
}

#[test]
fn an_idle_endpoint_is_cheap_and_wakes_over_shm() {
    an_idle_endpoint_is_cheap_and_wakes(format!("shm:test-{}-idle", std::process::id()).parse().unwrap());
}

/// Does something whenever its endpoint has decided to sleep, and counts how often it is woken.
struct Watched<F> {
    inner: AnyTransport,
    on_wait: F,
    woken: Arc<AtomicU64>,
}

impl<F: FnMut()> Transport for Watched<F> {
    dunlin_net::forward_transport!(inner: mtu, route_mtu, rx_queue_len, local_addr, local_addrs, is_local, is_local_route);
    dunlin_net::forward_transport!(inner: resolve, release, peer_health, tx_burst, tx_flush, tx_to, rx_burst, rx_packet, rx_source, now, wake_fd, arm, disarm, counters);

    fn wait(&mut self, timeout: Duration) {
        (self.on_wait)();
        self.inner.wait(timeout)
    }

    fn waker(&self) -> dunlin_net::Waker {
        let (waker, woken) = (self.inner.waker(), self.woken.clone());
        dunlin_net::Waker::new(move || {
            woken.fetch_add(1, SeqCst);
            waker.wake();
        })
    }
}

#[test]
fn a_worker_wakes_an_endpoint_that_sleeps() {
    for poll in [PollPolicy::default(), PollPolicy::Yielding { spin: Duration::from_micros(50) }, PollPolicy::Sleep] {
        let pool = Arc::new(WorkerPool::by_hand(4));
        let (woken, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let transport = {
            let (pool, woken, answered) = (pool.clone(), woken.clone(), answered.clone());
            let inner = AnyTransport::bind(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
            let seen = woken.clone();
            let on_wait = move || {
                // The worker answers just then.
                let (pool, before) = (pool.clone(), seen.load(SeqCst));
                let ran = std::thread::spawn(move || pool.run_queued()).join().unwrap() as u64;
                assert!(ran == 0 || seen.load(SeqCst) > before, "it is not woken");
                answered.fetch_add(ran, SeqCst);
            };
            Watched { inner, on_wait, woken }
        };
        let endpoint = Endpoint::new(transport, EndpointConfig { poll, ..EndpointConfig::default() }).unwrap();
        endpoint.register_worker(ECHO, &pool, |request| request.into_payload()).unwrap();
        let session = endpoint.block_on(endpoint.connect(&endpoint.local_addr())).unwrap();
        for _ in 0..CALLS {
            endpoint.block_on(session.call(ECHO, vec![1; 32])).unwrap();
        }
        assert_eq!(answered.load(SeqCst), CALLS);
    }
}

#[test]
fn run_for_ends_on_time_whether_or_not_there_is_anything_to_do() {
    let yielding = PollPolicy::Yielding { spin: Duration::from_micros(50) };
    for poll in [PollPolicy::Spin, PollPolicy::default(), yielding, PollPolicy::Sleep] {
        let transport = AnyTransport::bind(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = Endpoint::new(transport, EndpointConfig { poll, ..EndpointConfig::default() }).unwrap();
        // An iteration that oversleeps would take a tenth of a second each time: two seconds in all. Again if the
        // machine stood still.
        let mut times: Vec<u128> = Vec::new();
        while times.len() < 3 && times.last().is_none_or(|time| *time >= 1_500) {
            let start = Instant::now();
            for _ in 0..20 {
                endpoint.run_for(Duration::from_millis(2));
            }
            times.push(start.elapsed().as_millis());
        }
        let last = times[times.len() - 1];
        assert!(times.iter().all(|time| *time >= 40) && last < 1_500, "{poll:?}: {times:?}");
    }
}

/// Times of the future count from when it begins, not from when the event loop last ran.
#[test]
fn a_sleep_inside_block_on_lasts_its_whole_time_after_a_pause() {
    const TIME: Duration = Duration::from_millis(3);
    let lab = Lab::pair();
    let timers = lab.client().timers();
    lab.client().run_once();
    for _ in 0..3 {
        lab.network.advance(Duration::from_secs(10));
        let begun = lab.network.now();
        let sleeping = async {
            assert_eq!(timers.now(), begun);
            let mut sleep = pin!(timers.sleep(TIME));
            poll_fn(|context| {
                lab.network.advance(Duration::from_micros(10));
                context.waker().wake_by_ref();
                sleep.as_mut().poll(context)
            })
            .await;
        };
        lab.client().block_on(sleeping);
        let took = Duration::from_nanos(lab.network.now() - begun);
        assert!(took >= TIME && took < 2 * TIME, "{took:?}");
    }
}

/// The same of tasks that run in the first turn after a pause.
#[test]
fn a_task_after_a_pause_is_told_the_present_time() {
    let lab = Lab::pair();
    let timers = lab.client().timers();
    for _ in 0..3 {
        // Leaves the loop with a clock that it has just read.
        lab.client().run_for(Duration::ZERO);
        lab.network.advance(Duration::from_secs(10));
        let (begun, told) = (lab.network.now(), Rc::new(Cell::new(0)));
        let (telling, asking) = (told.clone(), timers.clone());
        lab.client().spawn(async move { telling.set(asking.now()) });
        lab.client().run_until(|| told.get() > 0);
        assert_eq!(told.get(), begun);
    }
}
