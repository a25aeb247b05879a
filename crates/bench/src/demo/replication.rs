//! The replicated part of the demo: the leader of three replicas is killed while it serves writes.

use std::time::Duration;

use dunlin_lab::measure::Spread;
use dunlin_lab::report::{Metric, RowBuilder};

use crate::smr::replicas::{AFTER, Replicas, Writers, plot};
use crate::{BenchError, Lab};

/// Steps in the progress bar.
pub(super) const STEPS: usize = 3;
/// Election timeout of the replicas.
const ELECTION: Duration = Duration::from_millis(200);
/// Duration of writes before the kill.
const CALM: Duration = Duration::from_millis(500);
/// Time limit of the replicas.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs it.
pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.step("starting three replicas");
    let mut replicas = Replicas::start(lab, ELECTION, LIMIT)?;
    let writers = Writers::start(&replicas, lab.interrupt())?;
    writers.go_on(CALM)?;
    lab.step("killing the replica that leads");
    let leader = writers.leader()?;
    let gap = writers.interrupted_by(|| replicas.kill(leader))?;
    replicas.restart(lab, leader)?;
    writers.go_on(AFTER.saturating_sub(gap.length))?;
    writers.until_caught_up(leader)?;
    lab.step("reading back what was acknowledged");
    let lost = writers.stop_and_count_lost()?;
    replicas.stop()?;
    if lost > 0 {
        return Err(BenchError::demo("keep what was acknowledged", format!("{lost} writes are lost")));
    }
    let case = format!("raft: no service after a kill of the leader, election timeout {} ms", ELECTION.as_millis());
    lab.push(RowBuilder::new(case, Metric::LatencyMax, Spread::single(gap.length.as_nanos() as f64)));
    let case = format!("raft: acknowledged writes that were lost, of {}", writers.acknowledged());
    lab.push(RowBuilder::new(case, Metric::Calls, Spread::single(lost as f64)));
    lab.plot(plot(vec![writers.line("the leader is killed", &gap)]));
    Ok(())
}
