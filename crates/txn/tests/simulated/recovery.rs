//! Recovery of logs with a hundred times the records of the other tests: event loops serve other requests meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_txn::wire::answer::{Found, take_status};
use dunlin_txn::wire::execute::{Access, Lock, Target};
use dunlin_txn::wire::log::Append;
use dunlin_txn::wire::write::Write;
use dunlin_txn::wire::{Header, Kind};
use dunlin_txn::{
    Configuration, Limits, Place, RecoverySlice, RetryPolicy, Role, TableId, TransactionId, TxnError, Version,
};

use dunlin_hunt::txn::harness::{Cluster, Core, Failure, MILLISECOND, Shape};

const TABLE: TableId = TableId(1);
/// The other tests have up to 300 transactions at once, and as many records.
const RECORDS: u64 = 30_000;
const COORDINATORS: u64 = 100;
/// CPU time per record. A whole log takes longer than [`SESSION_LIFE`], a slice takes a tenth of that.
const RECORD_NANOS: u64 = 10_000;
/// How long a peer may be silent until its sessions fail: `peer_timeout` of the harness.
const SESSION_LIFE: u64 = 100 * MILLISECOND;
/// CPU time of a slice with the default limits.
const SLICE_NANOS: u64 = 1024 * RECORD_NANOS;
const NODES: u32 = 4;

/// What other transactions met while a recovery ran.
#[derive(Debug, Default)]
struct Met {
    reads: u64,
    writes: u64,
    failed: u64,
    /// Reads that took longer than two slices.
    slow: u64,
    /// The slowest read, in nanoseconds.
    slowest: u64,
    /// When the recovery began and ended, in nanoseconds.
    begun: u64,
    ended: u64,
    /// Sessions that failed.
    sessions_failed: u64,
    /// Whether it succeeded at the first attempt, and the transactions that it found.
    recovered: Option<usize>,
    /// The most records and locks that one iteration of an event loop handled.
    at_once: u64,
}

impl Met {
    fn note_read(&mut self, result: &Result<(), TxnError>, nanos: u64) {
        *if result.is_ok() { &mut self.reads } else { &mut self.failed } += 1;
        self.slow += u64::from(nanos > 2 * SLICE_NANOS);
        self.slowest = self.slowest.max(nanos);
    }

    fn note_write(&mut self, result: &Result<(), TxnError>) {
        *if result.is_ok() { &mut self.writes } else { &mut self.failed } += 1;
    }
}

