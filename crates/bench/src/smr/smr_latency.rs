//! `smr-latency`: Table 6, over shared memory. Writes of one client, one at a time, to three replicas that keep
//! everything in memory. The replicas share one core, and the client has the other.

use dunlin_lab::measure::{Measured, Percentiles};
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;
use dunlin_smr::Stage;

use super::smr_runs::{self, Ask};
use crate::rpc::roles::{Carrier, LatencyFloor};
use crate::smr::replication::KEYS;
use crate::smr::roles::{PutFigures, ReplicaFigures, Storage, Watch};
use crate::{BenchError, Lab};

/// Required median of a write, in nanoseconds.
const CLIENT_MAX: f64 = 12_000.0;
/// Bytes of a bare ping-pong over UDP: the size of a request.
const PING_BYTES: usize = 128;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * 2);
    for carrier in Carrier::ALL {
        let case = format!("{}, one client", carrier.name());
        let parts = format!("{}, parts", carrier.name());
        if !lab.wants_any([case.as_str(), &parts]) {
            continue;
        }
        let runs = lab.case_beside_floor(&case, |floor: &Percentiles| floor.p50, |lab| measure(lab, carrier))?;
        let mut row = crate::rpc::runs::row(&case, Metric::LatencyP50, &runs, |run| run.p50)?;
        if carrier == Carrier::Shm {
            row = row.target(Target::Absolute(CLIENT_MAX));
        }
        lab.push(row);
        lab.push(crate::rpc::runs::row(&case, Metric::LatencyP99, &runs, |run| run.p99)?);
        shares(lab, carrier)?;
    }
    lab.note(
        "The paper has each replica on a host of its own; here all three share one core, and no network lies between them: `smr-latency-sim` is the like of it. \
         The floor is a bare round trip of one message; a write takes two round trips, one of them to both followers. All replicas share a core, so what \
         each works on adds up. Parts are measured in runs of their own, since looking makes them slower.",
    );
    Ok(())
}

fn ask(carrier: Carrier) -> Ask {
    Ask { carrier, storage: Storage::Memory, groups: 1, window: 1, keys: KEYS, snapshot_entries: None }
}

fn measure(lab: &Lab, carrier: Carrier) -> Result<Measured<Percentiles>, BenchError> {
    let floor = LatencyFloor { carrier, size: PING_BYTES, cores: lab.cores()?, run: lab.run_length() };
    let floor = lab.anywhere(floor, lab.run_length())?.result()?;
    let (figures, _) = smr_runs::load(lab, ask(carrier), Watch::Nothing)?;
    Ok(Measured { ours: figures.latency, floor })
}

/// A part of the replicas' work for a write, in nanoseconds.
type Part = (&'static str, fn(&ReplicaFigures) -> f64);

const PARTS: [Part; 6] = [
    ("Raft", |seen| of(seen, &[Stage::Step, Stage::Ready])),
    ("codec", |seen| of(seen, &[Stage::Request, Stage::Parse, Stage::Send])),
    ("log", |seen| of(seen, &[Stage::Log])),
    ("store and sessions", |seen| of(seen, &[Stage::Machine, Stage::Prefetch])),
    ("between these", |seen| of(seen, &[Stage::Visit])),
    ("RPC", |seen| (seen.busy - seen.leader.sum() - seen.followers.sum()) / seen.commits as f64),
];

/// Nanoseconds of some stages per write, over all replicas.
fn of(seen: &ReplicaFigures, stages: &[Stage]) -> f64 {
    let nanos = |stage: &Stage| seen.leader.total(*stage) + seen.followers.total(*stage);
    stages.iter().map(nanos).sum::<f64>() / seen.commits as f64
}

/// The replicas' work for a write, by parts.
fn shares(lab: &mut Lab, carrier: Carrier) -> Result<(), BenchError> {
    let name = carrier.name();
    let seen = lab.case(&format!("{name}, parts"), |lab| smr_runs::load(lab, ask(carrier), Watch::Stages))?;
    let all = |run: &(PutFigures, ReplicaFigures)| run.1.busy / run.1.commits as f64;
    let whole = spread(&seen, all)?.median;
    let mut shares = Vec::new();
    for (part, figure) in PARTS {
        let nanos = spread(&seen, |(_, seen)| figure(seen))?;
        shares.push(format!("{part} {:.0} %", 100.0 * nanos.median / whole));
        lab.push(RowBuilder::new(format!("{name}, {part}"), Metric::CpuTime, nanos));
    }
    lab.note(format!("{name}: shares of what all replicas do for a write: {}.", shares.join(", ")));
    Ok(())
}
