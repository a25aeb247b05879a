//! Numbers by datagrams, Spec-S0: a server beside the one of RPC, and a client.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;
use dunlin_net::poll::sleep_time;
use dunlin_net::{Addr, AnyTransport, Transport};
use dunlin_seq::Counter;
use dunlin_seq::direct::{DirectClient, DirectConfig, DirectServer, DirectServerConfig, DirectServerStats, QUEUES_MAX};
use dunlin_serve::limits::allow_descriptors;
use dunlin_serve::metrics::{Family, Kind};
use dunlin_serve::signals::EXIT_INTERRUPTED;
use dunlin_serve::{Companion, Interrupt, Stopped, addresses};

use super::client::Target;
use crate::commands::warn_of_exposure;
use crate::output;

/// How often a thread publishes its counters.
pub const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// Descriptors for everything but clients.
const DESCRIPTORS_BESIDE: u64 = 512;
/// Descriptors that clients by RPC over shared memory take on each core, at most.
const DESCRIPTORS_OF_CORE: u64 = 1024;

/// Where datagrams are served, beside requests.
#[derive(Debug, Clone, clap::Args)]
pub struct DirectArguments {
    /// Serve datagrams of four bytes of data each way as well (Spec-S0), on a thread of its own: at shm:NAME,
    /// udp://HOST:PORT, or one of each
    #[arg(long, value_name = "ADDRESS")]
    direct_at: Vec<Addr>,
    /// Queues by which answers to datagrams leave in turn. Each has an address of its own: port or name follow those of
    /// the one before, and a port that is taken gives way to any free one. With several, the thread never sleeps
    #[arg(long, value_name = "QUEUES", default_value = "1", requires = "direct_at", value_parser = RangedU64ValueParser::<u16>::new().range(1..=QUEUES_MAX as u64))]
    queues: u16,
}

/// The server, on a thread of its own, until it is stopped or dropped.
pub struct Direct {
    addresses: Vec<Addr>,
    companion: Companion<anyhow::Error>,
    stats: Stats,
}

/// The counters of a server, as of a moment ago.
#[derive(Clone, Default)]
pub struct Stats(Arc<Mutex<DirectServerStats>>);

impl Stats {
    /// The counters.
    pub fn get(&self) -> DirectServerStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stats: DirectServerStats) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    /// The counters as metrics.
    pub fn families(&self) -> [Family; 6] {
        let stats = self.get();
        let DirectServerStats { numbers, wrong_guesses, draws, foreign, unacquainted, stale, refused, .. } = stats;
        let DirectServerStats { to_strangers, unsent, peers, .. } = stats;
        let unanswered = [
            ("foreign", foreign),
            ("unacquainted", unacquainted),
            ("stale", stale),
            ("refused", refused),
            ("unsent", unsent),
        ];
        [
            Family::one(Kind::Counter, "direct_numbers", "Numbers handed out by datagrams.", numbers),
            Family::one(
                Kind::Counter,
                "direct_wrong_guesses",
                "Of these, answers of eight bytes, since the guess of the upper half was wrong.",
                wrong_guesses,
            ),
            Family::one(Kind::Counter, "direct_draws", "Additions to the counter for datagrams.", draws),
            Family::one(
                Kind::Counter,
                "direct_to_strangers",
                "Answers by datagrams to clients that are not remembered.",
                to_strangers,
            ),
            Family::one(Kind::Gauge, "direct_peers", "Clients that are remembered.", peers),
            Family::events("direct_refused", "Datagrams that got no numbers.", unanswered),
        ]
    }
}

