//! The `dunlin` command. Each subcommand is one file under `commands`.
#![forbid(unsafe_code)]

mod arguments;
#[cfg(feature = "bench")]
mod capture;
mod commands;
mod exit;
mod log;
mod output;
#[cfg(feature = "bench")]
mod reports;
mod settings;

use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use tracing::level_filters::LevelFilter;

use crate::log::Log;
use crate::settings::{Parsed, Refusal};

/// What the commands are for, and examples.
const HELP: &str = "\
Services: kv, index, raft, coord, seq, txn. Observation: top, echo. Lab: demo, bench, sim. For shells: completions, man.

Examples:
  dunlin demo                                 see what it does on this machine, in half a minute
  dunlin echo serve --at shm:echo             an echo server; call it with: dunlin echo call --at shm:echo
  dunlin kv serve                             a key-value server, for memcached clients too
  dunlin raft serve --help                    a replicated one, that outlives its machines
  dunlin index serve                          an ordered index, which can be scanned
  dunlin coord serve --help                   the cluster manager: who is there, who holds what
  dunlin seq serve --at shm:seq               a sequencer: increasing numbers for many clients
  dunlin txn serve --help                     transactions over replicated tables in memory
  dunlin bench run rpc-latency                repeat one experiment of the papers";

/// Datacenter RPC over plain datagrams: shared memory within a host, UDP between hosts.
#[derive(Debug, Parser)]
#[command(
    name = "dunlin",
    version,
    propagate_version = true,
    after_help = HELP
)]
struct Arguments {
    #[command(flatten)]
    log: Log,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Kv(commands::kv::Arguments),
    Index(commands::index::Arguments),
    Raft(commands::raft::Arguments),
    Coord(commands::coord::Arguments),
    Seq(commands::seq::Arguments),
    Txn(commands::txn::Arguments),
    Top(commands::top::Arguments),
    #[cfg(feature = "bench")]
    Echo(commands::echo::Arguments),
    #[cfg(feature = "bench")]
    Demo(commands::demo::Arguments),
    #[cfg(feature = "bench")]
    Bench(commands::bench::Arguments),
    #[cfg(feature = "bench")]
    Sim(commands::sim::Arguments),
    Completions(commands::completions::Arguments),
    Man(commands::man::Arguments),
}

fn main() -> ExitCode {
    #[cfg(feature = "bench")]
    if std::env::args_os().nth(1).is_some_and(|first| first == dunlin_lab::peer::ARGUMENT) {
        return dunlin_bench::experiments::serve_peer();
    }
    let done = match settings::parse(std::env::args_os().collect()) {
        Ok(Parsed::Run(arguments)) => run(arguments),
        Ok(Parsed::Print(text)) => output::line(text.trim_end()).map(|()| ExitCode::SUCCESS).map_err(Into::into),
        Err(refusal) => return refuse(&refusal),
    };
    done.unwrap_or_else(|error| output::report(&error, ExitCode::from(exit::FAILED)))
}

/// Prints an argument error in one line; prints help and version as they are.
fn refuse(refusal: &Refusal) -> ExitCode {
    let (error, file) = match refusal {
        Refusal::Arguments { error, file } => (error, file),
        Refusal::File(error) => {
            eprintln!("dunlin: {error}");
            return ExitCode::from(exit::FAILED);
        }
    };
    let asked_for = !error.use_stderr();
    if asked_for || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // If it cannot be printed, nothing can be done.
        let _ = error.print();
        return if asked_for { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) };
    }
    let with = file.as_ref().map(|file| format!(" with the settings of {}", file.display())).unwrap_or_default();
    eprintln!("dunlin: {}{with}; try --help", settings::what(error));
    ExitCode::from(exit::FAILED)
}

/// The default log level of a command: servers log what an operator must know, simulations nothing, others what is
/// broken.
fn default_level(command: &Command) -> LevelFilter {
    match command {
        #[cfg(feature = "bench")]
        Command::Echo(arguments) if arguments.serves() => LevelFilter::WARN,
        Command::Kv(arguments) if arguments.serves() => LevelFilter::WARN,
        Command::Index(arguments) if arguments.serves() => LevelFilter::WARN,
        Command::Raft(arguments) if arguments.serves() => LevelFilter::WARN,
        Command::Coord(arguments) if arguments.serves() => LevelFilter::WARN,
        Command::Seq(arguments) if arguments.serves() => LevelFilter::WARN,
        Command::Txn(arguments) if arguments.serves() => LevelFilter::WARN,
        Command::Coord(arguments) if arguments.watches() => LevelFilter::INFO,
        // Its faults are intentional.
        #[cfg(feature = "bench")]
        Command::Sim(_) => LevelFilter::OFF,
        _ => LevelFilter::ERROR,
    }
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    arguments.log.init(default_level(&arguments.command));
    let interrupt = dunlin_serve::signals::install()?;
    match arguments.command {
        #[cfg(feature = "bench")]
        Command::Demo(arguments) => commands::demo::run(arguments, interrupt),
        #[cfg(feature = "bench")]
        Command::Echo(arguments) => commands::echo::run(arguments, interrupt),
        Command::Kv(arguments) => commands::kv::run(arguments, interrupt),
        Command::Index(arguments) => commands::index::run(arguments, interrupt),
        Command::Raft(arguments) => commands::raft::run(arguments, interrupt),
        Command::Coord(arguments) => commands::coord::run(arguments, interrupt),
        Command::Seq(arguments) => commands::seq::run(arguments, interrupt),
        Command::Txn(arguments) => commands::txn::run(arguments, interrupt),
        Command::Top(arguments) => commands::top::run(arguments, interrupt),
        #[cfg(feature = "bench")]
        Command::Bench(arguments) => commands::bench::run(arguments, interrupt),
        #[cfg(feature = "bench")]
        Command::Sim(arguments) => commands::sim::run(arguments, interrupt),
        Command::Completions(arguments) => commands::completions::run::<Arguments>(&arguments),
        Command::Man(arguments) => commands::man::run::<Arguments>(&arguments),
    }
}

#[cfg(test)]
mod grammar;
