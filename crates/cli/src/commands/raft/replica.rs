//! Shared by all replicas, whatever their machine: arguments, log, and life until ctrl-C.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::builder::RangedU64ValueParser;
use dunlin_net::{Addr, AnyTransport, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig, Timers};
use dunlin_serve::metrics::{Family, exposition, of_endpoint};
use dunlin_serve::port::{Pages, Port};
use dunlin_serve::{
    Core, Draining, Health, Interrupt, Pace, ServeConfig, ServeError, Server, Service, Site, StartError, addresses,
};
use dunlin_smr::wire::response::Status;
use dunlin_smr::{Beginning, ClusterId, Host, LogStore, MemoryLog, Node, NodeConfig, Reads, StateMachine};
use tokio::sync::oneshot;

use super::cluster::Replicas;
use super::figures::families;
use super::home::{self, Kind, Owner, Start};
use crate::arguments::size::bytes;
use crate::arguments::time::{Human, SPIN, time};
use crate::commands::warn_of_exposure;
use crate::output;
use crate::settings::Source;

/// Interval at which a replica that shuts down checks whether leadership was transferred.
const HAND_OVER_LOOK: Duration = Duration::from_millis(1);
/// Prefix of the metric names.
const METRICS_PREFIX: &str = "dunlin_replica";
/// How long a replica that shuts down waits for requests in progress.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Maximum age of metrics in nanoseconds: however many requests come, the groups are not read more often.
const FIGURES_NANOS: u64 = 20_000_000;
/// What elections and heartbeats may take.
const PERIOD: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(600);
const TICK: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(1);
/// How long it has to end beyond that.
const DRAIN_SPARE: Duration = Duration::from_secs(5);

/// A replica.
#[derive(Debug, Clone, clap::Args)]
pub struct Replica {
    /// The id of this replica: above 0, never used before, and never reused for another
    #[arg(long, value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    id: u64,
    /// The first members of the cluster, ID=ADDRESS,... with addresses as udp://HOST:PORT or shm:NAME. Others reach
    /// this replica at its own address in it
    #[arg(long, value_name = "REPLICAS")]
    peers: Replicas,
    /// Keep the log in DIR, one for each replica, which the first start makes if it is not there
    #[arg(long, value_name = "DIR", required_unless_present = "volatile", conflicts_with = "volatile")]
    data: Option<PathBuf>,
    /// Keep the log in memory: once this process has ended, its id must never be used again
    #[arg(long)]
    volatile: bool,
    /// Found a cluster, with all of --peers: at the first start of this replica, and at no other
    #[arg(long, conflicts_with = "join")]
    new: bool,
    /// Wait to be added to an existing cluster: only at the first start of this replica
    #[arg(long)]
    join: bool,
    /// Its address differs from the one in its log. `dunlin raft move` tells the others
    #[arg(long, conflicts_with_all = ["new", "join"])]
    moved: bool,
    /// Listen here instead of at the address that others use: shm:NAME or udp://HOST:PORT
    #[arg(long, value_name = "WHERE")]
    at: Option<Addr>,
    /// The number of the cluster that it must be of, as `dunlin raft status` shows it: with --join no other is joined.
    /// A new cluster draws its own
    #[arg(long, value_name = "NUMBER", conflicts_with = "new")]
    cluster: Option<ClusterId>,
    /// How reads are answered: `index` asks a majority; `lease` does not, and is correct as long as no clock runs a
    /// fifth faster than another
    #[arg(long, default_value = "index")]
    reads: ReadsArgument,
    /// Time without a leader after which another is elected, up to twice as many; at least four heartbeats
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = time(PERIOD))]
    election: Duration,
    /// Time after which a leader says that it is there
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = time(PERIOD))]
    heartbeat: Duration,
    /// What all times are counted in: whole milliseconds, up to a second
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = time(TICK))]
    tick: Duration,
    /// How long a replica goes on looking for packets before it sleeps, while others have its core in between; 0 for
    /// never
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = time(SPIN))]
    spin: Duration,
    /// Serve metrics for Prometheus at http://HOST:PORT/metrics, and health at /healthz
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<SocketAddr>,
    /// Take a snapshot after this many entries of the log
    #[arg(long, value_name = "ENTRIES", default_value = "1000000", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    snapshot_entries: u64,
    /// Take a snapshot when the log has this many bytes
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = bytes)]
    snapshot_log: usize,
    /// Keep this many entries before a snapshot, for replicas that are a little behind
    #[arg(long, value_name = "ENTRIES", default_value = "10000")]
    keep_entries: u64,
    #[command(flatten)]
    _source: Source,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ReadsArgument {
    Index,
    Lease,
}

