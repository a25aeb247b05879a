//! `dunlin sim`: the simulated datacenter. Each subcommand is one file.

mod calibrate;
mod hunt;
mod topology;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use dunlin_serve::Interrupt;

/// Work with the simulated datacenter
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Experiments in virtual time are run by: dunlin bench run sim-incast

Examples:
  dunlin sim hunt --seeds 1000                 random work under random faults
  dunlin sim calibrate > here.toml             what packets cost on this machine
  dunlin sim topology cx4 > mine.toml          a datacenter to change, for programs (dunlin_sim::Topology::from_toml)")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Hunt(hunt::Arguments),
    Topology(topology::Arguments),
    Calibrate(calibrate::Arguments),
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    match arguments.command {
        Command::Hunt(arguments) => hunt::run(&arguments, &interrupt),
        Command::Topology(arguments) => topology::run(&arguments),
        Command::Calibrate(arguments) => calibrate::run(&arguments),
    }
}
