//! Each limit, at it and one past it.

use super::script::{check, core, said, settings};
use dunlin_kv::memcached::{Conversation, limits};

const VALUE_BYTES_MAX: usize = 1 << 20;

fn set(len: usize) -> Vec<u8> {
    let mut request = format!("set a 0 0 {len}\r\n").into_bytes();
    request.resize(request.len() + len, b'v');
    request.extend_from_slice(b"\r\n");
    request
}

#[test]
fn a_value_of_a_mebibyte_is_the_longest() {
    let mut request = set(VALUE_BYTES_MAX);
    request.extend_from_slice(b"mg a s\r\n");
    assert_eq!(said(&[&request]), b"STORED\r\nHD s1048576\r\n");
    // One byte more: rejected, its data discarded, and the old value gone so that nobody reads it.
    request.extend(set(VALUE_BYTES_MAX + 1));
    request.extend_from_slice(b"mg a s\r\nadd a 0 0 2000000 noreply\r\n");
    request.resize(request.len() + 2_000_002, b'\n');
    request.extend_from_slice(b"mn\r\n");
    let answer: &[u8] = b"STORED\r\nHD s1048576\r\nSERVER_ERROR object too large for cache\r\nEN\r\nMN\r\n";
    assert_eq!(said(&[&request]), answer);
    let pieces: Vec<&[u8]> = request.chunks(65_521).collect();
    assert_eq!(said(&pieces), answer);
}

#[test]
fn a_value_that_grows_too_long_stays_as_it_was() {
    let mut request = set(VALUE_BYTES_MAX);
    request.extend_from_slice(b"append a 0 0 1\r\nx\r\nms a 1 MP\r\nx\r\nmg a s c\r\n");
    assert_eq!(said(&[&request]), b"STORED\r\nNOT_STORED\r\nNS\r\nHD s1048576 c1\r\n");
}

#[test]
fn ms_refuses_a_long_value_and_forgets_the_old_one() {
    let mut request = set(1);
    request.extend_from_slice(b"ms a 1048577 q\r\n");
    request.resize(request.len() + VALUE_BYTES_MAX + 3, b'v');
    request.extend_from_slice(b"mg a\r\n");
    assert_eq!(said(&[&request]), b"STORED\r\nSERVER_ERROR object too large for cache\r\nEN\r\n");
}

#[test]
fn the_longest_keys() {
    check(
        "> set {k*250} 0 0 1
         > x
         < STORED
         > incr {k*250} 1
         < CLIENT_ERROR cannot increment or decrement non-numeric value
         > delete {k*250}
         < DELETED
         > touch {k*251} 0
         < CLIENT_ERROR bad command line format
         > gat 0 {k*251}
         < CLIENT_ERROR bad command line format
         > md {k*251}
         < CLIENT_ERROR bad command line format
         > ma {k*251}
         < CLIENT_ERROR invalid or duplicate flag",
    );
}

fn is_closed_by(request: &[u8], cuts: usize) -> bool {
    let (core, settings) = (core(), settings());
    let mut client = Conversation::new(&core, &settings);
    let mut answer = Vec::new();
    request.chunks(cuts).for_each(|piece| {
        client.say(piece, &mut answer);
    });
    client.is_closed()
}

#[test]
fn a_line_without_an_end_closes_the_connection() {
    let line = vec![b'A'; limits::LINE_BYTES_MAX];
    for cuts in [1, 7, 5000] {
        assert!(!is_closed_by(&line[1..], cuts));
        assert!(is_closed_by(&line, cuts), "cut every {cuts} bytes");
    }
    // Including its end, it is the longest line allowed, and then one byte more.
    let mut request = vec![b'A'; limits::LINE_BYTES_MAX - 2];
    request.extend_from_slice(b"\r\n");
    assert!(!is_closed_by(&request, 1) && !is_closed_by(&request, 5000));
    request.insert(0, b'A');
    assert!(is_closed_by(&request, 1) && is_closed_by(&request, 5000));
}

#[test]
fn a_retrieval_may_be_long() {
    let mut request = b"set k 0 0 1\r\nx\r\nget".to_vec();
    let keys = 200_000;
    for _ in 0..keys {
        request.extend_from_slice(b" k");
    }
    request.extend_from_slice(b"\r\n");
    let one = b"VALUE k 0 1\r\nx\r\n";
    let answer = [&b"STORED\r\n"[..], &one.repeat(keys), b"END\r\n"].concat();
    assert!(said(&[&request]) == answer);
    let pieces: Vec<&[u8]> = request.chunks(1000).collect();
    assert!(said(&pieces) == answer);
    // But not without limit.
    let mut request = b"gets".to_vec();
    request.resize(limits::RETRIEVAL_LINE_BYTES_MAX - 1, b' ');
    assert!(!is_closed_by(&request, 100_000));
    request.push(b' ');
    assert!(is_closed_by(&request, 100_000) && is_closed_by(&request, usize::MAX));
    // Leading spaces are limited too.
    let request = [&b" ".repeat(101)[..], b"get ", &b"k ".repeat(2000)].concat();
    assert!(is_closed_by(&request, 50) && !is_closed_by(&request[1..], 50));
}

#[test]
fn answers_do_not_pile_up() {
    let (core, settings) = (core(), settings());
    let mut client = Conversation::new(&core, &settings);
    let mut answer = Vec::new();
    client.say(&set(VALUE_BYTES_MAX), &mut answer);
    let most = client.say(&[&b"get"[..], &b" a".repeat(40), b"\r\n"].concat(), &mut answer);
    assert!(answer.len() > 40 * VALUE_BYTES_MAX);
    assert!(most <= VALUE_BYTES_MAX + limits::OUTPUT_BYTES_MAX + 100, "{most} bytes waited to be written at once");
}

#[test]
fn a_client_of_the_binary_protocol_is_told_and_closed() {
    let request = [0x80, 0x0b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(said(&[&request]), b"CLIENT_ERROR the binary protocol is not spoken here\r\n");
    assert!(is_closed_by(&request, 1));
    // Later in a connection, the same byte is only an unknown command.
    assert_eq!(said(&[b"mn\r\n\x80\x0b\r\n"]), b"MN\r\nERROR\r\n");
}

#[test]
fn what_follows_quit_is_not_done() {
    let (core, settings) = (core(), settings());
    let mut client = Conversation::new(&core, &settings);
    let mut answer = Vec::new();
    client.say(b"mn\r\nquit\r\nmn\r\n", &mut answer);
    assert_eq!(answer, b"MN\r\n");
    assert!(client.is_closed());
}

#[test]
fn what_was_seen_of_a_line_does_not_count_for_the_next() {
    assert_eq!(said(&[b"flush_a", b"ll\r\nmn\r\n"]), b"OK\r\nMN\r\n");
    assert_eq!(said(&[b"stats si", b"zes\nmn\r\n"]), b"STAT sizes_status disabled\r\nEND\r\nMN\r\n");
}