impl Replica {
    /// The first members, and their addresses.
    pub fn members(&self) -> &[(u64, Addr)] {
        &self.peers.0
    }

    fn endpoint_config(&self) -> EndpointConfig {
        EndpointConfig { poll: PollPolicy::Yielding { spin: self.spin }, ..EndpointConfig::default() }
    }

    fn config(&self) -> Result<NodeConfig> {
        ensure!(
            self.heartbeat >= self.tick,
            "--heartbeat {} is shorter than --tick {}: choose as long, or longer",
            Human(self.heartbeat),
            Human(self.tick)
        );
        let ticks = |time: Duration| time.as_nanos().div_ceil(self.tick.as_nanos()) as u32;
        let (heartbeat_ticks, election_ticks) = (ticks(self.heartbeat), ticks(self.election));
        ensure!(
            election_ticks / 4 >= heartbeat_ticks,
            "--election {} is too short for --heartbeat {}: choose four times as long, or longer",
            Human(self.election),
            Human(self.heartbeat)
        );
        let config = NodeConfig {
            cluster: self.cluster,
            tick: self.tick,
            heartbeat_ticks,
            election_ticks,
            reads: match self.reads {
                ReadsArgument::Index => Reads::ReadIndex,
                ReadsArgument::Lease => Reads::Lease,
            },
            snapshot_entries: self.snapshot_entries,
            snapshot_log_bytes: self.snapshot_log as u64,
            keep_entries: self.keep_entries,
            ..NodeConfig::new(self.id)
        };
        config.check()?;
        Ok(config)
    }

    fn start(&self) -> Start {
        match (self.new, self.join) {
            (true, _) => Start::New,
            (_, true) => Start::Join,
            _ => Start::Again,
        }
    }

    /// If there is a log already, it continues, whatever this says.
    fn beginning(&self) -> Beginning {
        if self.new { Beginning::First(self.peers.0.clone()) } else { Beginning::Join }
    }

    fn own_address(&self) -> Result<&Addr> {
        let own = self.peers.address(self.id);
        own.with_context(|| format!("replica {} is not among --peers: say where it is reached", self.id))
    }

    fn listen_address(&self) -> Result<&Addr> {
        let own = self.own_address()?;
        Ok(self.at.as_ref().unwrap_or(own))
    }

    /// A replica reaches others only through the kind of address at which it listens.
    fn check_kinds(&self) -> Result<()> {
        let is_shm = |addr: &Addr| matches!(addr, Addr::Shm(_));
        let listen = self.listen_address()?;
        let other = self.peers.0.iter().find(|(_, addr)| is_shm(addr) != is_shm(listen));
        if let Some((id, addr)) = other {
            bail!(
                "replica {id} at {addr} cannot be reached from {listen}: give all replicas addresses of one kind, shm or udp"
            );
        }
        Ok(())
    }

    fn place(&self) -> String {
        self.data.as_ref().map_or("memory".into(), |path| path.display().to_string())
    }
}

/// The machine that a replica replicates, and its settings.
pub trait Machinery: Send + Sync + 'static {
    /// The machine.
    type Machine: StateMachine + 'static;
    /// Runs beside the replica until it is dropped.
    type Companion: 'static;

    /// The machine in its initial state, the same at all replicas.
    fn machine(&self) -> Result<Self::Machine>;

    /// Its entry in the directory's file.
    fn kind(&self) -> Kind;

    /// Number of groups, each with a machine.
    fn groups(&self) -> u16 {
        1
    }

    /// Starts the companion of a replica that has started; with several groups, that of the first group.
    fn accompany<L: LogStore + 'static>(
        &self,
        endpoint: &Rc<Endpoint<AnyTransport>>,
        node: &Node<Self::Machine, L>,
    ) -> Result<Self::Companion>;

    /// The metrics of the companion.
    fn families(&self, _: &Self::Companion, _: &Timers) -> Vec<Family> {
        Vec::new()
    }

    /// Ends the companion.
    fn dismiss(&self, companion: Self::Companion) -> Result<()> {
        drop(companion);
        Ok(())
    }

    /// What the companion does when the replica shuts down, before it hands over its leadership.
    fn part(&self, _: &Self::Companion, _: Timers) -> Draining {
        Box::pin(std::future::ready(()))
    }
}

