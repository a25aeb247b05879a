//! Spec-S0 over loopback on fake time.

mod arrivals;
mod restarted;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_net::{Addr, Transport, TxPacket};
use dunlin_seq::direct::packet::{Kind, LONG_BYTES, Packet, SHORT_BYTES};
use dunlin_seq::direct::{BadServer, DirectClient, DirectConfig, DirectError, DirectServer, DirectServerConfig, Stall};
use dunlin_seq::{Batching, Counter, NUMBERS_END};

type Client = DirectClient<LoopbackTransport>;
type Server = DirectServer<LoopbackTransport>;

const HALF: u64 = 1 << 32;

fn network() -> LoopbackNetwork {
    LoopbackNetwork::new(LoopbackConfig { delay: Duration::from_micros(1), ..LoopbackConfig::default() })
}

fn settings() -> DirectServerConfig {
    DirectServerConfig { incarnation: Some(7), ..DirectServerConfig::default() }
}

fn server(network: &LoopbackNetwork, node: u32, start: u64, config: DirectServerConfig) -> Server {
    let counter = Arc::new(Counter::starting_at(start).unwrap());
    DirectServer::new(vec![network.endpoint(node).unwrap()], counter, config).unwrap()
}

fn client(network: &LoopbackNetwork, node: u32, servers: &[u32], config: DirectConfig) -> Client {
    let servers = servers.iter().map(|node| Addr::Node(*node)).collect();
    let config = DirectConfig { first_tag: Some(u64::from(node) << 40), ..config };
    DirectClient::new(network.endpoint(node).unwrap(), servers, config).unwrap()
}

/// Runs everything until the client has no call in progress, and returns the results of its calls, in the order in
/// which they began.
fn finish(network: &LoopbackNetwork, servers: &mut [Server], client: &mut Client) -> Vec<Result<u64, DirectError>> {
    let (mut ended, begun) = (Vec::new(), network.now());
    while client.in_progress() > 0 {
        client.poll(|token, result| ended.push((token, result)));
        servers.iter_mut().for_each(|server| while server.turn() > 0 {});
        network.advance(Duration::from_micros(1));
        assert!(network.now() - begun < 10_000_000_000, "calls have not ended");
    }
    ended.sort_by_key(|(token, _)| *token);
    ended.into_iter().map(|(_, result)| result).collect()
}

fn ask(network: &LoopbackNetwork, servers: &mut [Server], client: &mut Client, calls: u64) -> Vec<u64> {
    (0..calls).for_each(|token| client.ask(token).unwrap());
    finish(network, servers, client).into_iter().map(Result::unwrap).collect()
}

#[test]
fn numbers_rise_and_halves_are_joined() {
    for batching in [Batching::Bursts, Batching::Single] {
        let net = network();
        let mut servers = [server(&net, 1, 5 * HALF - 3, DirectServerConfig { batching, ..settings() })];
        let mut client = client(&net, 2, &[1], DirectConfig::default());
        let numbers = ask(&net, &mut servers, &mut client, 2);
        assert_eq!(numbers, [5 * HALF - 3, 5 * HALF - 2]);
        assert_eq!(client.stats().wrong_guesses, 0, "the hello told the upper half");
        // Across the wrap: all but the first of these guessed wrong.
        let numbers = ask(&net, &mut servers, &mut client, 6);
        assert_eq!(numbers, (5 * HALF - 1..5 * HALF + 5).collect::<Vec<_>>());
        assert_eq!(client.stats().wrong_guesses, 5);
        assert_eq!(ask(&net, &mut servers, &mut client, 40).len(), 40);
        assert_eq!((client.stats().wrong_guesses, servers[0].stats().wrong_guesses), (5, 5));
        let stats = servers[0].stats();
        let draws = if batching == Batching::Bursts { 3 } else { 48 };
        assert_eq!((stats.numbers, stats.draws, stats.unacquainted, stats.peers), (48, draws, 1, 1));
    }
}

/// The counter passes the wrap of the lower half between two requests of a client, whose guess is wrong by one, or by
/// many.
#[test]
fn wrong_guesses_get_all_eight_bytes() {
    let net = network();
    let mut servers = [server(&net, 1, 0, settings())];
    let mut client = client(&net, 2, &[1], DirectConfig::default());
    let mut before = ask(&net, &mut servers, &mut client, 1)[0];
    for jump in [HALF, HALF - 1, 3 * HALF, 1] {
        servers[0].counter().draw(|| 0, jump).unwrap();
        let number = ask(&net, &mut servers, &mut client, 1)[0];
        assert_eq!(number, before + jump + 1);
        before = number;
    }
}

