//! Real sockets: connection limits, clients that are slow, dead or idle, and a server that stops.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use dunlin_kv::memcached::{
    Acceptor, Backend, ConnectionLimit, Count, Inquiry, LOOK_DEFAULT, Listen, Report, Service, Settings, Single,
};
use dunlin_store::{Model, Store as _, UnixSeconds};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};

use super::cores::Cores;
use super::script::START;

/// Long enough for a busy machine; anything longer counts as hung.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub enum Order {
    SetNow(u32),
    Report(oneshot::Sender<Report>),
    /// Get the longest time of any operation.
    Longest(oneshot::Sender<Duration>),
    /// Stop within this time, provided that clients read their answers.
    Stop(Duration),
}

/// A core whose clock a test controls.
pub trait TestCore: Backend {
    fn set_now(&self, now: UnixSeconds);
}

impl TestCore for Single<Model> {
    fn set_now(&self, now: UnixSeconds) {
        Single::set_now(self, now);
    }
}

/// A server on a separate thread.
pub struct Server {
    listens: Vec<Listen>,
    pub orders: mpsc::UnboundedSender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(connections_max: usize, idle_seconds_max: Option<u32>, listens: Vec<Listen>) -> Server {
        Server::start_looking(connections_max, idle_seconds_max, LOOK_DEFAULT, listens)
    }

    fn start_looking(
        connections_max: usize,
        idle_seconds_max: Option<u32>,
        look: Duration,
        listens: Vec<Listen>,
    ) -> Server {
        Server::start_core(|| Single::new(Model::new(), START), connections_max, idle_seconds_max, look, listens)
    }

