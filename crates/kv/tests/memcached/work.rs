//! Commands that move many bytes yield to the other tasks of their core.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use dunlin_kv::memcached::limits::{STALL_TURN_MAX, WORK_BYTES_MAX};
use dunlin_kv::memcached::{Backend as _, Progress, Session};
use dunlin_store::{KeyHash, Store as _, Sweep as _, VALUE_BYTES_MAX, Visit, Watch};

use super::cores::Cores;
use super::script::core;
use super::sockets::Server;

const VALUE_BYTES: usize = 1 << 20;
const COMMANDS: usize = 200;

/// Returns commands, two of which move more than may be moved at once.
fn appends(key: &str, verb: &str) -> Vec<u8> {
    let value = vec![b'v'; VALUE_BYTES - COMMANDS];
    let mut request = [format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    let one = match verb {
        "append" | "prepend" => format!("{verb} {key} 0 0 1\r\nx\r\n"),
        mode => format!("ms {key} 1 {mode}\r\nx\r\n"),
    };
    request.extend(one.repeat(COMMANDS).bytes());
    request
}

#[test]
fn a_connection_that_moves_much_makes_way_for_others() {
    for verb in ["append", "prepend", "MA", "MP"] {
        let (core, mut session, mut out) = (core(), Session::new(VALUE_BYTES_MAX), Vec::new());
        let request = appends("long", verb);
        let (mut at, mut turns) = (0, 0);
        while at < request.len() {
            let (used, progress) = session.consume(&request[at..], &core, &mut out);
            at += used;
            turns += 1;
            assert!(matches!(progress, Progress::Full | Progress::More), "{progress:?}");
        }
        assert!(turns >= COMMANDS, "{COMMANDS} times {verb} in {turns} turns");
    }
    const { assert!(WORK_BYTES_MAX < VALUE_BYTES) };
}

#[test]
fn a_batch_that_moves_much_makes_way_for_others() {
    let cores = Cores::new(2);
    let key = (0..).map(|i| format!("key{i}")).find(|key| cores.is_elsewhere(key)).unwrap();
    let (answer, _) = cores.said(&[&appends(&key, "append")]);
    assert_eq!(answer.len(), b"STORED\r\n".len() * (COMMANDS + 1));
    assert!(cores.runs() >= COMMANDS, "{COMMANDS} commands in {} runs", cores.runs());
}

/// A snapshot whose disk delays each change.
#[derive(Debug)]
struct SlowDisk(Duration);

impl SlowDisk {
    const STALL: Duration = Duration::from_millis(10);
}

impl Watch for SlowDisk {
    fn before_change(&mut self, _items: &dyn Visit, _hash: KeyHash) {
        self.0 += SlowDisk::STALL;
    }

    fn before_flush(&mut self, _items: &dyn Visit) {}

    fn stalled(&self) -> Duration {
        self.0
    }
}

#[test]
fn a_connection_whose_changes_wait_for_the_disk_makes_way_for_others() {
    const CHANGES: u32 = 500;
    let core = core();
    core.with_store(|store| store.watch(Box::new(SlowDisk(Duration::ZERO))));
    let stalled = || core.with_store(|store| store.stalled());
    let (mut session, mut out) = (Session::new(VALUE_BYTES_MAX), Vec::new());
    let request = (0..CHANGES).map(|i| format!("set key{i} 0 0 1\r\nx\r\n")).collect::<String>();
    let (mut at, mut before) = (0, Duration::ZERO);
    while at < request.len() {
        let (used, progress) = session.consume(&request.as_bytes()[at..], &core, &mut out);
        at += used;
        let waited = stalled() - std::mem::replace(&mut before, stalled());
        assert!(waited <= STALL_TURN_MAX, "{waited:?} before it made way");
        assert!(matches!(progress, Progress::Full | Progress::More), "{progress:?}");
    }
    assert_eq!(out, b"STORED\r\n".repeat(CHANGES as usize));
    assert!(stalled() >= CHANGES * SlowDisk::STALL);
}

/// A snapshot that has delayed its core, until it was checked this often.
#[derive(Debug)]
struct Looks(AtomicU32);

impl Watch for Looks {
    fn before_change(&mut self, _items: &dyn Visit, _hash: KeyHash) {}

    fn before_flush(&mut self, _items: &dyn Visit) {}

    fn stalled(&self) -> Duration {
        let left = self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        if left.is_ok() { STALL_TURN_MAX } else { Duration::ZERO }
    }
}

#[test]
fn the_time_of_a_command_is_that_which_it_has_waited_for_the_disk() {
    // A millisecond passes between two checks.
    const LOOKS: u32 = 20;
    let server = Server::with_core(|| {
        let core = core();
        core.with_store(|store| store.watch(Box::new(Looks(AtomicU32::new(LOOKS)))));
        core
    });
    let mut client = server.connect();
    client.write_all(b"set key 0 0 1\r\nx\r\n").unwrap();
    let mut answer = [0; b"STORED\r\n".len()];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"STORED\r\n");
    assert!(server.longest() >= Duration::from_millis(u64::from(LOOKS / 2)), "{:?}", server.longest());
}
