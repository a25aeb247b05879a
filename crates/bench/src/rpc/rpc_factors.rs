//! `rpc-factors`: Table 3, as shares of the rate with everything on, since the paper's rates are of threads that are
//! client and server at once. The load is that of `rpc-rate` with B = 3. Optimizations are first switched off
//! cumulatively, one more in each row, then each alone. As in the paper, congestion control is on: the default across a
//! network, since within one host there is none.

use dunlin_lab::report::{Metric, PaperFigure, RowBuilder};
use dunlin_lab::spread;

use super::{paper, runs};
use crate::rpc::roles::{Carrier, Congestion, Factor, Setup};
use crate::{BenchError, Lab};

/// Requests in a batch, as in the paper's table.
const BATCH: usize = 3;

/// One row: what is switched off, and the paper's share of the full rate for the corresponding row.
struct Step {
    factor: Factor,
    name: &'static str,
    paper: Option<PaperFigure>,
}

/// In the paper's order; steps that the paper does not have come last.
const STEPS: [Step; 7] = [
    Step {
        factor: Factor::BatchedTimestamps,
        name: "batched timestamps",
        paper: Some(paper::factors::NO_BATCHED_TIMESTAMPS),
    },
    Step {
        factor: Factor::RateUpdateBypass,
        name: "rate update bypass",
        paper: Some(paper::factors::NO_RATE_UPDATE_BYPASS),
    },
    Step {
        factor: Factor::RateLimiterBypass,
        name: "rate limiter bypass",
        paper: Some(paper::factors::NO_RATE_LIMITER_BYPASS),
    },
    Step {
        factor: Factor::PreallocatedResponses,
        name: "preallocated responses",
        paper: Some(paper::factors::NO_PREALLOCATED_RESPONSES),
    },
    Step {
        factor: Factor::ZeroCopyRequests,
        name: "zero-copy requests",
        paper: Some(paper::factors::NO_ZERO_COPY_REQUESTS),
    },
    Step { factor: Factor::AdjacentHeader, name: "adjacent header", paper: None },
    Step { factor: Factor::Prefetch, name: "prefetching of sessions", paper: None },
];

const TRANSMIT_BATCHING: Step = Step { factor: Factor::TransmitBatching, name: "transmit batching", paper: None };

/// Additional steps over shared memory. Cells are prefetched when a batch is sent: without batches this would already
/// be off.
const SHM_STEPS: [Step; 2] =
    [Step { factor: Factor::CellPrefetch, name: "prefetching of cells", paper: None }, TRANSMIT_BATCHING];

/// Additional steps over UDP.
const UDP_STEPS: [Step; 4] = [
    TRANSMIT_BATCHING,
    Step { factor: Factor::Connect, name: "connected socket", paper: None },
    Step { factor: Factor::Coalescing, name: "coalescing", paper: None },
    Step { factor: Factor::Offload, name: "segmentation and receive offload", paper: None },
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * (1 + 2 * STEPS.len()) + 2 * (SHM_STEPS.len() + UDP_STEPS.len()));
    for carrier in Carrier::ALL {
        let name = carrier.name();
        let everything = Setup { congestion: Congestion::Swift, ..Setup::new(carrier) };
        let case = format!("{name} everything on");
        let rates = measure(lab, &case, &everything)?;
        let all = spread(&rates, |rate| *rate)?;
        lab.push(RowBuilder::new(case, Metric::Rate, all));
        let own_steps = match carrier {
            Carrier::Shm => &SHM_STEPS[..],
            Carrier::Udp => &UDP_STEPS[..],
        };
        let mut cumulative = everything.clone();
        for step in STEPS.iter().chain(own_steps) {
            cumulative.without.push(step.factor);
            kept(lab, &format!("{name} … no {}", step.name), &cumulative, all.median, step.paper)?;
        }
        for step in STEPS.iter().chain(own_steps) {
            let alone = Setup { without: vec![step.factor], ..everything.clone() };
            kept(lab, &format!("{name} all but {}", step.name), &alone, all.median, None)?;
        }
    }
    Ok(())
}

/// The rate without some optimizations, and its share of the full rate.
fn kept(lab: &mut Lab, case: &str, setup: &Setup, all: f64, paper: Option<PaperFigure>) -> Result<(), BenchError> {
    let rates = measure(lab, case, setup)?;
    lab.push(RowBuilder::new(case, Metric::Rate, spread(&rates, |rate| *rate)?));
    lab.push(RowBuilder::new(case, Metric::Advantage, spread(&rates, |rate| rate / all)?).paper(paper));
    Ok(())
}

fn measure(lab: &mut Lab, case: &str, setup: &Setup) -> Result<Vec<f64>, BenchError> {
    let load = runs::small_load(lab, BATCH);
    lab.case(case, |lab| runs::rate_without_floor(lab, setup, &load))
}
