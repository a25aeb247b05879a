//! `dunlin kv serve`.

use std::fs::{self, File};
use std::io::{IsTerminal, stderr};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dunlin_kv::memcached::{LOOK_DEFAULT, Listen};
use dunlin_kv::server::{
    CONNECTIONS_MAX_DEFAULT, IDLE_MAX_DEFAULT, Server, ServerConfig, SnapshotSaving, exposed_addresses,
};
use dunlin_net::Addr;
use dunlin_serve::{Interrupt, limits, notify, signals};
use dunlin_store::snapshot::{Progress, Report};
use dunlin_store::{KeyFunction, Mode};

use crate::arguments::size::{bytes, human_bytes};
use crate::arguments::time::{Human, SPIN, human};
use crate::commands::kv::tier::TierArguments;
use crate::commands::warn_of_exposure;
use crate::output;
use crate::settings::Source;

/// Interval at which the server is checked; signals and failures are noticed at once.
const LOOK: Duration = Duration::from_secs(1);
/// The same while a snapshot is saved.
const SAVING_LOOK: Duration = Duration::from_millis(50);
/// File descriptors besides those of memcached connections: per core, and per process.
const DESCRIPTORS_PER_CORE: u64 = 16;
const DESCRIPTORS_SPARE: u64 = 128;
/// How long memcached connections may be idle.
const IDLE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(u32::MAX as u64);

/// Serve keys and values from memory, until ctrl-C
///
/// SIGTERM and ctrl-C shut it down gracefully: requests in progress are answered, and the snapshot is saved. A second
/// signal ends it at once. SIGUSR1 saves the snapshot.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv serve                                   shm:kv, udp://127.0.0.1:7700 and tcp://127.0.0.1:11211
  dunlin kv serve --at shm:kv --memory 4GiB --cores 2 --pin 0,1
  dunlin kv serve --at udp://127.0.0.1:7700 --memcached unix:/run/user/1000/kv.sock
  dunlin kv serve --mode store --snapshot kv.snapshot --metrics 127.0.0.1:9700
  dunlin kv serve --memory 4GiB --tier /var/lib/dunlin/kv.tier --tier-size 64GiB")]
pub struct Arguments {
    /// Address of core 0 for Dunlin clients: shm:NAME, udp://HOST:PORT, or one of each [default: shm:kv and
    /// udp://127.0.0.1:7700]
    #[arg(long, value_name = "WHERE")]
    at: Vec<Addr>,
    /// Where memcached clients connect: tcp://HOST:PORT or unix:PATH, any number [default: tcp://127.0.0.1:11211,
    /// unless --at is given]
    #[arg(long, value_name = "ADDRESS")]
    memcached: Vec<Listen>,
    /// Memcached connections at a time
    #[arg(long, value_name = "CONNECTIONS", default_value_t = CONNECTIONS_MAX_DEFAULT, value_parser = connections)]
    connections: usize,
    /// Memory that memcached connections of all cores may use together, besides --memory, for incomplete commands and
    /// unread answers; at least 8MiB for each core
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = bytes)]
    connection_memory: usize,
    /// Time without a command after which a memcached connection is closed; 0 for never
    #[arg(long, value_name = "TIME", default_value_t = Human(IDLE_MAX_DEFAULT), value_parser = human(IDLE))]
    idle: Human,
    /// How long a core goes on looking at its memcached connections before it sleeps, while commands follow each other
    /// that closely; 0 for never
    #[arg(long, value_name = "TIME", default_value_t = Human(LOOK_DEFAULT), value_parser = human(SPIN))]
    spin: Human,
    /// Memory for items, index included, of all cores together: 1GiB, 512MiB, 1000000
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = bytes)]
    memory: usize,
    /// Memory of each core, besides --memory, for requests of Dunlin clients and answers that they have not received; one
    /// host has half of it at most. At the limit requests are pushed back, and answers that have no room fail
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = bytes)]
    held: usize,
    /// Cores: each is a thread with a share of the keys and of the memory
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    cores: u16,
    /// CPUs to pin the cores to, one for each
    #[arg(long, value_name = "PROCESSORS", value_delimiter = ',')]
    pin: Vec<usize>,
    /// What happens when the memory is full: a cache drops items, a store refuses them
    #[arg(long, default_value = "cache")]
    mode: ModeArgument,
    /// Hash function of keys, under a random secret: use siphash if clients may try to learn the secret from response
    /// times
    #[arg(long, default_value = "multilinear")]
    hash: HashArgument,
    /// Load the items from FILE if it exists; save them to it at the end, on SIGUSR1 and by `dunlin kv snapshot`. One
    /// server at a time: it locks FILE.lock
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://HOST:PORT/metrics
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    _source: Source,
    // Last: its heading is that of all options after it.
    #[command(flatten)]
    tier: TierArguments,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum ModeArgument {
    Cache,
    Store,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum HashArgument {
    Multilinear,
    Siphash,
}

fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => {
            Err("nobody could connect: give 1 or more, or --at without --memcached for no memcached clients".into())
        }
        Ok(connections) => Ok(connections),
        Err(_) => Err("not a number of connections".into()),
    }
}

