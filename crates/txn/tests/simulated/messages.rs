//! The number of messages of a transaction, counted as in the paper: requests, without the replies.

use std::cell::RefCell;
use std::rc::Rc;

use dunlin_txn::wire::Kind;
use dunlin_txn::{ClientStats, Mode, Place, Range, TableId, TxnError};

use dunlin_hunt::txn::harness::{Cluster, Core, Shape, limits};

const TABLE: TableId = TableId(1);
/// Its first part is on the first core, its second and third on two others.
const SHELF: TableId = TableId(3);

fn shape(replicas: usize) -> Shape {
    let (nodes, cores, limits) = (5, 2, limits());
    Shape { nodes, cores, replicas, workers: 0, strangers: 0, limits, ..Shape::draw(0) }
}

/// Keys whose primaries are on these cores, `each` per core.
fn keys_on(cluster: &Cluster, places: &[Place], each: usize) -> Vec<Vec<u8>> {
    let is_on = |key: &Vec<u8>, place: &Place| {
        cluster.configuration.copies(cluster.configuration.partition_of(TABLE, key))[0] == *place
    };
    let keys = |place: &Place| {
        let all = (0..10_000u32).map(|number| number.to_le_bytes().to_vec());
        all.filter(|key| is_on(key, place)).take(each).collect::<Vec<_>>()
    };
    places.iter().flat_map(keys).collect()
}

/// The messages of one transaction of the first core, after another one that opened the logs.
fn messages_of<F>(
    cluster: &mut Cluster,
    keys: Vec<Vec<u8>>,
    work: impl Fn(Core, Vec<Vec<u8>>) -> F + 'static,
) -> Vec<u64>
where
    F: Future<Output = Result<(), TxnError>>,
{
    let counted: Rc<RefCell<Vec<ClientStats>>> = Rc::default();
    let (counting, core) = (counted.clone(), cluster.cores[0].clone());
    cluster.run_here(0, async move {
        for _ in 0..2 {
            counting.borrow_mut().push(core.client.stats());
            work(core.clone(), keys.clone()).await.unwrap();
        }
        counting.borrow_mut().push(core.client.stats());
    });
    let counted = counted.borrow();
    [Kind::Scan, Kind::Execute, Kind::Validate, Kind::Log, Kind::CommitBackup, Kind::CommitPrimary, Kind::Abort]
        .map(|kind| counted[2].messages_of(kind) - counted[1].messages_of(kind))
        .to_vec()
}

async fn update(core: Core, keys: Vec<Vec<u8>>) -> Result<(), TxnError> {
    let named: Vec<(TableId, &[u8])> = keys.iter().map(|key| (TABLE, &key[..])).collect();
    let mut tx = core.client.begin();
    tx.execute(&named, Mode::Update).await?;
    for key in &keys {
        tx.put(TABLE, key, vec![7; 40])?;
    }
    tx.commit().await
}

async fn read(core: Core, keys: Vec<Vec<u8>>) -> Result<(), TxnError> {
    let named: Vec<(TableId, &[u8])> = keys.iter().map(|key| (TABLE, &key[..])).collect();
    let mut tx = core.client.begin();
    tx.execute(&named, Mode::Read).await?;
    tx.commit().await
}

fn remote() -> Vec<Place> {
    (2..=5).map(|node| Place { node, core: 1 }).collect()
}

/// FaSST, section 5.3: without logging and replication, a written key costs two messages, where systems with one-sided
/// verbs need four. Validation costs none: a locked key cannot change.
#[test]
fn a_written_key_costs_two_messages() {
    for replicas in 1..=3 {
        let mut cluster = Cluster::new(replicas as u64, shape(replicas));
        let keys = keys_on(&cluster, &remote(), 1);
        let copies =
            |key: &Vec<u8>| cluster.configuration.copies(cluster.configuration.partition_of(TABLE, key))[1..].to_vec();
        let mut backups: Vec<Place> = keys.iter().flat_map(copies).collect();
        backups.sort();
        backups.dedup();
        backups.retain(|place| *place != cluster.cores[0].place);
        let sent = messages_of(&mut cluster, keys, update);
        // f log replicas besides the local core.
        assert_eq!(sent, [0, 4, 0, replicas as u64 - 1, backups.len() as u64, 4, 0], "{replicas} replicas");
    }
}

#[test]
fn requests_to_one_core_are_one_message() {
    let mut cluster = Cluster::new(7, shape(1));
    let keys = keys_on(&cluster, &remote()[..2], 8);
    assert_eq!(keys.len(), 16);
    assert_eq!(messages_of(&mut cluster, keys, update), [0, 2, 0, 0, 0, 2, 0]);
}

