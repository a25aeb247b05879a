//! `dunlin index serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use dunlin_index::service::{Saving, WORKERS_MAX};
use dunlin_index::snapshot::Saved;
use dunlin_index::{Server, ServerConfig};
use dunlin_net::Addr;
use dunlin_serve::{Interrupt, ServeConfig, addresses, notify, signals};

use crate::arguments::size::{bytes, human_bytes};
use crate::commands::kv::serve::{check_directory, clear_progress, show_progress};
use crate::commands::warn_of_exposure;
use crate::output;
use crate::settings::Source;

/// Interval at which the server is checked; signals and failures are noticed at once.
const LOOK: Duration = Duration::from_secs(1);
/// The same while a snapshot is saved.
const SAVING_LOOK: Duration = Duration::from_millis(50);

/// Serve an ordered index from memory, until ctrl-C
///
/// All cores share the index. They do look-ups, writes and short scans; worker threads do long scans and counts, so
/// that no look-up waits for them. SIGTERM and ctrl-C shut it down gracefully: requests in progress are answered, and
/// the snapshot is saved. A second signal ends it at once. SIGUSR1 saves the snapshot.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin index serve                               shm:index and udp://127.0.0.1:7730
  dunlin index serve --at shm:index --memory 4GiB --cores 2 --pin 0,1 --workers 2
  dunlin index serve --at shm:index --snapshot index.snapshot --metrics 127.0.0.1:9730")]
pub struct Arguments {
    /// Address of core 0: shm:NAME, udp://HOST:PORT, or one of each; port 0 takes a free one [default: shm:index and
    /// udp://127.0.0.1:7730]
    #[arg(long, value_name = "WHERE")]
    at: Vec<Addr>,
    /// Cores: each is a thread with an address of its own, and one port higher than the one before
    #[arg(long, value_name = "CORES", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=i64::from(ServeConfig::CORES_MAX)))]
    cores: u16,
    /// Processors to pin the cores to, one for each
    #[arg(long, value_name = "PROCESSORS", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Threads for long scans and counts, shared by all cores
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = RangedU64ValueParser::<u16>::new().range(1..=u64::from(WORKERS_MAX)))]
    workers: u16,
    /// Memory for items and nodes: 1GiB, 512MiB, 1000000. At the limit, items are refused
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = bytes)]
    memory: usize,
    /// Memory of each core for requests and answers beside the index, such as pages that a peer does not acknowledge.
    /// At the limit, requests are pushed back
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = bytes)]
    held: usize,
    /// Load the items from FILE if it exists; save them to it at the end, on SIGUSR1 and by `dunlin index snapshot`. One
    /// server at a time: it locks FILE.lock
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://HOST:PORT/metrics, and health at /healthz
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    _source: Source,
}

/// Runs the command.
pub fn run(mut arguments: Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    if let Some(path) = &arguments.snapshot {
        check_directory(path)?;
    }
    if arguments.at.is_empty() {
        arguments.at = vec!["shm:index".parse()?, "udp://127.0.0.1:7730".parse()?];
    }
    let Arguments { at, cores, pin, workers, memory, held, snapshot, metrics, _source } = arguments;
    let exposed = at.iter().filter(|address| addresses::is_exposed(address)).map(Addr::to_string);
    let metrics_exposed =
        metrics.filter(|address| !address.ip().is_loopback()).map(|address| format!("http://{address}"));
    exposed.chain(metrics_exposed).for_each(|address| warn_of_exposure(&address));
    let save = signals::on_user_signal(interrupt)?;
    let (held_bytes_max, interrupt_of) = (held as u64, interrupt.clone());
    let config = ServerConfig {
        listen: at,
        cores,
        pin,
        workers,
        memory_bytes: memory,
        held_bytes_max,
        snapshot,
        interrupt: interrupt_of,
    };
    let mut server = Server::start(config, show_progress)?;
    clear_progress();
    server.advice().iter().for_each(|advice| eprintln!("dunlin: {advice}"));
    let metrics = metrics.map(|address| server.serve_metrics(address)).transpose()?;
    output::line(ready_line(&server, memory, workers, metrics))?;
    notify::ready();
    let mut saving = None;
    // If a core has failed, stopping reports why.
    while !interrupt.is_set() && server.is_running() {
        if saving.is_none() && save.take() {
            match server.begin_save() {
                Ok(begun) => saving = Some(begun),
                Err(error) => eprintln!("dunlin: {error}"),
            }
        }
        // Not waited for: a hanging disk must not keep this thread from noticing a shutdown.
        if let Some(result) = saving.as_mut().and_then(Saving::poll) {
            saving = None;
            match result {
                Ok(saved) => eprintln!("dunlin: {}", saved_line(&saved)),
                Err(error) => eprintln!("dunlin: {error}"),
            }
        }
        interrupt.wait(if saving.is_some() { SAVING_LOOK } else { LOOK });
    }
    notify::stopping();
    if let Some(saved) = server.stop()? {
        output::line(saved_line(&saved))?;
    }
    output::line("ended")?;
    Ok(ExitCode::SUCCESS)
}

fn ready_line(server: &Server, memory: usize, workers: u16, metrics: Option<SocketAddr>) -> String {
    let places = server.addresses().iter().map(ToString::to_string);
    let metrics = metrics.map(|address| format!("metrics at http://{address}/metrics"));
    let places: Vec<String> = places.chain(metrics).collect();
    let many = |number: u16, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let loaded = server.loaded().map(|items| format!(", {items} items loaded")).unwrap_or_default();
    format!(
        "serving an index at {}; {}, {}, {}{loaded}; ctrl-C ends it",
        places.join(", "),
        many(server.cores(), "core"),
        many(workers, "worker"),
        human_bytes(memory as u64)
    )
}

fn saved_line(saved: &Saved) -> String {
    format!("snapshot saved: {} items, {}", saved.items, human_bytes(saved.file_bytes))
}
