//! The metrics as a scraper sees them, checked by a third-party parser of the format.

mod exposition;

use dunlin_kv::metrics::{
    CoreMetrics, CoreStats, HandlerSnapshot, LatencyHistogram, Operation, Outcome, QueueSnapshot, ServerStats,
    TierSnapshot,
};

/// Returns the statistics of a server of two cores that has done some work.
fn stats() -> ServerStats {
    let core = |gets: u64| {
        let mut metrics = CoreMetrics::default();
        metrics.count_many(Operation::Get, Outcome::Hit, gets);
        metrics.count_many(Operation::Get, Outcome::Miss, 7);
        metrics.count(Operation::Add, Outcome::Conflict);
        metrics.latency(Operation::Get, 90, 1);
        metrics.latency(Operation::Get, 1_500, gets);
        metrics.latency(Operation::Get, 30_000_000_000, 1);
        metrics.connections.open = 3;
        let mut core = CoreStats::default();
        core.operations = metrics.operations().collect();
        core.connections = metrics.connections;
        core.store.items = u64::MAX;
        core.store.memory_bytes = 4096;
        core.store.evicted_log = 11;
        core.endpoint.sessions = 2;
        core.endpoint.counters = [("tx_packets".into(), 17), ("rx_packets".into(), 18)].into();
        let mut handler = HandlerSnapshot::default();
        (handler.requests, handler.duration_counts, handler.duration_sum_nanos) = (gets, vec![2, 3], 400);
        handler.answers = [("ok".into(), gets - 1), ("busy".into(), 1)].into();
        core.endpoint.handlers = [(7, handler)].into();
        core.endpoint.held_bytes = 5_000;
        let mut queue = QueueSnapshot::default();
        (queue.served, queue.abandoned, queue.lengths) = (gets, 4, vec![5, 6, 8]);
        queue.waits = vec![LatencyHistogram::default(); 3];
        queue.waits[2].record(2_500, 9);
        core.multi_gets = Some(queue);
        let mut tier = TierSnapshot::default();
        (tier.served, tier.lengths) = (gets, vec![1, 2]);
        core.tier = Some(tier);
        core.endpoint.transport = [("tx_bytes".into(), 99), ("waits".into(), 5)].into();
        core
    };
    ServerStats::new("cache", 1_800_000_000, 2_500_000, vec![core(100), core(200)])
}
