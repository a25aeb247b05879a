//! One run of each kind of key-value measurement: its floor first, then a server and a client in fresh processes.

use std::time::Duration;

use dunlin_lab::measure::{BesideFloor, Measured};
use dunlin_lab::report::{Metric, RowBuilder};

use crate::kv::roles::{Fill, KvFigures, KvLoad, KvServer, KvServing};
use crate::rpc::roles::{Carrier, RateFloor, Setup};
use crate::workload::Mix;
use crate::workload::item::VALUE_BYTES;
use crate::{BenchError, Lab};

/// Items of most measurements: they fit the caches of a large processor.
pub(super) const ITEMS: u64 = 1_000_000;
/// Operations in flight when a rate is measured.
pub(super) const IN_FLIGHT: usize = 64;
/// Share of reads in HERD's measurements.
pub(super) const HERD_GETS: f64 = 0.95;
/// Maximum average time of storing one item.
const FILL_MAX: Duration = Duration::from_micros(20);
/// Server memory for an item of 48 B; larger values add their bytes.
const MEMORY_PER_ITEM: u64 = 160;
/// Additional server memory.
const MEMORY_BESIDE: u64 = 64 << 20;

/// The parameters of a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub carrier: Carrier,
    pub items: u64,
    pub value_bytes: usize,
    pub mix: Mix,
    pub in_flight: usize,
}

impl Ask {
    /// Operations of a mix on items of 16 B + 32 B.
    pub fn small(carrier: Carrier, items: u64, mix: Mix) -> Self {
        Ask { carrier, items, value_bytes: VALUE_BYTES, mix, in_flight: IN_FLIGHT }
    }

    /// A server that loses none of the items.
    pub fn server(&self) -> KvServer {
        KvServer::store(self.carrier, memory_for(self.items, self.value_bytes))
    }

    fn load(&self, server: &str, fill: Fill, run: Duration) -> KvLoad {
        KvLoad {
            setup: Setup::new(self.carrier),
            server: server.to_owned(),
            fill,
            items: self.items,
            value_bytes: self.value_bytes,
            mix: self.mix,
            in_flight: self.in_flight,
            run,
        }
    }
}

/// Memory that certainly holds this many items with values of this size.
pub(super) fn memory_for(items: u64, value_bytes: usize) -> u64 {
    MEMORY_BESIDE + items * (MEMORY_PER_ITEM + (value_bytes * 5 / 4) as u64)
}

/// The figures of a run or of a floor, which is bare echoes.
#[derive(Debug, Clone, Copy)]
pub(super) struct KvRun {
    pub rate: f64,
    pub p50: f64,
    pub p99: f64,
    pub hits: f64,
}

impl From<KvFigures> for KvRun {
    fn from(figures: KvFigures) -> Self {
        KvRun { rate: figures.rate, p50: figures.latency.p50, p99: figures.latency.p99, hits: figures.hits }
    }
}

impl KvRun {
    /// The cost of a floor of bare echoes.
    pub fn time_per_operation(&self) -> f64 {
        1.0 / self.rate
    }
}

/// Bare echoes, then a new server, its items, and the load.
pub(super) fn run(lab: &Lab, ask: &Ask) -> Result<Measured<KvRun>, BenchError> {
    let floor = floor(lab, ask)?;
    Ok(Measured { ours: filled(lab, ask)?, floor })
}

/// A new server, its items, and the load.
pub(super) fn filled(lab: &Lab, ask: &Ask) -> Result<KvRun, BenchError> {
    let figures = with_server(lab, ask.server(), fill_time(ask.items) + lab.run_length() * 2, |server| {
        let load = ask.load(&server.address, Fill::All, lab.run_length());
        let figures = lab.client(load, fill_time(ask.items) + lab.run_length())?.result()?;
        figures.ok_or(BenchError::no_samples("a load"))
    })?;
    Ok(figures.into())
}

/// Bare echoes, with the same number in flight.
pub(super) fn floor(lab: &Lab, ask: &Ask) -> Result<KvRun, BenchError> {
    // Over UDP they form two trains.
    let in_flight = ask.in_flight.max(2);
    let floor = RateFloor { carrier: ask.carrier, in_flight, cores: lab.cores()?, run: lab.run_length() };
    let rate = lab.anywhere(floor, lab.run_length())?.result()?;
    Ok(KvRun { rate, p50: f64::NAN, p99: f64::NAN, hits: f64::NAN })
}

/// Stores the items of a running server.
pub(super) fn fill(lab: &Lab, server: &KvServing, ask: &Ask) -> Result<(), BenchError> {
    lab.client(ask.load(&server.address, Fill::All, Duration::ZERO), fill_time(ask.items))?.result().map(|_| ())
}

/// Runs the load on a server that has its items.
pub(super) fn load(lab: &Lab, server: &KvServing, ask: &Ask) -> Result<KvFigures, BenchError> {
    let load = ask.load(&server.address, Fill::None, lab.run_length());
    lab.client(load, lab.run_length())?.result()?.ok_or(BenchError::no_samples("a load"))
}

/// Runs `client` with a server for about `time`.
pub(super) fn with_server<T>(
    lab: &Lab,
    server: KvServer,
    time: Duration,
    client: impl FnOnce(&KvServing) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let mut server = lab.server(server, time + CLIENT_SLACK)?;
    let outcome = client(&server.ready()?)?;
    server.stop()?;
    Ok(outcome)
}

/// Additional time limit of a server, for starting and ending its client.
const CLIENT_SLACK: Duration = Duration::from_secs(20);

/// Time limit for storing items.
pub(super) fn fill_time(items: u64) -> Duration {
    FILL_MAX * items as u32
}

/// A row of the rate with its floor.
pub(super) fn rate_row(name: &str, runs: &BesideFloor<KvRun>) -> Result<RowBuilder, BenchError> {
    let spread = runs.spread(|run| run.rate)?;
    Ok(RowBuilder::new(name, Metric::Operations, spread.ours).floor(spread.floor).repeated(runs.repeated()))
}

/// A row of a quantity that bare echoes do not have.
pub(super) fn plain_row(
    name: &str,
    metric: Metric,
    runs: &BesideFloor<KvRun>,
    figure: impl Fn(&KvRun) -> f64,
) -> Result<RowBuilder, BenchError> {
    Ok(RowBuilder::new(name, metric, runs.spread(figure)?.ours))
}
