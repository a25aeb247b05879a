//! `coord-scale`: beyond the papers. The cost of a cluster's members for the leader of the cluster manager, and the
//! time until a change reaches the last of many watchers. One node, with its log in memory, over UDP: heartbeats are
//! not in the log, so more replicas would not cost it more.

use dunlin_lab::measure::Percentiles;
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use crate::coord::roles::{CoordMembers, CoordNode, CoordWatchers, MembersFigures};
use crate::{BenchError, Lab};

/// Members, each with one heartbeat per second.
const MEMBERS: [u64; 2] = [100, 1_000];
/// Limit of the node's CPU time for a thousand of them, in percent of a core.
const CORE_SHARE_MAX: f64 = 5.0;
/// Watchers of one entry.
const WATCHERS: [usize; 4] = [1, 10, 100, 1_000];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(MEMBERS.len() + WATCHERS.len());
    for members in MEMBERS {
        let case = format!("{members} members, each heard once a second");
        if !lab.wants(&case) {
            continue;
        }
        let runs: Vec<MembersFigures> = lab.case(&case, |lab| {
            let mut node = lab.server(CoordNode { watchers_max: 0 }, lab.run_length())?;
            let node_address = node.ready()?;
            let role = CoordMembers { node: node_address, members, run: lab.run_length() };
            let figures = lab.client(role, lab.run_length())?.result()?;
            node.stop()?;
            Ok(figures)
        })?;
        let share = RowBuilder::new(case.clone(), Metric::CoreShare, spread(&runs, |figures| figures.core_share)?);
        lab.push(share.target(Target::Absolute(CORE_SHARE_MAX)));
        lab.push(RowBuilder::new(case, Metric::Operations, spread(&runs, |figures| figures.heartbeats)?));
    }
    for watchers in WATCHERS {
        let case = format!("{watchers} watchers, until the last is told");
        if !lab.wants(&case) {
            continue;
        }
        let runs: Vec<Percentiles> = lab.case(&case, |lab| {
            let mut node = lab.server(CoordNode { watchers_max: watchers }, lab.run_length())?;
            let node_address = node.ready()?;
            let role = CoordWatchers { node: node_address, watchers, run: lab.run_length() };
            let figures = lab.client(role, lab.run_length())?.result()?;
            node.stop()?;
            Ok(figures)
        })?;
        lab.push(RowBuilder::new(case.clone(), Metric::LatencyP50, spread(&runs, |told| told.p50)?));
        lab.push(RowBuilder::new(case, Metric::LatencyP99, spread(&runs, |told| told.p99)?));
    }
    lab.note("members, and watchers, are all in one process, which has the other core");
    Ok(())
}