/// Serves until a signal comes.
pub fn serve(arguments: &Replica, machinery: impl Machinery, interrupt: &Interrupt) -> Result<ExitCode> {
    let config = arguments.config()?;
    arguments.check_kinds()?;
    let Some(path) = &arguments.data else {
        ensure!(
            arguments.start() != Start::Again,
            "a replica with --volatile has no log when it starts: say --new, if it founds a cluster with all of --peers, or --join, if it is to be added to \
             one. One that has ended, whose promises are lost, must not come back under its id: remove it (dunlin raft remove), and add another with an id that \
             was never used"
        );
        let logs = (0..machinery.groups()).map(|_| MemoryLog::new()).collect();
        return serve_on(arguments, machinery, &config, logs, interrupt);
    };
    let owner = Owner { id: arguments.id, kind: machinery.kind() };
    let (logs, opening) =
        home::open(path, owner, arguments.start()).with_context(|| format!("replica {} cannot start", arguments.id))?;
    if let Some(torn) = &opening.torn {
        eprintln!(
            "dunlin: what a crash left unfinished at the end of the log was cut off: {} bytes of segment {}, from byte {} on",
            torn.bytes, torn.segment, torn.offset
        );
    }
    serve_on(arguments, machinery, &config, logs, interrupt)
}

fn serve_on<S: Machinery, L: LogStore + Send + 'static>(
    arguments: &Replica,
    machinery: S,
    config: &NodeConfig,
    logs: Vec<L>,
    interrupt: &Interrupt,
) -> Result<ExitCode> {
    let listen = arguments.listen_address()?;
    warn_if_exposed(listen);
    if let Some(address) = arguments.metrics.filter(|address| !address.ip().is_loopback()) {
        warn_of_exposure(&format!("http://{address}"));
    }
    let hand_over_max = config.tick * config.election_ticks * 2;
    let serving = ServeConfig {
        listen: vec![listen.clone()],
        endpoint: arguments.endpoint_config(),
        patience: LAST_WORDS,
        drain_max: hand_over_max + LAST_WORDS + DRAIN_SPARE,
        interrupt: interrupt.clone(),
        ..ServeConfig::named("replica")
    };
    let (replica, machinery, logs) = (arguments.clone(), Arc::new(machinery), Mutex::new(logs));
    let service = ReplicaService { replica, machinery, logs, hand_over_max };
    let server = Server::start(Arc::new(service), serving).map_err(|StartError { error, .. }| error)?;
    server.advice().iter().for_each(|advice| eprintln!("dunlin: {advice}"));
    let port = arguments.metrics.map(|address| serve_metrics(address, &server)).transpose()?;
    let metrics = port.as_ref().map(|port| format!("; metrics at http://{}/metrics", port.address()));
    output::line(format_args!("{}{}; ctrl-C ends it", server.plan(), metrics.unwrap_or_default()))?;
    server.run().map_err(|error| match error.downcast() {
        Ok(ServeError::CoreFailed { why, .. }) => anyhow!("replica {} has stopped: {why}", arguments.id),
        Ok(other) => other.into(),
        Err(error) => error,
    })?;
    output::line("ended")?;
    Ok(ExitCode::SUCCESS)
}

/// Serves the metrics of a replica as long as the returned value lives.
fn serve_metrics<S: Service<AnyTransport>>(address: SocketAddr, server: &Server<S>) -> Result<Port, ServeError>
where
    S::Core: Core<Letter = Inquiry>,
{
    let mailboxes = server.mailboxes().clone();
    let metrics = async move || {
        let mut answers = mailboxes.ask_all(Inquiry).await;
        answers.pop().map(|families| exposition(METRICS_PREFIX, families)).ok_or("the replica does not answer")
    };
    Port::open(address, Pages { title: "Dunlin replica", metrics, failure: server.failure().clone() })
}

