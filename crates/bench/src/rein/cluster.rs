//! A cluster of servers with tiers, for experiments in real time.

use std::thread;
use std::time::Duration;

use dunlin_lab::measure::Scratch;
use dunlin_schedule::simulator::{Keys, Law, Setting, Sizes};
use serde::{Deserialize, Serialize};

use super::contenders::Policies;
use super::roles::{AllMultigetFigures, Load, Multigets, ServerOrder, TierServer};
use crate::rpc::roles::{Carrier, Setup};
use crate::{BenchError, Lab};

/// The thesis' testbed: nodes, and operations of a node at a time. It has 100,000 rows; half as many values, of twice
/// the bytes of others here, are stored in half the time.
const SERVERS: u64 = 16;
const ITEMS: u64 = 50_000;
const SLOTS: u32 = 8;
const REPLICAS: u64 = 3;
/// With fewer items there are fewer servers, so that each has more than its memory holds, down to this number.
const SERVERS_MIN: u64 = 4;
const VALUE_BYTES: usize = 2048;
/// Bytes of an item in memory or in the tier: its value, its key, and what describes it.
const ITEM_BYTES: u64 = 2112;
/// The least memory of a server.
const MEMORY_MIN: u64 = 1 << 20;
/// Bytes of a tier for each byte of its items. What is read a second time returns to memory, and is written to the tier
/// again when it is evicted; so many bytes later, what was not read twice is lost.
const FILE_TIMES: u64 = 5;
const FILE_BYTES_MIN: u64 = 8 << 20;
/// Memory of a server for the index of its tier, for each item: more than the index takes.
const INDEX_BYTES: u64 = 512;
const INDEX_BYTES_MIN: u64 = 1 << 20;
/// The time of a read. With 1 ms the servers could do as many reads as the thesis' testbed, 129,000 a second, but a
/// read costs a server tens of microseconds of processor time, for it wakes two threads: that would keep several cores
/// busy, and operations would wait for these. With 8 ms two cores are enough.
pub(super) const DELAY: Duration = Duration::from_millis(8);
/// Maximum average time of storing one value.
const FILL_MAX: Duration = Duration::from_micros(100);
/// Keys of a multiget, on average.
const KEYS_OF_MULTIGET: f64 = 8.6;
/// The mean of the squares of their numbers over their mean: the variance of the work that comes, for each unit of
/// work.
const WORK_VARIANCE: f64 = 409.0;
/// A run has a verdict if its measured part is this many relaxation times long, the warm-up half of that, and it has so
/// many multigets that 50 are slower than the 99th percentile.
pub(super) const RELAXATIONS_MIN: f64 = 10.0;
pub(super) const MULTIGETS_MIN: f64 = 5_000.0;
/// The least number of measured multigets.
const REQUESTS_MIN: f64 = 6.0;
/// Samples of outstanding keys in a run, and the interval between them at most, as in the thesis.
const SAMPLES: u32 = 200;
const SAMPLE_INTERVAL_MAX: Duration = Duration::from_millis(100);
/// Additional time for each load: until the last multiget is answered.
const LOAD_SLACK: Duration = Duration::from_secs(5);

/// A cluster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Servers, each with a partition of its own and replicas of two others.
    pub servers: u32,
    /// Items.
    pub items: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Memory for items of a server, in bytes.
    pub memory: u64,
    /// Which items are read.
    pub access: Access,
    /// Mean time of an operation in one of the parallel reads, in nanoseconds, if every operation took one of them: the
    /// simulator's.
    pub service: u64,
    /// Mean time of an operation that the device reads, in nanoseconds.
    pub read: u64,
    /// Time that the network takes, one way, in nanoseconds: the simulator's.
    pub network: u64,
}

/// Which items are read for the keys of the simulator. Partitions are those of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Those of a partition in turn: none is in memory when it is read again, so that all come from the device.
    InTurn,
    /// Those of the keys, which are drawn at random.
    AtRandom,
}

impl Cluster {
    /// A cluster with the least memory. Each replica is an item of the settings' limit. Times are nominal.
    pub fn new(lab: &Lab) -> Cluster {
        Cluster::nominal(lab.items(ITEMS * REPLICAS) / REPLICAS)
    }

    fn nominal(items: u64) -> Cluster {
        Cluster {
            servers: (SERVERS * items / ITEMS).clamp(SERVERS_MIN, SERVERS) as u32,
            items,
            value_bytes: VALUE_BYTES,
            memory: MEMORY_MIN,
            access: Access::InTurn,
            service: DELAY.as_nanos() as u64,
            read: DELAY.as_nanos() as u64,
            network: 0,
        }
    }

    /// Bytes of the items of a server.
    pub fn server_bytes(&self) -> u64 {
        self.items * REPLICAS * ITEM_BYTES / u64::from(self.servers)
    }

    /// Reads that all servers do at a time.
    pub fn reads(&self) -> u32 {
        self.servers * SLOTS
    }

