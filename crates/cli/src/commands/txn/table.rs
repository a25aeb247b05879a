//! `dunlin txn table`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use clap::builder::RangedU64ValueParser;
use dunlin_serve::Interrupt;
use dunlin_txn::node::Wanted;
use dunlin_txn::{Keys, Table};
use serde_json::json;

use super::client::{Outcome, Target, ask};
use crate::output;

/// Make tables, and list them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin txn table create --at udp://127.0.0.1:7911 accounts --replicas 3
  dunlin txn table list --at udp://127.0.0.1:7911")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(Create),
    List(List),
}

/// Make a table
///
/// All tables share the partitions of the service: each partition has some keys of each table. The first table decides
/// how many partitions there are, and how many copies each has. Exit code 2 if it was refused, 4 if nobody knows.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin txn table create --at udp://127.0.0.1:7911 accounts --replicas 3
  dunlin txn table create --at udp://127.0.0.1:7911 accounts --replicas 3 --partitions 64
  dunlin txn table create --at udp://127.0.0.1:7911 birds --ordered                  for range reads; in one partition
  dunlin txn table create --at udp://127.0.0.1:7911 birds --ordered --split h,q      three parts: up to h, up to q, and the rest")]
struct Create {
    #[command(flatten)]
    target: Target,
    /// Its name: up to 64 letters, digits, `-`, `_` and `.`
    name: String,
    /// Copies of each partition, on nodes of their own; 3, or as many as there are nodes. Fixed with the first table
    #[arg(long, value_name = "NUMBER", value_parser = RangedU64ValueParser::<u64>::new().range(1..=7))]
    replicas: Option<u64>,
    /// Partitions of the service; 8 for each core. Fixed with the first table
    #[arg(long, value_name = "NUMBER", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1024))]
    partitions: Option<u64>,
    /// Keep the keys in order, for range reads
    #[arg(long)]
    ordered: bool,
    /// Where one part of an ordered table ends and the next begins: keys in ascending order
    #[arg(long, value_name = "KEY", value_delimiter = ',', requires = "ordered")]
    split: Vec<String>,
}

/// List the tables
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin txn table list --at udp://127.0.0.1:7911
  dunlin txn table list --at udp://127.0.0.1:7911 --json")]
struct List {
    #[command(flatten)]
    target: Target,
    /// Print JSON: each table as one line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    match &arguments.command {
        Command::Create(arguments) => create(arguments, interrupt),
        Command::List(arguments) => list(arguments, interrupt),
    }
}

fn create(arguments: &Create, interrupt: &Interrupt) -> Result<ExitCode> {
    let Create { target, name, replicas, partitions, ordered, split } = arguments;
    let table = if *ordered { Table::ordered(name, split) } else { Table::hashed(name) };
    let number = |number: &Option<u64>| number.map(|number| number as usize);
    let wanted = Wanted { table, replicas: number(replicas), partitions: number(partitions) };
    ask(target, interrupt, async |_, remote| {
        remote.create_table(wanted).await?;
        let configuration = remote.configuration();
        let (partitions, replicas) = (configuration.partitions.len(), configuration.replicas);
        output::line(format_args!("{name}: {partitions} partitions, {replicas} copies of each"))?;
        Ok(Outcome::Done)
    })
}

fn list(arguments: &List, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |_, remote| {
        for Table { name, keys } in &remote.configuration().tables {
            let splits = match keys {
                Keys::Hashed => None,
                Keys::Ordered { splits } => {
                    Some(splits.iter().map(|split| split.escape_ascii().to_string()).collect::<Vec<_>>())
                }
            };
            match (arguments.json, splits) {
                (true, splits) => output::line(
                    json!({ "name": name, "ordered": splits.is_some(), "splits": splits.unwrap_or_default() }),
                )?,
                (false, None) => output::line(name)?,
                (false, Some(splits)) if splits.is_empty() => output::line(format_args!("{name}  ordered"))?,
                (false, Some(splits)) => {
                    output::line(format_args!("{name}  ordered, split at {}", splits.join(", ")))?;
                }
            }
        }
        Ok(Outcome::Done)
    })
}
