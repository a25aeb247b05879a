//! `dunlin kv`: a key-value server, and what asks it.

mod dump;
mod load;
mod stats;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use dunlin_bench::peer::Interrupt;

/// A key-value server in memory, and its clients
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in two terminals:
  dunlin kv load words.tsv shm:kv
  dunlin kv stats shm:kv")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Load(load::Arguments),
    Dump(dump::Arguments),
    Stats(stats::Arguments),
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    match arguments.command {
        Command::Dump(arguments) => dump::run(&arguments, &interrupt),
        Command::Load(arguments) => load::run(&arguments, &interrupt),
        Command::Stats(arguments) => stats::run(&arguments),
    }
}
