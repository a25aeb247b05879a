//! `dunlin kv`: a key-value server, and its clients.

mod client;
mod cluster;
mod deletes;
pub mod dump;
mod gets;
pub mod load;
mod mgets;
mod proxy;
pub mod serve;
mod sets;
mod snapshot;
mod stats;
mod tier;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use dunlin_serve::Interrupt;

/// A key-value server in memory, and its clients
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in two terminals:
  dunlin kv serve --at shm:kv --at udp://127.0.0.1:7700 --memcached tcp://127.0.0.1:11211

  export DUNLIN_AT=shm:kv
  dunlin kv set bird dunlin
  dunlin kv get bird
  dunlin kv mget bird fish --at udp://127.0.0.1:7700
  dunlin kv load words.tsv
  dunlin kv stats

Several servers with replicas: dunlin kv cluster --help. For memcached clients: dunlin kv proxy --help.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Arguments>),
    Get(gets::Arguments),
    Set(sets::Arguments),
    Del(deletes::Arguments),
    Mget(mgets::Arguments),
    Snapshot(snapshot::Arguments),
    Load(load::Arguments),
    Dump(dump::Arguments),
    Stats(stats::Arguments),
    Cluster(cluster::Arguments),
    Proxy(proxy::Arguments),
}

impl Arguments {
    /// Whether it is a server command.
    pub fn serves(&self) -> bool {
        match &self.command {
            Command::Cluster(arguments) => arguments.serves(),
            command => matches!(command, Command::Serve(_) | Command::Proxy(_)),
        }
    }
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    match arguments.command {
        Command::Serve(arguments) => serve::run(*arguments, &interrupt),
        Command::Get(arguments) => gets::run(&arguments),
        Command::Set(arguments) => sets::run(&arguments),
        Command::Del(arguments) => deletes::run(&arguments),
        Command::Mget(arguments) => mgets::run(&arguments),
        Command::Snapshot(arguments) => snapshot::run(&arguments),
        Command::Dump(arguments) => dump::run(&arguments, &interrupt),
        Command::Load(arguments) => load::run(&arguments, &interrupt),
        Command::Stats(arguments) => stats::run(&arguments),
        Command::Cluster(arguments) => cluster::run(arguments, &interrupt),
        Command::Proxy(arguments) => proxy::run(&arguments, &interrupt),
    }
}
