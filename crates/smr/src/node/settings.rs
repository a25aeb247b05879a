//! How the library is set up.

use crate::config::NodeConfig;

/// Settings of the library, for a replica that has executed so much.
pub(super) fn library_config(config: &NodeConfig, applied: u64) -> raft::Config {
    let election_tick = config.election_ticks as usize;
    raft::Config {
        id: config.id,
        election_tick,
        heartbeat_tick: config.heartbeat_ticks as usize,
        applied,
        max_size_per_msg: config.append_bytes_max,
        max_inflight_msgs: config.appends_in_flight_max,
        // Who is cut off steps down, and who comes back disturbs nobody (Raft dissertation, sections 6.2 and 9.6).
        check_quorum: true,
        pre_vote: true,
        // The library draws timeouts from the operating system's chance, which no seed repeats. So it is given no choice, and a late one; see
        // `election`.
        min_election_tick: 2 * election_tick - 1,
        max_election_tick: 2 * election_tick,
        // Leases are of our own; see `reads`.
        read_only_option: raft::ReadOnlyOption::Safe,
        // A follower learns that an entry is committed with the next, or with a heartbeat: half as many messages.
        skip_bcast_commit: true,
        batch_append: true,
        ..raft::Config::default()
    }
}
