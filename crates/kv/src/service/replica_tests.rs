//! Replicas with a tier whose device answers when it is told to.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use dunlin_rpc::{CallError, Session};
use dunlin_store::tier::Ticket;
use dunlin_store::{Condition, Put, Refused, Store};
use tokio::task::{JoinHandle, spawn_local};

use super::late::tests::serve;
use super::replica::Replica;
use crate::cluster::partition_of;
use crate::shard::version;
use crate::tier::tests::{Memory, TestShard, fill, run, shard_within, until};
use crate::tier::{Schedule, desk};
use crate::wire::{
    FILL, MULTI_GET, MultiGet, Operation, PartitionScan, PartitionScanAnswer, REPLICATE, ReplicaState, Replicate,
    SCAN_BYTES, SCAN_PARTITIONS, Status, TURN, Turn, Turned, Verdict, Version, VersionedItem,
};

const PARTITIONS: u32 = 32;
const ALL: [u8; 4] = [0xff; 4];
/// Above the versions of all items that `fill` stores.
const LATE: Version = 1 << 40;
const READ_TIME_MAX: Duration = Duration::from_secs(60);

/// A replica with items on its device, which reads nothing before the gate is open or gone.
struct World {
    shard: TestShard,
    device: Arc<Memory>,
    /// The keys on the device.
    cold: Vec<(String, Ticket)>,
    session: Session,
    gate: Option<Sender<()>>,
    driving: JoinHandle<()>,
}

impl World {
    async fn new(state: ReplicaState) -> World {
        World::of(Replica::new("a", 7, PARTITIONS).in_state(state)).await
    }

    async fn of(replica: Replica) -> World {
        let (open, gate) = channel();
        let device = Arc::new(Memory::new(Some(gate)));
        let shard = shard_within(device.clone(), 4, Schedule::default(), READ_TIME_MAX);
        shard.join_cluster(replica);
        spawn_local(desk::attend(shard.clone()));
        let cold = fill(&shard).await;
        let (sessions, driving, _) = serve(&shard, 1).await;
        World { shard, device, cold, session: sessions[0].clone(), gate: Some(open), driving }
    }

    fn version(&self, key: &str) -> Option<Version> {
        let store = self.shard.store.borrow();
        version(&*store, &store.key(key.as_bytes()).unwrap(), 0)
    }

    fn tier(&self, name: &str) -> u64 {
        self.shard.tier_stats().unwrap().count(name)
    }

    async fn ask(&self, req_type: u8, request: Vec<u8>) -> Vec<u8> {
        self.session.call(req_type, request).await.unwrap().response.to_vec()
    }

    async fn write(&self, version: Version, operation: Operation<'_>) -> Verdict {
        let mut request = vec![0; Replicate::BYTES + operation.encoded_len()];
        Replicate { fingerprint: 7, epoch: 0, version }.encode(&mut request);
        operation.encode(&mut request[Replicate::BYTES..]);
        Verdict::parse(&self.ask(REPLICATE, request).await).unwrap()
    }

    async fn turn(&self, turn: Turn) -> Status {
        Turned::parse(&self.ask(TURN, turn.encode().to_vec()).await).unwrap().status
    }

    /// Returns the versions of the items of some partitions.
    async fn copy(&self, partitions: &[u8]) -> BTreeMap<String, Version> {
        let (mut copied, mut next) = (BTreeMap::new(), Some(0));
        while let Some(from) = next {
            let answer = self.ask(SCAN_PARTITIONS, PartitionScan { from, partitions }.encode()).await;
            let answer = PartitionScanAnswer::parse(&answer).unwrap();
            assert!(answer.next.is_none_or(|next| next > from), "it goes on");
            next = answer.next;
            for item in answer.items.map(Option::unwrap) {
                let name = String::from_utf8(item.key.to_vec()).unwrap();
                assert!(item.value.is_some());
                assert_eq!(copied.insert(name.clone(), item.version), None, "{name} twice");
            }
        }
        copied
    }

    /// Has it take writes, and drop what it had.
    async fn begin_fill(&self) {
        assert_eq!(self.turn(Turn::Begin { fill: 5 }).await, Status::Done);
        while self.turn(Turn::Drop { fill: 5 }).await == Status::Later {}
    }

    /// Begins a scan of all partitions. Returns the response, or nothing if it is pushed back.
    fn scan(&self) -> JoinHandle<Option<Vec<u8>>> {
        let call = self.session.call(SCAN_PARTITIONS, PartitionScan { from: 0, partitions: &ALL }.encode());
        spawn_local(async move {
            match call.await {
                Ok(reply) => Some(reply.response.to_vec()),
                Err(failure) if matches!(failure.error, CallError::Busy) => None,
                Err(failure) => panic!("{failure}"),
            }
        })
    }

