//! `stats cachedump` and `stats conns` are answered in parts: a long list takes no more memory at once than a long
//! answer.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use dunlin_kv::memcached::{Activity, CORE_BYTES_MIN, Count, Report};

use super::memory::set_request;
use super::sockets::{Server, allow_files, ask};

/// Reads lines up to the end of the list.
fn list(client: &mut TcpStream, request: &str) -> Vec<String> {
    client.write_all(request.as_bytes()).unwrap();
    let lines = BufReader::new(client).lines().map(Result::unwrap);
    lines.take_while(|line| line != "END").collect()
}

/// Counts the connections whose clients do not read.
fn writing(report: &Report) -> usize {
    report.each.iter().filter(|connection| connection.activity == Activity::Writing).count()
}

/// No time passes for the server.
#[test]
fn a_list_keeps_no_other_waiting_while_answers_are_unread() {
    const UNREAD: usize = 9;
    let server = Server::with_connection_bytes(64 << 20);
    let mut honest = server.connect();
    ask(&mut honest, &set_request("big", &vec![b'v'; 1 << 20]), b"STORED\r\n");
    ask(&mut honest, &set_request("3k", &[b'v'; 3 << 10]), b"STORED\r\n");
    let mut slow: Vec<TcpStream> = (0..UNREAD).map(|_| server.connect()).collect();
    slow.iter_mut().for_each(|slow| slow.write_all(&b"get big\r\n".repeat(8)).unwrap());
    server.wait_until(|report| writing(report) == UNREAD);
    for (request, lines) in [("stats cachedump 1 0\r\n", 2), ("stats conns\r\n", 2)] {
        assert!(list(&mut server.connect(), request).len() >= lines);
        let answer = [&b"VALUE 3k 0 3072\r\n"[..], &[b'v'; 3 << 10], b"\r\nEND\r\n"].concat();
        ask(&mut honest, b"get 3k\r\n", &answer);
    }
    assert_eq!(server.report().counts.get(Count::MemoryWaits), 0);
}

#[test]
fn every_connection_of_a_long_list_is_told_once() {
    /// More than fit in one part.
    const CONNECTIONS: usize = 3_000;
    let Some(()) = allow_files(2 * CONNECTIONS as u64) else { return };
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| server.connect()).collect();
    server.wait_until(|report| report.connections as usize == CONNECTIONS);
    let lines = list(&mut clients[0], "stats conns\r\n");
    let told: BTreeSet<&String> = lines.iter().filter(|line| line.contains(":addr ")).collect();
    assert_eq!((told.len(), lines.len()), (CONNECTIONS + 1, 3 * CONNECTIONS + 2));
}

/// More than fit in one part, on one core.
#[test]
fn every_item_of_a_long_list_is_told_once() {
    const ITEMS: usize = 7_000;
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let mut client = server.connect();
    for number in 0..ITEMS {
        client.write_all(format!("set {number:0>200} 0 0 1 noreply\r\nx\r\n").as_bytes()).unwrap();
    }
    let lines = list(&mut client, "stats cachedump 1 0\r\n");
    assert_eq!((lines.iter().collect::<BTreeSet<_>>().len(), lines.len()), (ITEMS, ITEMS));
}
