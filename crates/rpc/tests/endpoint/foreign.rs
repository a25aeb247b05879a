//! Endpoints in foreign event loops, and endpoints over two transports at once.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use dunlin_net::wake::wait_readable;
use dunlin_net::{Addr, AnyTransport, Arm, PollPolicy, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig, Session, Turn, WorkerPool};

use crate::{ECHO, echo};

/// Longest wait. Reached only when something is broken.
const PATIENCE: Duration = Duration::from_secs(20);
const DEFER: u8 = 9;
const WORK: u8 = 10;

fn shm_addr(name: &str) -> Addr {
    format!("shm:test-{}-{name}", std::process::id()).parse().unwrap()
}

fn udp_addr() -> Addr {
    "udp://127.0.0.1:0".parse().unwrap()
}

fn config(poll: PollPolicy) -> EndpointConfig {
    EndpointConfig { poll, ..EndpointConfig::default() }
}

/// A foreign event loop of the simplest kind: runs `endpoint` until `future` is done.
fn drive<T: Transport, F: Future>(endpoint: &Endpoint<T>, fd: &OwnedFd, future: F) -> F::Output {
    let mut future = pin!(future);
    let end = Instant::now() + PATIENCE;
    loop {
        // Like another task of the thread, this may issue calls after the endpoint has armed itself.
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        assert!(Instant::now() < end, "the future is not done after {PATIENCE:?}");
        if let Turn::Sleep(time) = endpoint.turn() {
            wait_readable(fd, time);
        }
    }
}

/// A server in a foreign event loop, on its own thread until dropped.
struct Server {
    addrs: Vec<Addr>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Server {
    fn start(addrs: Vec<Addr>, poll: PollPolicy) -> Server {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, addrs_of) = std::sync::mpsc::channel();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let server = Endpoint::new(AnyTransport::bind_all(&addrs).unwrap(), config(poll)).unwrap();
            echo(&server);
            let fd = server.wake_fd().unwrap();
            ready.send(server.local_addrs().to_vec()).unwrap();
            while !stopped.load(SeqCst) {
                if let Turn::Sleep(time) = server.turn() {
                    wait_readable(&fd, time);
                }
            }
            server.stats().transport.waits
        });
        let addrs = addrs_of.recv().unwrap();
        Server { addrs, stop, thread: Some(thread) }
    }

    /// Stops it and returns how often it slept.
    fn stop(mut self) -> u64 {
        self.stop.store(true, SeqCst);
        self.thread.take().unwrap().join().unwrap()
    }
}

/// One endpoint serves clients over shared memory and over UDP, each of which sleeps in its own way, and calls back
/// into both.
#[test]
fn one_endpoint_serves_two_transports_and_sleeps_for_both() {
    const CALLS: u32 = 200;
    for poll in [PollPolicy::Sleep, PollPolicy::default()] {
        let server = Server::start(vec![udp_addr(), shm_addr("both")], poll);
        assert!(matches!(&server.addrs[..], [Addr::Shm(_), Addr::Udp(_)]));
        std::thread::scope(|scope| {
            for addr in &server.addrs {
                scope.spawn(move || {
                    let client =
                        Endpoint::new(AnyTransport::for_peer(addr).unwrap(), config(PollPolicy::Sleep)).unwrap();
                    let session = client.block_on(client.connect(addr)).unwrap();
                    let start = Instant::now();
                    for i in 0..CALLS {
                        let request = vec![i as u8; [1, 40, 900, 30_000][i as usize % 4]];
                        let reply = client.block_on(session.call(ECHO, request)).unwrap();
                        assert!(reply.response[..] == reply.request[..]);
                    }
                    // A lost wake-up costs a tenth of a second.
                    assert!(start.elapsed() < CALLS * Duration::from_millis(50), "{addr}: {:?}", start.elapsed());
                });
            }
        });
        assert!(server.stop() > 0, "it never slept");
    }
}