    /// Sends items to be filled with. False if they are pushed back.
    async fn fill(&self, request: Vec<u8>) -> bool {
        match self.session.call(FILL, request).await {
            Ok(reply) => assert_eq!(reply.response[..], [Status::Done as u8]),
            Err(failure) if matches!(failure.error, CallError::Busy) => return false,
            Err(failure) => panic!("{failure}"),
        }
        true
    }

    /// Returns how many reads wait or are in progress.
    fn waiting(&self) -> u64 {
        let stats = self.shard.tier_stats().unwrap();
        stats.reading + stats.lengths.iter().sum::<u64>()
    }

    fn end(self) {
        self.driving.abort();
        drop(self.gate);
    }
}

fn put<'a>(key: &'a str, value: &'a [u8], condition: Condition) -> Operation<'a> {
    Operation::Put { key: key.as_bytes(), value, put: Put { condition, ..Put::default() } }
}

fn delete(key: &str) -> Operation<'_> {
    Operation::Delete { key: key.as_bytes(), unchanged: None }
}

/// Returns a part of a fill: new items.
fn batch(version: Version, numbers: Range<usize>) -> Vec<u8> {
    let mut request = 5u64.to_le_bytes().to_vec();
    for number in numbers {
        let name = format!("new_{number}");
        let (key, value) = (name.as_bytes(), Some(&[1; 600][..]));
        VersionedItem { key, value, flags: 0, expires: None, version }.encode(&mut request);
    }
    request
}

#[test]
fn a_write_that_meets_an_item_on_the_device_is_decided_without_a_read() {
    run(async {
        let world = World::new(ReplicaState::Open).await;
        let name = |number: usize| world.cold[number].0.as_str();
        let tokens: Vec<Version> = (0..5).map(|number| world.version(name(number)).unwrap()).collect();
        let new = |number: usize, condition| put(name(number), b"new", condition);
        let older = world.write(1, new(0, Condition::Always)).await;
        assert_eq!(older, Verdict::Newer { version: tokens[0], has_item: true });
        for (condition, refused) in
            [(Condition::Absent, Refused::Exists), (Condition::Unchanged(tokens[0] + 1), Refused::Changed)]
        {
            assert_eq!(world.write(LATE, new(0, condition)).await, Verdict::Refused(refused));
        }
        let done = Verdict::Done { had_item: true };
        assert_eq!(world.write(LATE, new(0, Condition::Unchanged(tokens[0]))).await, done);
        assert_eq!(world.write(LATE, new(1, Condition::Present)).await, done);
        assert_eq!(world.write(LATE, new(2, Condition::Always)).await, done);
        assert_eq!(world.write(1, delete(name(3))).await, Verdict::Newer { version: tokens[3], has_item: true });
        assert_eq!(world.write(LATE, delete(name(3))).await, done);
        let deleted = Verdict::Newer { version: LATE, has_item: false };
        assert_eq!(world.write(LATE - 1, new(3, Condition::Always)).await, deleted);
        assert_eq!([0, 1, 2, 3].map(|number| world.version(name(number))), [Some(LATE), Some(LATE), Some(LATE), None]);
        assert_eq!(world.version(name(4)), Some(tokens[4]));
        assert_eq!((world.tier("reads"), world.shard.tier_stats().unwrap().reading), (0, 0));
        world.end();
    });
}

#[test]
fn a_copy_has_the_items_on_the_device_and_reads_only_those_of_its_partitions() {
    run(async {
        let mut world = World::new(ReplicaState::Open).await;
        world.cold.sort_by_key(|(_, ticket)| ticket.hash().0);
        let [(changed, _), (deleted, _), ..] = &world.cold[..] else { unreachable!("there are a thousand") };
        let scan = PartitionScan { from: 0, partitions: &ALL }.encode();
        let call = world.session.call(SCAN_PARTITIONS, scan);
        let waiting = spawn_local(async move { call.await.unwrap().response.to_vec() });
        until("reads", || world.shard.tier_stats().unwrap().reading > 0).await;
        // One is stored anew meanwhile, and is in memory then.
        assert_eq!(
            world.write(LATE, put(changed, &[1; 600], Condition::Always)).await,
            Verdict::Done { had_item: true }
        );
        assert_eq!(world.write(LATE, delete(deleted)).await, Verdict::Done { had_item: true });
        world.gate = None;
        let answer = waiting.await.unwrap();
        let items: BTreeMap<Vec<u8>, Version> = PartitionScanAnswer::parse(&answer)
            .unwrap()
            .items
            .map(Option::unwrap)
            .map(|item| (item.key.to_vec(), item.version))
            .collect();
        assert_eq!(items.get(changed.as_bytes()), Some(&LATE));
        assert_eq!(items.get(deleted.as_bytes()), None);

        let all = world.copy(&ALL).await;
        let held: BTreeMap<String, Version> = (0..6_000)
            .filter_map(|number| {
                let name = format!("key_{number}");
                world.version(&name).map(|version| (name, version))
            })
            .collect();
        assert!(held.len() > world.cold.len());
        assert_eq!(all, held);

        let before = world.tier("reads");
        let some = world.copy(&[0b10, 0, 0, 0b1000_0000]).await;
        let is_wanted = |name: &str| [1, 31].contains(&partition_of(name.as_bytes(), PARTITIONS));
        assert_eq!(some, held.into_iter().filter(|(name, _)| is_wanted(name)).collect());
        let reads = world.tier("reads") - before;
        assert!(reads > 0 && reads <= some.len() as u64, "{reads} reads for {} items", some.len());
        world.end();
    });
}

