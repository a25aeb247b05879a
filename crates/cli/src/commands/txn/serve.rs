//! `dunlin txn serve`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;
use dunlin_net::Addr;
use dunlin_serve::metrics::{Family, Kind, exposition, of_cores, of_endpoint};
use dunlin_serve::port::{Pages, Port};
use dunlin_serve::{Companion, Interrupt, Mailboxes, ServeConfig, ServeError, Server, Stopped, addresses};
use dunlin_txn::node::{AgentConfig, AgentSeed, CoreConfig, Counts, Letter, TxnService, node};
use dunlin_txn::{Limits, Role};

use crate::arguments::at::Place;
use crate::arguments::size::bytes;
use crate::arguments::time::ordinary;
use crate::commands::seq::office::connect;
use crate::commands::warn_of_exposure;
use crate::output;
use crate::settings::Source;

/// Prefix of the names of its metrics.
const METRICS_PREFIX: &str = "dunlin_txn";
/// Operations of the cluster manager time out after this part of the placer's lease.
const OPERATIONS_OF_LEASE: u32 = 2;

/// Be a node of a transaction service, until ctrl-C
///
/// The nodes find each other through a cluster manager, `dunlin coord serve` or an etcd. Data is in memory: a node that
/// ends loses its copies, and those of the others are used. Started again, it is a new member and gets new copies. All
/// copies of a partition are lost if all nodes that have one end before new copies are complete: `dunlin txn status`
/// tells when they are.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A node counts as failed when the cluster manager has not heard it for the failure timeout (dunlin coord serve --failure-timeout).

Examples:
  dunlin txn serve --member 1 --at udp://10.0.0.1:7911 --coord 1=udp://10.0.0.1:7901,2=udp://10.0.0.2:7901,3=udp://10.0.0.3:7901
  dunlin txn serve --member 1 --at udp://127.0.0.1:7911 --coord 1=udp://127.0.0.1:7901 --cores 2 --pin 0,1 --metrics 127.0.0.1:9711
  dunlin txn serve --member 1 --at shm:txn-1 --coord http://127.0.0.1:2379          with an etcd
  dunlin txn table create --at udp://10.0.0.1:7911 accounts --replicas 3")]
pub struct Arguments {
    /// Where to serve: shm:NAME, udp://HOST:PORT, or one of each. Other nodes and clients are told the first one
    #[arg(long, value_name = "WHERE", required = true)]
    at: Vec<Addr>,
    /// The number of this node as a member of the cluster manager; one process at a time may use it
    #[arg(long, value_name = "ID", value_parser = RangedU64ValueParser::<u64>::new().range(1..=u64::from(u32::MAX)))]
    member: u64,
    /// The cluster manager: its nodes, ID=ADDRESS,..., or an etcd, http://HOST:PORT,...
    #[arg(long, value_name = "MANAGER")]
    coord: Place,
    /// What the keys in an etcd begin with
    #[arg(long, value_name = "PREFIX", default_value = "/dunlin")]
    prefix: String,
    /// The path of the service in the cluster manager: nodes of one service have the same
    #[arg(long, value_name = "PATH", default_value = "/txn")]
    service: String,
    /// Cores: each is a thread with an address of its own, and one port higher than the one before
    #[arg(long, value_name = "CORES", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=64))]
    cores: u16,
    /// Processors to pin the cores to, one for each
    #[arg(long, value_name = "PROCESSORS", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Memory of one copy of a partition; the same at all nodes. At the limit, writes are refused
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = bytes)]
    copy_memory: usize,
    /// How many bytes a second each core fetches at most while new copies are filled
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = bytes)]
    fill_rate: usize,
    /// The time of the lease of the node that places: another one takes over so long after it failed
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = ordinary)]
    ttl: Duration,
    /// How long failed nodes are waited for before partitions are given up whose copies they alone have
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = ordinary)]
    grace: Duration,
    /// Serve metrics for Prometheus at http://HOST:PORT/metrics, and health at /healthz
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    _source: Source,
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    ensure!(arguments.fill_rate > 0, "--fill-rate 0: new copies would never be complete; choose at least 1KiB");
    let limits = Limits {
        partition_bytes_max: arguments.copy_memory,
        index_bytes_max: arguments.copy_memory,
        ..Limits::default()
    };
    let core = CoreConfig { limits, fill_bytes_per_second: arguments.fill_rate as u64, ..CoreConfig::default() };
    let (service, seed) = node(core);
    let config = ServeConfig {
        listen: arguments.at.clone(),
        cores: arguments.cores,
        pin: arguments.pin.clone(),
        interrupt: interrupt.clone(),
        ..ServeConfig::named("txn")
    };
    let server = Server::start(Arc::new(service), config)?;
    let exposed = server.addresses().iter().filter(|address| addresses::is_exposed(address));
    exposed.for_each(|address| warn_of_exposure(&address.to_string()));
    server.advice().iter().for_each(|advice| eprintln!("dunlin: {advice}"));
    let port = arguments.metrics.map(|address| serve_metrics(address, &server)).transpose()?;
    let cores = server.addresses_of_cores().iter().filter_map(|addresses| addresses.first().cloned()).collect();
    let agent = AgentConfig {
        service: arguments.service.clone(),
        lease: arguments.ttl,
        grace: arguments.grace,
        ..AgentConfig::new(arguments.member as u32, cores)
    };
    let agent = start_agent(&arguments, seed, server.mailboxes().clone(), agent, &interrupt)?;
    let places = server.addresses().iter().map(Addr::to_string);
    let metrics = port.as_ref().map(|port| format!("metrics at http://{}/metrics", port.address()));
    let places: Vec<String> = places.chain(metrics).collect();
    let (places, member, path) = (places.join(", "), arguments.member, &arguments.service);
    output::line(format_args!("serving transactions at {places}; member {member} of {path}; ctrl-C ends it"))?;
    let ended = server.run();
    // Nothing is served any more, so others may take over at once.
    let left = agent.stop();
    ended?;
    left?;
    output::line("ended; its copies are gone")?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the agent's thread. Stopped, the agent leaves.
