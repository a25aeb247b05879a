//! `dunlin kv cluster`: servers that hold replicas, and their clients.

mod deletes;
mod gets;
mod mgets;
mod new_ids;
mod opens;
mod place;
mod policy;
mod refills;
mod serve;
mod sets;
mod status;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use dunlin_serve::Interrupt;

pub use place::{ClusterPlace, EntryArguments, connect};
pub use policy::PolicyArgument;

/// Several servers with replicas of each key
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples. shop.toml:
  name = \"shop\"
  id = \"3f0c7d9a51e84b26\"      drawn by dunlin kv cluster new-id
  replicas = 2
  [servers]
  a = \"udp://127.0.0.1:7711\"
  b = \"udp://127.0.0.1:7712\"
  c = \"udp://127.0.0.1:7713\"

In three terminals, with --new the first time only:
  dunlin kv cluster serve a --servers file:shop.toml --new
  dunlin kv cluster serve b --servers file:shop.toml --new
  dunlin kv cluster serve c --servers file:shop.toml --new

  export DUNLIN_AT=file:shop.toml
  dunlin kv cluster set bird dunlin
  dunlin kv cluster mget bird fish --timeline
  dunlin kv cluster status
  dunlin kv cluster refill b                     b was restarted: fill it from the others, then read from it
  dunlin kv proxy --servers file:shop.toml       a port for memcached clients")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Arguments>),
    Status(status::Arguments),
    Get(gets::Arguments),
    Mget(mgets::Arguments),
    Set(sets::Arguments),
    Del(deletes::Arguments),
    Refill(refills::Arguments),
    Open(opens::Arguments),
    NewId(new_ids::Arguments),
}

impl Arguments {
    /// Whether it is a server command.
    pub fn serves(&self) -> bool {
        matches!(self.command, Command::Serve(_))
    }
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    match arguments.command {
        Command::Serve(arguments) => serve::run(*arguments, interrupt),
        Command::Status(arguments) => status::run(&arguments),
        Command::Get(arguments) => gets::run(&arguments),
        Command::Mget(arguments) => mgets::run(&arguments),
        Command::Set(arguments) => sets::run(&arguments),
        Command::Del(arguments) => deletes::run(&arguments),
        Command::Refill(arguments) => refills::run(&arguments),
        Command::Open(arguments) => opens::run(&arguments),
        Command::NewId(arguments) => new_ids::run(&arguments),
    }
}
