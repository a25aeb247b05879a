//! `rein-sim-synthetic`: Figure 3.11, which the thesis measures on its testbed of 16 servers. The load is 75 % of the
//! one at which the busiest server is saturated, as a closed loop would find it.

use dunlin_schedule::simulator::{Contender, Keys, ReplicaChoice, Setting, Sizes, simulate};
use dunlin_schedule::{Levels, Policy};

use super::{outcomes, push_gains, requests};
use crate::{BenchError, Lab};

const REQUESTS: f64 = 30_000.0;
/// Nodes of the testbed, each of which also coordinates requests.
const NODES: u32 = 16;
/// Rows of the data, and YCSB's skew.
const KEYS: u64 = 100_000;
const SKEW: f64 = 0.99;
/// Share of the peak load.
const OF_PEAK: f64 = 0.75;
/// The load, and the number of requests, from which the peak is computed.
const PROBE_LOAD: f64 = 0.1;
const PROBE_REQUESTS: u32 = 20_000;

struct Workload {
    name: &'static str,
    sizes: Sizes,
    keys: Keys,
}

const LOG_NORMAL: Sizes = Sizes::LogNormal { mu: 2.5, sigma: 1.25 };
const ZIPF: Keys = Keys::Zipf { keys: KEYS, skew: SKEW };

const WORKLOADS: [Workload; 3] = [
    Workload { name: "constant 50, Zipf", sizes: Sizes::Constant(50), keys: ZIPF },
    Workload { name: "log-normal, uniform", sizes: LOG_NORMAL, keys: Keys::Uniform(KEYS) },
    Workload { name: "log-normal, Zipf", sizes: LOG_NORMAL, keys: ZIPF },
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_simulations(WORKLOADS.len() * 5);
    for Workload { name, sizes, keys } in WORKLOADS {
        let (sizes, keys, requests) = (sizes, keys, requests(lab, REQUESTS));
        let cluster = Setting { clients: NODES, servers: NODES, partitions: NODES, sizes, keys, ..Setting::default() };
        let fifo = Contender::of(Policy::Fifo);
        let probe = simulate(&Setting { load: PROBE_LOAD, requests: PROBE_REQUESTS, ..cluster.clone() }, &fifo)?;
        let load = OF_PEAK * probe.utilization / probe.hottest;
        let setting = Setting { load, requests, ..cluster };
        let baseline = outcomes(lab, &format!("{name}: FIFO"), &setting, &fifo)?;
        let least = Setting { choice: ReplicaChoice::LeastOutstanding, ..setting.clone() };
        for (contender, choice, case) in [
            (Contender::of(Policy::Rein(Levels::default())), &setting, "Rein"),
            (Contender::shipped(), &setting, "shipped queue"),
            (fifo, &least, "FIFO, least outstanding"),
            (Contender::shipped(), &least, "shipped queue, least outstanding"),
        ] {
            let case = format!("{name}: {case}");
            let ours = outcomes(lab, &case, choice, &contender)?;
            push_gains(lab, &case, (&baseline, &ours))?;
        }
        lab.note(format!("{name}: {:.0} % of the slots are busy, 75 % of those of the busiest server", load * 100.0));
    }
    Ok(())
}
