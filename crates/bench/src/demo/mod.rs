//! `dunlin demo`: a sample of everything, over shared memory and then over UDP, a key-value service on top, a
//! replicated one whose leader is killed, and a bank that loses a process.

mod bank;
mod bank_roles;
mod data;
mod kv;
mod replication;
mod roles;

use std::path::Path;

use dunlin_lab::peer::Entry;
use dunlin_lab::report::Metric;

use crate::experiments::Area;
use crate::rpc::roles::{Carrier, Load, Setup};
use crate::rpc::runs;
use crate::{BenchError, Lab};
use bank_roles::{BankManager, BankNode};
use roles::{DemoDriver, DemoServer};

pub(crate) const AREA: Area = Area { experiments: &[], roles: ROLES, papers: "" };

const ROLES: &[Entry] =
    &[Entry::of::<DemoServer>(), Entry::of::<DemoDriver>(), Entry::of::<BankManager>(), Entry::of::<BankNode>()];

/// Requests in a batch, as in most of the paper.
const BATCH: usize = 3;
/// Bytes of a large request.
const LARGE_BYTES: usize = 8 << 20;
/// The mix: of ten requests seven are small, two of 1 KiB and one of 4 KiB.
const MIX: [usize; 10] = [32, 32, 1024, 32, 32, 4096, 32, 1024, 32, 32];

/// Measurements of one transport, for dividing a total time among them: each takes a run, and one of its floor.
pub const MEASUREMENTS: usize = 4;

/// Checks that the demo can serve the records of a file, before minutes of measuring.
///
/// # Errors
/// [`dunlin_lab::LabError::Io`] if it cannot be read, [`BenchError::Demo`] if it has no records.
pub fn check_data(file: &Path) -> Result<(), BenchError> {
    data::Source { file: Some(file.to_owned()) }.read().map(drop)
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * MEASUREMENTS);
    lab.expect_steps(kv::STEPS + replication::STEPS + bank::STEPS);
    for carrier in Carrier::ALL {
        latency(lab, carrier)?;
        let echo = runs::small_load(lab, BATCH);
        rate(lab, carrier, "32 B, 60 in flight", &echo)?;
        let mix = Load { sizes: MIX.to_vec(), ..echo };
        rate(lab, carrier, "mix of 32 B to 4 KiB, 60 in flight", &mix)?;
        bandwidth(lab, carrier)?;
    }
    let source = data::Source { file: lab.data().map(Into::into) };
    kv::run(lab, &source)?;
    replication::run(lab)?;
    bank::run(lab)
}

fn latency(lab: &mut Lab, carrier: Carrier) -> Result<(), BenchError> {
    let case = format!("{} 32 B, one outstanding", carrier.name());
    let measured = runs::latency_case(lab, &case, &Setup::new(carrier))?;
    lab.push(runs::row(&case, Metric::LatencyP50, &measured, |p| p.p50)?);
    lab.push(runs::row(&case, Metric::LatencyP99, &measured, |p| p.p99)?);
    Ok(())
}

fn rate(lab: &mut Lab, carrier: Carrier, name: &str, load: &Load) -> Result<(), BenchError> {
    let case = format!("{} {name}", carrier.name());
    let measured = runs::rate_case(lab, &case, &Setup::new(carrier), load)?;
    lab.push(runs::row(&case, Metric::Rate, &measured, |rate| *rate)?);
    Ok(())
}

fn bandwidth(lab: &mut Lab, carrier: Carrier) -> Result<(), BenchError> {
    let case = format!("{} 8 MiB, one outstanding", carrier.name());
    let setup = Setup { credits: runs::LARGE_CREDITS, ..Setup::new(carrier) };
    let measured = runs::bandwidth_case(lab, &case, &setup, LARGE_BYTES)?;
    lab.push(runs::row(&case, Metric::Bandwidth, &measured, |bandwidth| *bandwidth)?);
    Ok(())
}
