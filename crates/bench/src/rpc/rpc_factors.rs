//! `rpc-factors`: Table 3, as shares of the rate with everything on, since the paper's rates are of threads that are
//! client and server at once. The load is that of `rpc-rate` with B = 3. Optimizations are first switched off
//! cumulatively, one more in each row, then each alone. As in the paper, congestion control is on: the default across a
//! network, since within one host there is none.

use dunlin_lab::report::{Metric, RowBuilder};
use dunlin_lab::spread;

use super::runs;
use crate::rpc::roles::{Carrier, Congestion, Factor, Setup};
use crate::{BenchError, Lab};

/// Requests in a batch, as in the paper's table.
const BATCH: usize = 3;

/// What is switched off in a row.
struct Step {
    factor: Factor,
    name: &'static str,
}

/// In the paper's order; steps that the paper does not have come last.
const STEPS: [Step; 7] = [
    Step { factor: Factor::BatchedTimestamps, name: "batched timestamps" },
    Step { factor: Factor::RateUpdateBypass, name: "rate update bypass" },
    Step { factor: Factor::RateLimiterBypass, name: "rate limiter bypass" },
    Step { factor: Factor::PreallocatedResponses, name: "preallocated responses" },
    Step { factor: Factor::ZeroCopyRequests, name: "zero-copy requests" },
    Step { factor: Factor::AdjacentHeader, name: "adjacent header" },
    Step { factor: Factor::Prefetch, name: "prefetching of sessions" },
];

const TRANSMIT_BATCHING: Step = Step { factor: Factor::TransmitBatching, name: "transmit batching" };

/// Additional steps over shared memory. Cells are prefetched when a batch is sent: without batches this would already
/// be off.
const SHM_STEPS: [Step; 2] = [Step { factor: Factor::CellPrefetch, name: "prefetching of cells" }, TRANSMIT_BATCHING];

/// Additional steps over UDP.
const UDP_STEPS: [Step; 4] = [
    TRANSMIT_BATCHING,
    Step { factor: Factor::Connect, name: "connected socket" },
    Step { factor: Factor::Coalescing, name: "coalescing" },
    Step { factor: Factor::Offload, name: "segmentation and receive offload" },
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * (1 + 2 * STEPS.len()) + 2 * (SHM_STEPS.len() + UDP_STEPS.len()));
    for carrier in Carrier::ALL {
        let name = carrier.name();
        let everything = Setup { congestion: Congestion::Swift, ..Setup::new(carrier) };
        let case = format!("{name} everything on");
        let own_steps = match carrier {
            Carrier::Shm => &SHM_STEPS[..],
            Carrier::Udp => &UDP_STEPS[..],
        };
        let steps = || STEPS.iter().chain(own_steps);
        let without = steps().flat_map(|step| [cumulative_case(name, step), alone_case(name, step)]);
        let cases: Vec<String> = without.chain([case.clone()]).collect();
        if !lab.wants_any(cases.iter().map(String::as_str)) {
            continue;
        }
        // All others are shares of it.
        let rates = measure(lab, &case, &everything)?;
        let all = spread(&rates, |rate| *rate)?;
        lab.push(RowBuilder::new(case, Metric::Rate, all));
        let mut cumulative = everything.clone();
        for step in steps() {
            cumulative.without.push(step.factor);
            kept(lab, &cumulative_case(name, step), &cumulative, all.median)?;
        }
        for step in steps() {
            let alone = Setup { without: vec![step.factor], ..everything.clone() };
            kept(lab, &alone_case(name, step), &alone, all.median)?;
        }
    }
    Ok(())
}

fn cumulative_case(transport: &str, step: &Step) -> String {
    format!("{transport} … no {}", step.name)
}

fn alone_case(transport: &str, step: &Step) -> String {
    format!("{transport} all but {}", step.name)
}

/// The rate without some optimizations, and its share of the full rate.
fn kept(lab: &mut Lab, case: &str, setup: &Setup, all: f64) -> Result<(), BenchError> {
    if !lab.wants(case) {
        return Ok(());
    }
    let rates = measure(lab, case, setup)?;
    lab.push(RowBuilder::new(case, Metric::Rate, spread(&rates, |rate| *rate)?));
    lab.push(RowBuilder::new(case, Metric::Advantage, spread(&rates, |rate| rate / all)?));
    Ok(())
}

fn measure(lab: &mut Lab, case: &str, setup: &Setup) -> Result<Vec<f64>, BenchError> {
    let load = runs::small_load(lab, BATCH);
    lab.case(case, |lab| runs::rate_without_floor(lab, setup, &load))
}
