//! Real processes that are killed, stopped and restarted, over shared memory and over UDP.
//!
//! Children are this test binary again; environment variables tell them which role to play. Times are printed;
//! assertions leave room for a busy machine.

use std::cell::{Cell, RefCell};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{CallError, Completion, Endpoint, EndpointConfig, Session};
use rustix::process::{Pid, Signal, kill_process};

const ROLE: &str = "DUNLIN_TEST_ROLE";
const ADDRESS: &str = "DUNLIN_TEST_ADDRESS";
/// No child lives longer than this, whatever happens to its parent.
const CHILD_LIFE_MAX: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(20);
/// Processes that are killed, one after the other.
const DEATHS: usize = 5;
/// "Noticed at once": a few ticks of the endpoint, which come every 5 ms while calls are in progress and otherwise
/// every 100 ms. For the median of the deaths, with room for a busy machine: an endpoint that waits for its peer's
/// silence takes a second.
const DEATH_NOTICED_WITHIN: Duration = Duration::from_millis(600);
/// Over UDP an endpoint learns of a death when a packet is refused, and judges the peer half of its timeout later. An
/// endpoint that waits for nothing sends such a packet after a quarter of the timeout.
const REFUSED_DEATH_NOTICED_WITHIN: Duration = Duration::from_millis(950);
const SILENT_DEATH_NOTICED_WITHIN: Duration = Duration::from_millis(1800);
/// Limit for each single death.
const DEATH_NOTICED_MAX: Duration = Duration::from_secs(5);

/// Responds with the request.
const ECHO: u8 = 1;
/// Never responds.
const HOLD: u8 = 2;
/// Responds with the number of the server's sessions.
const SESSIONS: u8 = 3;

type Ep = Endpoint<AnyTransport>;

/// A child process that gets SIGKILL when dropped.
struct Killed(Child);

