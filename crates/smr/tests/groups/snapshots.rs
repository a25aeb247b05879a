//! Snapshots of many groups share memory and a log: no group keeps the others from theirs.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::{CallOptions, MsgBuf};
use dunlin_smr::raft::Storage as _;
use dunlin_smr::{ClusterId, LogStore as _, NodeConfig, wire};

use super::world::{InMemory, OnDisk, World, config};

/// The largest snapshot; two of them are all that a process may have in memory.
const LARGEST: u64 = 100_000;

/// The first piece of a snapshot, with so many bytes in all.
pub fn first_piece(cluster: ClusterId, to: u64, group: u16, term: u64, total: u64) -> MsgBuf {
    let from = to % 3 + 1;
    let [low, high] = group.to_le_bytes();
    let mut out = vec![wire::VERSION, 0, low, high];
    out.extend_from_slice(&crc32c::crc32c(&[7]).to_le_bytes());
    let words = [cluster.bits(), from, to, term, 1 << 40, 1, total, 0];
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    out.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0]);
    [to, from].iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
    out.push(7);
    let mut piece = MsgBuf::with_len(out.len()).unwrap();
    piece.copy_from_slice(&out);
    piece
}

/// Sends a process the first piece of a snapshot of a group, with so many bytes in all; says whether it is taken.
fn send_first_piece(world: &World<InMemory>, to: u64, group: u16, total: u64) -> bool {
    let status = world.processes[&to].host.node(group).unwrap().status();
    let piece = first_piece(status.cluster.unwrap(), to, group, status.term, total);
    world.drive(async {
        let session = world.endpoint.connect(&Addr::Node(to as u32)).await.unwrap();
        session.call_with(wire::CHUNK, piece, CallOptions::timeout(Duration::from_millis(20))).await.is_ok()
    })
}

/// Groups that rest, and a process that leads group 0 and has as much of snapshots that come as fits.
fn with_forged_pieces() -> (World<InMemory>, u64) {
    let limits = NodeConfig { snapshot_bytes_max: LARGEST, snapshot_memory_max: 2 * LARGEST, ..config() };
    let world = World::new(InMemory, 4, NodeConfig { snapshot_entries: 50, ..limits });
    world.all_lead();
    world.all_rest();
    let (_, to) = world.leader(0).unwrap();
    let base = world.processes[&to].host.node(2).unwrap().with_log(|log| log.base().data.len() as u64);
    assert!(send_first_piece(&world, to, 1, LARGEST) && send_first_piece(&world, to, 2, LARGEST - base));
    assert!(!send_first_piece(&world, to, 3, 1), "there is no memory left");
    world.all_rest();
    (world, to)
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

/// Its last snapshot has all that it executed, so another one would not be taken.
#[test]
fn a_group_without_new_entries_does_not_keep_the_log_long() {
    let storage = OnDisk { log_bytes_max: Some(128 << 10), ..OnDisk::default() };
    // Less than eight, all replicas take their snapshots at the same entries.
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
