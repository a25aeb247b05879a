//! `dunlin top`: a running key-value server, ordered index or node of a transaction service, live.
//!
//! | File | What it holds |
//! |---|---|
//! | `poll` | polls the server |
//! | `figures` | changes between two answers |
//! | `screen`, `view` | the content of the screen, and its drawing |
//! | `kv`, `index`, `txn` | what is asked of each server, and how it is shown |
//! | `terminal` | the full screen, keys, and restoring the terminal |
//! | `lines` | one line per interval, for pipes |

mod figures;
pub mod human;
mod index;
mod kv;
mod lines;
pub mod poll;
mod screen;
mod terminal;
mod txn;
mod view;

use std::io::{IsTerminal, stdout};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use dunlin_kv::metrics::ServerStats;
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::Endpoint;
use dunlin_serve::Interrupt;
use dunlin_txn::node::NodeStats;
use ratatui::Frame;

use crate::arguments::at::At;
use crate::arguments::time::ordinary;
use crate::output;
use lines::Column;
use poll::Poller;
use screen::Screen;

/// Watch a running key-value server, ordered index or node of transactions: rates, latency, memory, sessions
///
/// It asks once which of these the server is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
On a terminal it fills the screen; p pauses, q quits. Anywhere else it prints one line per interval. It goes on when the server is started again.

Examples:
  dunlin top --at shm:kv
  dunlin top --at shm:index
  dunlin top --at udp://127.0.0.1:7911               a node of dunlin txn serve; the whole service: dunlin txn status
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

/// What a server tells about itself, and how that is shown.
pub trait Watched: Sized + Send + 'static {
    /// The changes between two looks, of the server or of a core.
    type Figures;
    /// What asks for it.
    type Client;
    /// Why there is no answer.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Makes a client.
    fn client(endpoint: &Rc<Endpoint<AnyTransport>>, server: &Addr) -> Self::Client;

    /// Asks the server.
    fn ask(client: &Self::Client) -> impl Future<Output = Result<Self, Self::Error>>;

    /// Whether both are of one run of the server.
    fn is_same_process(&self, before: &Self) -> bool;

    /// The figures of the whole server; `None` if the two samples are not of one run, or too close together.
    fn figures(&self, before: &Self) -> Option<Self::Figures>;

    /// The figures of each core.
    fn figures_of_cores(&self, before: &Self) -> Vec<Self::Figures>;

    /// Operations per second.
    fn rate(figures: &Self::Figures) -> f64;

    /// The columns of a line.
    fn columns() -> &'static [Column<Self::Figures>];

    /// Draws the screen, in any size.
    fn draw(frame: &mut Frame<'_>, screen: &Screen<Self>);
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    let server = arguments.at.server()?;
    // A server that has no handler for such a question says so at once.
    if Poller::<dunlin_index::ServerStats>::new(server)?.ask().is_ok() {
        watch::<dunlin_index::ServerStats>(server, &arguments, &interrupt)
    } else if Poller::<NodeStats>::new(server)?.ask().is_ok() {
        watch::<NodeStats>(server, &arguments, &interrupt)
    } else {
        watch::<ServerStats>(server, &arguments, &interrupt)
    }
}

fn watch<W: Watched>(server: &Addr, arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let poller = Poller::<W>::new(server)?;
    if arguments.lines || arguments.json || !stdout().is_terminal() {
        print_lines(server, &poller, arguments, interrupt)?;
    } else {
        let screen = Screen::<W>::new(server.to_string());
        terminal::show(server, screen, arguments.interval, arguments.count, interrupt)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a line for each interval. Fails if the server does not answer the first time: a pipe would wait for ever.
fn print_lines<W: Watched>(
    server: &Addr,
    poller: &Poller<W>,
    arguments: &Arguments,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut before = poller.ask().with_context(|| format!("no statistics from {server}"))?;
    let mut left = arguments.count.map(NonZeroU64::get);
    if !arguments.json {
        output::line(lines::heading::<W>())?;
    }
    while left != Some(0) && poller.wait(arguments.interval, interrupt) {
        match poller.ask() {
            Err(error) => eprintln!("dunlin: {error}; asking again"),
            Ok(now) => {
                match now.figures(&before) {
                    Some(figures) if arguments.json => output::line(lines::as_json::<W>(&figures))?,
                    Some(figures) => output::line(lines::interval::<W>(&figures))?,
                    None if now.is_same_process(&before) => {}
                    None => eprintln!("dunlin: the server was started again"),
                }
                before = now;
            }
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
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
