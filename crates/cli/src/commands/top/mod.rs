//! `dunlin top`: a running key-value server, live.
//!
//! | File | What it holds |
//! |---|---|
//! | `poll` | polls the server |
//! | `figures` | changes between two answers |
//! | `screen`, `view` | the content of the screen, and its drawing |
//! | `terminal` | the full screen, keys, and restoring the terminal |
//! | `lines` | one line per interval, for pipes |

mod figures;
pub mod human;
mod lines;
pub mod poll;
mod screen;
mod terminal;
mod view;

use std::io::{IsTerminal, stdout};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use dunlin_kv::metrics::ServerStats;
use dunlin_net::Addr;
use dunlin_serve::Interrupt;

use crate::arguments::at::At;
use crate::arguments::time::ordinary;
use crate::output;
use figures::Figures;
use poll::Poller;
use screen::Screen;

/// Watch a running key-value server: rates, hit ratio, latency, memory, sessions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
On a terminal it fills the screen; p pauses, q quits. Anywhere else it prints one line per interval. It goes on when the server is started again.

Examples:
  dunlin top --at shm:kv
  dunlin top --at udp://127.0.0.1:7700 --interval 200ms
  dunlin top --at shm:kv --count 60 > minute.txt     one line each second, for a minute
  dunlin top --at shm:kv | awk '$1 > 1000000'")]
pub struct Arguments {
    #[command(flatten)]
    at: At,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = ordinary)]
    interval: Duration,
    /// End after so many intervals
    #[arg(long, value_name = "NUMBER", value_parser = intervals)]
    count: Option<NonZeroU64>,
    /// Print lines even on a terminal
    #[arg(long)]
    lines: bool,
    /// Print JSON: each interval as one line
    #[arg(long)]
    json: bool,
}

fn intervals(text: &str) -> Result<NonZeroU64, String> {
    text.parse().map_err(|_| "give a number of intervals, 1 or more".into())
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    let server = arguments.at.server()?;
    let poller = Poller::new(server)?;
    if arguments.lines || arguments.json || !stdout().is_terminal() {
        print_lines(server, &poller, &arguments, &interrupt)?;
    } else {
        let screen = Screen::new(server.to_string());
        terminal::show(server, screen, arguments.interval, arguments.count, &interrupt)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a line for each interval. Fails if the server does not answer the first time: a pipe would wait for ever.
fn print_lines(server: &Addr, poller: &Poller, arguments: &Arguments, interrupt: &Interrupt) -> Result<()> {
    let mut before = poller.ask().with_context(|| format!("no statistics from {server}"))?;
    let mut left = arguments.count.map(NonZeroU64::get);
    if !arguments.json {
        output::line(lines::heading())?;
    }
    while left != Some(0) && poller.wait(arguments.interval, interrupt) {
        match poller.ask() {
            Err(error) => eprintln!("dunlin: {error}; asking again"),
            Ok(now) => {
                match Figures::of_server(&now, &before) {
                    Some(figures) if arguments.json => output::line(lines::as_json(&figures))?,
                    Some(figures) => output::line(lines::interval(&figures))?,
                    None => report_restart(&now, &before),
                }
                before = now;
            }
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

fn report_restart(now: &ServerStats, before: &ServerStats) {
    if !now.is_same_process(before) {
        eprintln!("dunlin: the server was started again");
    }
}

#[cfg(test)]
mod tests {
    use dunlin_kv::metrics::{CoreMetrics, CoreStats, Operation, Outcome, ServerStats};

    /// A server of two cores after this many gets on each, a tenth of them misses.
    pub fn server(uptime_micros: u64, gets: u64) -> ServerStats {
        server_with(7, uptime_micros, gets)
    }

    /// The same, of another process.
    pub fn server_with(process: u32, uptime_micros: u64, gets: u64) -> ServerStats {
        let mut metrics = CoreMetrics::default();
        metrics.count_many(Operation::Get, Outcome::Hit, gets - gets / 10);
        metrics.count_many(Operation::Get, Outcome::Miss, gets / 10);
        metrics.latency(Operation::Get, 1_500, gets);
        let mut core = CoreStats::default();
        core.operations = metrics.operations().collect();
        core.store.items = gets;
        core.store.memory_bytes = 4 << 20;
        core.store.memory_bytes_max = 1 << 30;
        core.connections.open = 3;
        core.endpoint.sessions = 2;
        let mut stats = ServerStats::new("cache", 1_800_000_000, uptime_micros, vec![core.clone(), core]);
        stats.process = process;
        stats
    }
}
