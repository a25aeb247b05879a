//! What arrives together: answers to a client that stood still, and requests of clients that the server does not know.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_net::loopback::LoopbackTransport;
use dunlin_net::{Addr, AnyTransport, NetError, Route, Transport, TxPacket};
use dunlin_seq::Counter;
use dunlin_seq::direct::packet::{Bytes, Kind, LONG_BYTES, Packet};
use dunlin_seq::direct::{DirectClient, DirectConfig, DirectServer, DirectServerConfig};

use crate::{ask, client, network, settings, take};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn places(what: &str) -> [Addr; 2] {
    let shm = format!("shm:sq-{what}-{}", std::process::id());
    [shm.parse().unwrap(), "udp://127.0.0.1:0".parse().unwrap()]
}

fn server(at: &Addr) -> (DirectServer<AnyTransport>, Addr) {
    let transport = AnyTransport::bind(at).unwrap();
    let at = transport.local_addr();
    let counter = Arc::new(Counter::starting_at(0).unwrap());
    (DirectServer::new(vec![transport], counter, DirectServerConfig::default()).unwrap(), at)
}

/// Polls and serves until the client has no call in progress; its calls must get numbers.
fn finish(server: &mut DirectServer<AnyTransport>, client: &mut DirectClient<AnyTransport>) {
    let begun = Instant::now();
    while client.in_progress() > 0 {
        client.poll(|_, result| assert!(result.is_ok(), "{result:?}"));
        server.turn();
        assert!(begun.elapsed() < PATIENCE, "there is no answer");
    }
}

/// The answers lie in the queue, in several bursts, when the client goes on: after an attempt's time, and after that of
/// the call.
#[test]
fn answers_that_came_while_a_client_stood_still_all_count() {
    const CALLS: u64 = 128;
    for at in places("stood") {
        let (mut server, at) = server(&at);
        let config = DirectConfig {
            timeout: Duration::from_millis(300),
            attempt_timeout: Duration::from_millis(5),
            ..DirectConfig::default()
        };
        let mut client = DirectClient::new(AnyTransport::for_peer(&at).unwrap(), vec![at.clone()], config).unwrap();
        client.ask(0).unwrap();
        finish(&mut server, &mut client);
        for stop in [15, 400] {
            let (before, served) = (client.stats(), server.stats().numbers);
            (0..CALLS).for_each(|token| client.ask(token).unwrap());
            client.poll(|_, _| panic!("there is no answer yet"));
            let begun = Instant::now();
            while server.stats().numbers < served + CALLS {
                server.turn();
                assert!(begun.elapsed() < PATIENCE, "requests are missing");
            }
            std::thread::sleep(Duration::from_millis(stop));
            let mut numbers = 0;
            while client.in_progress() > 0 {
                client.poll(|_, result| {
                    result.unwrap_or_else(|error| panic!("{at}, after {stop} ms: {error}"));
                    numbers += 1;
                });
            }
            let after = client.stats();
            assert_eq!((numbers, after.unanswered - before.unanswered), (CALLS, 0), "{at}, after {stop} ms");
            assert_eq!(server.stats().numbers, served + CALLS);
        }
    }
}

/// A client that knows no incarnation asks with one call, however many wait.
#[test]
fn a_client_introduces_itself_with_one_request() {
    for at in places("hello") {
        let (mut server, at) = server(&at);
        let config = DirectConfig { timeout: PATIENCE, attempt_timeout: PATIENCE / 8, ..DirectConfig::default() };
        let mut client = DirectClient::new(AnyTransport::for_peer(&at).unwrap(), vec![at.clone()], config).unwrap();
        (0..1024).for_each(|token| client.ask(token).unwrap());
        finish(&mut server, &mut client);
        let stats = server.stats();
        assert!(stats.unacquainted <= 2, "{at}: {stats:?}");
    }
}

/// Requests of one sender that name no incarnation, all in one datagram: a hello for each burst, not for each request.
#[test]
fn many_requests_of_a_stranger_get_few_hellos() {
    const ASKS: u64 = 400;
    let [_, at] = places("");
    let (mut server, at) = server(&at);
    let mut stranger = AnyTransport::for_peer(&at).unwrap();
    let route = stranger.resolve(&at).unwrap();
    let packets: Vec<(Bytes, usize)> = (0..ASKS)
        .map(|tag| {
            let mut bytes = [0; LONG_BYTES];
            let len = Packet { kind: Kind::Ask, incarnation: 0, tag, data: 0 }.write(&mut bytes);
            (bytes, len)
        })
        .collect();
    let packets: Vec<TxPacket<'_>> =
        packets.iter().map(|(bytes, len)| TxPacket { route, header: &bytes[..*len], payload: &[] }).collect();
    stranger.tx_burst(&packets);
    stranger.tx_flush();
    let begun = Instant::now();
    while server.stats().unacquainted < ASKS {
        server.turn();
        assert!(begun.elapsed() < PATIENCE, "{:?}", server.stats());
    }
    assert!(server.stats().to_strangers <= ASKS.div_ceil(32), "{:?}", server.stats());
}

/// Counts how often a way to a peer was opened, and refuses to beyond a limit: like a process that has no descriptors
/// left.
struct Limited {
    inner: LoopbackTransport,
    opened: Rc<Cell<usize>>,
    /// Ways that are open, and how many may be.
    open: usize,
    limit: Rc<Cell<usize>>,
}

impl Limited {
    fn open(&mut self) -> Result<(), NetError> {
        self.opened.set(self.opened.get() + 1);
        if self.open < self.limit.get() {
            Ok(())
        } else {
            Err(NetError::Full { what: "descriptors", limit: self.open })
        }
    }
}

