//! `rpc-peers`: the same 32 B echo with alternative systems, in the same run.

mod grpc;
mod load;
mod roles;
mod tarpc_echo;

pub(crate) use roles::{OtherClient, OtherServer};

use super::runs;
use crate::rpc::roles::{Carrier, Setup};
use crate::{BenchError, Lab};
use dunlin_lab::measure::{BesideFloor, Measured, Percentiles};
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;
use roles::{OtherFigures, System};

/// Batch size of our client: single calls, like those of the other clients.
const BATCH: usize = 1;

/// All systems, measured once.
struct Round {
    ours: [Ours; Carrier::ALL.len()],
    others: [OtherFigures; System::ALL.len()],
}

struct Ours {
    latency: Measured<Percentiles>,
    rate: Measured<f64>,
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(1);
    let rounds = lab.case("all systems", |lab| {
        let [shm, udp] = Carrier::ALL;
        let [tonic, tarpc] = System::ALL;
        Ok(Round { ours: [ours(lab, shm)?, ours(lab, udp)?], others: [other(lab, tonic)?, other(lab, tarpc)?] })
    })?;
    for (i, carrier) in Carrier::ALL.into_iter().enumerate() {
        push_ours(lab, carrier, &rounds, |round| &round.ours[i])?;
    }
    for (i, system) in System::ALL.into_iter().enumerate() {
        push_other(lab, system, &rounds, |round| &round.others[i])?;
    }
    for (i, carrier) in Carrier::ALL.into_iter().enumerate() {
        for (j, system) in System::ALL.into_iter().enumerate() {
            let case = |what| format!("{} against {}, {what}", carrier.name(), system.name());
            let latency = spread(&rounds, |r| r.others[j].latency.p50 / r.ours[i].latency.ours.p50)?;
            let rate = spread(&rounds, |r| r.ours[i].rate.ours / r.others[j].rate)?;
            for (case, advantage) in [(case("latency p50"), latency), (case("rate"), rate)] {
                lab.push(RowBuilder::new(case, Metric::Advantage, advantage).target(Target::Absolute(1.0)));
            }
        }
    }
    Ok(())
}

fn ours(lab: &Lab, carrier: Carrier) -> Result<Ours, BenchError> {
    let setup = Setup::new(carrier);
    Ok(Ours { latency: runs::latency(lab, &setup)?, rate: runs::rate(lab, &setup, &runs::small_load(lab, BATCH))? })
}

fn other(lab: &Lab, system: System) -> Result<OtherFigures, BenchError> {
    let mut server = lab.server(OtherServer { system }, lab.run_length() * 3)?;
    let client = OtherClient {
        system,
        server: server.ready()?,
        size: runs::SMALL_BYTES,
        outstanding: runs::IN_FLIGHT,
        run: lab.run_length(),
    };
    let figures = lab.client(client, lab.run_length() * 3)?.result()?;
    server.stop()?;
    Ok(figures)
}

fn push_ours(
    lab: &mut Lab,
    carrier: Carrier,
    rounds: &[Round],
    of: impl Fn(&Round) -> &Ours,
) -> Result<(), BenchError> {
    let case = format!("dunlin over {}", carrier.name());
    let latencies = BesideFloor::of(rounds.iter().map(|round| of(round).latency).collect());
    let rates = BesideFloor::of(rounds.iter().map(|round| of(round).rate).collect());
    lab.push(runs::row(&case, Metric::LatencyP50, &latencies, |p| p.p50)?);
    lab.push(runs::row(&case, Metric::LatencyP99, &latencies, |p| p.p99)?);
    lab.push(runs::row(&case, Metric::Rate, &rates, |rate| *rate)?);
    Ok(())
}

fn push_other(
    lab: &mut Lab,
    system: System,
    rounds: &[Round],
    of: impl Fn(&Round) -> &OtherFigures,
) -> Result<(), BenchError> {
    let case = format!("{} over TCP", system.name());
    lab.push(RowBuilder::new(&case, Metric::LatencyP50, spread(rounds, |round| of(round).latency.p50)?));
    lab.push(RowBuilder::new(&case, Metric::LatencyP99, spread(rounds, |round| of(round).latency.p99)?));
    lab.push(RowBuilder::new(&case, Metric::Rate, spread(rounds, |round| of(round).rate)?));
    Ok(())
}
