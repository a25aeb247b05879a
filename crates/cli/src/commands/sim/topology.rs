//! `dunlin sim topology`: the built-in datacenters as files to start from.

use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use dunlin_sim::Topology;

use crate::output;

/// Print a built-in topology as TOML
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin sim topology cx4 > mine.toml          to change, and give to dunlin_sim::Topology::from_toml")]
pub struct Arguments {
    /// The topology
    name: Preset,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Preset {
    /// Two hosts with 25 GbE on one switch
    Default,
    /// 200 hosts with 25 GbE in five racks: the eRPC paper's CX4 cluster
    Cx4,
    /// Eight hosts with 40 GbE on one switch: the eRPC paper's CX5 cluster
    Cx5,
    /// The same with 100 Gbit/s and packets of 4 kB, as for the paper's large transfers
    Cx5At100g,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let topology = match arguments.name {
        Preset::Default => Topology::default(),
        Preset::Cx4 => Topology::cx4(),
        Preset::Cx5 => Topology::cx5(),
        Preset::Cx5At100g => Topology::cx5_100g(),
    };
    output::line(topology.to_toml().trim_end())?;
    Ok(ExitCode::SUCCESS)
}
