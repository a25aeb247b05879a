//! What memcached connections of several cores hold.

use std::io::{Read, Write};
use std::time::Instant;

use dunlin_kv::metrics::ConnectionCounts;
use dunlin_kv::server::Server;

use super::client::{Client, PATIENCE, config};

const VALUE_BYTES: usize = 1 << 20;
/// More than a Unix socket takes.
const GETS: usize = 4;

fn connections_until(server: &Server, is_so: impl Fn(&ConnectionCounts) -> bool) -> ConnectionCounts {
    let begun = Instant::now();
    loop {
        let connections = server.stats().connections();
        if is_so(&connections) {
            return connections;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not come to be: {connections:?}");
    }
}

#[test]
fn an_unread_get_of_a_long_value_holds_it_once_also_when_another_core_has_it() {
    const CLIENTS: usize = 12;
    let mut config = config("unread", 2);
    config.memory_bytes = 64 << 20;
    let server = Server::start(config.clone(), |_| {}).unwrap();
    let value = vec![b'v'; VALUE_BYTES];
    let mut first = Client::connect(&config);
    // Some are of the core that has the connection, some of the other one.
    for key in 0..CLIENTS {
        first.say(format!("set {key} 0 0 {VALUE_BYTES}\r\n").as_bytes());
        first.say(&value);
        first.ask(b"\r\n", b"STORED\r\n");
    }
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&config)).collect();
    for (key, client) in clients.iter_mut().enumerate() {
        client.say(&format!("get {key}\r\n").repeat(GETS).into_bytes());
    }
    let all = (CLIENTS * VALUE_BYTES) as u64;
    let held = connections_until(&server, |connections| connections.memory_bytes >= all).memory_bytes;
    assert!(held <= all + all / 10 + (CLIENTS as u64 * (64 << 10)), "{held} bytes for {CLIENTS} unread answers");
    for (key, client) in clients.iter_mut().enumerate() {
        let answer = [format!("VALUE {key} 0 {VALUE_BYTES}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
        let mut got = vec![0; answer.len()];
        for _ in 0..GETS {
            client.0.read_exact(&mut got).unwrap();
            assert!(got == answer, "{key}");
        }
    }
    drop((first, clients));
    let connections = connections_until(&server, |connections| connections.open == 0);
    assert_eq!((connections.memory_bytes, connections.memory_kicks), (0, 0));
    server.stop().unwrap();
}

#[test]
fn many_cores_and_long_values_stay_within_the_budget() {
    const CLIENTS: usize = 100;
    let mut config = config("budget", 3);
    config.memory_bytes = 128 << 20;
    config.connection_memory_bytes = 0;
    let server = Server::start(config.clone(), |_| {}).unwrap();
    let value = vec![b'v'; VALUE_BYTES];
    let set = |key: usize| [format!("set {key} 0 0 {VALUE_BYTES}\r\n").as_bytes(), &value, b"\r\n"].concat();
    let mut first = Client::connect(&config);
    (0..16).for_each(|key| first.ask(&set(key), b"STORED\r\n"));
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&config)).collect();
    let get: String = (0..16).map(|key| format!(" {key}")).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        if number % 2 == 0 {
            client.say(format!("get{get}\r\n").as_bytes());
        } else {
            client.0.set_nonblocking(true).unwrap();
            let request = set(number);
            // As much as it takes.
            let _ = client.0.write(&request[..request.len() / 2]);
            client.0.set_nonblocking(false).unwrap();
        }
    }
    let connections = connections_until(&server, |connections| connections.memory_waits > 0);
    let limit = connections.memory_bytes_max + (CLIENTS * (80 << 10)) as u64;
    assert!(connections.memory_bytes <= limit, "{connections:?}");
    // Others are served.
    let mut small = Client::connect(&config);
    small.fill("small", 50);
    assert_eq!(small.count("small", 50), 50);
    drop(clients);
    let connections = connections_until(&server, |connections| connections.open == 2);
    assert_eq!(connections.memory_bytes, 0);
    server.stop().unwrap();
}
