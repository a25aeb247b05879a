//! Lost packets: those of eight concurrent small calls, and all that are too long for a path.

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::hoarders::{BESIDE_BUDGET, Enough, SESSIONS_PLANNED, SMALL, rounds, seen, server};
use super::{push, push_seen, with_threads};
use crate::rpc::roles::{Carrier, LostCalls, RpcServing, Setup, ShortPath, ShortPathCalls};
use crate::{BenchError, Lab};

/// Maximum delay of the last answer after the first, in round trips of as many calls without losses.
const ROUND_TRIPS_MAX: f64 = 2.0;

/// Eight small calls of a session that are lost together recover together. Only the network misbehaves here.
pub(super) fn calls(lab: &mut Lab) -> Result<(), BenchError> {
    let case = with_threads("udp, 8 small calls lost together", 0);
    super::check_wanted(lab, &case)?;
    let recovered = lab.case(&case, |lab| {
        let mut server = server(lab, Carrier::Udp, lab.run_length())?;
        let RpcServing { address, .. } = server.ready()?;
        let setup = Setup::as_shipped(Carrier::Udp, SESSIONS_PLANNED);
        let run = lab.run_length() / 2;
        let client = LostCalls { setup, server: address, run };
        let recovered = lab.client(client, run)?.result()?;
        server.stop()?;
        Ok(recovered)
    })?;
    let until_last = spread(&recovered, |recovered| recovered.last)?;
    lab.push(RowBuilder::new(format!("{case}, until the last is answered"), Metric::LatencyP50, until_last));
    let round_trip = spread(&recovered, |recovered| recovered.round_trip)?;
    let more = round_trip.median * (ROUND_TRIPS_MAX - 1.0);
    let after_first = spread(&recovered, |recovered| recovered.after_first)?;
    let row = RowBuilder::new(format!("{case}, from the first answer to the last"), Metric::LatencyP50, after_first);
    lab.push(row.floor(round_trip).target(Target::FloorPlus(more)));
    Ok(())
}

/// A client whose path starts to drop its long packets.
pub(super) fn short_path(lab: &mut Lab) -> Result<(), BenchError> {
    let case = &with_threads("udp, a path that comes to swallow packets of more than 1,400 B", 1);
    let setup = Setup::as_shipped(Carrier::Udp, SESSIONS_PLANNED);
    let runs = rounds(lab, case, &[SMALL], |server| ShortPath { setup: setup.clone(), server }, Enough::Always)?;
    push(lab, case, (Metric::Rate, &[SMALL.name]), &seen(&runs), BESIDE_BUDGET as f64)?;
    let stuck = spread(&runs, |run| f64::from(run.output.stuck))?;
    let row = RowBuilder::new(format!("{case}, that do not end"), Metric::Calls, stuck);
    lab.push(row.target(Target::Absolute(0.0)));
    let ended = runs.iter().map(|run| u64::from(run.output.answered + run.output.failed));
    push_seen(lab, format!("{case}, that end"), 1, ended);
    let sum = |of: fn(&ShortPathCalls) -> u32| runs.iter().map(|run| of(&run.output)).sum::<u32>();
    let (answered, failed) = (sum(|calls| calls.answered), sum(|calls| calls.failed));
    lab.note(format!("{case}: {answered} of its calls were answered, and {failed} ended with an error."));
    Ok(())
}
