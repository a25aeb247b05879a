//! Hosts share the memory for connections: a host with many connections does not block others.

use std::io::Write;
use std::net::TcpStream;

use dunlin_kv::memcached::{Activity, CORE_BYTES_MIN, Count};

use super::cores::Cores;
use super::memory::{set_request, starved};
use super::sockets::{Server, allow_files, ask};

/// Connections of the greedy host.
const HOSTILE: usize = 2_000;
const HOSTILE_IP: [u8; 4] = [127, 0, 0, 2];
const HONEST_IP: [u8; 4] = [127, 0, 0, 3];

/// Opens connections and sends the same request on each.
fn crowd(server: &Server, ip: [u8; 4], connections: usize, request: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut client = server.connect_from(ip);
        client.write_all(request).unwrap();
        client
    };
    (0..connections).map(connect).collect()
}

/// Commands and answers of 1 MiB, which need memory that others hold. No time passes for the server, so it closes no
/// connection to free memory.
fn ask_large(server: &Server) {
    let mut honest = server.connect_from(HONEST_IP);
    let value = vec![b'h'; 1 << 20];
    let answer = [&b"VALUE honest 0 1048576\r\n"[..], &value, b"\r\nEND\r\n"].concat();
    for _ in 0..4 {
        ask(&mut honest, &set_request("honest", &value), b"STORED\r\n");
        ask(&mut honest, b"get honest\r\n", &answer);
    }
    assert_eq!(server.report().counts.get(Count::MemoryKicks), 0);
}

#[test]
fn a_host_with_thousands_of_unfinished_commands_keeps_no_other_waiting() {
    let Some(()) = allow_files(2 * HOSTILE as u64) else { return };
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    // One long command, and many that fill the rest of the share.
    let mut crowd = Vec::new();
    for (connections, bytes) in [(1, 1 << 20), (HOSTILE, 70_000)] {
        let begin = &set_request("big", &vec![b'v'; bytes])[..5_000];
        crowd.extend(self::crowd(&server, HOSTILE_IP, connections, begin));
        server.wait_until(|report| report.connections as usize == crowd.len());
    }
    server.wait_until(|report| starved(report) >= HOSTILE - 50);
    ask_large(&server);
    drop(crowd);
    server.wait_until(|report| report.connections == 0 && report.connection_bytes == 0);
}

#[test]
fn a_host_with_hundreds_of_unread_answers_keeps_no_other_waiting() {
    const CONNECTIONS: usize = 300;
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    ask(&mut server.connect(), &set_request("big", &vec![b'v'; 1 << 20]), b"STORED\r\n");
    let crowd = crowd(&server, HOSTILE_IP, CONNECTIONS, &b"get big\r\n".repeat(8));
    server.wait_until(|report| starved(report) >= CONNECTIONS - 10);
    ask_large(&server);
    drop(crowd);
    server.wait_until(|report| report.connections == 0 && report.connection_bytes == 0);
}

/// For each command, clients that read nothing each have an answer of less than 2 KiB to come, which no budget limits.
fn check_short_answers(server: &Server, key: &str, connections: usize) {
    let Some(()) = allow_files(2 * connections as u64) else { return };
    ask(&mut server.connect(), &set_request(key, &[b's'; 1_900]), b"STORED\r\n");
    let request = format!("get {key}\r\n").repeat(2_000).into_bytes();
    let connect = |_| {
        let mut client = server.connect_deaf_from(HOSTILE_IP);
        client.write_all(&request).unwrap();
        client
    };
    let crowd: Vec<TcpStream> = (0..connections).map(connect).collect();
    server.wait_until(|report| {
        report.each.iter().filter(|connection| connection.activity == Activity::Writing).count() >= connections - 10
    });
    ask_large(server);
    drop(crowd);
    server.wait_until(|report| report.connections == 0 && report.connection_bytes == 0);
}

#[test]
fn a_host_with_hundreds_of_unread_short_answers_keeps_no_other_waiting() {
    check_short_answers(&Server::with_connection_bytes(CORE_BYTES_MIN), "small", 1_000);
}

#[test]
fn a_host_with_hundreds_of_unread_short_answers_of_other_cores_keeps_no_other_waiting() {
    let cores = Cores::new(2);
    let key = (0..).map(|number| format!("small{number}")).find(|key| cores.is_elsewhere(key)).unwrap();
    check_short_answers(&Server::with_two_cores(CORE_BYTES_MIN), &key, 200);
}

#[test]
fn long_answers_of_other_cores_are_shared_among_hosts() {
    const CONNECTIONS: usize = 100;
    let cores = Cores::new(2);
    let key = (0..).map(|number| format!("big{number}")).find(|key| cores.is_elsewhere(key)).unwrap();
    let server = Server::with_two_cores(CORE_BYTES_MIN);
    ask(&mut server.connect(), &set_request(&key, &vec![b'v'; 1 << 20]), b"STORED\r\n");
    ask(&mut server.connect(), &set_request("small", &[b's'; 50_000]), b"STORED\r\n");
    let request = format!("get small small {key}\r\n").repeat(4).into_bytes();
    let crowd = crowd(&server, HOSTILE_IP, CONNECTIONS, &request);
    server.wait_until(|report| starved(report) >= CONNECTIONS - 10);
    ask_large(&server);
    drop(crowd);
    server.wait_until(|report| report.connections == 0 && report.connection_bytes == 0);
}

#[test]
fn a_host_alone_may_use_most_of_the_memory() {
    const CONNECTIONS: usize = 40;
    // Nine of 32 parts are for commands: 18 MiB, of which a host may have three quarters.
    const SERVED: usize = 13;
    let server = Server::with_connection_bytes(64 << 20);
    let begin = &set_request("big", &vec![b'v'; 1 << 20])[..100_000];
    let _crowd = crowd(&server, HOSTILE_IP, CONNECTIONS, begin);
    server.wait_until(|report| starved(report) == CONNECTIONS - SERVED);
    assert!(server.report().connection_bytes as usize >= SERVED << 20);
}