impl Killed {
    fn start(role: &str, address: &Addr) -> Killed {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .envs([(ROLE, role), (ADDRESS, &address.to_string())])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Killed(child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// What a child does.
#[test]
#[ignore = "the part of a child process"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let address: Addr = std::env::var(ADDRESS).unwrap().parse().unwrap();
    match role.as_str() {
        "server" => server(&address).run_for(CHILD_LIFE_MAX),
        "client" => {
            let client = Ep::new(AnyTransport::for_peer(&address).unwrap(), EndpointConfig::default()).unwrap();
            let session = connect(&client, &address);
            let _held: Vec<_> = (0..Load::HELD).map(|_| session.call(HOLD, vec![1; 100])).collect();
            loop {
                client.block_on(session.call(ECHO, vec![7; 32])).unwrap();
            }
        }
        _ => panic!("{role}"),
    }
}

/// Starts a server; the address of a killed one may take a moment to be free.
fn server(address: &Addr) -> Ep {
    let start = Instant::now();
    let transport = loop {
        match AnyTransport::bind(address) {
            Ok(transport) => break transport,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::yield_now();
    };
    let server = Ep::new(transport, EndpointConfig::default()).unwrap();
    let echo = |request: dunlin_rpc::Request<'_>| {
        let payload = request.payload();
        request.respond(payload);
    };
    server.register(ECHO, echo).unwrap();
    let held = RefCell::new(Vec::new());
    server.register(HOLD, move |request| held.borrow_mut().push(request.defer().unwrap())).unwrap();
    let known: Rc<RefCell<Vec<Session>>> = Rc::default();
    let count = move |request: dunlin_rpc::Request<'_>| {
        let mut known = known.borrow_mut();
        let session = request.session();
        if !known.contains(&session) {
            known.push(session);
        }
        known.retain(Session::is_open);
        request.respond(&[known.len() as u8]);
    };
    server.register(SESSIONS, count).unwrap();
    server
}

fn client(address: &Addr, config: EndpointConfig) -> Ep {
    Ep::new(AnyTransport::for_peer(address).unwrap(), config).unwrap()
}

/// Retries until it works: the server may still be starting.
fn connect(client: &Ep, address: &Addr) -> Session {
    let start = Instant::now();
    loop {
        match client.block_on(client.connect(address)) {
            Ok(session) => return session,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
    }
}

fn shm(name: &str) -> Addr {
    format!("shm:test-{}-{name}", std::process::id()).parse().unwrap()
}

/// A free port below the ephemeral range of the system: no other socket takes it while a server is down.
fn udp() -> Addr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = (std::process::id() % 2_500) as u16 * 4;
    loop {
        let port = 10_000 + (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if let Ok(socket) = UdpSocket::bind(("127.0.0.1", port)) {
            return Addr::Udp(socket.local_addr().unwrap());
        }
    }
}

/// Waits for `done`, and returns the time that took.
fn wait(endpoint: &Ep, mut done: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    endpoint.run_until(|| {
        assert!(start.elapsed() < PATIENCE, "nothing came of it in {PATIENCE:?}");
        done()
    });
    start.elapsed()
}

fn echo(client: &Ep, session: &Session) {
    let reply = client.block_on(session.call(ECHO, b"are you there?".to_vec())).unwrap();
    assert_eq!(&reply.response[..], b"are you there?");
}

/// Checks how soon the deaths were noticed.
fn check_deaths(address: &Addr, mut times: Vec<Duration>, median_max: Duration) {
    times.sort_unstable();
    println!("{address}: deaths noticed after {times:?}");
    assert!(times[times.len() / 2] < median_max, "{times:?}");
    assert!(times[times.len() - 1] < DEATH_NOTICED_MAX, "{times:?}");
}

/// Issues calls of both layers; the server holds some for ever and answers others. Counts how each ends.
struct Load {
    ends: Rc<RefCell<Vec<u32>>>,
    errors: Rc<RefCell<Vec<CallError>>>,
    answers: Rc<Cell<u64>>,
}

impl Load {
    const HELD: usize = 6;
    const QUEUED: usize = 40;

    fn start(client: &Ep, session: &Session) -> Load {
        let calls = Self::HELD + Self::QUEUED;
        let load = Load { ends: Rc::new(RefCell::new(vec![0; calls])), errors: Rc::default(), answers: Rc::default() };
        let (ends, errors) = (load.ends.clone(), load.errors.clone());
        let continuation = client.register_continuation(move |completion: Completion| {
            ends.borrow_mut()[completion.tag as usize] += 1;
            errors.borrow_mut().extend(completion.result.err());
        });
        // These keep most slots busy; one is left for the others, which wait in the session's queue.
        for i in 0..Self::HELD {
            session.enqueue_request(HOLD, vec![1; 5000], continuation, i as u64).map_err(|f| f.error).unwrap();
        }
        for i in Self::HELD..calls {
            let (session, ends, errors, answers) =
                (session.clone(), load.ends.clone(), load.errors.clone(), load.answers.clone());
            client.spawn(async move {
                let mut request = vec![2; 64];
                loop {
                    match session.call(ECHO, request).await {
                        Ok(reply) => request = reply.request,
                        Err(failure) => {
                            ends.borrow_mut()[i] += 1;
                            errors.borrow_mut().push(failure.error);
                            return;
                        }
                    }
                    answers.set(answers.get() + 1);
                }
            });
        }
        load
    }

    fn all_ended(&self) -> bool {
        self.ends.borrow().iter().all(|ends| *ends > 0)
    }

    /// Every call ended once, with this error.
    fn check(&self, expected: CallError) {
        assert!(self.ends.borrow().iter().all(|ends| *ends == 1), "{:?}", self.ends.borrow());
        assert!(self.errors.borrow().iter().all(|error| *error == expected), "{:?}", self.errors.borrow());
        assert_eq!(self.errors.borrow().len(), Self::HELD + Self::QUEUED);
    }
}

fn a_server_is_killed_and_started_again(address: &Addr, within: Duration) {
    let client = client(address, EndpointConfig::default());
    let mut times = Vec::new();
    for _ in 0..DEATHS {
        let server = Killed::start("server", address);
        let session = connect(&client, address);
        for _ in 0..3 {
            echo(&client, &session);
        }
        let load = Load::start(&client, &session);
        wait(&client, || load.answers.get() > 1_000);
        drop(server);
        times.push(wait(&client, || load.all_ended()));
        load.check(CallError::PeerDied);
        assert!(!session.is_open());
        let stats = client.stats();
        assert_eq!((stats.sessions, stats.calls_pending, stats.credits_reserved, stats.tasks), (0, 0, 0, 0), "{stats}");
    }
    check_deaths(address, times, within);
}

#[test]
fn a_server_is_killed_and_started_again_over_shm() {
    a_server_is_killed_and_started_again(&shm("server"), DEATH_NOTICED_WITHIN);
}

#[test]
fn a_server_is_killed_and_started_again_over_udp() {
    a_server_is_killed_and_started_again(&udp(), REFUSED_DEATH_NOTICED_WITHIN);
}

fn a_client_is_killed(address: &Addr, median_max: Duration) {
    let server = server(address);
    let mut times = Vec::new();
    for _ in 0..DEATHS {
        let handled = server.stats().counters.requests_handled;
        let client = Killed::start("client", address);
        // The server holds most of its slots for ever, and answers what comes on the others.
        wait(&server, || server.stats().counters.requests_handled > handled + 200);
        let stats = server.stats();
        assert_eq!(stats.sessions, 1);
        assert!(stats.requests_held > 0 && stats.credits_reserved > 0, "{stats}");
        drop(client);
        times.push(wait(&server, || server.stats().sessions == 0));
        let stats = server.stats();
        assert_eq!((stats.requests_held, stats.credits_reserved), (0, 0), "{stats}");
    }
    check_deaths(address, times, median_max);
}

#[test]
fn a_killed_client_leaves_nothing_over_shm() {
    a_client_is_killed(&shm("client"), DEATH_NOTICED_WITHIN);
}

#[test]
fn a_killed_client_leaves_nothing_over_udp() {
    a_client_is_killed(&udp(), SILENT_DEATH_NOTICED_WITHIN);
}

fn a_server_is_stopped(address: &Addr) {
    let peer_timeout = Duration::from_secs(1);
    let server = Killed::start("server", address);
    let client = client(address, EndpointConfig { peer_timeout, ..EndpointConfig::default() });
    let session = connect(&client, address);
    let load = Load::start(&client, &session);
    wait(&client, || load.answers.get() > 1_000);
    server.signal(Signal::STOP);
    let time = wait(&client, || load.all_ended());
    println!("{address}: calls ended {time:?} after the server fell silent, with a timeout of {peer_timeout:?}");
    load.check(CallError::PeerSilent);
    assert!(time > peer_timeout / 2 && time < 4 * peer_timeout + DEATH_NOTICED_MAX, "{time:?}");
    server.signal(Signal::CONT);
    let session = connect(&client, address);
    echo(&client, &session);
    let sessions = client.block_on(session.call(SESSIONS, Vec::new())).unwrap();
    assert_eq!(&sessions.response[..], [1], "sessions that asked the server");
}

#[test]
fn a_stopped_server_is_given_up_over_shm() {
    a_server_is_stopped(&shm("stopped"));
}

#[test]
fn a_stopped_server_is_given_up_over_udp() {
    a_server_is_stopped(&udp());
}