/// Asks a replica for its counters.
struct Inquiry(oneshot::Sender<Vec<Family>>);

/// A replica as a service of one core.
struct ReplicaService<S, L> {
    replica: Replica,
    machinery: Arc<S>,
    /// The logs of all groups, until the core takes them.
    logs: Mutex<Vec<L>>,
    hand_over_max: Duration,
}

impl<S: Machinery, L: LogStore + Send + 'static> Service<AnyTransport> for ReplicaService<S, L> {
    type Core = ReplicaCore<S, L>;
    /// The message when it is ready.
    type Ready = String;
    type Finish = ();

    fn build(&self, site: Site<AnyTransport, Inquiry>) -> Result<(ReplicaCore<S, L>, String)> {
        let (replica, endpoint) = (&self.replica, site.endpoint);
        let cannot_start = || format!("replica {} cannot start", replica.id);
        let logs = std::mem::take(&mut *self.logs.lock().unwrap_or_else(PoisonError::into_inner));
        let groups = logs.into_iter().map(|log| Ok((log, self.machinery.machine()?))).collect::<Result<Vec<_>>>()?;
        let config = NodeConfig { idle_ticks: idle_ticks(&groups, &replica.config()?), ..replica.config()? };
        let host = Host::start(&endpoint, config, groups, replica.beginning()).with_context(cannot_start)?;
        let node = host.node(0).context("a replica has one group at least")?;
        check_members(replica, replica.own_address()?, &node.status())?;
        if replica.start() == Start::Again && node.status().addresses.is_empty() {
            eprintln!(
                "dunlin: nothing is in the log yet, so a leader is waited for; if this replica is to found a cluster, start it with --new"
            );
        }
        let companion = self.machinery.accompany(&endpoint, &node)?;
        let machinery = self.machinery.clone();
        let line = ready_line(replica, &endpoint.local_addr(), &node.status());
        endpoint.spawn(watch(host.clone(), site.health));
        let (id, hand_over_max) = (replica.id, self.hand_over_max);
        let core = ReplicaCore { endpoint, id, host, machinery, companion, hand_over_max, figures: None };
        Ok((core, line))
    }

    fn plan(&self, mut ready: Vec<String>) -> Result<String> {
        Ok(ready.pop().unwrap_or_default())
    }
}

/// Reports important changes on standard error, until the replica stops.
async fn watch<M: StateMachine + 'static, L: LogStore + 'static>(host: Host<M, L>, health: Health) {
    let Some(node) = host.node(0) else { return };
    let (mut said, mut cluster) = (None, node.status().cluster);
    let is_single = node.status().groups == 1;
    loop {
        let known = host.changes();
        if let Some(failure) = node.failure() {
            return health.fail(failure.to_string());
        }
        let status = node.status();
        if cluster != status.cluster {
            cluster = status.cluster;
            eprintln!("dunlin: this is replica {} of cluster {}", status.id, name(cluster));
        }
        // With many groups, `dunlin raft status` shows their leaders.
        if is_single {
            said = say_who_leads(&status, said);
        }
        host.changed(known).await;
    }
}

/// A running replica.
struct ReplicaCore<S: Machinery, L: LogStore> {
    id: u64,
    endpoint: Rc<Endpoint<AnyTransport>>,
    host: Host<S::Machine, L>,
    machinery: Arc<S>,
    companion: S::Companion,
    hand_over_max: Duration,
    /// The last metrics, with their time.
    figures: Option<(u64, Vec<Family>)>,
}

