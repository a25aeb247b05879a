//! `smr-failover`: beyond the paper. The leader of three replicas with durable logs is killed repeatedly under load:
//! how long the service is interrupted, and whether acknowledged writes are lost.

use std::time::Duration;

use dunlin_lab::measure::Spread;
use dunlin_lab::report::{Metric, RowBuilder, Target};

use super::replicas::{AFTER, ATTEMPT_TIMEOUT, Gap, Replicas, Writers, plot};
use crate::{BenchError, Lab};

/// Kills, with runs of a second or longer; proportionally fewer with shorter ones, down to a minimum.
const KILLS: f64 = 50.0;
const KILLS_MIN: usize = 3;
/// The default of replicas.
const ELECTION: Duration = Duration::from_millis(500);
/// Time limit of one kill with everything that belongs to it, far beyond what it takes.
const KILL_LIMIT: Duration = Duration::from_secs(60);
/// After half of the kills a leader is elected within twice the timeout: that is when the last waiting replica becomes
/// a candidate.
const P50_MAX: f64 = 2.0;
/// One split or interrupted vote doubles that.
const LONGEST_MAX: f64 = 4.0;
pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let kills = ((KILLS * lab.run_length().as_secs_f64()) as usize).clamp(KILLS_MIN, KILLS as usize);
    if !lab.wants_any([gap_case(kills).as_str(), LOST_CASE]) {
        return Ok(());
    }
    lab.expect_steps(kills + 2);
    lab.step("starting three replicas");
    let mut replicas = Replicas::start(lab, ELECTION, KILL_LIMIT * kills as u32)?;
    let writers = Writers::start(&replicas, lab.interrupt())?;
    let mut gaps = Vec::with_capacity(kills);
    for kill in 1..=kills {
        lab.step(format!("killing the leader, {kill} of {kills}"));
        // As long as a restarted replica does not vote, and longer.
        writers.go_on(2 * ELECTION)?;
        let leader = writers.leader()?;
        gaps.push(writers.interrupted_by(|| replicas.kill(leader))?);
        replicas.restart(lab, leader)?;
        writers.until_caught_up(leader)?;
    }
    writers.go_on(AFTER)?;
    lab.step("reading back what was acknowledged");
    let lost = writers.stop_and_count_lost()?;
    replicas.stop()?;
    gaps.sort_by_key(|gap| gap.length);
    report(lab, &writers, &gaps, lost);
    Ok(())
}

const LOST_CASE: &str = "acknowledged writes that were lost";

fn gap_case(kills: usize) -> String {
    format!("no service after a kill of the leader, {kills} kills")
}

/// Rows and a plot of the gaps, ordered by length.
fn report(lab: &mut Lab, writers: &Writers, gaps: &[Gap], lost: u64) {
    let case = gap_case(gaps.len());
    lab.taken(&case, 1);
    let nth = |share: f64| &gaps[((gaps.len() as f64 * share).ceil() as usize).clamp(1, gaps.len()) - 1];
    let timeout = ELECTION.as_nanos() as f64;
    let row =
        |metric, gap: &Gap| RowBuilder::new(&case, metric, Spread::single(gap.length.as_nanos() as f64)).floor(timeout);
    lab.push(row(Metric::LatencyP50, nth(0.5)).target(Target::FloorTimes(P50_MAX)));
    lab.push(row(Metric::LatencyP99, nth(0.99)));
    lab.push(row(Metric::LatencyMax, nth(1.0)).target(Target::FloorTimes(LONGEST_MAX)));
    let case = format!("{LOST_CASE}, of {}", writers.acknowledged());
    lab.push(RowBuilder::new(case, Metric::Calls, Spread::single(lost as f64)).target(Target::Absolute(0.0)));
    let lines = [("shortest", nth(0.0)), ("median", nth(0.5)), ("longest", nth(1.0))];
    lab.plot(plot(lines.map(|(name, gap)| writers.line(name, gap)).into()));
    lab.note(format!(
        "The floor is the election timeout that is configured, {} ms: replicas wait for one to two times as long before they ask to be elected. \
         Without service is the longest time between two acknowledgements; the client gives \
         each replica {} ms to answer before it asks another, and twice as long to one that was late.",
        ELECTION.as_millis(),
        ATTEMPT_TIMEOUT.as_millis()
    ));
}