impl Direct {
    /// Serves numbers of `counter`, if there is an address. If the thread fails, it interrupts the process.
    ///
    /// # Errors
    /// If the addresses cannot be bound.
    pub fn start(
        arguments: &DirectArguments,
        counter: &Arc<Counter>,
        cores: u16,
        interrupt: &Interrupt,
    ) -> Result<Option<Direct>> {
        if arguments.direct_at.is_empty() {
            return Ok(None);
        }
        let (arguments, counter, stats) = (arguments.clone(), counter.clone(), Stats::default());
        let published = stats.clone();
        let begin = move |stopped: Stopped| {
            let mut server = open(&arguments, counter, cores)?;
            let addresses = server.local_addrs();
            let work = move || {
                while !stopped.is_set() {
                    let publish_at = Instant::now() + PUBLISH_EVERY;
                    server.run_until(|| stopped.is_set() || Instant::now() >= publish_at);
                    published.set(server.stats());
                }
                Ok(())
            };
            Ok((addresses, work))
        };
        let (addresses, companion) = Companion::start("datagrams", interrupt, begin)?;
        let exposed = addresses.iter().filter(|address| addresses::is_exposed(address));
        exposed.for_each(|address| warn_of_exposure(&address.to_string()));
        Ok(Some(Direct { addresses, companion, stats }))
    }

    /// Where it serves.
    pub fn addresses(&self) -> &[Addr] {
        &self.addresses
    }

    /// Its counters, which outlive it.
    pub fn stats(&self) -> Stats {
        self.stats.clone()
    }

    /// Ends the thread, and returns how many numbers it has handed out.
    ///
    /// # Errors
    /// If the thread has failed.
    pub fn stop(self) -> Result<u64> {
        self.companion.stop()?;
        Ok(self.stats.get().numbers)
    }
}

fn open(arguments: &DirectArguments, counter: Arc<Counter>, cores: u16) -> Result<DirectServer<AnyTransport>> {
    let DirectArguments { direct_at: at, queues } = arguments;
    let config = DirectServerConfig { rotate: *queues > 1, ..DirectServerConfig::default() };
    // Over shared memory each client that is remembered takes one for each queue.
    let of_clients = u64::from(*queues) * config.peers_max as u64;
    if at.iter().any(|addr| matches!(addr, Addr::Shm(_)))
        && let Err(error) = allow_descriptors(of_clients + u64::from(cores) * DESCRIPTORS_OF_CORE + DESCRIPTORS_BESIDE)
    {
        eprintln!("dunlin: {error}");
    }
    let queues: Result<Vec<AnyTransport>, _> = (0..*queues).map(|queue| addresses::bind(at, queue)).collect();
    Ok(DirectServer::new(queues.context("--direct-at")?, counter, config)?)
}

/// Draws `count` numbers by datagrams, `at_once` calls at a time, and gives each to `show` as it comes. An error is
/// printed, with its exit code.
pub fn draw(
    target: &Target,
    interrupt: &Interrupt,
    count: u64,
    at_once: usize,
    mut show: impl FnMut(u64) -> Result<()>,
) -> Result<ExitCode> {
    match try_draw(target, interrupt, count, at_once, &mut show) {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        Err(error) => Ok(output::report(&error, ExitCode::from(crate::exit::FAILED))),
    }
}

/// Whether all were drawn; if not, a signal came.
fn try_draw(
    target: &Target,
    interrupt: &Interrupt,
    count: u64,
    at_once: usize,
    show: &mut impl FnMut(u64) -> Result<()>,
) -> Result<bool> {
    let (transport, servers) = target.open()?;
    let config = DirectConfig { timeout: target.timeout(), calls_max: at_once, ..DirectConfig::default() };
    let mut client = DirectClient::new(transport, servers, config)?;
    let (mut begun, mut shown, mut ended) = (0, 0, Vec::new());
    while shown < count {
        if interrupt.is_set() {
            return Ok(false);
        }
        while begun < count && client.in_progress() < at_once {
            client.ask(begun)?;
            begun += 1;
        }
        let arrived = client.poll(|_, number| ended.push(number));
        if arrived == 0 && ended.is_empty() {
            let (now, due) = (client.transport().now(), client.next_due());
            client.transport().wait(sleep_time(now, due));
        }
        for number in ended.drain(..) {
            show(number?)?;
            shown += 1;
        }
    }
    Ok(true)
}
