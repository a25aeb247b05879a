//! Buffers of a burst are returned to the system. Their cache belongs to the process, so this test has a process of its
//! own.

#[path = "pair/mod.rs"]
mod pair;

use std::time::Duration;

use dunlin_rpc::{MsgBuf, msgbuf};
use pair::{Lab, config};

const MIB: usize = 1 << 20;

#[test]
fn a_burst_leaves_nothing_behind() {
    let lab = Lab::new(&[config(), config()]);
    let before = msgbuf::allocated_bytes();
    for mib in [1, 3, 8] {
        let burst: Vec<_> = (0..2048 / mib).map(|_| MsgBuf::with_len(mib * MIB - 1000).unwrap()).collect();
        drop(burst);
    }
    assert!(msgbuf::allocated_bytes() > before + msgbuf::limit_bytes() / 16, "they are cached");
    for _ in 0..60 {
        // A buffer that is used again and again stays.
        let used = MsgBuf::with_len(MIB).unwrap();
        lab.network.advance(Duration::from_secs(1));
        lab.endpoints.iter().for_each(|endpoint| _ = endpoint.run_once());
        drop(used);
    }
    let left = msgbuf::allocated_bytes() - before;
    assert!(left < 8 * MIB as u64, "{left} bytes");
}
