//! Commands that move many bytes make way for the other tasks of their core.

use dunlin_kv::memcached::limits::WORK_BYTES_MAX;
use dunlin_kv::memcached::{Progress, Session};
use dunlin_store::VALUE_BYTES_MAX;

use super::cores::Cores;
use super::script::core;

const VALUE_BYTES: usize = 1 << 20;
const COMMANDS: usize = 200;

/// Two commands move more than may be moved at once.
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
