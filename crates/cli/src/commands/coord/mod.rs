//! `dunlin coord`: nodes of the cluster manager, and their clients.

mod asks;
mod backups;
mod deletes;
mod epochs;
mod forgets;
mod gets;
mod joins;
pub mod manager;
mod releases;
pub mod restores;
mod serve;
mod sets;
mod status;
mod transacts;
mod watch;
mod watchman;

#[cfg(not(feature = "etcd"))]
pub use asks::without_etcd;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use dunlin_serve::Interrupt;

/// The cluster manager: its nodes, and their clients
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in four terminals:
  dunlin coord serve --id 1 --data c1 --peers 1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903 --new
  dunlin coord serve --id 2 --data c2 --peers 1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903 --new
  dunlin coord serve --id 3 --data c3 --peers 1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903 --new

  export DUNLIN_AT=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903
  dunlin coord join 7 --lease /locks/a &
  dunlin coord status
  dunlin coord watch

On an etcd that is there already: dunlin coord watchman --at http://127.0.0.1:2379, and the same --at in the others.

Without --new when they are started again.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Watchman(watchman::Arguments),
    Status(status::Arguments),
    Watch(watch::Arguments),
    Join(joins::Arguments),
    Forget(forgets::Arguments),
    Release(releases::Arguments),
    Epochs(epochs::Arguments),
    Get(gets::Arguments),
    Set(sets::Arguments),
    Del(deletes::Arguments),
    Txn(transacts::Arguments),
    Backup(backups::Arguments),
    Restore(restores::Arguments),
}

impl Arguments {
    /// Whether it is a server command.
    pub fn serves(&self) -> bool {
        matches!(self.command, Command::Serve(_))
    }

    /// Whether it runs a watchman for an etcd.
    pub fn watches(&self) -> bool {
        matches!(self.command, Command::Watchman(_))
    }
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments, &interrupt),
        Command::Watchman(arguments) => watchman::run(&arguments, &interrupt),
        Command::Status(arguments) => status::run(&arguments, &interrupt),
        Command::Watch(arguments) => watch::run(&arguments, &interrupt),
        Command::Join(arguments) => joins::run(&arguments, &interrupt),
        Command::Forget(arguments) => forgets::run(&arguments, &interrupt),
        Command::Release(arguments) => releases::run(&arguments, &interrupt),
        Command::Epochs(arguments) => epochs::run(&arguments, &interrupt),
        Command::Get(arguments) => gets::run(&arguments, &interrupt),
        Command::Set(arguments) => sets::run(&arguments, &interrupt),
        Command::Del(arguments) => deletes::run(&arguments, &interrupt),
        Command::Txn(arguments) => transacts::run(&arguments, &interrupt),
        Command::Backup(arguments) => backups::run(&arguments, &interrupt),
        Command::Restore(arguments) => restores::run(&arguments),
    }
}
