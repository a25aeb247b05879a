//! `dunlin txn`: nodes of a transaction service, and their clients.

mod client;
mod deletes;
mod gets;
mod puts;
mod scan_table;
mod serve;
mod shell;
mod status;
mod table;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use dunlin_serve::Interrupt;

/// Transactions over replicated tables in memory: their nodes, and their clients
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in five terminals: a cluster manager, and three nodes that it keeps together.
  dunlin coord serve --id 1 --volatile --new --peers 1=udp://127.0.0.1:7901
  dunlin txn serve --member 1 --at udp://127.0.0.1:7911 --coord 1=udp://127.0.0.1:7901
  dunlin txn serve --member 2 --at udp://127.0.0.1:7921 --coord 1=udp://127.0.0.1:7901
  dunlin txn serve --member 3 --at udp://127.0.0.1:7931 --coord 1=udp://127.0.0.1:7901

  export DUNLIN_AT=udp://127.0.0.1:7911          any node: it tells where the others are
  dunlin txn table create accounts --replicas 3
  dunlin txn put accounts alice 100
  dunlin txn get accounts alice
  dunlin txn shell
  dunlin txn status")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Table(table::Arguments),
    Get(gets::Arguments),
    Put(puts::Arguments),
    Delete(deletes::Arguments),
    ScanTable(scan_table::Arguments),
    Shell(shell::Arguments),
    Status(status::Arguments),
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
        Command::Serve(arguments) => serve::run(arguments, interrupt),
        Command::Table(arguments) => table::run(&arguments, &interrupt),
        Command::Get(arguments) => gets::run(&arguments, &interrupt),
        Command::Put(arguments) => puts::run(&arguments, &interrupt),
        Command::Delete(arguments) => deletes::run(&arguments, &interrupt),
        Command::ScanTable(arguments) => scan_table::run(&arguments, &interrupt),
        Command::Shell(arguments) => shell::run(&arguments, &interrupt),
        Command::Status(arguments) => status::run(&arguments, &interrupt),
    }
}
