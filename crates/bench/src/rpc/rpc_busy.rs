//! `rpc-busy`: beyond the paper, whose cores are exclusive. A computing neighbour shares the server's core. Rate and
//! latency should degrade only as much as those of bare echoes with the same neighbour, and packets that are only
//! delayed should not be considered lost.

use dunlin_lab::measure::{BusyNeighbour, Measured};
use dunlin_lab::peer::Peer;
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::runs;
use crate::rpc::roles::{Carrier, RateFigures, Setup};
use crate::{BenchError, Lab};

/// Requests in a batch.
const BATCH: usize = 3;
/// Required share of the rate that calls keep, relative to the share that bare echoes keep.
const PROPORTION_MIN: f64 = 0.8;
/// Limit of retransmissions per second: each is unnecessary, since nothing is lost.
const RETRANSMISSIONS_MAX: f64 = 10.0;

/// One run: calls and bare echoes, first alone and then with the neighbour.
struct Seen {
    alone: Measured<f64>,
    beside: Measured<RateFigures>,
}

impl Seen {
    /// The share of their rate that calls keep, relative to that of bare echoes.
    fn proportion(&self) -> f64 {
        let kept = self.beside.ours.rate / self.alone.ours;
        let floor_kept = self.beside.floor.rate / self.alone.floor;
        kept / floor_kept
    }
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * 2);
    for carrier in Carrier::ALL {
        let setup = Setup::new(carrier);
        let case = format!("{} beside a busy core", carrier.name());
        if !lab.wants(&case) {
            continue;
        }
        let seen = lab.case(&case, |lab| rates(lab, &setup))?;
        let rate = RowBuilder::new(&case, Metric::Rate, spread(&seen, |seen| seen.beside.ours.rate)?);
        lab.push(rate.floor(spread(&seen, |seen| seen.beside.floor.rate)?));
        let kept = spread(&seen, Seen::proportion)?;
        let row = RowBuilder::new(format!("{case}, rate kept against bare echoes"), Metric::Advantage, kept);
        lab.push(row.target(Target::Absolute(PROPORTION_MIN)));
        let again = spread(&seen, |seen| seen.beside.ours.retransmissions)?;
        lab.push(RowBuilder::new(&case, Metric::Retransmissions, again).target(Target::Absolute(RETRANSMISSIONS_MAX)));

        let latencies = lab.case(&case, |lab| beside_neighbour(lab, |lab| runs::latency(lab, &setup)))?;
        for (metric, of) in LATENCIES {
            let row = RowBuilder::new(&case, metric, spread(&latencies, |run| of(&run.ours))?);
            lab.push(row.floor(spread(&latencies, |run| of(&run.floor))?));
        }
    }
    Ok(())
}

type Percentile = fn(&dunlin_lab::measure::Percentiles) -> f64;
const LATENCIES: [(Metric, Percentile); 2] = [(Metric::LatencyP50, |p| p.p50), (Metric::LatencyP99, |p| p.p99)];

fn rates(lab: &Lab, setup: &Setup) -> Result<Seen, BenchError> {
    let load = runs::small_load(lab, BATCH);
    let alone = runs::rate(lab, setup, &load)?;
    let beside = beside_neighbour(lab, |lab| {
        let floor = RateFigures { rate: runs::rate_floor(lab, setup.carrier)?, retransmissions: 0.0 };
        Ok(Measured { ours: runs::rate_figures(lab, setup, &load)?, floor })
    })?;
    Ok(Seen { alone, beside })
}

/// Measures while a neighbour shares the server's core.
fn beside_neighbour<T>(lab: &Lab, measure: impl FnOnce(&Lab) -> Result<T, BenchError>) -> Result<T, BenchError> {
    // Enough time for two measurements, each with a warm-up.
    let mut neighbour: Peer<BusyNeighbour> = lab.server(BusyNeighbour, 4 * lab.run_length())?;
    neighbour.ready()?;
    let measured = measure(lab)?;
    neighbour.stop()?;
    Ok(measured)
}