#[test]
fn the_last_number_is_given_once() {
    let net = network();
    let mut servers = [server(&net, 1, NUMBERS_END - 3, settings())];
    let mut client = client(&net, 2, &[1], DirectConfig::default());
    (0..5).for_each(|token| client.ask(token).unwrap());
    let results = finish(&net, &mut servers, &mut client);
    let numbers: Vec<u64> = results.iter().filter_map(|result| result.as_ref().ok().copied()).collect();
    assert_eq!(numbers, (NUMBERS_END - 3..NUMBERS_END).collect::<Vec<_>>());
    let exhausted = results.iter().filter(|result| matches!(result, Err(DirectError::Exhausted { .. }))).count();
    assert_eq!(exhausted, 2);
}

/// A relay that holds all packets back, in both directions, and shows them.
struct Between {
    to_server: LoopbackTransport,
    to_client: LoopbackTransport,
}

impl Between {
    /// At node 1 for a client at node 2, and at node 4 for a server at node 3.
    fn new(network: &LoopbackNetwork) -> Between {
        let (mut to_client, mut to_server) = (network.endpoint(1).unwrap(), network.endpoint(4).unwrap());
        to_client.resolve(&Addr::Node(2)).unwrap();
        to_server.resolve(&Addr::Node(3)).unwrap();
        Between { to_server, to_client }
    }

    /// The packets from the client.
    fn asked(&mut self) -> Vec<Vec<u8>> {
        take(&mut self.to_client)
    }

    fn answered(&mut self) -> Vec<Vec<u8>> {
        take(&mut self.to_server)
    }

    fn pass_on(&mut self, packet: &[u8]) {
        self.to_server.tx_to(&Addr::Node(3), packet).unwrap();
    }

    fn pass_back(&mut self, packet: &[u8]) {
        self.to_client.tx_to(&Addr::Node(2), packet).unwrap();
    }
}

fn take(transport: &mut LoopbackTransport) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let count = transport.rx_burst();
        if count == 0 {
            return all;
        }
        all.extend((0..count).map(|i| transport.rx_packet(i).bytes().unwrap().to_vec()));
    }
}

/// A server and a client behind a relay, after their first exchange.
fn acquainted(net: &LoopbackNetwork, start: u64) -> (Between, Server, Client) {
    let mut between = Between::new(net);
    let mut server = server(net, 3, start, settings());
    let mut client = client(net, 2, &[1], DirectConfig::default());
    client.ask(0).unwrap();
    let mut number = None;
    while number.is_none() {
        client.poll(|_, result| number = Some(result.unwrap()));
        net.advance(Duration::from_micros(1));
        between.asked().iter().for_each(|packet| between.pass_on(packet));
        net.advance(Duration::from_micros(1));
        server.turn();
        net.advance(Duration::from_micros(1));
        between.answered().iter().for_each(|packet| between.pass_back(packet));
        net.advance(Duration::from_micros(1));
    }
    assert_eq!(number, Some(start));
    (between, server, client)
}

fn step(net: &LoopbackNetwork, client: &mut Client) -> Vec<u64> {
    net.advance(Duration::from_micros(1));
    let mut numbers = Vec::new();
    client.poll(|_, result| numbers.push(result.unwrap()));
    net.advance(Duration::from_micros(1));
    numbers
}

/// The server's answer to a packet.
fn answer(net: &LoopbackNetwork, between: &mut Between, server: &mut Server, packet: &[u8]) -> Vec<Vec<u8>> {
    between.pass_on(packet);
    net.advance(Duration::from_micros(1));
    server.turn();
    net.advance(Duration::from_micros(1));
    between.answered()
}

