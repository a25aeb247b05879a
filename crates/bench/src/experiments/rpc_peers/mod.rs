//! `rpc-peers`: the same echo with systems that one would otherwise choose, in the same run.

mod grpc;
mod load;
mod roles;
mod tarpc_echo;

pub(crate) use roles::{OtherClient, OtherServer};

use crate::BenchError;
use crate::lab::{Lab, spread};
use crate::report::{Metric, RowBuilder};
use roles::System;

/// Payload of each call, in bytes.
const SIZE: usize = 32;
/// Calls in flight where the rate is measured.
const OUTSTANDING: usize = 60;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(2);
    for system in [System::Tonic, System::Tarpc] {
        let figures = lab.case(system.name(), |lab| {
            let mut server = lab.server(OtherServer { system }, lab.run_length())?;
            let client =
                OtherClient { system, server: server.ready()?, size: SIZE, outstanding: OUTSTANDING, run: lab.run_length() };
            let figures = lab.client(client, lab.run_length() * 3)?.result()?;
            server.stop()?;
            Ok(figures)
        })?;
        lab.push(RowBuilder::new(system.name(), Metric::LatencyP50, spread(&figures, |f| f.latency.p50)?));
        lab.push(RowBuilder::new(system.name(), Metric::LatencyP99, spread(&figures, |f| f.latency.p99)?));
        lab.push(RowBuilder::new(system.name(), Metric::Rate, spread(&figures, |f| f.rate)?));
    }
    Ok(())
}
