//! `dunlin seq watch`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use dunlin_seq::wire::Info;
use dunlin_serve::Interrupt;
use serde_json::json;

use super::client::{Target, ask};
use crate::arguments::time::ordinary;
use crate::output;

/// Show how a sequencer hands out numbers, one line for each interval
///
/// Of several cores the first is asked, and of replicas the one that is asked first. The next number is that of all.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns: the next number, numbers drawn a second by all clients, requests a second of the core that is asked, and what is reserved.

Examples:
  dunlin seq watch --at shm:seq
  dunlin seq watch --at shm:seq --interval 200ms --count 10 --json")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Time between two lines
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = ordinary)]
    interval: Duration,
    /// End after so many lines
    #[arg(long, value_name = "NUMBER", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    count: Option<u64>,
    /// Print JSON: each interval as one line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |endpoint, client| {
        let mut before = (client.info().await?, Instant::now());
        let mut left = arguments.count.unwrap_or(u64::MAX);
        while left > 0 {
            endpoint.timers().sleep(arguments.interval).await;
            let now = (client.info().await?, Instant::now());
            show(arguments, &before, &now)?;
            before = now;
            left -= 1;
        }
        Ok(())
    })
}

fn show(arguments: &Arguments, (before, then): &(Info, Instant), (info, now): &(Info, Instant)) -> Result<()> {
    let seconds = (*now - *then).as_secs_f64().max(1e-9);
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
    let (numbers, requests) = (rate(before.next, info.next), rate(before.requests, info.requests));
    if arguments.json {
        output::line(json!({
            "next": info.next, "end": info.end, "numbers_per_second": numbers, "requests_per_second": requests,
            "serves": info.is_serving, "epoch": info.epoch,
        }))?;
        return Ok(());
    }
    let reserved =
        if info.is_serving { format!("up to {}", info.end) } else { "nothing: another one may serve".into() };
    output::line(format_args!("{:>20} {numbers:>12.0}/s {requests:>12.0} requests/s  {reserved}", info.next))?;
    Ok(())
}
