//! Snapshots of many groups share memory and a log: no group blocks those of the others.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::{CallOptions, MsgBuf};
use dunlin_smr::raft::Storage as _;
use dunlin_smr::wal::Disk as _;
use dunlin_smr::wire::response::Role;
use dunlin_smr::{Beginning, ClusterId, LogStore as _, NodeConfig, wire};

use super::world::{ELECTION, InMemory, OnDisk, World, config};

/// The size of the largest snapshot; a process may have two of them in memory.
const LARGEST: u64 = 100_000;

/// Returns the first piece of a snapshot of this many bytes in all.
pub fn first_piece(cluster: ClusterId, to: u64, group: u16, term: u64, total: u64) -> MsgBuf {
    piece(cluster, to, group, term, [0, total])
}

/// Returns a piece of one byte of a snapshot, with its offset and the total length.
fn piece(cluster: ClusterId, to: u64, group: u16, term: u64, [offset, total]: [u64; 2]) -> MsgBuf {
    let from = to % 3 + 1;
    let [low, high] = group.to_le_bytes();
    let mut out = vec![wire::VERSION, 0, low, high];
    out.extend_from_slice(&crc32c::crc32c(&vec![7; offset as usize + 1]).to_le_bytes());
    let words = [cluster.bits(), from, to, term, 1 << 40, 1, total, offset];
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    out.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0]);
    [to, from].iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
    out.push(7);
    let mut piece = MsgBuf::with_len(out.len()).unwrap();
    piece.copy_from_slice(&out);
    piece
}

/// Sends a process the first piece of a group's snapshot of this many bytes in all; returns whether it is accepted.
fn send_first_piece(world: &World<InMemory>, to: u64, group: u16, total: u64) -> bool {
    send_piece(world, to, group, [0, total])
}

/// Sends it a piece of one; returns whether it is accepted.
pub fn send_piece(world: &World<InMemory>, to: u64, group: u16, place: [u64; 2]) -> bool {
    let status = world.processes[&to].host.node(group).unwrap().status();
    let piece = piece(status.cluster.unwrap(), to, group, status.term, place);
    world.drive(async {
        let session = world.endpoint.connect(&Addr::Node(to as u32)).await.unwrap();
        session.call_with(wire::CHUNK, piece, CallOptions::timeout(Duration::from_millis(20))).await.is_ok()
    })
}

/// Returns the bytes of the snapshots that a process's logs begin with.
fn base_bytes(world: &World<InMemory>, id: u64) -> u64 {
    world.processes[&id].host.nodes().map(|node| node.with_log(|log| log.base().data.len() as u64)).sum()
}

/// Returns resting groups, and a process that leads group 0 and is receiving as many snapshots as fit.
fn with_forged_pieces() -> (World<InMemory>, u64) {
    let limits = NodeConfig { snapshot_bytes_max: LARGEST, snapshot_memory_max: 2 * LARGEST, ..config() };
    let world = World::new(InMemory, 4, NodeConfig { snapshot_entries: 50, keep_entries: 4, ..limits });
    world.all_lead();
    world.all_rest();
    let (_, to) = world.leader(0).unwrap();
    let bases = base_bytes(&world, to);
    assert!(send_first_piece(&world, to, 1, LARGEST) && send_first_piece(&world, to, 2, LARGEST - bases));
    assert!(!send_first_piece(&world, to, 3, 1), "there is no memory left");
    world.all_rest();
    (world, to)
}

#[test]
fn pieces_that_come_together_do_not_pass_over_the_limit() {
    let limits = NodeConfig { snapshot_bytes_max: LARGEST, snapshot_memory_max: 2 * LARGEST, ..config() };
    let world = World::new(InMemory, 4, NodeConfig { snapshot_entries: 50, keep_entries: 4, ..limits });
    world.all_lead();
    world.all_rest();
    let (_, to) = world.leader(0).unwrap();
    let pieces: Vec<MsgBuf> = (1..4)
        .map(|group| {
            let status = world.processes[&to].host.node(group).unwrap().status();
            piece(status.cluster.unwrap(), to, group, status.term, [0, LARGEST])
        })
        .collect();
    let accepted = world.drive(async {
        let session = world.endpoint.connect(&Addr::Node(to as u32)).await.unwrap();
        let calls = pieces
            .into_iter()
            .map(|piece| session.call_with(wire::CHUNK, piece, CallOptions::timeout(Duration::from_millis(20))));
        futures::future::join_all(calls).await.into_iter().filter(Result::is_ok).count()
    });
    assert!((1..=2).contains(&accepted), "{accepted} snapshots of {LARGEST} bytes");
}

