//! A queue in an ordered table: those that take its first item conflict, and the items that they took leave nothing
//! behind that later range reads would have to visit.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_txn::wire::Kind;
use dunlin_txn::{Range, RetryPolicy, TableId};

use dunlin_hunt::txn::harness::{Cluster, Core, Shape, limits};

const QUEUE: TableId = TableId(4);
const JOBS: u16 = 120;

const POLICY: RetryPolicy =
    RetryPolicy { attempts_max: 1000, pause: Duration::from_micros(10), pause_max: Duration::from_millis(10) };

async fn add(core: Core, jobs: std::ops::Range<u16>) {
    let added = core.client.run(&POLICY, async |tx| {
        let mut keys = jobs.clone().map(|job| [&b"q"[..], &job.to_be_bytes()].concat());
        keys.try_for_each(|key| tx.insert(QUEUE, &key, b"job".to_vec()))
    });
    added.await.unwrap();
}

/// Takes the first job.
async fn take(core: &Core) -> Option<u16> {
    let taken = core.client.run(&POLICY, async |tx| {
        let first = tx.scan(QUEUE, Range::prefix(b"q"), 1).await?;
        let Some((key, _)) = first.first() else { return Ok(None) };
        tx.delete(QUEUE, key)?;
        Ok(Some(u16::from_be_bytes(key[1..].try_into().unwrap())))
    });
    taken.await.unwrap()
}

#[test]
fn each_item_of_a_queue_is_taken_once() {
    for seed in crate::seeds(3) {
        let shape =
            Shape { nodes: 3, cores: 1, replicas: 2, workers: 0, strangers: 1, limits: limits(), ..Shape::draw(0) };
        let mut cluster = Cluster::new(seed, shape);
        // No more at once than may be locked: each lock may become a deletion.
        for first in (0..JOBS).step_by(15) {
            let core = cluster.cores[0].clone();
            cluster.run_here(0, add(core, first..first + 15));
        }
        let taken = Rc::<RefCell<Vec<u16>>>::default();
        for core in cluster.cores.clone() {
            let taken = taken.clone();
            core.clone().spawn(async move {
                while let Some(job) = take(&core).await {
                    taken.borrow_mut().push(job);
                }
            });
        }
        cluster.finish();
        cluster.check_rest();
        let mut taken = taken.take();
        taken.sort_unstable();
        assert_eq!(taken, Vec::from_iter(0..JOBS), "seed {seed}");
        let conflicts: u64 =
            cluster.cores.iter().map(|core| core.client.stats().locked + core.client.stats().changed).sum();
        assert!(conflicts > 20, "seed {seed}: too few to prove anything: {conflicts}");
        // A page has three entries here: if the deletions were still there, this would take 40 pages.
        let stranger = cluster.cores.len() - 1;
        let core = cluster.cores[stranger].clone();
        cluster.run_here(stranger, async move {
            let before = core.client.stats().messages_of(Kind::Scan);
            assert_eq!(take(&core).await, None);
            assert_eq!(core.client.stats().messages_of(Kind::Scan) - before, 1);
        });
    }
}
