//! The memory held by memcached connections of several cores.

use std::io::{Read, Write};
use std::process::Command;
use std::time::Instant;

use dunlin_kv::memcached::CORE_BYTES_MIN;
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
fn a_limit_for_clients_that_no_message_fits_is_refused_with_the_least() {
    let mut config = config("held", 1);
    config.held_bytes_max = 1 << 20;
    let error = Server::start(config, |_| {}).map(drop).unwrap_err();
    let causes: Vec<String> = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source())
        .map(|e| e.to_string())
        .collect();
    assert!(causes.iter().any(|cause| cause.contains("held_bytes_max")), "{causes:?}");
}

#[test]
fn an_unread_get_of_a_long_value_holds_it_once_also_when_another_core_has_it() {
    const CLIENTS: usize = 12;
    let mut config = config("unread", 2);
    config.memory_bytes = 64 << 20;
    let server = Server::start(config.clone(), |_| {}).unwrap();
    let value = vec![b'v'; VALUE_BYTES];
    let mut first = Client::connect(&config);
    // Some are owned by the core that has the connection, some by the other one.
    for key in 0..CLIENTS {
        first.say(format!("set {key} 0 0 {VALUE_BYTES}\r\n").as_bytes());
        first.say(&value);
        first.ask(b"\r\n", b"STORED\r\n");
    }
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&config)).collect();
    for (key, client) in clients.iter_mut().enumerate() {
        client.say(&format!("get {key}\r\n").repeat(GETS).into_bytes());
    }
    // While an answer is on its way from the other core, more is held than once it is here.
    let all = (CLIENTS * VALUE_BYTES) as u64;
    let once = all..=all + all / 10 + CLIENTS as u64 * (64 << 10);
    connections_until(&server, |connections| once.contains(&connections.memory_bytes));
    for (key, client) in clients.iter_mut().enumerate() {
        let answer = [format!("VALUE {key} 0 {VALUE_BYTES}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
        let mut got = vec![0; answer.len()];
        for _ in 0..GETS {
            client.0.read_exact(&mut got).unwrap();
            assert!(got == answer, "{key}");
        }
    }
    drop((first, clients));
    let connections = connections_until(&server, |connections| (connections.open, connections.memory_bytes) == (0, 0));
    assert_eq!(connections.memory_kicks, 0);
    server.stop().unwrap();
}

/// Returns the resident memory of this process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// In a process of its own: the memory of other tests must not count.
#[test]
fn many_cores_and_long_values_stay_within_the_budget() {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let output =
        alone.args(["--exact", "memory::in_a_process_of_its_own", "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "a process for the other test"]
fn in_a_process_of_its_own() {
    const CLIENTS: usize = 400;
    const CORES: u16 = 3;
    /// What each connection may have beside the budget, including its buffers while it runs, and temporary memory.
    const CONNECTION_BYTES: usize = 80 << 10;
    const BESIDE_BYTES: usize = 48 << 20;
    let mut config = config("budget", CORES);
    config.memory_bytes = 128 << 20;
    // The minimum is used instead.
    config.connection_memory_bytes = 0;
    let server = Server::start(config.clone(), |_| {}).unwrap();
    let value = vec![b'v'; VALUE_BYTES];
    let set = |key: usize| [format!("set {key} 0 0 {VALUE_BYTES}\r\n").as_bytes(), &value, b"\r\n"].concat();
    let mut first = Client::connect(&config);
    (0..16).for_each(|key| first.ask(&set(key), b"STORED\r\n"));
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&config)).collect();
    let get: String = (0..16).map(|key| format!(" {key}")).collect();
    let before = resident_bytes();
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
    let connections = connections_until(&server, |connections| connections.memory_waits as usize > CLIENTS / 4);
    let limit = usize::from(CORES) * CORE_BYTES_MIN + CLIENTS * CONNECTION_BYTES;
    assert!(connections.memory_bytes as usize <= limit, "{connections:?}");
    // Without a limit, each unread answer would take more than 1 MiB.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < limit + BESIDE_BYTES, "{grown} bytes more than before: {connections:?}");
    println!("{grown} bytes more than before, and {} are counted", connections.memory_bytes);
    // Others are served.
    let mut small = Client::connect(&config);
    small.fill("small", 50);
    assert_eq!(small.count("small", 50), 50);
    drop(clients);
    connections_until(&server, |connections| (connections.open, connections.memory_bytes) == (2, 0));
    server.stop().unwrap();
}
