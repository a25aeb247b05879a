//! `smr-groups`: beyond the paper, which has one group. Writes to three replicas of each of 1 to 100 groups, chosen at
//! random, 64 at a time. The replicas of all groups share endpoints, links and logs. With logs in memory, all replicas
//! share one core, and the client has the other.

use dunlin_lab::report::Metric;
use dunlin_lab::{Cases, Figure};

use super::smr_runs::{self, Ask};
use crate::rpc::roles::Carrier;
use crate::smr::roles::{PutFigures, Storage, Watch};
use crate::{BenchError, Lab};

/// Number of groups. Each machine of each replica takes at least 2 MiB: with 1,000 groups, a process with all three
/// replicas would take 6 GiB.
const GROUPS: [u16; 3] = [1, 10, 100];
/// Concurrent writes, to all groups together.
const WINDOW: usize = 64;
/// Keys of all groups together.
const KEYS: u64 = 100_000;

const STORAGES: [(Storage, &str); 2] = [(Storage::Memory, "memory"), (Storage::Disk, "disk")];

type Place = ((Storage, &'static str), u16);

const FIGURES: [Figure<Place, PutFigures>; 3] = [
    Figure::new(Metric::Operations, |_, puts| puts.rate),
    Figure::new(Metric::LatencyP50, |_, puts| puts.latency.p50),
    Figure::new(Metric::LatencyP99, |_, puts| puts.latency.p99),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = Cases::along("log", STORAGES, |(_, name)| *name)
        .by("groups", GROUPS, |groups| format!("{groups} groups"))
        .with(&format!(", {WINDOW} at a time"));
    lab.measure_each(&cases, &FIGURES, |lab, ((storage, _), groups)| {
        let (storage, groups) = (*storage, *groups);
        let ask = Ask { carrier: Carrier::Shm, storage, groups, window: WINDOW, keys: KEYS, snapshot_entries: None };
        Ok(smr_runs::load(lab, ask, Watch::Nothing)?.0)
    })?;
    lab.note(
        "Each write is to a group drawn at random, so with more groups fewer writes share an append. Groups that were not written to for an election timeout rest.",
    );
    Ok(())
}