/// Also those of groups that have nothing to do. One snapshot beyond them is received.
#[test]
fn the_snapshots_that_logs_begin_with_count() {
    let limits = NodeConfig { snapshot_bytes_max: LARGEST, snapshot_memory_max: 5 * LARGEST / 2, ..config() };
    let world = World::padded(InMemory, 10, limits, |_| LARGEST as usize / 5);
    world.all_lead();
    world.all_rest();
    let (_, to) = world.leader(0).unwrap();
    assert!(base_bytes(&world, to) > 2 * LARGEST);
    assert!(send_first_piece(&world, to, 1, LARGEST));
    assert!(!send_first_piece(&world, to, 2, 1), "one is received beyond the limit");
}

/// They take all memory for good, so each would be refused for ever.
#[test]
fn a_replica_whose_snapshots_exceed_the_limit_catches_up() {
    const GROUPS: u16 = 10;
    let limits = NodeConfig { snapshot_bytes_max: LARGEST, snapshot_memory_max: 2 * LARGEST, ..config() };
    let snapshots = NodeConfig { snapshot_entries: 10, keep_entries: 1, ..limits };
    let mut world = World::padded(InMemory, GROUPS, snapshots, |_| LARGEST as usize / 2);
    world.all_lead();
    world.paused.push(3);
    for group in 0..GROUPS {
        (0..25).for_each(|_| _ = world.add(group, 1).unwrap());
    }
    world.paused.clear();
    assert!(base_bytes(&world, 3) > 2 * LARGEST);
    let applied =
        |world: &World<InMemory>, id: u64, group: u16| world.processes[&id].host.node(group).unwrap().status().applied;
    world.until("all groups have caught up", |world| {
        (0..GROUPS).all(|group| applied(world, 3, group) == applied(world, world.leader(group).unwrap().1, group))
    });
}

/// An attacker sends them again before they expire.
#[test]
fn a_snapshot_of_a_member_goes_before_those_of_strangers_for_other_groups() {
    let (mut world, to) = with_forged_pieces();
    let node = world.processes[&to].host.node(3).unwrap();
    let bases = base_bytes(&world, to);
    let restored = || node.counters().snapshots_restored;
    let before = restored();
    world.paused.push(to);
    (0..120).for_each(|_| _ = world.add(3, 1).unwrap());
    world.paused.clear();
    let mut forged = 0;
    let end = world.now() + Duration::from_secs(6);
    while restored() == before {
        assert!(world.now() < end, "{forged} forged pieces keep the memory");
        forged += [(1, LARGEST), (2, LARGEST - bases)]
            .into_iter()
            .filter(|(group, total)| send_first_piece(&world, to, *group, *total))
            .count();
        world.turns(Duration::from_millis(900));
    }
    assert!(forged > 0);
    assert_eq!(world.sum(3), Ok(120));
}

#[test]
fn an_own_snapshot_goes_before_those_that_come_for_other_groups() {
    let (world, to) = with_forged_pieces();
    let taken = || world.processes[&to].host.node(0).unwrap().counters().snapshots_taken;
    let before = taken();
    (0..120).for_each(|_| _ = world.add(0, 1).unwrap());
    assert!(taken() >= before + 2, "{} snapshots", taken() - before);
}

#[test]
fn a_snapshot_that_comes_no_further_expires_though_its_group_rests() {
    let (world, to) = with_forged_pieces();
    world.turns(Duration::from_millis(1200));
    assert!(send_first_piece(&world, to, 3, LARGEST));
}