impl Transport for Limited {
    dunlin_net::forward_transport!(inner: mtu, route_mtu, rx_queue_len, local_addr, local_addrs, is_local, is_local_route);
    dunlin_net::forward_transport!(inner: peer_health, tx_burst, tx_flush, rx_burst, rx_packet, rx_source);
    dunlin_net::forward_transport!(inner: now, wait, waker, wake_fd, arm, disarm, counters, is_mtu_certain, limit_joining);

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        self.open()?;
        let route = self.inner.resolve(addr)?;
        self.open += 1;
        Ok(route)
    }

    fn release(&mut self, route: Route) {
        self.open -= 1;
        self.inner.release(route);
    }

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        self.open()?;
        self.inner.tx_to(addr, packet)
    }
}

/// A server of [`Limited`], with its count and its limit.
fn limited(
    net: &dunlin_net::loopback::LoopbackNetwork,
    peers_max: usize,
) -> (DirectServer<Limited>, [Rc<Cell<usize>>; 2]) {
    let (opened, limit) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(usize::MAX)));
    let inner = net.endpoint(1).unwrap();
    let queue = Limited { inner, opened: opened.clone(), open: 0, limit: limit.clone() };
    let counter = Arc::new(Counter::starting_at(0).unwrap());
    let config = DirectServerConfig { peers_max, ..settings() };
    (DirectServer::new(vec![queue], counter, config).unwrap(), [opened, limit])
}

/// Turns a server and a client until the client has no call in progress; returns how many calls got numbers.
fn serve(
    net: &dunlin_net::loopback::LoopbackNetwork,
    server: &mut DirectServer<Limited>,
    client: &mut DirectClient<LoopbackTransport>,
) -> usize {
    let mut numbers = 0;
    while client.in_progress() > 0 {
        client.poll(|_, result| numbers += usize::from(result.is_ok()));
        while server.turn() > 0 {}
        net.advance(Duration::from_micros(1));
    }
    numbers
}

/// Over shared memory each way costs an open file and two mappings.
#[test]
fn the_way_to_a_client_that_is_not_remembered_is_opened_once_for_each_burst() {
    let net = network();
    let (mut server, [opened, _]) = limited(&net, 0);
    let mut client = client(&net, 2, &[1], DirectConfig::default());
    for _ in 0..10 {
        (0..64).for_each(|token| client.ask(token).unwrap());
        assert_eq!(serve(&net, &mut server, &mut client), 64);
    }
    assert_eq!(server.stats().peers, 0);
    assert!(opened.get() <= 30, "{} for 10 bursts", opened.get());
}

/// Those that it knows are served, and what the others asked is counted.
#[test]
fn a_server_without_descriptors_serves_the_clients_that_it_knows() {
    let net = network();
    let (mut server, [_, limit]) = limited(&net, 100);
    let config = DirectConfig { timeout: Duration::from_millis(100), ..DirectConfig::default() };
    let (mut first, mut second) = (client(&net, 2, &[1], config), client(&net, 3, &[1], config));
    first.ask(0).unwrap();
    assert_eq!(serve(&net, &mut server, &mut first), 1);
    limit.set(0);
    for other in [&mut second, &mut first] {
        (0..3).for_each(|token| other.ask(token).unwrap());
    }
    assert_eq!(serve(&net, &mut server, &mut second), 0);
    assert_eq!(serve(&net, &mut server, &mut first), 3);
    let stats = server.stats();
    assert_eq!((stats.numbers, stats.peers), (4, 1), "nothing was drawn in vain");
    assert!(stats.unsent >= 1, "{stats:?}");
    limit.set(usize::MAX);
    second.ask(0).unwrap();
    assert_eq!(serve(&net, &mut server, &mut second), 1);
    assert_eq!(server.stats().peers, 2);
}

/// Silence is a time, not a number of bursts: a client that asked a moment ago stays known, however many the others
/// have sent since. One that has been silent for long makes room.
#[test]
fn a_client_makes_room_when_it_has_been_silent_for_some_seconds() {
    let net = network();
    let mut servers = [crate::server(&net, 1, 0, DirectServerConfig { peers_max: 2, ..settings() })];
    let mut clients = [2, 3, 4].map(|node| client(&net, node, &[1], DirectConfig::default()));
    let [rare, busy, third] = &mut clients;
    ask(&net, &mut servers, rare, 1);
    ask(&net, &mut servers, busy, 1);
    for _ in 0..110_000 {
        busy.ask(0).unwrap();
        while busy.in_progress() > 0 {
            busy.poll(|_, result| assert!(result.is_ok()));
            net.advance(Duration::from_micros(1));
            servers[0].turn();
        }
    }
    (0..5).for_each(|_| drop(ask(&net, &mut servers, third, 1)));
    let strangers = servers[0].stats().to_strangers;
    ask(&net, &mut servers, rare, 1);
    assert_eq!(servers[0].stats().to_strangers, strangers, "it asked less than a second ago");
    (0..5).for_each(|_| drop(ask(&net, &mut servers, third, 1)));
    for _ in 0..12 {
        net.advance(Duration::from_secs(1));
        ask(&net, &mut servers, busy, 1);
    }
    (0..5).for_each(|_| drop(ask(&net, &mut servers, third, 1)));
    let strangers = servers[0].stats().to_strangers;
    for client in [busy, third] {
        ask(&net, &mut servers, client, 1);
    }
    let stats = servers[0].stats();
    assert_eq!((stats.peers, stats.to_strangers), (2, strangers));
    take(servers[0].queues().first_mut().unwrap());
}