#[test]
fn a_fill_drops_what_the_device_had_before_and_nothing_that_came_since() {
    const NEW: usize = 2_500;
    run(async {
        let mut world = World::new(ReplicaState::Open).await;
        let keys = || world.cold[..3].iter().map(|(name, _)| name.as_bytes());
        let mut request = vec![0; MultiGet::encoded_len(keys())];
        MultiGet::encode(keys(), &mut request);
        let call = world.session.call(MULTI_GET, request);
        let waiting = spawn_local(async move { call.await.unwrap().response.to_vec() });
        until("reads", || world.shard.tier_stats().unwrap().reading > 0).await;
        assert_eq!(world.turn(Turn::Begin { fill: 5 }).await, Status::Done);
        // More than memory holds: some are on the device when the others are dropped.
        for number in 0..NEW {
            let name = format!("new_{number}");
            assert_eq!(
                world.write(LATE, put(&name, &[1; 600], Condition::Always)).await,
                Verdict::Done { had_item: false }
            );
            until("writes", || !world.shard.store.borrow().tier().unwrap().is_behind()).await;
        }
        while world.turn(Turn::Drop { fill: 5 }).await == Status::Later {}
        let old = (0..6_000).filter(|number| world.version(&format!("key_{number}")).is_some()).count();
        let new = (0..NEW).filter(|number| world.version(&format!("new_{number}")) == Some(LATE)).count();
        let stats = world.shard.store.borrow().stats();
        assert_eq!(old, 0);
        assert_eq!(new as u64, stats.items + world.tier("items"), "{stats:?}");
        assert!(world.tier("items") > 500 && new as u64 + world.tier("dropped") >= NEW as u64, "{new}, {stats:?}");
        // What began to wait when the server could be read is not answered from what it has now.
        world.gate = None;
        assert_eq!(waiting.await.unwrap(), [Status::Closed as u8]);
        world.end();
    });
}

#[test]
fn a_fill_waits_for_the_device_and_loses_nothing() {
    run(async {
        let world = World::new(ReplicaState::Open).await;
        world.begin_fill().await;
        let batch = |number: usize| batch(LATE, number * 100..(number + 1) * 100);
        let before = world.tier("dropped");
        world.device.is_stuck.store(true, Ordering::Relaxed);
        let mut sent = 0;
        while world.fill(batch(sent)).await {
            sent += 1;
            assert!(sent < 60, "3.6 MB, and nothing is written");
        }
        world.device.is_stuck.store(false, Ordering::Relaxed);
        until("writes", || !world.shard.store.borrow().tier().unwrap().is_behind()).await;
        while sent < 40 {
            sent += usize::from(world.fill(batch(sent)).await);
        }
        assert_eq!(world.turn(Turn::Complete { fill: 5 }).await, Status::Done);
        let missing = (0..100 * sent).filter(|number| world.version(&format!("new_{number}")) != Some(LATE)).count();
        assert_eq!(missing as u64, world.tier("dropped") - before);
        assert_eq!(missing, 0, "{} blocks were written", world.tier("writes"));
        world.end();
    });
}

