//! `dunlin sim calibrate`: the CPU times of this machine for experiments in virtual time.

use std::process::ExitCode;

use anyhow::{Context, Result};
use dunlin_bench::datacenter::calibrate;
use dunlin_net::Addr;

use crate::output;

/// Measure the cost of packets on this machine and print it as TOML
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A client and a server take turns in one thread, so what is measured is the work of both ends and no waiting. On a machine that is busy
with other things, run it again.

Examples:
  dunlin sim calibrate > here.toml
  dunlin bench run sim-scale --cost here.toml
  dunlin sim calibrate --at udp://127.0.0.1:0  over UDP instead of shared memory")]
pub struct Arguments {
    /// Transport to measure: shm:NAME or udp://HOST:PORT
    #[arg(long, value_name = "WHERE", default_value = "shm:calibrate")]
    at: Addr,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { at } = arguments;
    let model = calibrate(at).with_context(|| format!("calibrating at {at}"))?;
    output::line(toml::to_string(&model)?.trim_end())?;
    Ok(ExitCode::SUCCESS)
}