fn start_agent(
    arguments: &Arguments,
    seed: AgentSeed,
    mailboxes: Mailboxes<Letter>,
    config: AgentConfig,
    interrupt: &Interrupt,
) -> Result<Companion<anyhow::Error>> {
    let (place, prefix, timeout) =
        (arguments.coord.clone(), arguments.prefix.clone(), arguments.ttl / OPERATIONS_OF_LEASE);
    let begin = move |stopped: Stopped| {
        let (endpoint, manager) = connect(&place, prefix, timeout)?;
        let agent = seed.agent(manager, mailboxes, config)?;
        let work = move || {
            endpoint.block_on(async {
                agent.run(stopped).await;
                agent.coordinator().warn_of_strangers();
                agent.coordinator().close().await;
            });
            Ok(())
        };
        Ok(((), work))
    };
    Companion::start("txn-agent", interrupt, begin).map(|((), agent)| agent)
}

/// Serves the metrics of all cores as long as the port lives.
fn serve_metrics(address: SocketAddr, server: &Server<TxnService>) -> Result<Port, ServeError> {
    if !address.ip().is_loopback() {
        warn_of_exposure(&format!("http://{address}"));
    }
    let mailboxes = server.mailboxes().clone();
    let metrics = async move || {
        let cores = mailboxes.ask_all(Letter::Inquiry).await.into_iter().map(|counts| (counts.core, families(&counts)));
        Ok::<_, ServeError>(exposition(METRICS_PREFIX, of_cores(cores)))
    };
    Port::open(address, Pages { title: "Dunlin transactions", metrics, failure: server.failure().clone() })
}

fn families(Counts { client, participant, report, endpoint, .. }: &Counts) -> Vec<Family> {
    let copies = |role: Role| report.copies.iter().filter(|copy| copy.role == role).count() as u64;
    let sum = |of: fn(&dunlin_txn::CopyState) -> usize| report.copies.iter().map(of).sum::<usize>() as u64;
    let filling = report.copies.iter().filter(|copy| !copy.is_complete).count() as u64;
    let refused = [
        ("locked", participant.locked),
        ("changed", participant.changed),
        ("other_epoch", participant.other_epoch),
        ("other", participant.refused),
    ];
    let coordinated = [
        ("committed", client.committed),
        ("locked", client.locked),
        ("changed", client.changed),
        ("failed", client.failed),
        ("in_doubt", client.in_doubt),
        ("fenced", client.fenced),
        ("broken", client.broken),
    ];
    let mut families = vec![
        Family::one(Kind::Gauge, "epoch", "The epoch that the core has entered.", report.epoch),
        Family::one(Kind::Gauge, "opened_epoch", "The last epoch that was recovered.", report.opened),
        Family::one(Kind::Gauge, "safe", "1 if the cluster manager hears the node.", u64::from(report.is_safe)),
        Family::one(Kind::Gauge, "primaries", "Partitions whose primary is here.", copies(Role::Primary)),
        Family::one(Kind::Gauge, "backups", "Partitions with a backup here.", copies(Role::Backup)),
        Family::one(Kind::Gauge, "filling", "Copies here that are not complete.", filling),
        Family::one(Kind::Gauge, "items_bytes", "Bytes of all copies here.", sum(|copy| copy.bytes)),
        Family::one(Kind::Gauge, "locks", "Locks that are held.", sum(|copy| copy.locks)),
        Family::one(Kind::Gauge, "log_records", "Records in the log.", report.records as u64),
        Family::one(Kind::Counter, "requests", "Requests of coordinators.", participant.requests),
        Family::one(Kind::Counter, "recovered", "Records and locks that recovery handled.", participant.recovered),
        Family::events("refused", "Requests that were refused.", refused),
        Family::events("coordinated", "Transactions of the core's own client, by their end.", coordinated),
    ];
    families.extend(of_endpoint(endpoint));
    families
}
