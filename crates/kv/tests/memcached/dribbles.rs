//! Clients that complete small commands slowly must not keep the memory of a large one.

use std::io::{Read, Write};
use std::net::TcpStream;

use dunlin_kv::memcached::{Activity, CORE_BYTES_MIN, HOLD_SECONDS_MAX};

use super::memory::{say_some, set_request, starved};
use super::script::START;
use super::sockets::{Order, Server, ask, expect};

/// Periods of holding memory within which an honest client is served.
const PERIODS: u32 = 3;

/// A client that completes one command in each period, just in time, and begins the next one at once.
struct Dribbler {
    client: TcpStream,
    /// What it sends in a period, and the answer it gets.
    says: Vec<u8>,
    hears: &'static [u8],
}

impl Dribbler {
    /// Sends `command` over and over, and stops after `begun` bytes of one. Everything before must have been sent
    /// except `end`.
    fn new(mut client: TcpStream, end: &[u8], command: &[u8], begun: usize, hears: &'static [u8]) -> Dribbler {
        // All at once: a connection without work in between would hold nothing.
        client.write_all(&[end, &command[..begun]].concat()).unwrap();
        Dribbler { client, says: [&command[begun..], &command[..begun]].concat(), hears }
    }

    /// Continues for a period, unless the server has closed the connection.
    fn go_on(&mut self) -> bool {
        let mut heard = vec![0; self.hears.len()];
        self.client.write_all(&self.says).is_ok() && self.client.read_exact(&mut heard).is_ok()
    }
}

/// Has the honest client served while the other continues.
fn serve(server: &Server, dribbler: &mut Dribbler) {
    let request = set_request("honest", &vec![b'h'; 200_000]);
    let stored = server.report().store.stored;
    let mut honest = server.connect();
    let sending = std::thread::spawn({
        let mut honest = honest.try_clone().unwrap();
        move || honest.write_all(&request).unwrap()
    });
    // It may be served at once.
    server.wait_until(|report| starved(report) == 1 || report.store.stored > stored);
    for period in 1..=PERIODS {
        let now = START + period * (HOLD_SECONDS_MAX - 1);
        assert!(server.orders.send(Order::SetNow(now)).is_ok());
        if !dribbler.go_on() {
            break;
        }
    }
    expect(&mut honest, b"STORED\r\n");
    sending.join().unwrap();
}

#[test]
fn a_small_command_does_not_keep_the_memory_of_a_long_one() {
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let long = set_request("long", &vec![b'v'; 1 << 20]);
    let (most, end) = long.split_at(long.len() - 1);
    let mut client = server.connect();
    client.write_all(most).unwrap();
    server.wait_until(|report| report.connection_bytes > 1 << 20);
    let small = set_request("small", &[b's'; 2_500]);
    let mut dribbler = Dribbler::new(client, end, &small, 2_100, b"STORED\r\n");
    expect(&mut dribbler.client, b"STORED\r\n");
    serve(&server, &mut dribbler);
}

#[test]
fn short_lines_do_not_keep_the_memory_of_the_longest_one() {
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let keys = [&b"get"[..], &b" abcdefg".repeat(9_000)].concat();
    let mut client = server.connect();
    assert_eq!(say_some(&mut client, &keys), keys.len());
    server.wait_until(|report| report.connection_bytes > 1 << 20);
    let line = [&b"get"[..], &b" abcdefg".repeat(400), b"\r\n"].concat();
    let mut dribbler = Dribbler::new(client, b"\r\n", &line, 3_000, b"END\r\n");
    expect(&mut dribbler.client, b"END\r\n");
    serve(&server, &mut dribbler);
}

/// Returns a client that has sent a long command except for its end, and now sends the end with short commands after it
/// that have long answers.
fn end_long_with_gets(server: &Server, value_bytes: usize) -> TcpStream {
    const GETS: usize = 200;
    ask(&mut server.connect(), &set_request("v", &vec![b'v'; value_bytes]), b"STORED\r\n");
    let long = set_request("long", &vec![b'l'; 1 << 20]);
    let (most, end) = long.split_at(long.len() - 1);
    let mut client = server.connect();
    client.write_all(most).unwrap();
    server.wait_until(|report| report.connection_bytes > 1 << 20);
    client.write_all(&[end, &b"get v\r\n".repeat(GETS)].concat()).unwrap();
    client
}

#[test]
fn commands_that_wait_for_memory_do_not_keep_that_of_a_long_one_before_them() {
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    // It has its host's whole share for answers.
    let mut other = server.connect();
    ask(&mut other, &set_request("big", &vec![b'v'; 1 << 20]), b"STORED\r\n");
    other.write_all(&b"get big\r\n".repeat(8)).unwrap();
    server.wait_until(|report| report.each.iter().any(|connection| connection.activity == Activity::Writing));
    let _client = end_long_with_gets(&server, 65_000);
    server.wait_until(|report| starved(report) == 1);
    // No time passes, so no connection is closed.
    ask(&mut server.connect(), &set_request("honest", &[b'h'; 200_000]), b"STORED\r\n");
}

#[test]
fn answers_that_are_not_read_do_not_keep_the_memory_of_a_long_command_before_them() {
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let _client = end_long_with_gets(&server, 65_000);
    server.wait_until(|report| report.each.iter().any(|connection| connection.activity == Activity::Writing));
    ask(&mut server.connect(), &set_request("honest", &[b'h'; 200_000]), b"STORED\r\n");
}