    /// The same in the simulator.
    pub fn setting(&self, load: f64, requests: u32, seed: u64) -> Setting {
        Setting {
            clients: self.servers,
            servers: self.servers,
            slots: SLOTS,
            replicas: REPLICAS as u32,
            partitions: self.servers,
            network: self.network,
            service: self.service,
            law: Law::Constant,
            load,
            sizes: Sizes::Soundcloud,
            keys: Keys::Uniform(self.items),
            requests,
            seed,
            ..Setting::default()
        }
    }

    /// Keys per second at a load.
    fn keys_per_second(&self, load: f64) -> f64 {
        load * f64::from(self.reads()) / (self.service as f64 / 1e9)
    }

    /// In how many seconds the backlog forgets what it was: that of reflected Brownian motion with the drift and the
    /// variance of the work that comes and is done.
    pub fn relaxation(&self, load: f64) -> f64 {
        2.0 * load * WORK_VARIANCE / (1.0 - load).powi(2) / self.keys_per_second(1.0)
    }

    /// The measured part of a run that has a verdict.
    pub fn time_needed(&self, load: f64) -> Duration {
        let multigets = MULTIGETS_MIN * KEYS_OF_MULTIGET / self.keys_per_second(load);
        Duration::from_secs_f64(multigets.max(RELAXATIONS_MIN * self.relaxation(load)))
    }

    /// A load with as many measured multigets as come in this time. As in the simulator, half as many come before.
    pub fn load(&self, policies: Policies, load: f64, time: Duration, seed: u64) -> Load {
        let multigets = self.keys_per_second(load) / KEYS_OF_MULTIGET * time.as_secs_f64();
        let requests = multigets.max(REQUESTS_MIN) as u32;
        let sample = (time / SAMPLES).min(SAMPLE_INTERVAL_MAX);
        Load { policies, load, requests, warm_up: requests / 2, seed, sample }
    }
}

/// Starts a cluster, stores its items, reads as fast as possible for `peak`, and runs loads, whose measured parts take
/// `length` together.
pub(super) fn run(
    lab: &Lab,
    cluster: &Cluster,
    order: ServerOrder,
    peak: Duration,
    (length, loads): (Duration, Vec<Load>),
) -> Result<AllMultigetFigures, BenchError> {
    let of_loads = length * 2 + LOAD_SLACK * loads.len() as u32;
    let time = FILL_MAX * (cluster.items * REPLICAS) as u32 + peak * 2 + of_loads;
    let scratch = Scratch::make("rein")?;
    let start = |number| {
        let server = TierServer {
            carrier: Carrier::Udp,
            order,
            memory: cluster.memory,
            file: scratch.path().join(format!("{number}.tier")),
            file_bytes: (cluster.server_bytes() * FILE_TIMES).max(FILE_BYTES_MIN),
            index_bytes: (cluster.items * INDEX_BYTES).max(INDEX_BYTES_MIN),
            reads: SLOTS,
            delay: DELAY,
        };
        lab.anywhere(server, time + LOAD_SLACK)
    };
    let mut servers = (0..cluster.servers).map(start).collect::<Result<Vec<_>, _>>()?;
    let addresses = servers.iter_mut().map(|server| server.ready()).collect::<Result<Vec<_>, _>>()?;
    let clients = Multigets { setup: Setup::new(Carrier::Udp), servers: addresses, cluster: *cluster, peak, loads };
    let figures = lab.client(clients, time)?.result()?;
    // Together, since each takes a moment to notice that it is to stop.
    thread::scope(|scope| {
        let stops: Vec<_> = servers.into_iter().map(|server| scope.spawn(|| server.stop())).collect();
        stops.into_iter().try_for_each(|stop| stop.join().expect("stopping does not panic"))
    })?;
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use dunlin_schedule::simulator::Arrivals;

    use super::*;

    /// Of 16 servers, as the constants say, and thus for the lengths of runs.
    #[test]
    fn work_has_the_variance_of_the_constants() {
        let cluster = Cluster::nominal(ITEMS);
        let arrivals = Arrivals::new(&cluster.setting(0.9, 200_000, 1)).unwrap();
        let sizes: Vec<f64> = arrivals.map(|arrival| arrival.keys.len() as f64).collect();
        let (sum, squares) = (sizes.iter().sum::<f64>(), sizes.iter().map(|size| size * size).sum::<f64>());
        assert!((sum / sizes.len() as f64 / KEYS_OF_MULTIGET - 1.0).abs() < 0.05);
        assert!((squares / sum / WORK_VARIANCE - 1.0).abs() < 0.1, "{}", squares / sum);
        // 128 reads of 8 ms are 16,000 a second.
        assert!((cluster.relaxation(0.9) - 4.6).abs() < 0.01, "{}", cluster.relaxation(0.9));
        assert_eq!(cluster.time_needed(0.9).as_secs(), 46);
        assert_eq!(
            cluster.time_needed(0.4).as_secs_f64().round(),
            7.0,
            "as many multigets as its 99th percentile needs"
        );
    }
}
