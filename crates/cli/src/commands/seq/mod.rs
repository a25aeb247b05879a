//! `dunlin seq`: sequencers, and their clients.

mod client;
mod direct;
mod figures;
mod next;
pub mod office;
mod replica;
mod serve;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use dunlin_serve::Interrupt;

/// A sequencer, which hands out increasing numbers, and its clients
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in two terminals:
  dunlin seq serve --at shm:seq
  dunlin seq next --at shm:seq --count 3
  dunlin seq watch --at shm:seq

Numbers of `serve` begin anew when it is started again, unless it has --coord. Those of replicas never come twice, whatever is killed:
  export DUNLIN_AT=1=udp://127.0.0.1:7821,2=udp://127.0.0.1:7822,3=udp://127.0.0.1:7823
  for id in 1 2 3; do dunlin seq serve --replicated --id $id --data q$id --peers $DUNLIN_AT --new & done
  dunlin seq next")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Arguments>),
    Next(next::Arguments),
    Watch(watch::Arguments),
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
        Command::Serve(arguments) => serve::run(*arguments, interrupt),
        Command::Next(arguments) => next::run(&arguments, &interrupt),
        Command::Watch(arguments) => watch::run(&arguments, &interrupt),
    }
}
