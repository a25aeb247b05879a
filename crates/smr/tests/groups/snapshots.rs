//! Snapshots of many groups share memory and a log: no group blocks those of the others.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::LoopbackTransport;
use dunlin_rpc::{CallOptions, Endpoint, MsgBuf};
use dunlin_smr::raft::Storage as _;
use dunlin_smr::wal::Disk as _;
use dunlin_smr::wire::request::Change;
use dunlin_smr::wire::response::Role;
use dunlin_smr::{Beginning, ClusterId, LogStore as _, NodeConfig, wire};

use super::world::{ELECTION, InMemory, OnDisk, RESTORED, Storage, World, config};

/// The size of the largest snapshot; a process may have two of them in memory.
const LARGEST: u64 = 100_000;

/// Returns the first piece of a snapshot of this many bytes in all.
pub fn first_piece(cluster: ClusterId, to: u64, group: u16, term: u64, total: u64) -> MsgBuf {
    piece(cluster, to, group, term, [0, total], 1)
}

/// Returns the member in whose name pieces are sent to this one.
fn named(to: u64) -> u64 {
    to % 3 + 1
}

/// Returns a piece of so many bytes of a snapshot, with its offset and the total length.
fn piece(cluster: ClusterId, to: u64, group: u16, term: u64, [offset, total]: [u64; 2], bytes: usize) -> MsgBuf {
    let from = named(to);
    let [low, high] = group.to_le_bytes();
    let mut out = vec![wire::VERSION, 0, low, high];
    out.extend_from_slice(&crc32c::crc32c(&vec![7; offset as usize + bytes]).to_le_bytes());
    let words = [cluster.bits(), from, to, term, 1 << 40, 1, total, offset];
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    out.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0]);
    [to, from].iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
    out.resize(out.len() + bytes, 7);
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
    send_bytes(world, &world.endpoint, to, group, place, 1)
}

/// Sends it a piece of one from the address of the member in whose name it is sent; returns whether it is accepted.
fn send_as_member(world: &World<InMemory>, to: u64, group: u16, place: [u64; 2], bytes: usize) -> bool {
    send_bytes(world, &world.processes[&named(to)].endpoint, to, group, place, bytes)
}