#[test]
fn repeated_late_and_stale_answers_are_dropped() {
    let net = network();
    let (mut between, mut server, mut client) = acquainted(&net, 10);
    client.ask(1).unwrap();
    step(&net, &mut client);
    let asked = between.asked();
    let first = answer(&net, &mut between, &mut server, &asked[0]);
    // The request is duplicated: the second number is a gap.
    let second = answer(&net, &mut between, &mut server, &asked[0]);
    assert_eq!((first[0].len(), second[0].len()), (SHORT_BYTES, SHORT_BYTES), "four bytes of data each way");
    [&second[0], &first[0], &second[0]].into_iter().for_each(|packet| between.pass_back(packet));
    assert_eq!(step(&net, &mut client), [12]);
    assert_eq!(client.stats().late, 2);
    // An answer of another incarnation, one with an unknown tag, and packets outside this protocol.
    client.ask(2).unwrap();
    step(&net, &mut client);
    let asked = between.asked();
    let good = answer(&net, &mut between, &mut server, &asked[0])[0].clone();
    let mut foreign = [good.clone(), good.clone(), good.clone(), good[..19].to_vec(), [&good[..], &[0]].concat()];
    foreign[0][4] ^= 1; // incarnation
    foreign[1][8] ^= 1; // tag
    foreign[2][2] ^= 1; // version
    foreign.iter().for_each(|packet| between.pass_back(packet));
    between.pass_back(&asked[0]);
    between.pass_back(&[7; 1000]);
    assert!(step(&net, &mut client).is_empty());
    let stats = client.stats();
    assert_eq!((stats.stale, stats.late, stats.foreign), (1, 3, 5));
    between.pass_back(&good);
    assert_eq!(step(&net, &mut client), [13]);
}

/// An attempt without an answer is repeated under its tag: the first answer counts, whichever attempt it is to, and the
/// second one is a gap.
#[test]
fn the_first_answer_to_any_attempt_counts() {
    for is_first_lost in [false, true] {
        let net = network();
        let (mut between, mut server, mut client) = acquainted(&net, 0);
        client.ask(1).unwrap();
        step(&net, &mut client);
        let asked = between.asked();
        let first = answer(&net, &mut between, &mut server, &asked[0])[0].clone();
        net.advance(Duration::from_millis(15));
        step(&net, &mut client);
        let again = between.asked();
        assert_eq!(again, asked);
        let second = answer(&net, &mut between, &mut server, &again[0])[0].clone();
        let (taken, late) = if is_first_lost { (second, first) } else { (first, second) };
        between.pass_back(&taken);
        assert_eq!(step(&net, &mut client), [1 + u64::from(is_first_lost)]);
        between.pass_back(&late);
        assert!(step(&net, &mut client).is_empty());
        assert_eq!((client.stats().unanswered, client.stats().late), (1, 1));
    }
}

/// Answers take longer than the timeout of an attempt. The client learns that, and asks hardly more than once for each
/// call.
#[test]
fn a_long_way_costs_few_numbers() {
    const CALLS: u64 = 1_000;
    let net = network();
    let mut between = Between::new(&net);
    let mut server = server(&net, 3, 0, settings());
    let mut client = client(&net, 2, &[1], DirectConfig::default());
    let (mut begun, mut ended, mut on_their_way) = (0, 0, VecDeque::new());
    while ended < CALLS {
        while begun < CALLS && client.in_progress() < 16 {
            client.ask(begun).unwrap();
            begun += 1;
        }
        client.poll(|_, result| {
            result.unwrap();
            ended += 1;
        });
        net.advance(Duration::from_micros(100));
        between.asked().iter().for_each(|packet| between.pass_on(packet));
        net.advance(Duration::from_micros(100));
        while server.turn() > 0 {}
        net.advance(Duration::from_micros(100));
        let due = net.now() + 25_000_000;
        on_their_way.extend(between.answered().into_iter().map(|packet| (due, packet)));
        while on_their_way.front().is_some_and(|(due, _)| *due <= net.now()) {
            let (_, packet) = on_their_way.pop_front().unwrap();
            between.pass_back(&packet);
        }
    }
    let numbers = server.stats().numbers;
    assert!(numbers < CALLS * 3 / 2, "{numbers} numbers were drawn for {CALLS} calls");
}

#[test]
fn waiting_for_one_number_needs_a_client_without_calls() {
    let net = network();
    let mut servers = [server(&net, 1, 0, settings())];
    let mut client = client(&net, 2, &[1], DirectConfig::default());
    client.ask(5).unwrap();
    assert!(matches!(client.next_number(), Err(DirectError::InProgress { in_progress: 1 })));
    let numbers: Vec<u64> = finish(&net, &mut servers, &mut client).into_iter().map(Result::unwrap).collect();
    assert_eq!(numbers, [0]);
}