    fn start_core<C: TestCore>(
        core: impl FnOnce() -> C + Send + 'static,
        connections_max: usize,
        idle_seconds_max: Option<u32>,
        look: Duration,
        listens: Vec<Listen>,
    ) -> Server {
        let (orders, mut received) = mpsc::unbounded_channel();
        let (tell, told) = std::sync::mpsc::channel();
        let serve = move || async move {
            let limit = ConnectionLimit::new(connections_max);
            let acceptors: Vec<Acceptor> =
                listens.iter().map(|listen| Acceptor::bind(listen, limit.clone()).unwrap()).collect();
            let listens: Vec<Listen> = acceptors.iter().map(|acceptor| acceptor.listen().clone()).collect();
            let core = Rc::new(core());
            let mut settings = Settings::new(limit, idle_seconds_max, START, listens.clone());
            settings.look = look;
            let service = Service::start(core.clone(), settings);
            let accepting = acceptors.into_iter().map(|acceptor| {
                let service = service.clone();
                spawn_local(async move {
                    loop {
                        service.adopt(acceptor.accept().await);
                    }
                })
            });
            let accepting: Vec<_> = accepting.collect();
            tell.send(listens).unwrap();
            let mut grace = Duration::ZERO;
            while let Some(order) = received.recv().await {
                match order {
                    Order::SetNow(now) => core.set_now(now),
                    // The sender may be gone.
                    Order::Report(to) => {
                        let all = Inquiry::Connections { first: 0, count: usize::MAX };
                        drop(to.send(core.ask(all).await.remove(0)));
                    }
                    Order::Longest(to) => {
                        let metrics = core.metrics().borrow();
                        let longest = metrics.operations().map(|(_, stats)| stats.latency.percentile(100.0)).max();
                        let _ = to.send(longest.unwrap_or_default());
                    }
                    Order::Stop(within) => {
                        grace = within;
                        break;
                    }
                }
            }
            accepting.iter().for_each(|task| task.abort());
            service.stop(grace).await;
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, serve());
        });
        Server { listens: told.recv().unwrap(), orders, thread: Some(thread) }
    }

    fn tcp(connections_max: usize) -> Server {
        Server::start(connections_max, None, vec!["tcp://127.0.0.1:0".parse().unwrap()])
    }

    /// Starts a server with any number of connections and this limit of their memory.
    pub fn with_connection_bytes(bytes: usize) -> Server {
        Server::with_core(move || Single::new(Model::new(), START).with_connection_bytes(bytes))
    }

    /// The same, seen from the first of two cores.
    pub fn with_two_cores(bytes: usize) -> Server {
        Server::with_core(move || Cores::new(2).with_connection_bytes(bytes))
    }

    pub fn with_core<C: TestCore>(core: impl FnOnce() -> C + Send + 'static) -> Server {
        Server::start_core(core, 10_000, None, LOOK_DEFAULT, vec!["tcp://127.0.0.1:0".parse().unwrap()])
    }

    fn addr(&self) -> SocketAddr {
        match self.listens[0] {
            Listen::Tcp(addr) => addr,
            Listen::Unix(_) => panic!("no TCP"),
        }
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.addr())
    }

    /// Connects from another host, as far as the server can tell: each address of 127.0.0.0/8 is one.
    pub fn connect_from(&self, ip: [u8; 4]) -> TcpStream {
        self.connect_socket(ip, Socket::new(Domain::IPV4, Type::STREAM, None).unwrap())
    }

    /// The same, for a client that will read nothing: the system buffers little for it.
    pub fn connect_deaf_from(&self, ip: [u8; 4]) -> TcpStream {
        const KEPT_BYTES: usize = 4 << 10;
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(KEPT_BYTES).unwrap();
        self.connect_socket(ip, socket)
    }

    fn connect_socket(&self, ip: [u8; 4], socket: Socket) -> TcpStream {
        socket.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
        socket.connect(&self.addr().into()).unwrap();
        configured(socket.into())
    }

    /// Returns the longest time of any operation.
    pub fn longest(&self) -> Duration {
        let (to, told) = oneshot::channel();
        assert!(self.orders.send(Order::Longest(to)).is_ok());
        told.blocking_recv().unwrap()
    }

    pub fn report(&self) -> Report {
        let (to, told) = oneshot::channel();
        assert!(self.orders.send(Order::Report(to)).is_ok());
        told.blocking_recv().unwrap()
    }

    /// Waits until the server's report satisfies a condition. Each check passes through the server's own queue, so this
    /// is not a busy loop.
    pub fn wait_until(&self, is_so: impl Fn(&Report) -> bool) {
        let start = std::time::Instant::now();
        while !is_so(&self.report()) {
            assert!(start.elapsed() < PATIENCE, "it does not come to be: {:?}", self.report());
            std::thread::yield_now();
        }
    }

    fn stop(&mut self) {
        // It may have stopped already.
        let _ = self.orders.send(Order::Stop(Duration::from_secs(5)));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts a core on this thread. Returns a client, too, whose socket no core has adopted.
pub async fn start_here<C: TestCore>(core: Rc<C>) -> (Rc<Service<C>>, dunlin_kv::memcached::Socket, TcpStream) {
    let limit = ConnectionLimit::new(1);
    let acceptor = Acceptor::bind(&"tcp://127.0.0.1:0".parse().unwrap(), limit.clone()).unwrap();
    let Listen::Tcp(addr) = *acceptor.listen() else { panic!("no TCP") };
    let service = Service::start(core, Settings::new(limit, None, START, Vec::new()));
    let client = connect(addr);
    (service, acceptor.accept().await, client)
}

/// Reads to the end of a connection on which no answer may come, beside the core on this thread.
pub async fn expect_no_answer(mut client: TcpStream) {
    let read = tokio::task::spawn_blocking(move || client.read(&mut [0; 64]));
    match read.await.unwrap() {
        Ok(len) => assert_eq!(len, 0, "an answer came"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

fn connect(server: SocketAddr) -> TcpStream {
    configured(TcpStream::connect(server).unwrap())
}

fn configured(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub fn ask(stream: &mut (impl Read + Write), request: &[u8], answer: &[u8]) {
    stream.write_all(request).unwrap();
    expect(stream, answer);
}

pub fn expect(stream: &mut impl Read, answer: &[u8]) {
    let mut got = vec![0; answer.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(answer));
}

pub fn expect_end(stream: &mut impl Read) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => assert_eq!(rest, b""),
        // It was closed with unread data.
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn tcp_and_unix_sockets_serve_the_same_items() {
    let path = std::env::temp_dir().join(format!("dunlin-mc-{}.sock", std::process::id()));
    let listens = vec!["tcp://127.0.0.1:0".parse().unwrap(), Listen::Unix(path.clone())];
    let mut server = Server::start(10, None, listens);
    ask(&mut server.connect(), b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    let mut unix = UnixStream::connect(&path).unwrap();
    ask(&mut unix, b"get a\r\nquit\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n");
    expect_end(&mut unix);
    // In memcached's address format.
    let (mut told, mut client) = (String::new(), server.connect());
    client.write_all(b"stats conns\r\nquit\r\n").unwrap();
    client.read_to_string(&mut told).unwrap();
    for listen in [format!("tcp:{}", server.addr()), format!("unix:{}", path.display())] {
        assert!(told.contains(&format!(":addr {listen}\r\n")), "{told}");
    }
    server.stop();
    assert!(!path.exists(), "the socket of a server that stopped is gone");
}

#[test]
fn a_socket_left_over_is_used_again_and_one_in_use_is_not() {
    let path = std::env::temp_dir().join(format!("dunlin-mc-left-{}.sock", std::process::id()));
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = Server::start(10, None, vec![Listen::Unix(path.clone())]);
    ask(&mut UnixStream::connect(&path).unwrap(), b"mn\r\n", b"MN\r\n");
    assert_eq!(bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(server);
}

/// Tries to listen at `path`, briefly.
fn bind(path: &Path) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { Acceptor::bind(&Listen::Unix(path.to_owned()), ConnectionLimit::new(1)).map(drop) })
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let path = std::env::temp_dir().join(format!("dunlin-mc-file-{}", std::process::id()));
    let link = path.with_extension("link");
    std::fs::write(&path, b"precious").unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for place in [&path, &link] {
        assert_eq!(bind(place).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(place).unwrap(), b"precious");
    }
    for place in [path, link] {
        std::fs::remove_file(place).unwrap();
    }
}

#[test]
fn what_took_the_place_of_a_socket_is_left_alone() {
    let path = std::env::temp_dir().join(format!("dunlin-mc-place-{}.sock", std::process::id()));
    let mut server = Server::start(10, None, vec![Listen::Unix(path.clone())]);
    let aside = path.with_extension("aside");
    std::fs::rename(&path, &aside).unwrap();
    std::fs::write(&path, b"another's").unwrap();
    server.stop();
    assert_eq!(std::fs::read(&path).unwrap(), b"another's");
    for place in [path, aside] {
        std::fs::remove_file(place).unwrap();
    }
}

#[test]
fn connections_above_the_limit_are_told_so() {
    let server = Server::tcp(2);
    let (mut one, mut two) = (server.connect(), server.connect());
    ask(&mut one, b"mn\r\n", b"MN\r\n");
    ask(&mut two, b"mn\r\n", b"MN\r\n");
    let mut three = server.connect();
    expect(&mut three, b"ERROR Too many open connections\r\n");
    expect_end(&mut three);
    drop(one);
    server.wait_until(|report| report.connections == 1);
    ask(&mut server.connect(), b"mn\r\n", b"MN\r\n");
    let mut stats = Vec::new();
    two.write_all(b"stats\r\nquit\r\n").unwrap();
    two.read_to_end(&mut stats).unwrap();
    let stats = String::from_utf8(stats).unwrap();
    assert!(
        stats.contains("STAT rejected_connections 1\r\n") && stats.contains("STAT max_connections 2\r\n"),
        "{stats}"
    );
}

#[test]
fn clients_that_die_in_the_middle_of_a_request_leave_nothing() {
    let server = Server::tcp(100);
    for request in [&b"set a 0 0 1000000\r\nxyz"[..], b"get a b", b"s", b"set a 0 0 2000000\r\nxyz", b"mg a v\r\nms"] {
        let mut client = server.connect();
        client.write_all(request).unwrap();
        drop(client);
    }
    server.wait_until(|report| report.connections == 0 && report.counts.get(Count::TotalConnections) == 5);
    assert_eq!(server.report().store.items, 0);
}

#[test]
fn a_slow_reader_is_not_read_from_and_others_are_served() {
    let server = Server::tcp(10);
    let value = vec![b'v'; 1 << 20];
    let mut slow = server.connect();
    slow.write_all(b"set big 0 0 1048576\r\n").unwrap();
    slow.write_all(&value).unwrap();
    ask(&mut slow, b"\r\n", b"STORED\r\n");
    // More than all buffers in between can hold.
    let gets = 64;
    slow.write_all(&b"get big\r\n".repeat(gets)).unwrap();
    server.wait_until(|report| report.counts.get(Count::Backpressure) > 0);
    let done = server.report().counts.get(Count::CmdGet);
    assert!(done < gets as u64, "all {done} were done, though nobody reads");
    ask(&mut server.connect(), b"mg big s\r\n", b"HD s1048576\r\n");
    let answer = [&b"VALUE big 0 1048576\r\n"[..], &value, b"\r\nEND\r\n"].concat();
    let mut got = vec![0; answer.len()];
    for _ in 0..gets {
        slow.read_exact(&mut got).unwrap();
        assert!(got == answer);
    }
}

#[test]
fn an_endless_pipeline_does_not_starve_others() {
    let server = Server::tcp(10);
    let mut greedy = server.connect();
    let mut sender = greedy.try_clone().unwrap();
    // Both end when the socket is closed.
    let sending = std::thread::spawn(move || while sender.write_all(&b"mg nothing\r\n".repeat(10_000)).is_ok() {});
    let closer = greedy.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while greedy.read(&mut buffer).is_ok_and(|len| len > 0) {}
    });
    server.wait_until(|report| report.counts.get(Count::ConnYields) > 10);
    let mut patient = server.connect();
    for _ in 0..100 {
        ask(&mut patient, b"mn\r\n", b"MN\r\n");
    }
    closer.shutdown(std::net::Shutdown::Both).unwrap();
    sending.join().unwrap();
    reading.join().unwrap();
}

#[test]
fn a_server_that_stops_answers_what_it_received() {
    let mut server = Server::tcp(10);
    let mut idle = server.connect();
    ask(&mut idle, b"mn\r\n", b"MN\r\n");
    let mut half = server.connect();
    ask(&mut half, b"mn\r\nset a 0 0 5\r\nab", b"MN\r\n");
    let mut busy = server.connect();
    busy.write_all(&b"mg a\r\n".repeat(1000)).unwrap();
    // Only after the server knows of all three.
    server.wait_until(|report| report.connections == 3);
    server.stop();
    expect(&mut busy, &b"EN\r\n".repeat(1000));
    expect_end(&mut busy);
    expect_end(&mut half);
    expect_end(&mut idle);
}

/// Its letter was in the mailbox of the core before the core was told to stop. The last snapshot is saved meanwhile.
#[tokio::test]
async fn a_core_that_has_stopped_serves_no_connection_that_comes_later() {
    let work = async {
        let core = Rc::new(Single::new(Model::new(), START));
        let (service, socket, mut client) = start_here(core.clone()).await;
        service.stop(PATIENCE).await;
        client.write_all(b"set a 0 0 1\r\nx\r\n").unwrap();
        service.adopt(socket);
        expect_no_answer(client).await;
        assert_eq!(core.with_store(|store| store.stats().items), 0);
    };
    LocalSet::new().run_until(work).await;
}

#[test]
fn idle_connections_are_closed_after_their_time() {
    let server = Server::start(10, Some(60), vec!["tcp://127.0.0.1:0".parse().unwrap()]);
    let mut idle = server.connect();
    ask(&mut idle, b"mn\r\n", b"MN\r\n");
    assert!(server.orders.send(Order::SetNow(START + 59)).is_ok());
    let mut busy = server.connect();
    ask(&mut busy, b"mn\r\n", b"MN\r\n");
    assert!(server.orders.send(Order::SetNow(START + 60)).is_ok());
    expect_end(&mut idle);
    ask(&mut busy, b"mn\r\n", b"MN\r\n");
    assert_eq!(server.report().counts.get(Count::IdleKicks), 1);
}

pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// The client process's server address, and the number of connections that it must open.
const SERVER: &str = "DUNLIN_TEST_SERVER";
const CONNECTIONS: &str = "DUNLIN_TEST_CONNECTIONS";

/// Allows this process this many open files, beyond those of other tests. `None`, with a message, if this user is not
/// permitted to.
pub fn allow_files(wanted: u64) -> Option<()> {
    /// Open files of concurrent tests and of the process itself.
    const FILES_BESIDE: u64 = 500;
    let (limit, files) = (getrlimit(Resource::Nofile), wanted + FILES_BESIDE);
    if let Some(maximum) = limit.maximum.filter(|&maximum| maximum < files) {
        println!("skipped: this takes {files} open files, and this user may have {maximum}");
        return None;
    }
    if limit.current.is_some_and(|current| current < files) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum: limit.maximum }).unwrap();
    }
    Some(())
}

