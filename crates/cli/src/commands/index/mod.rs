//! `dunlin index`: an ordered index, and its clients.

pub mod client;
mod deletes;
mod dump;
mod gets;
mod load;
mod puts;
mod scan;
mod serve;
mod snapshot;
mod stats;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use dunlin_serve::Interrupt;

/// An ordered index in memory, which can be scanned, and its clients
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in two terminals:
  dunlin index serve --at shm:index --snapshot index.snapshot

  export DUNLIN_AT=shm:index
  dunlin index put bird/dunlin 'Calidris alpina'
  dunlin index get bird/dunlin
  dunlin index scan --prefix bird/
  dunlin index load words.tsv
  dunlin top")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Get(gets::Arguments),
    Put(puts::Arguments),
    Delete(deletes::Arguments),
    Scan(scan::Arguments),
    Load(load::Arguments),
    Dump(dump::Arguments),
    Snapshot(snapshot::Arguments),
    Stats(stats::Arguments),
}

impl Arguments {
    /// Whether it is a server.
    pub fn serves(&self) -> bool {
        matches!(self.command, Command::Serve(_))
    }
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    match arguments.command {
        Command::Serve(arguments) => serve::run(arguments, &interrupt),
        Command::Get(arguments) => gets::run(&arguments, &interrupt),
        Command::Put(arguments) => puts::run(&arguments, &interrupt),
        Command::Delete(arguments) => deletes::run(&arguments, &interrupt),
        Command::Scan(arguments) => scan::run(&arguments, &interrupt),
        Command::Load(arguments) => load::run(&arguments, &interrupt),
        Command::Dump(arguments) => dump::run(&arguments, &interrupt),
        Command::Snapshot(arguments) => snapshot::run(&arguments, &interrupt),
        Command::Stats(arguments) => stats::run(&arguments, &interrupt),
    }
}