fn send_bytes(
    world: &World<InMemory>,
    by: &Endpoint<LoopbackTransport>,
    to: u64,
    group: u16,
    place: [u64; 2],
    bytes: usize,
) -> bool {
    let status = world.processes[&to].host.node(group).unwrap().status();
    let piece = piece(status.cluster.unwrap(), to, group, status.term, place, bytes);
    world.drive_at(by, async {
        let session = by.connect(&Addr::Node(to as u32)).await.unwrap();
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
            first_piece(status.cluster.unwrap(), to, group, status.term, LARGEST)
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
    world.until("all groups have caught up", |world| {
        (0..GROUPS).all(|group| applied(world, 3, group) == applied(world, world.leader(group).unwrap().1, group))
    });
}

/// Returns the last entry that a process has executed in a group.
fn applied<S: Storage>(world: &World<S>, id: u64, group: u16) -> u64 {
    world.processes[&id].host.node(group).unwrap().status().applied
}

/// Returns the snapshots that a process has taken of a group's state.
fn taken<S: Storage>(world: &World<S>, id: u64, group: u16) -> u64 {
    world.processes[&id].host.node(group).unwrap().counters().snapshots_taken
}

/// A group that joins knows no members, but other groups of its process do. These take snapshots all the time.
#[test]
fn a_replica_that_joins_gets_its_snapshot_beyond_the_limit() {
    let limits = NodeConfig { snapshot_bytes_max: LARGEST, snapshot_memory_max: 2 * LARGEST, ..config() };
    let snapshots = NodeConfig { snapshot_entries: 10, keep_entries: 1, ..limits };
    let mut world = World::padded(InMemory, 2, snapshots, |_| LARGEST as usize * 9 / 10);
    world.all_lead();
    world.config.snapshot_step_bytes = 500;
    world.start(4, Beginning::Join);
    let add = |group| {
        let change = Change::AddLearner { id: 4, address: Addr::Node(4).to_string() };
        world.drive(world.client(group).change(change)).unwrap();
    };
    add(0);
    world.until("the first group has joined", |world| applied(world, 4, 0) > 0);
    (0..20).for_each(|_| _ = world.add(0, 1).unwrap());
    add(1);
    let (before, mut adds) = (taken(&world, 4, 0), 0);
    while applied(&world, 4, 1) == 0 {
        assert!(adds < 1000, "it does not join while the other takes {} snapshots", taken(&world, 4, 0) - before);
        world.add(0, 1).unwrap();
        adds += 1;
    }
}

/// The event loop would stand still for a piece of each.
#[test]
fn many_groups_do_not_all_restore_a_piece_in_one_turn() {
    const GROUPS: u16 = 12;
    let snapshots = NodeConfig { snapshot_entries: 5, keep_entries: 1, snapshot_step_bytes: 100, ..config() };
    let mut world = World::padded(OnDisk::default(), GROUPS, snapshots, |_| 5000);
    world.all_lead();
    (0..GROUPS).for_each(|group| (0..12).for_each(|_| _ = world.add(group, 1).unwrap()));
    let has_all = |world: &World<OnDisk>| (0..GROUPS).all(|group| taken(world, 3, group) > 0);
    world.until("all have snapshots", has_all);
    world.kill(3);
    world.start(3, Beginning::Join);
    let begun = RESTORED.get();
    for _ in 0..2000 {
        let before = RESTORED.get();
        world.turn();
        let pieces = RESTORED.get() - before;
        // An endpoint goes on as long as there are packets.
        assert!(pieces < u64::from(GROUPS) / 3, "{pieces} pieces in one turn");
    }
    assert!(RESTORED.get() >= begun + 40 * u64::from(GROUPS));
    assert!((0..GROUPS).all(|group| applied(&world, 3, group) > 0));
}

/// Short ones that wait for a long one.
#[test]
fn many_groups_do_not_all_take_a_snapshot_in_one_turn() {
    const GROUPS: u16 = 12;
    let snapshots = NodeConfig { snapshot_entries: 20, snapshot_step_bytes: 500, ..config() };
    let mut world = World::padded(InMemory, GROUPS, snapshots, |group| if group == 0 { 100_000 } else { 0 });
    world.all_lead();
    world.paused.push(3);
    (0..GROUPS).for_each(|group| (0..20).for_each(|_| _ = world.add(group, 1).unwrap()));
    world.paused.clear();
    let taken_by_all = |world: &World<InMemory>| (0..GROUPS).map(|group| taken(world, 3, group)).sum::<u64>();
    let begun = taken_by_all(&world);
    for _ in 0..2000 {
        let before = taken_by_all(&world);
        world.turn();
        let taken = taken_by_all(&world) - before;
        // An endpoint goes on as long as there are packets.
        assert!(taken < u64::from(GROUPS) / 3, "{taken} snapshots in one turn");
    }
    assert!(taken_by_all(&world) >= begun + u64::from(GROUPS));
}

/// One that takes long to take, and is due again by then, leaves others their turn.
#[test]
fn each_group_has_its_turn_to_take_a_snapshot() {
    let snapshots = NodeConfig { snapshot_entries: 10, keep_entries: 1, snapshot_step_bytes: 20, ..config() };
    let world = World::padded(InMemory, 2, snapshots, |group| if group == 0 { 50_000 } else { 0 });
    world.all_lead();
    let (_, leader) = world.leader(0).unwrap();
    (0..20).for_each(|_| _ = world.add(0, 1).unwrap());
    (0..20).for_each(|_| _ = world.add(1, 1).unwrap());
    let mut adds = 0;
    while taken(&world, leader, 1) == 0 {
        assert!(adds < 500, "the other group has taken {}", taken(&world, leader, 0));
        world.add(0, 1).unwrap();
        adds += 1;
    }
    assert!(adds > 0, "the other group was taking one");
}

/// Also if one is due again when it ends, in the midst of messages: it has not kept the turn for good then.
#[test]
fn groups_take_snapshots_in_turn_under_load() {
    let snapshots = NodeConfig { snapshot_entries: 10, keep_entries: 1, snapshot_step_bytes: 50, ..config() };
    let world = World::padded(OnDisk::default(), 3, snapshots, |group| if group == 0 { 20_000 } else { 0 });
    world.all_lead();
    let clients = [0, 1, 2].map(|group| world.client(group));
    let snapshots_taken = |id: u64| [0, 1, 2].map(|group| taken(&world, id, group));
    let mut rounds = 0;
    while (1..=3).any(|id| snapshots_taken(id).iter().any(|taken| *taken < 5)) {
        assert!(rounds < 1000, "{:?}", [1, 2, 3].map(snapshots_taken));
        let adds = clients.iter().flat_map(|client| (0..8).map(move |_| client.execute(&[1, 0, 0, 0, 0, 0, 0, 0])));
        world.drive(futures::future::join_all(adds)).into_iter().for_each(|added| _ = added.unwrap());
        rounds += 1;
    }
}

/// A member whose disk hangs does not answer for the last piece of a snapshot of a group that has nothing to do, so that
/// is sent for a long time.
#[test]
fn a_full_log_waits_for_no_snapshot_that_another_group_sends() {
    let storage = OnDisk { log_bytes_max: Some(128 << 10), ..OnDisk::default() };
    let limits = NodeConfig { snapshot_bytes_max: LARGEST, snapshot_memory_max: 2 * LARGEST, ..config() };
    let snapshots = NodeConfig { snapshot_entries: 10, keep_entries: 1, ..limits };
    let mut world = World::padded(storage, 2, snapshots, |_| LARGEST as usize * 9 / 10);
    world.all_lead();
    for group in 0..2 {
        if world.leader(group).unwrap().1 != 1 {
            world.drive(world.client(group).transfer(1)).unwrap();
        }
        world.until("the first leads", |world| world.leader(group).unwrap().1 == 1);
    }
    world.paused.push(3);
    (0..25).for_each(|_| _ = world.add(1, 1).unwrap());
    world.paused.clear();
    world.storage.disks[&3].hang_until(u64::MAX);
    world.turns(4 * ELECTION);
    let is_current = |world: &World<OnDisk>| {
        world.processes[&1]
            .host
            .node(1)
            .unwrap()
            .with_log(|log| log.base().get_metadata().index == log.last_index().unwrap())
    };
    let mut added = 25;
    while !is_current(&world) {
        assert!(added < 100, "no snapshot has all");
        added = world.add(1, 1).unwrap();
        world.turns(ELECTION);
    }
    for count in 1..=2000 {
        assert_eq!(world.add(0, 1), Ok(count));
    }
    assert_eq!(world.processes[&1].host.node(1).unwrap().counters().snapshots_sent, 0);
}

/// From when it is begun. It does not keep out a snapshot that a member sends, but one of anybody else.
#[test]
fn an_own_snapshot_has_its_memory_reserved() {
    let limits = NodeConfig { snapshot_bytes_max: LARGEST, snapshot_memory_max: 5 * LARGEST / 2, ..config() };
    let snapshots = NodeConfig { snapshot_entries: 10, snapshot_step_bytes: 1, ..limits };
    let world = World::padded(InMemory, 3, snapshots, |group| if group == 0 { LARGEST as usize * 9 / 10 } else { 0 });
    world.all_lead();
    let (_, to) = world.leader(0).unwrap();
    (0..20).for_each(|_| _ = world.add(0, 1).unwrap());
    assert!(!send_first_piece(&world, to, 1, LARGEST * 8 / 10), "it is above the limit");
    assert!(send_first_piece(&world, to, 1, LARGEST * 6 / 10), "it is below the limit");
    assert!(!send_first_piece(&world, to, 2, LARGEST * 3 / 10), "both are above the limit");
    assert!(send_as_member(&world, to, 2, [0, LARGEST * 8 / 10], 1));
    assert!(!send_as_member(&world, to, 1, [0, LARGEST * 8 / 10], 1), "one is received beyond the limit");
    assert_eq!(taken(&world, to, 0), 0, "it is still being taken");
}

/// Otherwise it could keep out the snapshots of all other groups for as long as it likes.
#[test]
fn a_snapshot_that_comes_slowly_gives_way_to_that_of_another_group() {
    const PIECE: usize = 1000;
    let limits = NodeConfig { snapshot_bytes_max: LARGEST, snapshot_memory_max: 2 * LARGEST, ..config() };
    let snapshots = NodeConfig { snapshot_entries: 10, keep_entries: 1, chunk_bytes: PIECE, ..limits };
    let mut world = World::padded(InMemory, 4, snapshots, |_| LARGEST as usize * 9 / 20);
    world.all_lead();
    for group in [1, 2] {
        if world.leader(group).unwrap().1 != 1 {
            world.drive(world.client(group).transfer(1)).unwrap();
        }
        world.until("the first leads", |world| world.leader(group).unwrap().1 == 1);
    }
    assert!(base_bytes(&world, 3) > LARGEST && named(3) == 1);
    let mut sent = 0;
    let mut send_next = |world: &World<InMemory>| {
        let is_taken = send_as_member(world, 3, 1, [sent, LARGEST], PIECE);
        sent += if is_taken { PIECE as u64 } else { 0 };
        is_taken
    };
    assert!(send_next(&world));
    world.paused.push(3);
    (0..25).for_each(|_| _ = world.add(2, 1).unwrap());
    world.paused.clear();
    let mut rounds = 0;
    while applied(&world, 3, 2) < applied(&world, 1, 2) {
        assert!(rounds < 10, "it waits for a snapshot of which {sent} bytes have come");
        assert!(send_next(&world) || rounds > 1, "it has just begun");
        world.turns(Duration::from_millis(900));
        rounds += 1;
    }
    assert!(rounds > 1, "it has just begun");
}

/// Each would take more than the time after which it gives way to the other.
#[test]
fn two_snapshots_that_come_slowly_do_not_give_way_to_each_other_for_ever() {
    const PAUSE: Duration = Duration::from_millis(900);
    /// One piece in each pause takes longer than 60,000 ticks.
    const PIECE: usize = LARGEST as usize / 100;
    let limits = NodeConfig { snapshot_bytes_max: LARGEST, snapshot_memory_max: 2 * LARGEST, ..config() };
    let snapshots = NodeConfig { chunk_bytes: PIECE, ..limits };
    let world = World::padded(InMemory, 4, snapshots, |_| LARGEST as usize * 9 / 20);
    world.all_lead();
    world.all_rest();
    assert!(base_bytes(&world, 3) > LARGEST);
    let (mut sent, mut given_up) = ([0; 2], 0);
    while sent.iter().all(|bytes| *bytes < LARGEST * 9 / 10) {
        for (bytes, group) in sent.iter_mut().zip([1, 2]) {
            if send_as_member(&world, 3, group, [*bytes, LARGEST], PIECE) {
                *bytes += PIECE as u64;
            } else {
                given_up += u32::from(*bytes > 0);
                *bytes = 0;
            }
        }
        assert!(given_up < 20, "each has been given up again and again");
        world.turns(PAUSE);
    }
    assert!(given_up > 0, "no other was to be received meanwhile");
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
