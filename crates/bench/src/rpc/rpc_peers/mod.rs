//! `rpc-peers`: the same 32 B echo with alternative systems, in the same run.

mod grpc;
mod load;
mod roles;
mod tarpc_echo;

pub(crate) use roles::{OtherClient, OtherServer};

use dunlin_lab::measure::Percentiles;
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::{Cases, Figure};

use super::runs;
use crate::rpc::roles::{Carrier, Setup};
use crate::{BenchError, Lab};
use roles::System;

/// Batch size of our client: single calls, like those of the other clients.
const BATCH: usize = 1;

#[derive(Debug, Clone, Copy)]
enum Contender {
    Dunlin(Carrier),
    Other(System),
}

/// Latency and rate of a contender, or of a floor.
type Seen = (Percentiles, f64);

type Column = Figure<Contender, Seen>;

const FIGURES: [Column; 3] = [
    Column::with_floor(Metric::LatencyP50, |_, (latency, _)| latency.p50).rival(Contender::rival),
    Column::with_floor(Metric::LatencyP99, |_, (latency, _)| latency.p99).rival(Contender::rival),
    Column::with_floor(Metric::Rate, |_, (_, rate)| *rate).rival(Contender::rival),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let ours = Cases::along("system", Carrier::ALL.map(Contender::Dunlin), Contender::name);
    let others = Cases::along("system", System::ALL.map(Contender::Other), Contender::name);
    let all = ours.and(others);
    let rounds = lab.measure_in_turn(&all, &FIGURES, |lab| all.iter().map(|case| case.at.measure(lab)).collect())?;
    for (i, carrier) in Carrier::ALL.into_iter().enumerate() {
        for (j, system) in (Carrier::ALL.len()..).zip(System::ALL) {
            let case = |what| format!("{} against {}, {what}", carrier.name(), system.name());
            let latency = rounds.spread(|seen| seen[j].0.p50 / seen[i].0.p50)?;
            let rate = rounds.spread(|seen| seen[i].1 / seen[j].1)?;
            for (case, advantage) in [(case("latency p50"), latency), (case("rate"), rate)] {
                lab.push(RowBuilder::new(case, Metric::Advantage, advantage).target(Target::Absolute(1.0)));
            }
        }
    }
    Ok(())
}

impl Contender {
    fn name(&self) -> String {
        match self {
            Contender::Dunlin(carrier) => format!("dunlin over {}", carrier.name()),
            Contender::Other(system) => format!("{} over TCP", system.name()),
        }
    }

    /// The quicker of the others.
    fn rival(&self) -> Option<String> {
        matches!(self, Contender::Dunlin(_)).then(|| Contender::Other(System::Tarpc).name())
    }

    /// One run, and that of its floor.
    fn measure(self, lab: &Lab) -> Result<(Seen, Option<Seen>), BenchError> {
        match self {
            Contender::Dunlin(carrier) => {
                let setup = Setup::new(carrier);
                let (latency, load) = (runs::latency(lab, &setup)?, runs::small_load(lab, BATCH));
                let rate = runs::rate(lab, &setup, &load)?;
                Ok(((latency.ours, rate.ours), Some((latency.floor, rate.floor))))
            }
            Contender::Other(system) => Ok((other(lab, system)?, None)),
        }
    }
}

fn other(lab: &Lab, system: System) -> Result<Seen, BenchError> {
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
    Ok((figures.latency, figures.rate))
}