impl Arguments {
    fn config(&self) -> Result<ServerConfig> {
        let mut config = ServerConfig::default();
        let nothing_named = self.at.is_empty() && self.memcached.is_empty();
        config.listen.clone_from(&self.at);
        config.memcached.clone_from(&self.memcached);
        if self.at.is_empty() {
            config.listen = vec!["shm:kv".parse()?, "udp://127.0.0.1:7700".parse()?];
        }
        if nothing_named {
            config.memcached = vec!["tcp://127.0.0.1:11211".parse()?];
        }
        config.connections_max = self.connections;
        config.connection_memory_bytes = self.connection_memory;
        config.idle_max = (!self.idle.0.is_zero()).then_some(self.idle.0);
        config.look = self.spin.0;
        config.memory_bytes = self.memory;
        config.held_bytes_max = self.held as u64;
        config.cores = self.cores;
        config.pin.clone_from(&self.pin);
        config.mode = match self.mode {
            ModeArgument::Cache => Mode::Cache,
            ModeArgument::Store => Mode::Store,
        };
        config.key_function = match self.hash {
            HashArgument::Multilinear => KeyFunction::Multilinear,
            HashArgument::Siphash => KeyFunction::SipHash,
        };
        config.snapshot.clone_from(&self.snapshot);
        config.tier = self.tier.settings(self.memory)?;
        config.schedule = self.tier.schedule()?;
        Ok(config)
    }
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let mut config = arguments.config()?;
    if let Some(path) = &config.snapshot {
        check_directory(path)?;
    }
    let metrics =
        arguments.metrics.filter(|address| !address.ip().is_loopback()).map(|address| format!("http://{address}"));
    exposed_addresses(&config).into_iter().chain(metrics).for_each(|address| warn_of_exposure(&address));
    let save = signals::on_user_signal(interrupt)?;
    allow_connections(&config);
    config.interrupt = interrupt.clone();
    let mut server = Server::start(config, show_progress)?;
    clear_progress();
    server.advice().iter().for_each(|advice| eprintln!("dunlin: {advice}"));
    let metrics = arguments.metrics.map(|address| server.serve_metrics(address)).transpose()?;
    output::line(ready_line(&server, &arguments, metrics))?;
    notify::ready();
    let mut saving = None;
    // If a core has failed, stopping reports why.
    while !interrupt.is_set() && server.is_running() {
        if saving.is_none() && save.take() {
            match server.begin_save() {
                Ok(begun) => saving = Some(begun),
                Err(error) => eprintln!("dunlin: {:#}", anyhow::Error::from(error)),
            }
        }
        // Not waited for: a hanging disk must not keep this thread from noticing a shutdown.
        if let Some(result) = saving.as_mut().and_then(SnapshotSaving::poll) {
            saving = None;
            match result {
                Ok(report) => eprintln!("dunlin: {}", saved_line(&report)),
                Err(error) => eprintln!("dunlin: {:#}", anyhow::Error::from(error)),
            }
        }
        interrupt.wait(if saving.is_some() { SAVING_LOOK } else { LOOK });
    }
    notify::stopping();
    if let Some(report) = server.stop()? {
        output::line(saved_line(&report))?;
    }
    output::line("ended")?;
    Ok(ExitCode::SUCCESS)
}

/// Makes sure that the configured number of memcached connections is possible, or warns.
fn allow_connections(config: &ServerConfig) {
    if config.memcached.is_empty() {
        return;
    }
    let of_cores = u64::from(config.cores) * DESCRIPTORS_PER_CORE;
    if let Err(error) = limits::allow_descriptors(config.connections_max as u64 + of_cores + DESCRIPTORS_SPARE) {
        eprintln!("dunlin: warning: {error}");
    }
}

/// Checks that a snapshot can be saved, to fail now and not when the server ends.
pub fn check_directory(snapshot: &Path) -> Result<()> {
    let directory = snapshot.parent().filter(|directory| !directory.as_os_str().is_empty());
    ensure!(directory.is_none_or(Path::is_dir), "there is no directory for {}", snapshot.display());
    let probe = directory.unwrap_or(Path::new(".")).join(format!(".dunlin-probe-{}", std::process::id()));
    // An existing file of this name is not touched: others may write to that directory, too.
    let made = File::create_new(&probe).and_then(|_| fs::remove_file(&probe));
    made.with_context(|| format!("no snapshot can be saved at {}", snapshot.display()))
}

fn ready_line(server: &Server, arguments: &Arguments, metrics: Option<SocketAddr>) -> String {
    let native = server.addresses().iter().map(ToString::to_string);
    let memcached = server.memcached_addresses().iter().map(|address| format!("memcached at {address}"));
    let metrics = metrics.map(|address| format!("metrics at http://{address}/metrics"));
    let places: Vec<String> = native.chain(memcached).chain(metrics).collect();
    let cores = if server.cores() == 1 { "1 core".to_owned() } else { format!("{} cores", server.cores()) };
    let mode = match arguments.mode {
        ModeArgument::Cache => "cache",
        ModeArgument::Store => "store",
    };
    format!(
        "serving keys at {}; {cores}, {}, {mode}{}; ctrl-C ends it",
        places.join(", "),
        human_bytes(arguments.memory as u64),
        arguments.tier.summary(arguments.memory)
    )
}

fn saved_line(report: &Report) -> String {
    let Report { totals, elapsed, pause, .. } = report;
    format!("snapshot saved: {} items in {elapsed:.1?}, all stood still for {pause:.1?}", totals.records)
}

pub fn show_progress(progress: Progress) {
    if stderr().is_terminal() {
        let percent = 100 * progress.bytes / progress.file_bytes.max(1);
        eprint!("\rloading the snapshot: {percent} %, {} items ", progress.records);
    }
}

pub fn clear_progress() {
    if stderr().is_terminal() {
        eprint!("\r{:<60}\r", "");
    }
}
