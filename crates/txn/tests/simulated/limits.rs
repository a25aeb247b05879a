//! Limits when they are reached, and the conditions that hold then.

use dunlin_txn::{Limits, RetryPolicy, TableId, TxnError};

use dunlin_hunt::txn::harness::{Cluster, Core, MILLISECOND, Shape, limits};
use dunlin_hunt::txn::scenarios;

const TABLE: TableId = TableId(1);

fn shape(limits: Limits) -> Shape {
    Shape { nodes: 3, cores: 1, replicas: 2, workers: 0, strangers: 2, limits, ..Shape::draw(0) }
}

/// Whether a coordinator fails or lives: the outcome of its transactions in doubt is known, however few outcomes a log
/// keeps.
#[test]
fn outcomes_of_transactions_in_doubt_are_not_forgotten() {
    for seed in crate::seeds(10) {
        scenarios::crashed_nodes_with(seed, Limits { outcomes_max: 8, ..limits() });
    }
}

async fn put(core: Core, key: Vec<u8>) -> Result<(), TxnError> {
    let policy = RetryPolicy { attempts_max: 1000, ..RetryPolicy::default() };
    core.client.run(&policy, async |tx| tx.put(TABLE, &key, b"value".to_vec())).await
}

/// Logs with fewer places than there are coordinators make them wait, and leave nothing in doubt.
#[test]
fn coordinators_beyond_the_limit_are_never_in_doubt() {
    let mut cluster = Cluster::new(1, shape(Limits { coordinators_max: 1, ..limits() }));
    // All get a place, one after the other.
    for at in 0..cluster.cores.len() {
        let core = cluster.cores[at].clone();
        cluster.run_here(at, async move { put(core, vec![at as u8]).await.unwrap() });
        cluster.run_for(10 * MILLISECOND);
    }
    for (at, core) in cluster.cores.iter().cloned().enumerate() {
        for task in 0..4 {
            let core = core.clone();
            core.clone().spawn(async move {
                for number in 0..50u8 {
                    put(core.clone(), vec![at as u8, task, number]).await.unwrap();
                }
            });
        }
    }
    cluster.finish();
    cluster.check_rest();
}

/// Blind writes count, too.
#[test]
fn open_transactions_are_limited() {
    let mut cluster = Cluster::new(2, shape(Limits { locks_max: 10_000, tombstones_max: 10_000, ..limits() }));
    let core = cluster.cores[0].clone();
    cluster.run_here(0, async move {
        let one = |number: u32| {
            let core = core.clone();
            async move {
                let mut tx = core.client.begin();
                tx.put(TABLE, &number.to_le_bytes(), b"value".to_vec()).unwrap();
                tx.commit().await
            }
        };
        let all = futures::future::join_all((0..5000).map(one)).await;
        let busy = |result: &&Result<(), TxnError>| matches!(result, Err(TxnError::Busy { what: "transactions" }));
        assert_eq!(all.iter().filter(busy).count(), 5000 - 4096);
        // Sessions refuse some of the others.
        assert!(all.iter().filter_map(|result| result.as_ref().err()).all(TxnError::may_be_repeated));
    });
    cluster.finish();
    cluster.check_rest();
}
