//! Copies of one group's state, and the memory that the snapshots of all groups share.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::MsgBuf;
use dunlin_smr::wire::request::{Request, set_cluster, set_group};
use dunlin_smr::wire::response::Response;
use dunlin_smr::{LogStore as _, NodeConfig, wire};

use super::snapshots::send_piece;
use super::world::{InMemory, World, config};

/// Bytes of a state, approximately, and of all snapshots that a process may have in memory.
const STATE: usize = 30_000;
const MEMORY: u64 = 100_000;
/// Bytes of a snapshot that leaves room for the last one, but not for a third.
const LARGE: u64 = 45_000;

/// Two groups, of which only the first has a large state, and a process that leads it.
fn tight(config: NodeConfig) -> (World<InMemory>, u64) {
    let limits = NodeConfig { snapshot_bytes_max: MEMORY / 2, snapshot_memory_max: MEMORY, ..config };
    let world = World::padded(InMemory, 2, limits, |group| if group == 0 { STATE } else { 0 });
    world.all_lead();
    world.add(0, 1).unwrap();
    let (_, leader) = world.leader(0).unwrap();
    (world, leader)
}

/// The result of a request for a piece.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    /// A piece of the snapshot with this last entry.
    Piece(u64),
    Busy,
    Refused,
}

/// Asks a process for a piece of the first group's state.
fn ask(world: &World<InMemory>, id: u64, [least, index, offset]: [u64; 3]) -> Came {
    let request = Request::Piece { least, index, offset };
    let mut buffer = MsgBuf::with_len(request.encoded_len()).unwrap();
    request.encode(&mut buffer);
    set_group(&mut buffer, 0);
    set_cluster(&mut buffer, world.processes[&id].host.node(0).unwrap().status().cluster.unwrap());
    let reply = world.drive(async {
        let session = world.endpoint.connect(&Addr::Node(id as u32)).await.unwrap();
        let reply = session.call(wire::CLIENT, buffer).await.unwrap().response;
        drop(session.close());
        reply
    });
    match Response::parse(&reply).unwrap() {
        Response::Ok(piece) => Came::Piece(u64::from_le_bytes(piece[..8].try_into().unwrap())),
        Response::Busy => Came::Busy,
        Response::Refused(_) => Came::Refused,
        other => panic!("{other:?}"),
    }
}

/// Makes the first group take a snapshot, by asking for a piece of a current one.
fn take(world: &World<InMemory>, id: u64) -> u64 {
    world.add(0, 1).unwrap();
    let least = world.processes[&id].host.node(0).unwrap().status().applied;
    world.until("there is a snapshot", |world| ask(world, id, [least, 0, 0]) != Came::Busy);
    world.processes[&id].host.node(0).unwrap().with_log(|log| log.base().get_metadata().index)
}

/// A client that asks for copies of one group takes no memory from a snapshot that another group receives.
#[test]
fn few_snapshots_are_taken_for_copies_and_none_instead_of_one_that_comes() {
    const PAUSE: Duration = Duration::from_millis(100);
    let (world, id) = tight(NodeConfig { copy_snapshot_pause: PAUSE, ..config() });
    let taken = || world.processes[&id].host.node(0).unwrap().counters().snapshots_taken;
    let (begun, before) = (world.now(), taken());
    for received in 0..40_u64 {
        world.add(0, 1).unwrap();
        assert!(send_piece(&world, id, 1, [received, LARGE]), "piece {received}");
        let least = world.processes[&id].host.node(0).unwrap().status().applied;
        (0..20).for_each(|_| assert_eq!(ask(&world, id, [least, 0, 0]), Came::Busy));
    }
    // No more of it arrives.
    world.turns(Duration::from_millis(1200));
    for _ in 0..100 {
        take(&world, id);
    }
    let pauses = (world.now() - begun).as_nanos() / PAUSE.as_nanos();
    let taken = u128::from(taken() - before);
    assert!((1..=pauses + 1).contains(&taken), "{taken} snapshots in {pauses} pauses");
}

/// A snapshot kept for copies of one group gives way to one that another group receives or takes.
#[test]
fn a_copy_of_one_group_gives_way_to_snapshots_of_another() {
    let (world, id) = tight(NodeConfig { copy_snapshot_pause: Duration::ZERO, ..config() });
    let old = take(&world, id);
    let new = take(&world, id);
    assert!(old < new && ask(&world, id, [0, old, 0]) == Came::Piece(old), "it is kept");
    let is_taken = |_: &World<InMemory>| send_piece(&world, id, 1, [0, LARGE]);
    let end = world.now() + Duration::from_millis(100);
    while !is_taken(&world) {
        assert!(world.now() < end, "a copy keeps the memory");
        world.turns(Duration::from_millis(5));
    }
    assert_eq!(ask(&world, id, [0, old, 0]), Came::Refused);
}

/// A client that asks for the same piece again and again makes no progress.
#[test]
fn a_snapshot_is_kept_for_copies_that_get_on() {
    let (world, id) = tight(NodeConfig { copy_snapshot_pause: Duration::ZERO, chunk_bytes: STATE / 5, ..config() });
    let old = take(&world, id);
    assert!(take(&world, id) > old);
    for [seconds, offset] in [[6, 0], [6, STATE / 5]] {
        assert_eq!(ask(&world, id, [0, old, offset as u64]), Came::Piece(old));
        world.turns(Duration::from_secs(seconds as u64));
    }
    let end = world.now() + Duration::from_secs(8);
    while ask(&world, id, [0, old, STATE as u64 / 5]) != Came::Refused {
        assert!(world.now() < end, "it gets no further");
        world.turns(Duration::from_secs(1));
    }
}

/// Nor does who asks for what is behind the end.
#[test]
fn a_snapshot_is_not_kept_for_pieces_of_no_bytes() {
    let (world, id) = tight(NodeConfig { copy_snapshot_pause: Duration::ZERO, chunk_bytes: 1 << 20, ..config() });
    let old = take(&world, id);
    let total = world.processes[&id].host.node(0).unwrap().with_log(|log| log.base().data.len() as u64);
    assert!(take(&world, id) > old);
    let end = world.now() + Duration::from_secs(30);
    while ask(&world, id, [0, old, total]) != Came::Refused {
        assert!(world.now() < end, "it is kept for nothing");
        world.turns(Duration::from_secs(1));
    }
    // Nor is one kept that nobody has begun to copy.
    let new = world.processes[&id].host.node(0).unwrap().with_log(|log| log.base().get_metadata().index);
    assert_eq!(ask(&world, id, [0, new, total]), Came::Piece(new));
    world.all_rest();
}
