//! What a run comes to if it keeps every promise.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use dunlin_sim::Datacenter;

/// What a run that kept every promise did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Story {
    /// Hash of everything that became of calls, with its times, and of the counts of the datacenter. The same seed gives the same.
    pub digest: u64,
    /// Calls issued.
    pub calls: u64,
    /// Packets sent.
    pub packets: u64,
    /// Virtual time that passed.
    pub virtual_time: Duration,
    /// Keys of which it was not found out whether their history is linearizable, because that took too long.
    pub undecided: u64,
    /// Replicas that refused to start, since their disks had rotted, and were replaced. Only of [`super::Kind::Raft`].
    pub replaced: u64,
    /// Changes of members and of leaders that were made. Only of [`super::Kind::Raft`].
    pub changes: u64,
}

impl Story {
    /// Of a run at its end, in which `hasher` has taken in what became of its `calls`.
    pub fn of(datacenter: &Datacenter, mut hasher: DefaultHasher, calls: u64) -> Story {
        let counters = datacenter.counters();
        (counters.sent, counters.received, counters.events).hash(&mut hasher);
        Story {
            digest: hasher.finish(),
            calls,
            packets: counters.sent,
            virtual_time: Duration::from_nanos(datacenter.now()),
            undecided: 0,
            replaced: 0,
            changes: 0,
        }
    }
}

/// Does a run from its first packet to its last.
///
/// # Panics
/// If it does, or if it leaks message buffers.
pub fn without_leaks(run: impl FnOnce() -> Story) -> Story {
    let before = dunlin_rpc::msgbuf::outstanding();
    let story = run();
    let after = dunlin_rpc::msgbuf::outstanding();
    assert_eq!(after, before, "message buffers were leaked");
    story
}