/// Answers that have arrived while the client stood still are all taken before any attempt counts as unanswered.
#[test]
fn a_client_that_stood_still_loses_no_number() {
    let net = network();
    let mut servers = [server(&net, 1, 0, settings())];
    let mut client = client(&net, 2, &[1], DirectConfig::default());
    ask(&net, &mut servers, &mut client, 1);
    (0..300).for_each(|token| client.ask(token).unwrap());
    client.poll(|_, _| panic!("there is no answer yet"));
    net.advance(Duration::from_micros(2));
    while servers[0].turn() > 0 {}
    net.advance(Duration::from_millis(15));
    let numbers: Vec<u64> = finish(&net, &mut servers, &mut client).into_iter().map(Result::unwrap).collect();
    assert_eq!(numbers, (1..301).collect::<Vec<u64>>());
    assert_eq!((client.stats().unanswered, client.stats().late), (0, 0));
}

/// The lower half is joined with the guess of its own attempt, even if the client has learned another upper half since.
#[test]
fn halves_are_joined_with_the_guess_of_their_attempt() {
    let net = network();
    let (mut between, mut server, mut client) = acquainted(&net, HALF - 2);
    (1..3).for_each(|token| client.ask(token).unwrap());
    step(&net, &mut client);
    let asked = between.asked();
    let low = answer(&net, &mut between, &mut server, &asked[0])[0].clone();
    let full = answer(&net, &mut between, &mut server, &asked[1])[0].clone();
    assert_eq!((low.len(), full.len()), (SHORT_BYTES, LONG_BYTES));
    between.pass_back(&full);
    assert_eq!(step(&net, &mut client), [HALF]);
    between.pass_back(&low);
    assert_eq!(step(&net, &mut client), [HALF - 1]);
}

#[test]
fn a_server_drops_and_counts_what_it_cannot_serve() {
    let net = network();
    let (mut between, mut server, mut client) = acquainted(&net, 0);
    client.ask(1).unwrap();
    step(&net, &mut client);
    let good = between.asked()[0].clone();
    let mut foreign: Vec<Vec<u8>> = vec![vec![1], good[..19].to_vec(), [&good[..], &[0]].concat(), vec![9; 1000]];
    for at in [0, 1, 2, 3] {
        let mut bytes = good.clone();
        bytes[at] ^= 2;
        foreign.push(bytes);
    }
    for packet in &foreign {
        assert!(answer(&net, &mut between, &mut server, packet).is_empty(), "{packet:?}");
    }
    assert_eq!(server.stats().foreign, foreign.len() as u64);
    // A request for another incarnation draws nothing: its client gets a hello.
    let mut stale = good.clone();
    stale[5] ^= 1;
    let hello = answer(&net, &mut between, &mut server, &stale);
    let hello = Packet::parse(&hello[0]).unwrap();
    assert_eq!((hello.kind, hello.incarnation, hello.data), (Kind::Hello, 7, 1));
    assert_eq!((server.stats().stale, server.counter().next()), (1, 1));
}

#[test]
fn a_client_meets_the_server_that_was_restarted() {
    let net = network();
    let mut servers = vec![server(&net, 1, 100, settings())];
    let mut client = client(&net, 2, &[1], DirectConfig::default());
    assert_eq!(ask(&net, &mut servers, &mut client, 2), [100, 101]);
    servers.clear();
    let incarnation = Some(8);
    servers.push(server(&net, 1, 5 * HALF, DirectServerConfig { incarnation, ..settings() }));
    assert_eq!(ask(&net, &mut servers, &mut client, 2), [5 * HALF, 5 * HALF + 1]);
    assert_eq!((client.stats().hellos, servers[0].stats().stale), (2, 2), "one hello stands for all");
    // Below the client's highest number: the client returns no number.
    servers.clear();
    servers.push(server(&net, 1, 5 * HALF + 1, DirectServerConfig { incarnation: Some(9), ..settings() }));
    client.ask(0).unwrap();
    let error = finish(&net, &mut servers, &mut client).remove(0).unwrap_err();
    assert!(
        matches!(error, DirectError::WentBack { first, seen, .. } if (first, seen) == (5 * HALF + 1, 5 * HALF + 1))
    );
    assert_eq!(servers[0].counter().next(), 5 * HALF + 1);
}

