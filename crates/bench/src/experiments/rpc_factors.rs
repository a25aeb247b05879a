//! `rpc-factors`: Table 3. The load of `rpc-rate` with B = 3, and one optimization after another switched off, each row
//! without those of the rows above it too. With congestion control, as in the paper: the one that endpoints have across a network, since on
//! one host they have none.

use super::{paper, runs};
use crate::BenchError;
use crate::lab::{Lab, spread};
use crate::report::{Metric, PaperFigure, RowBuilder};
use crate::roles::{Carrier, Congestion, Factor, Setup};

/// Requests in a batch, as in the paper's table.
const BATCH: usize = 3;

/// One row: what goes off, and what the paper reports for the like of it.
struct Step {
    factor: Factor,
    name: &'static str,
    paper: Option<PaperFigure>,
}

/// In the paper's order; what the paper does not have stands after it.
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

/// Over shared memory, those behind. Cells are prefetched when a batch is sent: without batches it would be off already.
const SHM_STEPS: [Step; 2] =
    [Step { factor: Factor::CellPrefetch, name: "prefetching of cells", paper: None }, TRANSMIT_BATCHING];

/// Over UDP, those behind.
const UDP_STEPS: [Step; 4] = [
    TRANSMIT_BATCHING,
    Step { factor: Factor::Connect, name: "connected socket", paper: None },
    Step { factor: Factor::Coalescing, name: "coalescing", paper: None },
    Step { factor: Factor::Offload, name: "segmentation and receive offload", paper: None },
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * (1 + STEPS.len()) + SHM_STEPS.len() + UDP_STEPS.len());
    for carrier in Carrier::ALL {
        let mut setup = Setup { congestion: Congestion::Swift, ..Setup::new(carrier) };
        let case = format!("{} everything on", carrier.name());
        measure(lab, &case, &setup, Some(paper::factors::BASELINE))?;
        let own_steps = match carrier {
            Carrier::Shm => &SHM_STEPS[..],
            Carrier::Udp => &UDP_STEPS[..],
        };
        for step in STEPS.iter().chain(own_steps) {
            setup.without.push(step.factor);
            measure(lab, &format!("{} … no {}", carrier.name(), step.name), &setup, step.paper)?;
        }
    }
    Ok(())
}

fn measure(lab: &mut Lab, case: &str, setup: &Setup, paper: Option<PaperFigure>) -> Result<(), BenchError> {
    let load = runs::small_load(lab, BATCH);
    let rates = lab.case(case, |lab| runs::rate_without_floor(lab, setup, &load))?;
    lab.push(RowBuilder::new(case, Metric::Rate, spread(&rates, |rate| *rate)?).paper(paper));
    Ok(())
}