/// Its last snapshot has everything that it executed, so another one would not be taken.
#[test]
fn a_group_without_new_entries_does_not_keep_the_log_long() {
    let storage = OnDisk { log_bytes_max: Some(128 << 10), ..OnDisk::default() };
    // With fewer than eight, all replicas take their snapshots at the same entries.
    let world = World::new(storage, 2, NodeConfig { snapshot_entries: 5, ..config() });
    world.all_lead();
    let has_all = || {
        world.processes.values().all(|process| {
            let node = process.host.node(1).unwrap();
            node.with_log(|log| log.base().get_metadata().index == log.last_index().unwrap())
        })
    };
    let mut added = 0;
    while added < 5 || !has_all() {
        assert!(added < 50, "no snapshot has all");
        added = world.add(1, 1).unwrap();
        world.all_rest();
    }
    let first_index = |id: u64| {
        world.processes[&id].host.node(1).unwrap().with_log(|log| (log.wal().first_index(), log.last_index().unwrap()))
    };
    assert!((1..=3).all(|id| first_index(id).0 < first_index(id).1), "entries are kept");
    for count in 1..=3000 {
        assert_eq!(world.add(0, 1), Ok(count));
    }
    assert_eq!(world.sum(1), Ok(added));
}

/// All groups of a process need a snapshot from one other, and its disk takes longer than an election timeout for the
/// first one.
#[test]
fn heartbeats_go_beside_the_snapshots_of_many_groups() {
    const GROUPS: u16 = 20;
    let snapshots = NodeConfig { snapshot_entries: 10, keep_entries: 1, idle_ticks: None, ..config() };
    let mut world = World::new(OnDisk::default(), GROUPS, snapshots);
    world.all_lead();
    for group in 0..GROUPS {
        if world.leader(group).unwrap().1 != 1 {
            world.drive(world.client(group).transfer(1)).unwrap();
        }
        world.until("the first leads", |world| world.leader(group).unwrap().1 == 1);
    }
    world.paused.push(3);
    for group in 0..GROUPS {
        (0..25).for_each(|_| _ = world.add(group, 1).unwrap());
    }
    world.paused.clear();
    let hangs = 5 * ELECTION / 2;
    world.storage.disks[&3].hang_until((world.now() + hangs).as_nanos() as u64);
    let nodes: Vec<_> = world.processes[&3].host.nodes().collect();
    let before: u64 = nodes.iter().map(|node| node.counters().snapshots_restored).sum();
    let restored = |_: &World<OnDisk>| {
        nodes.iter().for_each(|node| {
            assert_ne!(node.status().role, Role::Candidate, "group {}", node.group());
        });
        nodes.iter().map(|node| node.counters().snapshots_restored).sum::<u64>() >= before + u64::from(GROUPS)
    };
    let begun = world.now();
    world.until("all are restored", restored);
    assert!(world.now() - begun > hangs);
    (0..GROUPS).for_each(|group| assert_eq!(world.sum(group), Ok(25)));
}

/// The initial state of all groups follows from the cluster's number and first members, which are in the first group's.
#[test]
fn groups_are_founded_with_the_flushes_of_one() {
    const GROUPS: u16 = 100;
    let mut world = World::new(OnDisk::default(), GROUPS, config());
    world.all_lead();
    for id in 1..=3 {
        let names = world.storage.disks[&id].list().unwrap();
        assert_eq!(names.iter().filter(|name| name.starts_with("snapshot-")).count(), 1, "{names:?}");
        let flushes = world.processes[&id].host.node(0).unwrap().with_log(|log| log.wal().flushes());
        assert!(flushes < u64::from(GROUPS) / 2, "{flushes} flushes");
    }
    for round in 1..=2 {
        for group in (0..GROUPS).step_by(9) {
            assert_eq!(world.add(group, 1), Ok(round));
        }
        (1..=3).for_each(|id| world.kill(id));
        (1..=3).for_each(|id| world.start(id, Beginning::Join));
        world.all_lead();
    }
    // A state that differs from the initial one is in a file.
    for group in [1, 99] {
        (0..120).for_each(|_| _ = world.add(group, 1).unwrap());
    }
    let config = NodeConfig { snapshot_entries: 50, keep_entries: 1, ..world.config.clone() };
    world.config = config;
    (1..=3).for_each(|id| world.kill(id));
    (1..=3).for_each(|id| world.start(id, Beginning::Join));
    for group in [0, 1, 99] {
        (0..120).for_each(|_| _ = world.add(group, 1).unwrap());
    }
    (1..=3).for_each(|id| world.kill(id));
    (1..=3).for_each(|id| world.start(id, Beginning::Join));
    assert_eq!([1, 99].map(|group| world.sum(group).unwrap()), [240, 242]);
}