/// Opens connections and leaves them idle, until told to use some.
#[test]
#[ignore = "a process for the other tests"]
fn clients() {
    let (Ok(server), Ok(connections)) = (std::env::var(SERVER), std::env::var(CONNECTIONS)) else { return };
    let (server, connections): (SocketAddr, usize) = (server.parse().unwrap(), connections.parse().unwrap());
    allow_files(connections as u64).unwrap();
    let mut clients = Vec::with_capacity(connections);
    for _ in 0..connections {
        clients.push(connect(server));
        let client = clients.last_mut().unwrap();
        // No more at once than may wait to be accepted.
        ask(client, b"mn\r\n", b"MN\r\n");
    }
    println!("open");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    for client in clients.iter_mut().step_by(997) {
        ask(client, b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    }
    println!("used");
}

#[test]
fn ten_thousand_idle_connections() {
    const CONNECTIONS_WANTED: usize = 10_000;
    // The other ends are in another process.
    let Some(()) = allow_files(CONNECTIONS_WANTED as u64) else { return };
    let server = Server::tcp(CONNECTIONS_WANTED);
    let before = resident_bytes();
    let mut clients = Command::new(std::env::current_exe().unwrap());
    clients.args(["--exact", "sockets::clients", "--ignored", "--nocapture"]);
    clients.env(SERVER, server.addr().to_string()).env(CONNECTIONS, CONNECTIONS_WANTED.to_string());
    let mut clients = clients.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(clients.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("open")), "the clients ended by themselves");
    assert_eq!(server.report().connections, CONNECTIONS_WANTED as u64);
    // One more exceeds the limit.
    let mut refused = server.connect();
    expect(&mut refused, b"ERROR Too many open connections\r\n");
    let each = resident_bytes().saturating_sub(before) / CONNECTIONS_WANTED;
    println!("{each} bytes of this process's memory for each idle connection");
    // In unoptimized builds, 4,172 to 4,363 were seen.
    assert!(each < 6144, "{each} bytes for each idle connection");
    clients.stdin.take().unwrap().write_all(b"use them\n").unwrap();
    assert!(lines.any(|line| line.unwrap().ends_with("used")));
    assert!(clients.wait().unwrap().success());
    server.wait_until(|report| report.connections == 0);
}

/// One server polls for an hour once it begins, and one never polls: both serve every connection, close idle ones, and
/// stop when told to.
#[test]
fn a_server_does_the_same_whether_or_not_it_looks_at_its_sockets() {
    for look in [Duration::from_secs(3600), Duration::ZERO] {
        let mut server = Server::start_looking(8, Some(100), look, vec!["tcp://127.0.0.1:0".parse().unwrap()]);
        let mut first = server.connect();
        // More than are needed to make it poll.
        for number in 0..20 {
            ask(&mut first, format!("set k{number} 0 0 1\r\n{}\r\n", number % 10).as_bytes(), b"STORED\r\n");
        }
        let mut second = server.connect();
        ask(&mut second, b"get k3 k19\r\n", b"VALUE k3 0 1\r\n3\r\nVALUE k19 0 1\r\n9\r\nEND\r\n");
        assert!(server.orders.send(Order::SetNow(START + 100)).is_ok());
        expect_end(&mut first);
        expect_end(&mut second);
        let mut third = server.connect();
        ask(&mut third, b"get k3\r\n", b"VALUE k3 0 1\r\n3\r\nEND\r\n");
        server.stop();
        expect_end(&mut third);
    }
}
