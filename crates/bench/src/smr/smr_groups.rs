//! `smr-groups`: beyond the paper, which has one group. Writes to three replicas of each of 1 to 100 groups, chosen at
//! random, 64 at a time. The replicas of all groups share endpoints, links and logs. With logs in memory, all replicas
//! share one core, and the client has the other.

use dunlin_lab::report::{Metric, RowBuilder};
use dunlin_lab::spread;

use super::smr_runs::{self, Ask};
use crate::rpc::roles::Carrier;
use crate::smr::roles::{PutFigures, ReplicaFigures, Storage, Watch};
use crate::{BenchError, Lab};

/// Number of groups. Each machine of each replica takes at least 2 MiB: with 1,000 groups, a process with all three
/// replicas would take 6 GiB.
const GROUPS: [u16; 3] = [1, 10, 100];
/// Concurrent writes, to all groups together.
const WINDOW: usize = 64;
/// Keys of all groups together.
const KEYS: u64 = 100_000;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(2 * GROUPS.len());
    for (storage, name) in [(Storage::Memory, "memory"), (Storage::Disk, "disk")] {
        for groups in GROUPS {
            let case = format!("{name}, {groups} groups, {WINDOW} at a time");
            let ask =
                Ask { carrier: Carrier::Shm, storage, groups, window: WINDOW, keys: KEYS, snapshot_entries: None };
            let runs = lab.case(&case, |lab| smr_runs::load(lab, ask, Watch::Nothing))?;
            type Run = (PutFigures, ReplicaFigures);
            lab.push(RowBuilder::new(case.clone(), Metric::Operations, spread(&runs, |(puts, _): &Run| puts.rate)?));
            lab.push(RowBuilder::new(
                case.clone(),
                Metric::LatencyP50,
                spread(&runs, |(puts, _): &Run| puts.latency.p50)?,
            ));
            lab.push(RowBuilder::new(case, Metric::LatencyP99, spread(&runs, |(puts, _): &Run| puts.latency.p99)?));
        }
    }
    lab.note(
        "Each write is to a group drawn at random, so with more groups fewer writes share an append. Groups that were not written to for an election timeout rest.",
    );
    Ok(())
}