/// Sends a request to a participant, as if a coordinator had sent it that is gone now.
fn ask(cluster: &Cluster, place: Place, kind: Kind, of: TransactionId, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let configuration = &cluster.configuration;
    let mut message = Vec::new();
    let (cluster_id, incarnation) = (configuration.cluster, configuration.incarnation(place));
    Header { kind, count: 1, cluster: cluster_id, transaction: of, incarnation }.encode(&mut message);
    body(&mut message);
    let core = cluster.cores.iter().find(|core| core.place == place).unwrap();
    let mut answer = Vec::new();
    core.participant.as_ref().unwrap().borrow_mut().handle(kind, &message, &mut answer);
    take_status(&mut &answer[..]).unwrap().unwrap();
    answer.split_off(1)
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// Coordinators lock a key per transaction, log its write to two nodes, and are gone.
fn leave_records(cluster: &Cluster) {
    for number in 0..RECORDS {
        let (coordinator, sequence) = (1000 + number % COORDINATORS, 1 + number / COORDINATORS);
        let of = TransactionId { epoch: cluster.configuration.epoch, coordinator, sequence };
        let key = key(number);
        let partition = cluster.configuration.partition_of(TABLE, &key);
        let target = Target { partition, table: TABLE, key: &key };
        let lock = Access::Lock(Lock { room: 8, expected: Version::MAX });
        let primary = cluster.configuration.copies(partition)[0];
        let answer = ask(cluster, primary, Kind::Execute, of, |out| {
            target.encode(out);
            lock.encode(out);
        });
        let grant = Found::take(&mut &answer[..]).unwrap().grant.unwrap();
        let write = Write { target, version: grant.version, low: grant.low, value: Some(&key) };
        for copy in 0..2 {
            let place = Place { node: 1 + (coordinator as u32 + copy) % NODES, core: 0 };
            ask(cluster, place, Kind::Log, of, |out| {
                Append::encode_ended(&[], 1, out);
                write.encode(out);
            });
        }
    }
}

/// A key without a record, whose primary is on a node before and after the failure.
fn free_key(before: &Configuration, after: &Configuration, node: u32) -> Vec<u8> {
    let on = Place { node, core: 0 };
    let is_there = |number: &u64| {
        let partition = before.partition_of(TABLE, &key(*number));
        before.copies(partition)[0] == on && after.copies(partition)[0] == on
    };
    key((RECORDS..).find(is_there).unwrap()).to_vec()
}

async fn read(core: &Core, key: &[u8]) -> Result<(), TxnError> {
    let mut tx = core.client.begin();
    tx.get(TABLE, key).await?;
    tx.commit().await
}

/// Reads a key again and again, as a health check would.
async fn keep_reading(core: Core, key: Vec<u8>, met: Rc<RefCell<Met>>, is_over: Rc<Cell<bool>>) {
    while !is_over.get() {
        let begun = core.now();
        let result = read(&core, &key).await;
        met.borrow_mut().note_read(&result, core.now() - begun);
        core.timers().sleep(Duration::from_micros(100)).await;
    }
}

async fn keep_writing(core: Core, key: Vec<u8>, met: Rc<RefCell<Met>>, is_over: Rc<Cell<bool>>) {
    while !is_over.get() {
        let result = core.client.run(&RetryPolicy::default(), async |tx| tx.put(TABLE, &key, b"new".to_vec())).await;
        met.borrow_mut().note_write(&result);
        core.timers().sleep(Duration::from_micros(100)).await;
    }
}

/// A node crashes, and leaves 30,000 records in the logs of the others. One of these recovers, while a client that is
/// no member reads from each of them, and writes.
fn recover_beside_others(seed: u64, recovery_slice: RecoverySlice) -> (Met, Cluster) {
    let shape = Shape {
        nodes: NODES,
        cores: 1,
        replicas: 2,
        workers: 0,
        strangers: 1,
        limits: Limits { recovery_slice, ..Limits::default() },
        lock_age: Duration::from_secs(3600),
        recovery_nanos: RECORD_NANOS,
        ..Shape::draw(seed)
    };
    let mut cluster = Cluster::new(seed, shape);
    leave_records(&cluster);
    let before = cluster.configuration.clone();
    let next = Rc::new(before.without(&[NODES]).unwrap());
    cluster.fail(NODES, Failure::Crash);
    cluster.configuration = next.clone();
    cluster.cores.iter().for_each(|core| core.reconfigure(&next));

    let (met, is_over) = (Rc::<RefCell<Met>>::default(), Rc::<Cell<bool>>::default());
    let stranger = cluster.cores.last().unwrap().clone();
    for node in 1..NODES {
        let key = free_key(&before, &next, node);
        stranger.spawn(keep_reading(stranger.clone(), key.clone(), met.clone(), is_over.clone()));
        if node == 1 {
            // Another key, so that the reads meet no lock.
            let is_other =
                |other: &Vec<u8>| *other != key && next.partition_of(TABLE, other) == next.partition_of(TABLE, &key);
            let other = (RECORDS..).map(|number| self::key(number).to_vec()).find(is_other).unwrap();
            stranger.spawn(keep_writing(stranger.clone(), other, met.clone(), is_over.clone()));
        }
    }
    // They open their sessions.
    cluster.run_for(20 * MILLISECOND);
    let (core, met_here) = (cluster.cores[0].clone(), met.clone());
    *met.borrow_mut() = Met { begun: core.now(), ..Met::default() };
    cluster.run_here(0, async move {
        let recovered = core.client.recover().await;
        let mut met = met_here.borrow_mut();
        met.ended = core.now();
        met.recovered = recovered.ok().map(|recovered| recovered.transactions);
    });
    is_over.set(true);
    let mut met = met.take();
    met.sessions_failed = cluster.cores.iter().map(|core| core.endpoint.stats().counters.sessions_failed).sum();
    met.at_once = cluster.cores.iter().map(|core| core.recovered_at_once.get()).max().unwrap();
    (met, cluster)
}

/// Reads, writes and pings are answered while a hundred times the records of other tests are recovered.
#[test]
fn a_long_recovery_delays_others_by_slices_only() {
    for seed in crate::seeds(2) {
        let slice = RecoverySlice::default();
        let (met, mut cluster) = recover_beside_others(seed, slice);
        println!("seed {seed}: {met:?}");
        assert_eq!(met.recovered, Some(RECORDS as usize), "seed {seed}: {met:?}");
        assert_eq!(met.at_once, slice.records_max as u64, "seed {seed}: slices are full, and one a turn: {met:?}");
        assert_eq!((met.failed, met.sessions_failed), (0, 0), "seed {seed}: {met:?}");
        // Congestion control takes slices for congestion, and holds a few reads back. Without it none waits for more
        // than one slice.
        assert!(met.slow * 100 <= met.reads, "seed {seed}: reads wait for more than two slices: {met:?}");
        assert!(met.slowest < SESSION_LIFE, "seed {seed}: a read waited as long as sessions live: {met:?}");
        assert!(met.ended - met.begun > 5 * SESSION_LIFE, "seed {seed}: too short to prove anything: {met:?}");
        // Each of three readers is answered after every slice at least.
        let slices = (met.ended - met.begun) / SLICE_NANOS;
        assert!(met.reads > slices && met.writes > slices / 10, "seed {seed}: {slices} slices, {met:?}");
        cluster.finish();
        cluster.check_rest();
        let primaries = cluster.cores.iter().filter_map(|core| core.participant.as_ref()).map(|participant| {
            let of_primaries = |(_, role, stats): (_, Role, dunlin_txn::PartitionStats)| match role {
                Role::Primary => stats.items,
                Role::Backup => 0,
            };
            participant.borrow().partitions().map(of_primaries).sum::<usize>()
        });
        // One was written meanwhile.
        assert_eq!(primaries.sum::<usize>(), RECORDS as usize + 1, "seed {seed}: every record is applied");
    }
}

/// The test above would notice it: if one turn handles a whole log, sessions fail, and so does recovery.
#[test]
fn a_whole_log_in_one_turn_ends_sessions() {
    for seed in crate::seeds(1) {
        let whole = RecoverySlice { records_max: usize::MAX, bytes_max: usize::MAX };
        let (met, _) = recover_beside_others(seed, whole);
        println!("seed {seed}: {met:?}");
        assert!(met.slowest > SESSION_LIFE && met.sessions_failed > 0 && met.failed > 0, "seed {seed}: {met:?}");
        assert_eq!(met.recovered, None, "seed {seed}: {met:?}");
    }
}