/// The client side: sessions over both transports from one endpoint, with packets as long as each transport allows.
#[test]
fn one_endpoint_calls_over_two_transports() {
    let servers = [shm_addr("near"), udp_addr()].map(|addr| Server::start(vec![addr], PollPolicy::Sleep));
    let transport = AnyTransport::bind_all(&[shm_addr("caller"), udp_addr()]).unwrap();
    let client = Endpoint::new(transport, config(PollPolicy::Sleep)).unwrap();
    let fd = client.wake_fd().unwrap();
    let sessions = drive(&client, &fd, async {
        let mut sessions = Vec::new();
        for server in &servers {
            sessions.push(client.connect(&server.addrs[0]).await.unwrap());
        }
        sessions
    });
    for i in 0..50 {
        drive(&client, &fd, async {
            let calls: Vec<_> = sessions.iter().map(|session| session.call(ECHO, vec![i; 20_000])).collect();
            for call in calls {
                assert_eq!(call.await.unwrap().response[..], [i; 20_000]);
            }
        });
    }
    let data = |session: &Session| session.stats().unwrap().packet_data_bytes;
    assert!(data(&sessions[0]) > 8_000 && data(&sessions[1]) > 8_000 && data(&sessions[0]) != data(&sessions[1]));
    servers.into_iter().for_each(|server| assert!(server.stop() > 0));
}

#[test]
fn several_addresses_of_a_kind_are_refused() {
    for addrs in
        [vec![], vec![udp_addr(), udp_addr()], vec![shm_addr("a"), shm_addr("b")], vec![shm_addr("a"), Addr::Node(1)]]
    {
        let error = AnyTransport::bind_all(&addrs).err().unwrap().to_string();
        assert!(error.contains("one of each"), "{error}");
    }
}

#[test]
fn an_endpoint_without_a_descriptor_never_sleeps_in_turns() {
    let endpoint = Endpoint::new(AnyTransport::bind(&udp_addr()).unwrap(), config(PollPolicy::Sleep)).unwrap();
    assert!((0..1_000).all(|_| !matches!(endpoint.turn(), Turn::Sleep(_))));
    let _fd = endpoint.wake_fd().unwrap();
    let sleeps = |_| matches!(endpoint.turn(), Turn::Sleep(time) if time > Duration::ZERO);
    assert!((0..10).any(sleeps));
    let spinning = Endpoint::new(AnyTransport::bind(&udp_addr()).unwrap(), config(PollPolicy::Spin)).unwrap();
    let _fd = spinning.wake_fd().unwrap();
    assert!((0..1_000).all(|_| !matches!(spinning.turn(), Turn::Sleep(_))));
}

/// What another thread, or another task of this one, does at a moment of the test's choice.
type Action = Box<dyn FnOnce()>;
/// Prepares an action that makes work of some kind, and a check whether that work was done.
type Kind<'a> = dyn Fn() -> (Action, Box<dyn Fn() -> bool + 'a>) + 'a;

/// Runs an action at one of the steps by which an endpoint goes to sleep.
struct Stepped {
    inner: AnyTransport,
    /// Before the transport arms, and after.
    actions: Rc<RefCell<[Option<Action>; 2]>>,
}

impl Stepped {
    fn act(&self, step: usize) {
        let action = self.actions.borrow_mut()[step].take();
        if let Some(action) = action {
            action();
        }
    }
}

impl Transport for Stepped {
    dunlin_net::forward_transport!(inner: mtu, route_mtu, rx_queue_len, local_addr, local_addrs, is_local, is_local_route);
    dunlin_net::forward_transport!(inner: resolve, release, peer_health, tx_burst, tx_flush, tx_to, rx_burst, rx_packet, rx_source, now, wait, waker, wake_fd, disarm, counters);

    fn arm(&mut self, timeout: Duration) -> Arm {
        self.act(0);
        let armed = self.inner.arm(timeout);
        self.act(1);
        armed
    }
}

/// Where an action happens: at the two steps above, or once the endpoint has announced that it sleeps.
const STEPS: usize = 3;

