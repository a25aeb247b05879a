//! Message buffers that are dropped on worker threads. Their limit belongs to the process, so this test has a process
//! of its own.

#[path = "pair/mod.rs"]
mod pair;

use std::time::{Duration, Instant};

use dunlin_rpc::{MsgBuf, WorkerPool, msgbuf};
use pair::Lab;

const VEC: u8 = 1;
const MIB: usize = 1 << 20;

/// Drives both ends in real time: worker threads do not follow the test's clock.
fn drive<F: Future>(lab: &Lab, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        lab.server().run_once();
        if let Some(output) = lab.client().poll_once(future.as_mut()) {
            return output;
        }
        lab.network.advance(Duration::from_micros(1));
        assert!(Instant::now() < end, "no answer came");
        std::thread::yield_now();
    }
}

/// The event loop copies a request and a worker, which takes no buffers itself, drops it.
#[test]
fn what_workers_drop_is_there_for_others() {
    msgbuf::set_limit_bytes(64 << 20);
    let lab = Lab::pair();
    let pool = WorkerPool::new(2, 8).unwrap();
    lab.server().register_worker(VEC, &pool, |_| vec![7; 100]).unwrap();
    let session = lab.connect();
    // Several lengths, one after the other: buffers dropped of one length do not use up the limit for another.
    for len in [MIB, 100_000, 5_000, 1_000, 40_000, 3 * MIB] {
        let mut request = MsgBuf::with_len(len).unwrap();
        for call in 0..200 {
            let reply = drive(&lab, session.call(VEC, request));
            let reply = reply.unwrap_or_else(|failure| panic!("call {call} of {len} bytes: {}", failure.error));
            assert_eq!(reply.response.len(), 100);
            request = reply.request;
        }
    }
    drop((session, lab));
    // An eighth of the limit for all, and up to 10 MiB for each of three threads.
    assert!(msgbuf::allocated_bytes() <= (8 + 3 * 10) << 20, "{}", msgbuf::allocated_bytes());
}
