//! `dunlin raft`: replicas of a key-value machine, and their clients.

mod adds;
pub mod backups;
pub mod cluster;
mod deletes;
mod figures;
mod gets;
pub mod home;
mod members;
mod moves;
mod puts;
mod removes;
pub mod replica;
pub mod restores;
mod serve;
mod status;
mod transfers;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use dunlin_serve::Interrupt;

/// A replicated key-value machine: its replicas, and their clients
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in four terminals:
  dunlin raft serve --id 1 --data r1 --peers 1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803 --new
  dunlin raft serve --id 2 --data r2 --peers 1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803 --new
  dunlin raft serve --id 3 --data r3 --peers 1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803 --new

  export DUNLIN_AT=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803
  dunlin raft put bird dunlin
  dunlin raft get bird
  dunlin raft status

Without --new when they are started again.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Put(puts::Arguments),
    Get(gets::Arguments),
    Del(deletes::Arguments),
    Status(status::Arguments),
    Add(adds::Arguments),
    Remove(removes::Arguments),
    Transfer(transfers::Arguments),
    Move(moves::Arguments),
    Backup(backups::Arguments),
    Restore(restores::Arguments),
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
        Command::Serve(arguments) => serve::run(&arguments, &interrupt),
        Command::Put(arguments) => puts::run(&arguments, &interrupt),
        Command::Get(arguments) => gets::run(&arguments, &interrupt),
        Command::Del(arguments) => deletes::run(&arguments, &interrupt),
        Command::Status(arguments) => status::run(&arguments, &interrupt),
        Command::Add(arguments) => adds::run(&arguments, &interrupt),
        Command::Remove(arguments) => removes::run(&arguments, &interrupt),
        Command::Transfer(arguments) => transfers::run(&arguments, &interrupt),
        Command::Move(arguments) => moves::run(&arguments, &interrupt),
        Command::Backup(arguments) => backups::run(&arguments, &interrupt),
        Command::Restore(arguments) => restores::run(&arguments),
    }
}
