//! Statistics survive encoding, and nothing else is accepted.

use super::snapshot::{BYTES_MAX, CORES_MAX};
use super::*;

fn stats() -> ServerStats {
    let mut metrics = CoreMetrics::default();
    metrics.count_many(Operation::Get, Outcome::Hit, 90);
    metrics.count(Operation::Get, Outcome::Miss);
    metrics.latency(Operation::Get, 1_500, 91);
    metrics.connections.open = 3;
    let core = CoreStats {
        operations: metrics.operations().collect(),
        store: StoreSnapshot { items: 5, value_bytes_max: 1 << 20, ..StoreSnapshot::default() },
        connections: metrics.connections,
        endpoint: EndpointSnapshot {
            sessions: 2,
            counters: [("tx_packets".into(), 7)].into(),
            ..EndpointSnapshot::default()
        },
        tier: Some(TierSnapshot { counts: [("hits".into(), 4)].into(), served: 6, ..TierSnapshot::default() }),
        multi_gets: Some(QueueSnapshot { served: 3, lengths: vec![1, 0, 4], ..QueueSnapshot::default() }),
    };
    ServerStats::new("cache", 1_800_000_000, 2_000_000, vec![core.clone(), core])
}

#[test]
fn what_is_encoded_is_decoded() {
    let stats = stats();
    let back = ServerStats::decode(&stats.encode()).unwrap();
    assert_eq!(back.encode(), stats.encode());
    assert_eq!((back.operation(Operation::Get).hits, back.operation(Operation::Get).latency.count()), (180, 182));
    assert_eq!((back.store().items, back.store().value_bytes_max), (10, 1 << 20));
    assert_eq!((back.connections().open, back.sessions()), (6, 4));
    let tier = back.tier().unwrap();
    assert_eq!((tier.count("hits"), tier.count("none"), tier.served), (8, 0, 12));
    let queue = back.multi_gets().unwrap();
    assert_eq!((queue.served, queue.lengths), (6, vec![2, 0, 8]));
    assert!(back.is_same_process(&stats));
    assert!(!back.cores[0].operations.contains_key(&Operation::Set), "kinds that did not happen are left out");
}

#[test]
fn what_no_server_sends_is_refused() {
    let malformed = |bytes: &[u8]| assert!(matches!(ServerStats::decode(bytes), Err(StatsError::Malformed(_))));
    malformed(b"");
    malformed(br#"{"version": 1, "cores": [{"operations": {"frobnicate": {}}}]}"#);
    malformed(format!(r#"{{"version": 1, "cores": [{}]}}"#, vec!["{}"; CORES_MAX + 1].join(",")).as_bytes());
    assert_eq!(ServerStats::decode(b"[]"), Err(StatsError::Version { theirs: 0 }));
    assert_eq!(ServerStats::decode(b"{}"), Err(StatsError::Version { theirs: 0 }));
    assert_eq!(ServerStats::decode(br#"{"version": 2}"#), Err(StatsError::Version { theirs: 2 }));
    assert!(matches!(ServerStats::decode(&vec![b' '; BYTES_MAX + 1]), Err(StatsError::TooLong { .. })));
    let newer = br#"{"version": 1, "colour": "blue", "cores": [{"shape": [1]}]}"#;
    assert_eq!(ServerStats::decode(newer).unwrap().cores.len(), 1, "what is not known is ignored");
    let huge = br#"{"version": 1, "cores": [{"operations": {"get": {"hits": 18446744073709551615, "misses": 1}}}]}"#;
    assert_eq!(ServerStats::decode(huge).unwrap().operation(Operation::Get).total(), u64::MAX);
}