/// A client that has learned of an epoch takes nothing from a server without terms, which is in epoch 0: neither from
/// one that it meets then, nor from one that it has met before.
#[test]
fn a_client_of_an_epoch_takes_no_number_of_a_server_without_terms() {
    let net = network();
    let mut plain = [server(&net, 1, 500, settings())];
    let mut client =
        client(&net, 2, &[1, 3], DirectConfig { timeout: Duration::from_millis(100), ..DirectConfig::default() });
    assert_eq!(ask(&net, &mut plain, &mut client, 1), [500]);
    // The other server, by hand: the plain one is not reached meanwhile.
    let mut termed = net.endpoint(3).unwrap();
    client.ask(0).unwrap();
    let mut number = None;
    while number.is_none() {
        client.poll(|_, result| number = Some(result.unwrap()));
        take(&mut plain[0].queues()[0]);
        for asked in take(&mut termed) {
            let asked = Packet::parse(&asked).unwrap();
            let (kind, data) = if asked.incarnation == 5 { (Kind::Full, 700) } else { (Kind::Epoch, 700) };
            let mut bytes = [0; LONG_BYTES];
            let len = Packet { kind, incarnation: 5, tag: asked.tag, data }.write(&mut bytes);
            termed.tx_to(&Addr::Node(2), &bytes[..len]).unwrap();
        }
        net.advance(Duration::from_micros(100));
    }
    assert_eq!((number, client.epoch()), (Some(700), 5));
    // Only the plain one is there now, and its numbers are higher.
    plain[0].counter().draw(|| 0, 1000).unwrap();
    drop(termed);
    client.ask(0).unwrap();
    let error = finish(&net, &mut plain, &mut client).remove(0).unwrap_err();
    assert!(matches!(error, DirectError::TimedOut { .. }), "{error}");
    assert!(client.stats().refused > 0, "it was told of an earlier epoch");
}

#[test]
fn a_client_gives_up_in_time_and_says_why() {
    let net = network();
    let config = DirectConfig { timeout: Duration::from_millis(200), calls_max: 2, ..DirectConfig::default() };
    let mut lonely = client(&net, 2, &[1], config);
    (0..2).for_each(|token| lonely.ask(token).unwrap());
    assert!(matches!(lonely.ask(2), Err(DirectError::TooMany { max: 2 })));
    let begun = net.now();
    for result in finish(&net, &mut [], &mut lonely) {
        let error = result.unwrap_err();
        assert!(matches!(error, DirectError::TimedOut { why: Stall::Silent, .. }), "{error}");
    }
    assert!((200_000_000..210_000_000).contains(&(net.now() - begun)));
    assert!(lonely.stats().attempts < 20, "attempts take longer and longer: {:?}", lonely.stats());
    let idle = DirectServer::new(vec![net.endpoint(1).unwrap()], Arc::new(Counter::idle()), settings()).unwrap();
    lonely.ask(0).unwrap();
    let error = finish(&net, &mut [idle], &mut lonely).remove(0).unwrap_err();
    assert!(matches!(error, DirectError::TimedOut { why: Stall::NotServing, .. }), "{error}");
}

#[test]
fn a_client_turns_to_the_server_that_serves() {
    let net = network();
    let idle = DirectServer::new(vec![net.endpoint(1).unwrap()], Arc::new(Counter::idle()), settings()).unwrap();
    let mut servers = [idle, server(&net, 3, 77, DirectServerConfig { incarnation: Some(3), ..settings() })];
    // There is no server at node 9.
    let mut client = client(&net, 2, &[9, 1, 3], DirectConfig::default());
    assert_eq!(ask(&net, &mut servers, &mut client, 3).len(), 3);
    assert_eq!(ask(&net, &mut servers, &mut client, 3).len(), 3);
    assert!(servers[0].stats().refused > 0);
}

/// Clients of two queues: answers leave by the queue of the request, or by both in turn.
#[test]
fn answers_rotate_over_queues() {
    for rotate in [false, true] {
        let net = network();
        let queues = vec![net.endpoint(1).unwrap(), net.endpoint(3).unwrap()];
        let counter = Arc::new(Counter::starting_at(0).unwrap());
        let config = DirectServerConfig { rotate, ..settings() };
        let mut servers = [DirectServer::new(queues, counter, config).unwrap()];
        let mut clients =
            [client(&net, 2, &[1], DirectConfig::default()), client(&net, 4, &[3], DirectConfig::default())];
        let mut all = Vec::new();
        for _ in 0..10 {
            clients.iter_mut().for_each(|client| all.extend(ask(&net, &mut servers, client, 5)));
        }
        assert_eq!(all, (0..100).collect::<Vec<u64>>());
        all.clear();
        // A single client: with rotation, its answers leave by both queues.
        let before: Vec<u64> = servers[0].queues().iter().map(|queue| queue.counters().tx_packets).collect();
        for _ in 0..10 {
            ask(&net, &mut servers, &mut clients[0], 5);
        }
        let after: Vec<u64> = servers[0].queues().iter().map(|queue| queue.counters().tx_packets).collect();
        let sent: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(sent, if rotate { [25, 25] } else { [50, 0] });
    }
}

