//! Clients that complete small commands slowly do not keep the memory of a large one.

use std::io::{Read, Write};
use std::net::TcpStream;

use dunlin_kv::memcached::{CORE_BYTES_MIN, HOLD_SECONDS_MAX};

use super::memory::{say_some, set_request, starved};
use super::script::START;
use super::sockets::{Order, Server, expect};

/// Times of holding memory after which an honest client is served.
const PERIODS: u32 = 3;

/// A client that completes one command of each period just in time, and begins the next one before.
struct Dribbler {
    client: TcpStream,
    /// What it says in a period, and what it hears for it.
    says: Vec<u8>,
    hears: &'static [u8],
}

impl Dribbler {
    /// Says `commands` over and over, and stops behind `begun` bytes of one. What came before it must have been said but for its end.
    fn new(mut client: TcpStream, end: &[u8], command: &[u8], begun: usize, hears: &'static [u8]) -> Dribbler {
        // At once: a connection that had nothing to do in between would hold nothing.
        client.write_all(&[end, &command[..begun]].concat()).unwrap();
        Dribbler { client, says: [&command[begun..], &command[..begun]].concat(), hears }
    }

    /// Goes on for a period, unless the server has closed the connection.
    fn go_on(&mut self) -> bool {
        let mut heard = vec![0; self.hears.len()];
        self.client.write_all(&self.says).is_ok() && self.client.read_exact(&mut heard).is_ok()
    }
}

/// Lets the honest one be served while the other goes on.
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