/// Whatever makes work, and at whichever step of going to sleep that happens, the endpoint either does not sleep or its
/// descriptor is readable at once.
#[test]
fn no_wake_up_is_lost_at_any_step_of_going_to_sleep() {
    for addrs in [vec![udp_addr()], vec![shm_addr("steps")], vec![shm_addr("steps"), udp_addr()]] {
        let actions = Rc::new(RefCell::new([None, None]));
        let inner = AnyTransport::bind_all(&addrs).unwrap();
        let stepped = Stepped { inner, actions: actions.clone() };
        let endpoint = Endpoint::new(stepped, config(PollPolicy::Sleep)).unwrap();
        echo(&endpoint);
        let pool = WorkerPool::by_hand(8);
        endpoint.register_worker(WORK, &pool, |request| request.into_payload()).unwrap();
        let deferred = Rc::new(RefCell::new(Vec::new()));
        let keep = deferred.clone();
        endpoint.register(DEFER, move |request| keep.borrow_mut().extend(request.defer())).unwrap();
        let fd = endpoint.wake_fd().unwrap();
        // A session of the endpoint with itself over each transport: a call there needs the endpoint awake twice.
        let sessions: Vec<Session> = endpoint
            .local_addrs()
            .to_vec()
            .iter()
            .map(|addr| drive(&endpoint, &fd, endpoint.connect(addr)).unwrap())
            .collect();
        // A task that counts how often others woke it.
        let (woken, waker) = (Arc::new(AtomicU64::new(0)), Rc::new(RefCell::new(None::<Waker>)));
        let (seen, shown) = (woken.clone(), waker.clone());
        endpoint.spawn(std::future::poll_fn(move |context| {
            seen.fetch_add(1, SeqCst);
            *shown.borrow_mut() = Some(context.waker().clone());
            Poll::<()>::Pending
        }));
        let until = |done: &dyn Fn() -> bool| {
            let end = Instant::now() + PATIENCE;
            while !done() {
                endpoint.turn();
                assert!(Instant::now() < end);
            }
        };
        until(&|| waker.borrow().is_some());
        let endpoint = &endpoint;
        for (step, session) in (0..STEPS).flat_map(|step| sessions.iter().map(move |session| (step, session))) {
            // Each makes work, and the check it returns says whether the work was done.
            let calls_made = Rc::new(Cell::new(0));
            let kinds: [&Kind<'_>; 4] = [
                // Another thread wakes a task.
                &|| {
                    let (waker, woken, before) = (waker.borrow().clone().unwrap(), woken.clone(), woken.load(SeqCst));
                    let act: Action = Box::new(move || std::thread::spawn(move || waker.wake()).join().unwrap());
                    (act, Box::new(move || woken.load(SeqCst) > before))
                },
                // Another task of this thread wakes one.
                &|| {
                    let (waker, woken, before) = (waker.borrow().clone().unwrap(), woken.clone(), woken.load(SeqCst));
                    (Box::new(move || waker.wake()), Box::new(move || woken.load(SeqCst) > before))
                },
                // Issues a call, which comes back here as packets.
                &|| {
                    let (session, calls) = (session.clone(), calls_made.clone());
                    let before = endpoint.stats().counters.requests_handled;
                    let act: Action = Box::new(move || {
                        calls.set(calls.get() + 1);
                        // If dropped it would be cancelled, so it is kept.
                        CALLS.with_borrow_mut(|kept| kept.push(session.call(ECHO, vec![1; 32])));
                    });
                    (act, Box::new(move || endpoint.stats().counters.requests_handled > before))
                },
                // Answers a deferred request.
                &|| {
                    CALLS.with_borrow_mut(|kept| kept.push(session.call(DEFER, vec![2; 32])));
                    until(&|| !deferred.borrow().is_empty());
                    let request = deferred.borrow_mut().pop().unwrap();
                    let before = endpoint.stats().counters.tx_packets;
                    let act: Action = Box::new(move || request.enqueue_response(vec![3; 32]).unwrap());
                    (act, Box::new(move || endpoint.stats().counters.tx_packets > before))
                },
            ];
            for (kind, make) in kinds.iter().enumerate() {
                let (action, is_done) = make();
                // Until everything earlier is over: then only the action can end the sleep.
                let end = Instant::now() + PATIENCE;
                let mut is_quiet = 0;
                while is_quiet < 3 {
                    assert!(Instant::now() < end);
                    is_quiet = match endpoint.turn() {
                        Turn::Sleep(time) if !wait_readable(&fd, time.min(Duration::from_millis(1))) => is_quiet + 1,
                        _ => 0,
                    };
                }
                let mut action = Some(action);
                if step < 2 {
                    actions.borrow_mut()[step] = action.take();
                }
                let mut turn = endpoint.turn();
                while actions.borrow().iter().any(Option::is_some) {
                    turn = endpoint.turn();
                }
                if let Some(action) = action {
                    while !matches!(turn, Turn::Sleep(_)) {
                        turn = endpoint.turn();
                    }
                    action();
                }
                let at = format!("{addrs:?}, step {step}, kind {kind}");
                if matches!(turn, Turn::Sleep(_)) && !is_done() {
                    assert!(wait_readable(&fd, PATIENCE / 2), "{at}: asleep with work to do");
                }
                until(&is_done);
            }
        }
        CALLS.with_borrow_mut(Vec::clear);
    }
}

thread_local! {
    /// Calls that nobody awaits, and that must not be cancelled.
    static CALLS: RefCell<Vec<dunlin_rpc::Call<Vec<u8>>>> = const { RefCell::new(Vec::new()) };
}