/// A client that knows both queues of a server goes to the other one when an answer is late.
#[test]
fn a_client_may_change_queues() {
    let net = network();
    let queues = vec![net.endpoint(1).unwrap(), net.endpoint(3).unwrap()];
    let mut servers = [DirectServer::new(queues, Arc::new(Counter::starting_at(0).unwrap()), settings()).unwrap()];
    let mut client = client(&net, 2, &[1, 3], DirectConfig::default());
    assert_eq!(ask(&net, &mut servers, &mut client, 1), [0]);
    for call in 1..5 {
        client.ask(0).unwrap();
        client.poll(|_, _| panic!("there is no answer yet"));
        net.advance(Duration::from_micros(1));
        // The request is lost, on either queue in turn.
        servers[0].queues().iter_mut().for_each(|queue| drop(take(queue)));
        net.advance(Duration::from_millis(15));
        let numbers: Vec<u64> = finish(&net, &mut servers, &mut client).into_iter().map(Result::unwrap).collect();
        assert_eq!(numbers, [call]);
    }
    assert_eq!(client.stats().unanswered, 4);
}

#[test]
fn more_clients_than_a_server_remembers_are_served() {
    let net = network();
    let mut servers = [server(&net, 1, 0, DirectServerConfig { peers_max: 3, ..settings() })];
    let mut clients: Vec<Client> = (0..6).map(|at| client(&net, 10 + at, &[1], DirectConfig::default())).collect();
    let mut all = Vec::new();
    for _ in 0..4 {
        clients.iter_mut().for_each(|client| all.extend(ask(&net, &mut servers, client, 3)));
    }
    assert_eq!(all, (0..72).collect::<Vec<u64>>());
    let stats = servers[0].stats();
    assert_eq!(stats.peers, 3);
    assert!(stats.to_strangers >= 36);
}

#[test]
fn settings_are_checked() {
    let net = network();
    let counter = || Arc::new(Counter::idle());
    let none: Vec<LoopbackTransport> = Vec::new();
    assert!(matches!(DirectServer::new(none, counter(), settings()), Err(BadServer::Queues(0))));
    let zero = DirectServerConfig { incarnation: Some(0), ..settings() };
    let transport = net.endpoint(1).unwrap();
    assert!(matches!(DirectServer::new(vec![transport], counter(), zero), Err(BadServer::Incarnation)));
    let new = |servers, calls_max| {
        DirectClient::new(net.endpoint(2).unwrap(), servers, DirectConfig { calls_max, ..DirectConfig::default() })
    };
    assert!(matches!(new(Vec::new(), 1), Err(DirectError::NoServer)));
    assert!(matches!(new(vec![Addr::Node(1)], 0), Err(DirectError::Setting { .. })));
    let foreign = "udp://127.0.0.1:1".parse().unwrap();
    assert!(matches!(new(vec![foreign], 1), Err(DirectError::Unreachable { .. })));
}

/// Hostile packets from many addresses, of any bytes, some of them almost valid: only valid requests draw numbers.
#[test]
fn random_packets_do_no_harm() {
    let net = network();
    let mut server = server(&net, 1, 0, DirectServerConfig { peers_max: 4, ..settings() });
    let mut random = dunlin_net::random::Random::new(11);
    let mut others: Vec<LoopbackTransport> = (0..8).map(|at| net.endpoint(20 + at).unwrap()).collect();
    let mut good = 0;
    for _ in 0..20_000 {
        let other = &mut others[random.below(8) as usize];
        let route = other.resolve(&Addr::Node(1)).unwrap();
        let mut bytes = [0; LONG_BYTES];
        let ask = Packet { kind: Kind::Ask, incarnation: 7, tag: random.next(), data: 0 };
        let mut len = ask.write(&mut bytes);
        if random.chance(0.5) {
            bytes[random.below(8) as usize] ^= 1 << random.below(8);
        }
        if random.chance(0.2) {
            len = random.below(24) as usize + 1;
        }
        let is_request = Packet::parse(&bytes[..len]).is_some_and(|it| it.kind == Kind::Ask && it.incarnation == 7);
        good += u64::from(is_request);
        other.tx_burst(&[TxPacket { route, header: &bytes[..len], payload: &[] }]);
        net.advance(Duration::from_micros(1));
        server.turn();
        take(other);
    }
    assert_eq!((server.stats().numbers, server.counter().next()), (good, good));
}
