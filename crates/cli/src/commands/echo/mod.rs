//! `dunlin echo`: a server and a client between any two processes.

mod call;
mod serve;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use dunlin_serve::Interrupt;

/// Serve echoes, or call them, between any two processes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in two terminals:
  dunlin echo serve --at shm:echo
  dunlin echo call --at shm:echo

  dunlin echo serve --at udp://127.0.0.1:31850
  dunlin echo call --at udp://127.0.0.1:31850 --size 32 --window 60 --for 5s --stats")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Call(call::Arguments),
}

impl Arguments {
    /// Whether it is a server command.
    pub fn serves(&self) -> bool {
        matches!(self.command, Command::Serve(_))
    }
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    match arguments.command {
        Command::Serve(arguments) => serve::run(arguments, interrupt),
        Command::Call(arguments) => call::run(&arguments, &interrupt),
    }
}