impl<S: Machinery, L: LogStore + 'static> Core for ReplicaCore<S, L> {
    type Letter = Inquiry;
    type Plan = String;
    type Error = anyhow::Error;

    fn read(&mut self, Inquiry(answer): Inquiry) -> Pace {
        let now = self.endpoint.now();
        let is_fresh = |at: u64| now.saturating_sub(at) < FIGURES_NANOS;
        let fresh = self.figures.take().filter(|(at, _)| is_fresh(*at));
        let (_, all) = self.figures.insert(fresh.unwrap_or_else(|| {
            let mut all = families(&self.host);
            all.extend(self.machinery.families(&self.companion, &self.endpoint.timers()));
            all.extend(of_endpoint(&self.endpoint.stats()));
            (now, all)
        }));
        // The caller may be gone.
        let _ = answer.send(all.clone());
        Pace::Go
    }

    /// Lets the companion part, and transfers leadership of its groups.
    fn drain(&mut self, _: Duration) -> Draining {
        let (host, timers, patience) = (self.host.clone(), self.endpoint.timers(), self.hand_over_max);
        let parting = self.machinery.part(&self.companion, self.endpoint.timers());
        Box::pin(async move {
            parting.await;
            let begun = Instant::now();
            let Some(to) = host.nodes().filter_map(|node| node.hand_over()).last() else { return };
            while host.led() > 0 && begun.elapsed() < patience {
                timers.sleep(HAND_OVER_LOOK).await;
            }
            let is_over = host.led() == 0;
            match host.nodes().count() {
                1 => eprintln!(
                    "dunlin: replica {to} {}",
                    if is_over { "takes over" } else { "did not take over in time" }
                ),
                _ if is_over => eprintln!("dunlin: others take over all groups"),
                _ => eprintln!("dunlin: others did not take over all groups in time"),
            }
        })
    }

    fn end(self) -> Result<()> {
        // It may hold the endpoint, so it is dropped first.
        let dismissed = self.machinery.dismiss(self.companion);
        let closed = self.host.close().with_context(|| format!("replica {} did not end in order", self.id));
        if let (Err(_), Err(why)) = (&closed, &dismissed) {
            eprintln!("dunlin: {why:#}");
        }
        closed.and(dismissed)
    }
}

/// With several groups, idle ones rest. A single group costs little, and should notice failures as soon as possible.
fn idle_ticks<G>(groups: &[G], config: &NodeConfig) -> Option<u32> {
    (groups.len() > 1).then_some(config.election_ticks)
}

fn warn_if_exposed(listen: &Addr) {
    if addresses::is_exposed(listen) {
        warn_of_exposure(&listen.to_string());
    }
}

/// A log that has begun knows the members. Its own address must be the one that it shares with them.
fn check_members(arguments: &Replica, own: &Addr, status: &Status) -> Result<()> {
    let known = status.addresses.get(&arguments.id).map(|address| address.parse::<Addr>());
    if let Some(Ok(known)) = known {
        ensure!(
            known == *own || arguments.moved,
            "the cluster knows replica {} at {known}, and --peers says {own}: serve it where it is known. If its directory has moved there, say --moved, and \
             tell the others: dunlin raft move",
            arguments.id
        );
    }
    Ok(())
}

fn ready_line(arguments: &Replica, listening: &Addr, status: &Status) -> String {
    let members: Vec<String> = status.addresses.keys().map(u64::to_string).collect();
    let members = match members.is_empty() {
        true if arguments.new => "waits to be told the number of the new cluster by another first member".to_owned(),
        true => "waits to be added".to_owned(),
        false => format!("members {}", members.join(", ")),
    };
    let (id, cluster, place) = (arguments.id, name(status.cluster), arguments.place());
    format!("serving replica {id} of cluster {cluster} at {listening}; {members}; log in {place}")
}

/// The name of the cluster that this replica belongs to, or will belong to.
fn name(cluster: Option<ClusterId>) -> String {
    cluster.map_or("(no number yet)".to_owned(), |cluster| cluster.to_string())
}

/// Reports a change of the leader; returns the leader and its term.
fn say_who_leads(status: &Status, said: Option<(u64, u64)>) -> Option<(u64, u64)> {
    let now = status.leader.map(|leader| (leader, status.term));
    match now {
        _ if now == said => {}
        Some((leader, term)) if leader == status.id => {
            eprintln!("dunlin: this replica, {leader}, leads, in term {term}")
        }
        Some((leader, term)) => eprintln!("dunlin: replica {leader} leads, in term {term}"),
        None => eprintln!("dunlin: nobody leads"),
    }
    now
}