#[test]
fn reads_send_no_more_than_they_must() {
    let mut cluster = Cluster::new(8, shape(3));
    // One core read all at one moment: there is nothing to validate.
    let one = keys_on(&cluster, &remote()[..1], 3);
    assert_eq!(messages_of(&mut cluster, one, read), [0, 1, 0, 0, 0, 0, 0]);
    let several = keys_on(&cluster, &remote(), 1);
    assert_eq!(messages_of(&mut cluster, several, read), [0, 4, 4, 0, 0, 0, 0]);
    // Keys of the local core cost nothing.
    let own = vec![cluster.cores[0].place];
    let own = keys_on(&cluster, &own, 2);
    assert_eq!(messages_of(&mut cluster, own, read), [0; 7]);
}

async fn read_and_update(core: Core, keys: Vec<Vec<u8>>) -> Result<(), TxnError> {
    let mut tx = core.client.begin();
    // The second key is read twice, and locked.
    let asked = [(0, Mode::Read), (1, Mode::Read), (1, Mode::Update)];
    let values = tx.execute_each(&asked.map(|(key, mode)| (TABLE, &keys[key][..], mode))).await?;
    assert_eq!(values[1], values[2]);
    tx.put(TABLE, &keys[1], vec![7; 40])?;
    tx.commit().await
}

#[test]
fn reads_and_locks_of_one_core_are_one_message() {
    let mut cluster = Cluster::new(11, shape(1));
    let keys = keys_on(&cluster, &remote()[..1], 2);
    assert_eq!(messages_of(&mut cluster, keys, read_and_update), [0, 1, 1, 0, 0, 1, 0]);
}

/// If a value outgrows the room that was reserved with its lock, one message first asks for more.
#[test]
fn a_long_value_costs_one_message_more() {
    let mut cluster = Cluster::new(9, shape(1));
    let keys = keys_on(&cluster, &remote()[..1], 1);
    let sent = messages_of(&mut cluster, keys, outgrow);
    assert_eq!(sent, [0, 2, 0, 0, 0, 1, 0]);
}

async fn outgrow(core: Core, keys: Vec<Vec<u8>>) -> Result<(), TxnError> {
    let mut tx = core.client.begin();
    let before = tx.get_for_update(TABLE, &keys[0]).await?;
    let longer = before.map_or(0, |value| value.len()) + 1000;
    tx.put(TABLE, &keys[0], vec![1; longer])?;
    tx.commit().await
}

async fn scan(core: &Core, range: Range<'_>, limit: usize, found: usize, write: bool) -> Result<(), TxnError> {
    let mut tx = core.client.begin();
    let items = tx.scan(SHELF, range, limit).await?;
    assert_eq!(items.len(), found);
    if write {
        tx.put(SHELF, b"shelf-11", b"new".to_vec())?;
    }
    tx.commit().await
}

/// A range read costs one message for each page, and validation one for each core. One page needs no validation.
#[test]
fn range_reads_cost_a_message_a_page_and_a_part() {
    let mut cluster = Cluster::new(10, shape(1));
    let core = cluster.cores[0].clone();
    cluster.run_here(0, async move {
        let mut tx = core.client.begin();
        for place in 11..16 {
            tx.insert(SHELF, format!("shelf-{place}").as_bytes(), b"here".to_vec()).unwrap();
        }
        tx.commit().await.unwrap();
    });
    let second = Range::between(b"shelf-11", b"shelf-20");
    let both = Range::between(b"shelf-11", b"shelf-40");
    let cases = [
        (Range::between(b"", b"shelf-09"), 9, 0, false, [0; 7]),
        (Range::prefix(b"shelf-19"), 9, 0, false, [1, 0, 0, 0, 0, 0, 0]),
        (second, 3, 3, false, [1, 0, 0, 0, 0, 0, 0]),
        // Pages have three items here.
        (second, 9, 5, false, [2, 0, 1, 0, 0, 0, 0]),
        (second, 9, 5, true, [2, 1, 1, 0, 0, 1, 0]),
        (both, 9, 5, false, [3, 0, 2, 0, 0, 0, 0]),
        (both, 5, 5, false, [2, 0, 1, 0, 0, 0, 0]),
    ];
    for (range, limit, found, write, messages) in cases {
        let work = move |core: Core, _| async move { scan(&core, range, limit, found, write).await };
        assert_eq!(messages_of(&mut cluster, Vec::new(), work), messages, "{range:?}, {limit} items, writes: {write}");
    }
}
