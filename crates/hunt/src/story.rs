//! The result of a run that keeps every promise.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use dunlin_sim::Datacenter;

/// The result of a run that kept every promise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Story {
    /// Hash of the outcomes of all calls, with their times, and of the counters of the datacenter. The same seed gives
    /// the same hash.
    pub digest: u64,
    /// Calls issued.
    pub calls: u64,
    /// Packets sent.
    pub packets: u64,
    /// Virtual time that passed.
    pub virtual_time: Duration,
    /// Keys whose histories could not be decided in time.
    pub undecided: u64,
    /// Replicas that refused to start because of bit rot, and were replaced. Only for [`super::Kind::Raft`].
    pub replaced: u64,
    /// Changes of members and of leaders that were made. Only for [`super::Kind::Raft`].
    pub changes: u64,
    /// Times a running replica waited for a disk that hung. Only for clusters of replicas.
    pub hung: u64,
}

impl Story {
    /// The result of a run at its end; `hasher` contains the outcomes of its `calls`.
    pub fn of(datacenter: &Datacenter, mut hasher: DefaultHasher, calls: u64) -> Story {
        let counters = datacenter.counters();
        (counters.sent, counters.received, counters.events).hash(&mut hasher);
        Story {
            digest: hasher.finish(),
            calls,
            packets: counters.sent,
            virtual_time: Duration::from_nanos(datacenter.now()),
            ..Story::default()
        }
    }
}

/// Runs a run from its first packet to its last.
///
/// # Panics
/// If the run panics, or if it leaks message buffers.
pub fn without_leaks(run: impl FnOnce() -> Story) -> Story {
    let before = dunlin_rpc::msgbuf::outstanding();
    let story = run();
    let after = dunlin_rpc::msgbuf::outstanding();
    assert_eq!(after, before, "message buffers were leaked");
    story
}
