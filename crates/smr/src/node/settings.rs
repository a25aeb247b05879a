//! The library's settings.

use crate::config::NodeConfig;

/// Returns the library's settings for a replica that has executed this much.
pub(super) fn library_config(config: &NodeConfig, applied: u64) -> raft::Config {
    let election_tick = config.election_ticks as usize;
    raft::Config {
        id: config.id,
        election_tick,
        heartbeat_tick: config.heartbeat_ticks as usize,
        applied,
        max_size_per_msg: config.append_bytes_max,
        max_inflight_msgs: config.appends_in_flight_max,
        // A leader that is cut off steps down, and a replica that returns disturbs nobody (Raft dissertation, sections
        // 6.2 and 9.6).
        check_quorum: true,
        pre_vote: true,
        // The library draws timeouts from the operating system's randomness, which no seed reproduces. So it gets a
        // fixed, late timeout; see `election`.
        min_election_tick: 2 * election_tick - 1,
        max_election_tick: 2 * election_tick,
        // Leases are implemented here; see `reads`.
        read_only_option: raft::ReadOnlyOption::Safe,
        // A follower learns that an entry is committed with the next append or heartbeat: half as many messages.
        skip_bcast_commit: true,
        batch_append: true,
        ..raft::Config::default()
    }
}
