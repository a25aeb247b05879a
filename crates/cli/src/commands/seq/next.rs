//! `dunlin seq next`.

use std::process::ExitCode;

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use dunlin_seq::RUN_MAX;
use dunlin_serve::Interrupt;
use serde_json::json;

use super::client::{Target, ask};
use crate::output;

/// Draw numbers, and print each on a line
///
/// Each number is higher than all that anybody was given before this command asked for it. Exit code 2 if no sequencer
/// answered in time; what was printed until then counts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin seq next --at shm:seq
  dunlin seq next --at shm:seq --count 1000             a thousand, each asked for by itself
  dunlin seq next --at shm:seq --run 1000               first and last of a thousand in a row, in one request
  while read -r line; do echo \"$(dunlin seq next --at shm:seq) $line\"; done < log.txt")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// End after so many numbers, or runs
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    count: u64,
    /// Draw so many numbers in a row with each request, and print the first and the last
    #[arg(long, value_name = "NUMBER", value_parser = RangedU64ValueParser::<u32>::new().range(1..=u64::from(RUN_MAX)))]
    run: Option<u32>,
    /// Print JSON: each answer as one line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |_, client| {
        for _ in 0..arguments.count {
            let drawn = client.run(arguments.run.unwrap_or(1)).await?;
            let (first, last) = (drawn.start, drawn.end - 1);
            match (arguments.json, arguments.run) {
                (true, _) => output::line(json!({ "first": first, "last": last }))?,
                (false, None) => output::line(first)?,
                (false, Some(_)) => output::line(format_args!("{first} {last}"))?,
            }
        }
        Ok(())
    })
}