#[test]
fn writes_that_outrun_the_device_do_not_keep_a_fill_out() {
    run(async {
        let world = World::new(ReplicaState::Open).await;
        world.begin_fill().await;
        world.device.is_stuck.store(true, Ordering::Relaxed);
        let mut written = 0;
        let mut write = async || {
            // More than a block.
            for number in written..written + 300 {
                world.write(LATE, put(&format!("written_{number}"), &[1; 600], Condition::Always)).await;
            }
            written += 300;
        };
        while !world.shard.store.borrow().tier().unwrap().is_behind() {
            write().await;
        }
        // Each time that the device has written a block, writes come before the fill.
        let (mut sent, mut rounds) = (0, 0);
        while sent < 5 {
            assert!(rounds < 20, "{sent} batches are taken in {rounds} rounds");
            rounds += 1;
            write().await;
            let before = world.tier("writes");
            world.device.lets_one_write.store(true, Ordering::Relaxed);
            until("a write", || world.tier("writes") > before).await;
            write().await;
            sent += usize::from(world.fill(batch(LATE, sent * 40..(sent + 1) * 40)).await);
        }
        world.device.is_stuck.store(false, Ordering::Relaxed);
        world.end();
    });
}

#[test]
fn a_fill_ends_as_soon_as_more_keys_are_changed_than_are_kept_in_mind() {
    run(async {
        let world = World::of(Replica::new("a", 7, PARTITIONS).losing_track_after(3)).await;
        world.begin_fill().await;
        for number in 0..4 {
            assert!(world.fill(batch(LATE, number..number + 1)).await);
            world.write(LATE, put(&format!("written_{number}"), b"value", Condition::Always)).await;
        }
        assert_eq!(world.ask(FILL, batch(LATE, 4..5)).await, [Status::Full as u8]);
        assert_eq!(world.turn(Turn::Complete { fill: 5 }).await, Status::Full);
        // The next one may end.
        world.begin_fill().await;
        assert!(world.fill(batch(LATE, 4..5)).await);
        assert_eq!(world.turn(Turn::Complete { fill: 5 }).await, Status::Done);
        world.end();
    });
}

#[test]
fn what_a_filled_server_has_lost_again_is_taken_from_a_copy() {
    run(async {
        let world = World::new(ReplicaState::Open).await;
        world.begin_fill().await;
        for (version, expected) in [(LATE - 1, None), (LATE, Some(LATE))] {
            world.write(LATE, put("new_0", &[1; 600], Condition::Always)).await;
            {
                // As an eviction that the tier does not keep.
                let mut store = world.shard.store.borrow_mut();
                let key = store.key(b"new_0").unwrap();
                let _ = store.delete(&key, None);
            }
            assert!(world.fill(batch(version, 0..1)).await);
            assert_eq!(world.version("new_0"), expected);
        }
        // A deletion of this version counts.
        assert_eq!(world.write(LATE + 1, delete("new_0")).await, Verdict::Done { had_item: false });
        assert!(world.fill(batch(LATE, 0..1)).await);
        assert_eq!(world.version("new_0"), None);
        world.end();
    });
}

#[test]
fn a_copy_that_waits_while_the_server_is_filled_anew_is_refused() {
    run(async {
        let mut world = World::new(ReplicaState::Open).await;
        let waiting = world.scan();
        until("reads", || world.waiting() > 0).await;
        world.begin_fill().await;
        assert!(world.fill(batch(LATE, 0..10)).await);
        assert_eq!(world.turn(Turn::Complete { fill: 5 }).await, Status::Done);
        world.gate = None;
        assert_eq!(waiting.await.unwrap(), Some(vec![Status::Closed as u8]));
        world.end();
    });
}

#[test]
fn copies_wait_for_few_records_each_and_for_no_more_than_there_is_memory() {
    const COPIES: usize = 6;
    run(async {
        let mut world = World::new(ReplicaState::Open).await;
        // Four clients have all the room that there is for requests.
        let tickets = vec![world.cold[0].1; 8 << 10];
        let room: Vec<_> =
            (0..4).map(|client| world.shard.desk().unwrap().reserve(client, &tickets).unwrap()).collect();
        let first = world.scan();
        until("reads", || world.waiting() > 0 || first.is_finished()).await;
        assert!((1..=64).contains(&world.waiting()), "{} reads wait", world.waiting());
        drop(room);

        let mut copies = vec![first];
        copies.extend((1..COPIES).map(|_| world.scan()));
        until("an answer", || world.waiting() >= 2 * 64 && copies.iter().any(|copy| copy.is_finished())).await;
        let waiting = copies.iter().filter(|copy| !copy.is_finished()).count();
        let bytes = world.shard.desk().unwrap().stats().bytes;
        assert!(waiting >= 2 && bytes >= waiting * SCAN_BYTES, "{bytes} bytes for {waiting} copies");
        world.gate = None;
        let mut answered = 0;
        for copy in copies {
            answered += usize::from(copy.await.unwrap().is_some());
        }
        assert!(answered >= 2);
        assert_eq!(world.shard.desk().unwrap().stats().bytes, 0);
        world.end();
    });
}
