//! `dunlin seq next`.

use std::process::ExitCode;

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use dunlin_seq::RUN_MAX;
use dunlin_serve::Interrupt;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::json;

use super::client::{Target, ask};
use super::direct;
use crate::output;

/// Most askers: as many as may share a batch.
const ASKERS_MAX: u64 = 1024;

/// Draw numbers, and print each on a line
///
/// Each number is higher than all that anybody was given before this command asked for it. Exit code 2 if no sequencer
/// answered in time; what was printed until then counts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin seq next --at shm:seq
  dunlin seq next --at shm:seq -n 1000                  a thousand; askers that wait at the same time share requests
  dunlin seq next --at shm:seq -n 1000 --askers 1       a thousand, one request after the other
  dunlin seq next --at shm:seq --run 1000               first and last of a thousand in a row, in one request
  dunlin seq next --at shm:seq-s0 --direct -n 1000      a thousand by datagrams, from `dunlin seq serve --direct-at shm:seq-s0`
  while read -r line; do echo \"$(dunlin seq next --at shm:seq) $line\"; done < log.txt")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// End after so many numbers, or runs
    #[arg(short = 'n', long, value_name = "NUMBER", default_value = "1", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    count: u64,
    /// Draw so many numbers in a row with each request, and print the first and the last
    #[arg(long, value_name = "NUMBER", value_parser = RangedU64ValueParser::<u32>::new().range(1..=u64::from(RUN_MAX)))]
    run: Option<u32>,
    /// Ask for so many at the same time. They share requests, and their numbers are printed in order
    #[arg(long, value_name = "NUMBER", default_value = "256", value_parser = RangedU64ValueParser::<usize>::new().range(1..=ASKERS_MAX))]
    askers: usize,
    /// Ask by datagrams of four bytes of data each way (Spec-S0): --at is what the sequencer has as --direct-at. Numbers
    /// are printed as they come
    #[arg(long, conflicts_with = "run")]
    direct: bool,
    /// Print JSON: each answer as one line
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn show(&self, (first, last): (u64, u64)) -> Result<()> {
        match (self.json, self.run) {
            (true, _) => output::line(json!({ "first": first, "last": last }))?,
            (false, None) => output::line(first)?,
            (false, Some(_)) => output::line(format_args!("{first} {last}"))?,
        }
        Ok(())
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let Arguments { target, count, run, askers, .. } = arguments;
    if arguments.direct {
        return direct::draw(target, interrupt, *count, *askers, |number| arguments.show((number, number)));
    }
    ask(target, interrupt, async |_, client| {
        // One batch is in flight at a time, and serves its callers in order: so numbers come in order.
        let asks = (0..*count).map(|_| client.run(run.unwrap_or(1)));
        let mut answers = stream::iter(asks).buffered(*askers);
        while let Some(drawn) = answers.try_next().await? {
            arguments.show((drawn.start, drawn.end - 1))?;
        }
        Ok(())
    })
}
