//! The memory that connections hold while they wait stays within the budget of their core, whatever their clients do.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use dunlin_kv::memcached::{Activity, CORE_BYTES_MIN, Count, HOLD_SECONDS_MAX, Report};

use super::script::START;
use super::sockets::{Order, PATIENCE, Server, allow_files, ask, expect, expect_end, resident_bytes};

/// Beside the budget: what each connection may have, and temporary memory.
const CONNECTION_BYTES: usize = 8 << 10;
const BESIDE_BYTES: usize = 16 << 20;

/// Sends as much of `bytes` as the server takes.
pub fn say_some(client: &mut TcpStream, bytes: &[u8]) -> usize {
    client.set_nonblocking(true).unwrap();
    let mut said = 0;
    while said < bytes.len() {
        match client.write(&bytes[said..]) {
            Ok(len) => said += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    client.set_nonblocking(false).unwrap();
    said
}

pub fn set_request(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// Sends small commands, which need no memory of the budget.
fn ask_small(server: &Server) {
    let mut client = server.connect();
    ask(&mut client, b"set small 0 0 3\r\nabc\r\n", b"STORED\r\n");
    ask(&mut client, &set_request("kib", &[b'k'; 1024]), b"STORED\r\n");
    ask(&mut client, b"get small\r\n", b"VALUE small 0 3\r\nabc\r\nEND\r\n");
}

#[test]
fn unfinished_values_stay_within_the_budget_and_small_commands_are_served() {
    const CLIENTS: usize = 400;
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let before = resident_bytes();
    let request = set_request("big", &vec![b'v'; 1 << 20]);
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let mut client = server.connect();
        // Of different lengths, so that some stop in each stage.
        say_some(&mut client, &request[..request.len() * (1 + number % 9) / 10]);
        clients.push(client);
    }
    server.wait_until(|report| {
        report.connections as usize == CLIENTS && report.counts.get(Count::MemoryWaits) as usize > CLIENTS / 2
    });
    ask_small(&server);
    let report = server.report();
    let limit = CORE_BYTES_MIN + CLIENTS * CONNECTION_BYTES;
    assert!(report.connection_bytes as usize <= limit, "{} bytes are held", report.connection_bytes);
    assert!(report.connection_bytes_max as usize <= CORE_BYTES_MIN);
    // Other tests run in this process: this test alone would take 200 MiB.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < limit + 8 * BESIDE_BYTES, "{grown} bytes more than before");
    drop(clients);
    server.wait_until(|report| report.connections == 0 && report.connection_bytes == 0);
}

#[test]
fn values_that_come_whole_are_stored_one_after_the_other_when_memory_is_short() {
    const CLIENTS: usize = 100;
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let mut client = server.connect();
            std::thread::spawn(move || {
                let request = set_request(&format!("big{number}"), &vec![b'v'; 1 << 20]);
                for _ in 0..3 {
                    // The end separately: the buffer grows once more for it.
                    let (most, end) = request.split_at(1 << 20);
                    client.write_all(most).unwrap();
                    ask(&mut client, end, b"STORED\r\n");
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let report = server.report();
    assert_eq!((report.store.items, report.counts.get(Count::MemoryKicks)), (CLIENTS as u64, 0));
}

#[test]
fn whoever_holds_memory_for_too_long_that_others_want_is_closed() {
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let request = set_request("big", &vec![b'v'; 1 << 20]);
    let mut holders: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
    for holder in &mut holders {
        say_some(holder, &request[..request.len() / 2]);
    }
    server.wait_until(|report| report.counts.get(Count::MemoryWaits) > 0);
    let mut honest = server.connect();
    let sending =
        std::thread::spawn(move || ask(&mut honest, &set_request("honest", &vec![b'h'; 1 << 20]), b"STORED\r\n"));
    server.wait_until(|report| report.counts.get(Count::MemoryWaits) as usize > holders.len() - 3);
    assert_eq!(server.report().counts.get(Count::MemoryKicks), 0);
    // A connection that waits in line is not closed for that; its turn comes, and then its time.
    let mut now = START;
    while !sending.is_finished() {
        now += HOLD_SECONDS_MAX;
        assert!(server.orders.send(Order::SetNow(now)).is_ok());
        server.report();
        std::thread::yield_now();
    }
    sending.join().unwrap();
    expect_end(&mut holders[0]);
}

#[test]
fn unread_answers_stay_within_the_budget_and_come_whole_when_they_are_read() {
    const CLIENTS: usize = 40;
    const GETS: usize = 8;
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let value = vec![b'v'; 1 << 20];
    ask(&mut server.connect(), &set_request("big", &value), b"STORED\r\n");
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.write_all(&b"get big\r\n".repeat(GETS)).unwrap();
    }
    server.wait_until(|report| report.counts.get(Count::MemoryWaits) > 0 && report.counts.get(Count::Backpressure) > 0);
    let report = server.report();
    let limit = CORE_BYTES_MIN + CLIENTS * (CONNECTION_BYTES + (64 << 10));
    assert!(report.connection_bytes as usize <= limit, "{} bytes are held", report.connection_bytes);
    ask_small(&server);
    let answer: Arc<[u8]> = [&b"VALUE big 0 1048576\r\n"[..], &value, b"\r\nEND\r\n"].concat().into();
    let reading = clients.into_iter().map(|mut client| {
        let answer = answer.clone();
        std::thread::spawn(move || {
            let mut got = vec![0; answer.len()];
            for _ in 0..GETS {
                client.read_exact(&mut got).unwrap();
                assert!(got == *answer);
            }
        })
    });
    reading.collect::<Vec<_>>().into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(server.report().counts.get(Count::MemoryKicks), 0);
    server.wait_until(|report| report.connections == 0 && report.connection_bytes == 0);
}

/// The memory of a long answer is freed when it is written, and leaves no holes when memory is short: otherwise each
/// connection served once would keep it, uncounted.
#[test]
fn connections_that_yield_between_long_answers_keep_no_memory() {
    const CLIENTS: usize = 200;
    /// More than the sockets take, so that each connection yields to others, and waits in line at the end.
    const GETS: usize = 8;
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    ask(&mut server.connect(), &set_request("big", &vec![b'v'; 1 << 20]), b"STORED\r\n");
    let before = resident_bytes();
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.write_all(&b"get big\r\n".repeat(GETS)).unwrap();
    }
    server.wait_until(|report| report.counts.get(Count::MemoryWaits) as usize > CLIENTS - CLIENTS / 10);
    let grown = resident_bytes().saturating_sub(before);
    // Other tests run in this process: this test alone would take 200 MiB.
    let limit = CORE_BYTES_MIN + CLIENTS * (CONNECTION_BYTES + (64 << 10));
    assert!(grown < limit + 6 * BESIDE_BYTES, "{grown} bytes more than before");
    ask_small(&server);
}

#[test]
fn long_lines_stay_within_the_budget() {
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let line = [&b"get"[..], &b" abcdefg".repeat(100_000)].concat();
    let mut clients: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
    for client in &mut clients {
        say_some(client, &line);
    }
    server.wait_until(|report| report.counts.get(Count::MemoryWaits) > 0);
    ask_small(&server);
    let report = server.report();
    let limit = CORE_BYTES_MIN + clients.len() * CONNECTION_BYTES;
    assert!(report.connection_bytes as usize <= limit, "{} bytes are held", report.connection_bytes);
}

/// Counts the connections that wait in line for memory.
pub fn starved(report: &Report) -> usize {
    report.each.iter().filter(|connection| connection.activity == Activity::Starved).count()
}

#[test]
fn uploads_that_pause_at_their_start_are_all_stored_when_they_go_on() {
    const CLIENTS: usize = 40;
    const START_BYTES: usize = 10_000;
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let request = set_request("big", &vec![b'v'; 1 << 20]);
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.write_all(&request[..START_BYTES]).unwrap();
    }
    // Each connection was read to the end of what its client sent, or waits in line with the rest.
    server.wait_until(|report| {
        report.counts.get(Count::BytesRead) as usize + starved(report) * START_BYTES >= CLIENTS * START_BYTES
    });
    let request = Arc::new(request);
    let sending = clients.into_iter().map(|mut client| {
        let request = request.clone();
        std::thread::spawn(move || ask(&mut client, &request[START_BYTES..], b"STORED\r\n"))
    });
    sending.collect::<Vec<_>>().into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(server.report().counts.get(Count::MemoryKicks), 0);
    server.wait_until(|report| report.connections == 0 && report.connection_bytes == 0);
}

#[test]
fn many_short_commands_that_pause_do_not_keep_a_long_one_waiting() {
    const CLIENTS: usize = 2_000;
    let Some(()) = allow_files(2 * CLIENTS as u64) else { return };
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let request = set_request("short", &[b'v'; 2_000]);
    let begin = request.len() - 10;
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.write_all(&request[..begin]).unwrap();
    }
    server.wait_until(|report| report.counts.get(Count::BytesRead) as usize == CLIENTS * begin);
    ask(&mut server.connect(), &set_request("big", &vec![b'v'; 1 << 20]), b"STORED\r\n");
    for client in &mut clients {
        ask(client, &request[begin..], b"STORED\r\n");
    }
    assert_eq!(server.report().counts.get(Count::MemoryKicks), 0);
}

#[test]
fn whoever_waited_in_line_has_its_full_time_when_its_turn_comes() {
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let request = set_request("big", &vec![b'v'; 1 << 20]);
    // Less than the buffers of a socket, so that it is all sent.
    let part = 200_000;
    let mut holders: Vec<TcpStream> = (0..2).map(|host| server.connect_from([127, 0, 0, 10 + host])).collect();
    holders.iter_mut().for_each(|holder| holder.write_all(&request[..part]).unwrap());
    server.wait_until(|report| report.counts.get(Count::BytesRead) as usize == 2 * part);
    let mut others: Vec<TcpStream> = (0..3).map(|host| server.connect_from([127, 0, 0, 20 + host])).collect();
    // They pause, so they hold memory from now on, and get in line later.
    others.iter_mut().for_each(|other| other.write_all(&request[..10_000]).unwrap());
    server.wait_until(|report| report.counts.get(Count::BytesRead) as usize == 2 * part + others.len() * 10_000);
    others.iter_mut().for_each(|other| other.write_all(&request[10_000..part]).unwrap());
    server.wait_until(|report| starved(report) == others.len());
    // The end of this shows that the server has used the new time.
    let set_now = |now| assert!(server.orders.send(Order::SetNow(now)).is_ok());
    set_now(START + HOLD_SECONDS_MAX - 1);
    let (read, mut witness) = (server.report().counts.get(Count::BytesRead), server.connect());
    witness.write_all(&set_request("witness", &[b'w'; 20_000])[..10_000]).unwrap();
    server.wait_until(|report| report.counts.get(Count::BytesRead) == read + 10_000);
    // The time of the first two is over, and two others get their turn.
    set_now(START + HOLD_SECONDS_MAX);
    holders.iter_mut().for_each(expect_end);
    server.wait_until(|report| starved(report) == 1);
    set_now(START + 2 * HOLD_SECONDS_MAX - 1);
    expect_end(&mut witness);
    assert_eq!(server.report().counts.get(Count::MemoryKicks), 3, "the first two, and the witness");
    for other in &mut others {
        other.write_all(&request[part..]).unwrap();
    }
    others.iter_mut().for_each(|other| expect(other, b"STORED\r\n"));
}

/// The memory that the upload waits for is held by a slow reader that still has time: it contains the keys of its long
/// line that are yet to be looked up.
#[test]
fn a_server_that_stops_does_not_wait_for_an_upload_that_waits_for_memory() {
    const GETS: usize = 20;
    let server = Server::with_connection_bytes(CORE_BYTES_MIN);
    let value = vec![b'v'; 1 << 20];
    let mut slow = server.connect();
    let line = [&b"get"[..], &b" big".repeat(GETS), &b" none".repeat(15_000), b"\r\n"].concat();
    slow.write_all(&[set_request("big", &value), line].concat()).unwrap();
    server.wait_until(|report| report.each.iter().any(|connection| connection.activity == Activity::Writing));
    let mut upload = server.connect();
    upload.write_all(&set_request("more", &[b'm'; 200_000])[..100_000]).unwrap();
    server.wait_until(|report| starved(report) == 1);
    assert!(server.orders.send(Order::Stop(PATIENCE)).is_ok());
    expect_end(&mut upload);
    expect(&mut slow, b"STORED\r\n");
    let answer = [&b"VALUE big 0 1048576\r\n"[..], &value, b"\r\n"].concat();
    let mut got = vec![0; answer.len()];
    for _ in 0..GETS {
        slow.read_exact(&mut got).unwrap();
        assert!(got == answer);
    }
    expect(&mut slow, b"END\r\n");
    expect_end(&mut slow);
}
