//! The changes between two samples of a server.

use dunlin_kv::metrics::{
    ConnectionCounts, CoreStats, LatencyHistogram, Operation, OperationStats, QueueSnapshot, ServerStats,
    StoreSnapshot, TierSnapshot,
};

/// Minimum time between two samples for computing rates, in microseconds: over less, rates would be meaningless.
const SPAN_MICROS_MIN: u64 = 1000;

/// A server, or one core of it, over one interval.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Seconds between the two samples.
    pub seconds: f64,
    /// Operations in the interval, by kind; only kinds that have occurred.
    pub operations: Vec<(Operation, OperationStats)>,
    /// The partition now.
    pub store: StoreSnapshot,
    /// Live items lost in the interval.
    pub evicted: u64,
    /// Memcached connections now.
    pub connections: ConnectionCounts,
    /// Sessions of Dunlin clients now.
    pub sessions: u64,
    /// The tier now, if there is one.
    pub tier: Option<TierSnapshot>,
    /// Its multi-gets that wait for their turn now, if any ever had to.
    pub multi_gets: Option<QueueSnapshot>,
}

impl Figures {
    /// The figures of the whole server; `None` if the two samples are not of one process, or too close together.
    pub fn of_server(now: &ServerStats, before: &ServerStats) -> Option<Figures> {
        let seconds = seconds_between(now, before)?;
        let kinds = Operation::ALL.into_iter().map(|kind| (kind, now.operation(kind), before.operation(kind)));
        Some(Figures {
            seconds,
            operations: changed(kinds),
            store: now.store(),
            evicted: now.store().evicted().saturating_sub(before.store().evicted()),
            connections: now.connections(),
            sessions: now.sessions(),
            tier: now.tier(),
            multi_gets: now.multi_gets(),
        })
    }

    /// The figures of each core.
    pub fn of_cores(now: &ServerStats, before: &ServerStats) -> Vec<Figures> {
        let Some(seconds) = seconds_between(now, before) else { return Vec::new() };
        now.cores.iter().zip(&before.cores).map(|(now, before)| Figures::of_core(seconds, now, before)).collect()
    }

    fn of_core(seconds: f64, now: &CoreStats, before: &CoreStats) -> Figures {
        let kinds = Operation::ALL.into_iter().map(|kind| (kind, now.operation(kind), before.operation(kind)));
        Figures {
            seconds,
            operations: changed(kinds),
            store: now.store,
            evicted: now.store.evicted().saturating_sub(before.store.evicted()),
            connections: now.connections,
            sessions: now.endpoint.sessions,
            tier: now.tier.clone(),
            multi_gets: now.multi_gets.clone(),
        }
    }

    /// Operations per second of all kinds.
    pub fn rate(&self) -> f64 {
        self.operations.iter().map(|(_, stats)| stats.total() as f64).sum::<f64>() / self.seconds
    }

    /// Operations per second of one kind.
    pub fn rate_of(&self, operation: Operation) -> f64 {
        self.of(operation).map_or(0.0, |stats| stats.total() as f64 / self.seconds)
    }

    /// Live items lost per second.
    pub fn eviction_rate(&self) -> f64 {
        self.evicted as f64 / self.seconds
    }

    /// Share of reads that found their item; `None` without reads.
    pub fn hit_ratio(&self) -> Option<f64> {
        let reads = [Operation::Get, Operation::GetAndTouch].into_iter().filter_map(|operation| self.of(operation));
        let (hits, all) = reads.fold((0u64, 0u64), |(hits, all), stats| {
            (hits.saturating_add(stats.hits), all.saturating_add(stats.hits).saturating_add(stats.misses))
        });
        (all > 0).then(|| hits as f64 / all as f64)
    }

    /// Latencies of operations of all kinds.
    pub fn latency(&self) -> LatencyHistogram {
        let mut all = LatencyHistogram::default();
        self.operations.iter().for_each(|(_, stats)| all.add(&stats.latency));
        all
    }

    fn of(&self, operation: Operation) -> Option<&OperationStats> {
        self.operations.iter().find(|(kind, _)| *kind == operation).map(|(_, stats)| stats)
    }
}

fn seconds_between(now: &ServerStats, before: &ServerStats) -> Option<f64> {
    let micros = now.uptime_micros.checked_sub(before.uptime_micros)?;
    (now.is_same_process(before) && micros >= SPAN_MICROS_MIN).then(|| micros as f64 / 1e6)
}

fn changed(
    kinds: impl Iterator<Item = (Operation, OperationStats, OperationStats)>,
) -> Vec<(Operation, OperationStats)> {
    kinds.filter(|(_, now, _)| now.total() > 0).map(|(kind, now, before)| (kind, now.since(&before))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{server, server_with};
    use super::*;

    #[test]
    fn rates_are_those_of_the_interval() {
        let (before, now) = (server(1_000_000, 100), server(3_000_000, 700));
        let figures = Figures::of_server(&now, &before).unwrap();
        // Two cores, each with as many gets, a tenth of them misses.
        assert_eq!(figures.rate_of(Operation::Get), 600.0);
        assert_eq!(figures.rate_of(Operation::Delete), 0.0);
        assert_eq!(figures.hit_ratio(), Some(0.9));
        assert_eq!(figures.latency().count(), 1200);
        assert_eq!(Figures::of_cores(&now, &before).iter().map(Figures::rate).collect::<Vec<_>>(), [300.0, 300.0]);
    }

    #[test]
    fn a_restart_is_no_interval() {
        let before = server(5_000_000, 100);
        assert!(Figures::of_server(&server(1_000_000, 1), &before).is_none(), "it has run for less long");
        assert!(Figures::of_server(&server_with(9, 6_000_000, 1), &before).is_none(), "it is another process");
        assert!(Figures::of_server(&server(5_000_100, 1), &before).is_none(), "the looks are too close together");
    }
}
