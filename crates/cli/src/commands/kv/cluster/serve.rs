//! `dunlin kv cluster serve`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use dunlin_kv::cluster::{Attendance, ClusterConfig, Description, MemberEvent, MemberFence};
use dunlin_kv::server::{ReplicaConfig, Server, ServerConfig, exposed_addresses};
use dunlin_kv::service::Fence;
use dunlin_kv::wire::ReplicaState;
use dunlin_net::Addr;
use dunlin_serve::{Companion, Interrupt, Stopped, notify};
use dunlin_store::Mode;
use futures::future::{Either, select};
use tokio::sync::oneshot;

use super::place::{ClusterPlace, Connected, EntryArguments, connect};
use crate::arguments::size::{bytes, human_bytes};
use crate::commands::kv::serve::ModeArgument;
use crate::commands::kv::tier::TierArguments;
use crate::commands::warn_of_exposure;
use crate::output;
use crate::settings::Source;

/// Interval at which the server is checked; signals and failures are noticed at once.
const LOOK: Duration = Duration::from_secs(1);
/// How long an operation of the cluster manager may take, and one of the cluster.
const PATIENCE: Duration = Duration::from_secs(2);

/// Serve replicas of a cluster, until ctrl-C
///
/// A server that was started again is empty, and must be filled from other replicas before it is read. With a cluster
/// manager it does that by itself: it is a member, joins when an earlier process of it has failed, and takes part in
/// writes from then on. With a file, it stays closed until `dunlin kv cluster refill`. Pass --new on the first start of
/// a new cluster only: its servers hold nothing, and nothing is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv cluster serve a --servers file:shop.toml --new
  dunlin kv cluster serve a --servers file:shop.toml --memory 4GiB --tier /var/lib/dunlin/a.tier --tier-size 64GiB
  dunlin kv cluster serve a --servers file:shop.toml                 then: dunlin kv cluster refill a --at file:shop.toml
  dunlin kv cluster serve a --servers 1=udp://10.0.0.1:7901,2=udp://10.0.0.2:7901,3=udp://10.0.0.3:7901 --entry /kv/shop --member 101")]
pub struct Arguments {
    /// The name of this server in the description
    name: String,
    /// Where the cluster is described: file:PATH; or its cluster manager, ID=ADDRESS,... or http://HOST:PORT,..., or a
    /// name in clusters.toml for that
    #[arg(long, value_name = "CLUSTER")]
    servers: ClusterPlace,
    #[command(flatten)]
    entry: EntryArguments,
    /// The id of this server as a member of the cluster manager; one process at a time may use it
    #[arg(long, value_name = "ID")]
    member: Option<u64>,
    /// The cluster is new, and this server was never started before. Without a cluster manager it may
    /// be read at once; with one, when it has what earlier members hold
    #[arg(long)]
    new: bool,
    /// Listen here, if not at the address in the description: shm:NAME, udp://HOST:PORT, or one of each
    #[arg(long, value_name = "WHERE")]
    at: Vec<Addr>,
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
    /// Serve metrics for Prometheus at http://HOST:PORT/metrics
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    _source: Source,
    // Last: its heading is that of all options after it.
    #[command(flatten)]
    tier: TierArguments,
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let is_managed = matches!(arguments.servers, ClusterPlace::Manager(_));
    let fence = MemberFence::new();
    let mut agent = None;
    let cluster = match (is_managed, arguments.member) {
        (true, None) => bail!("give --member ID: the servers of this cluster are members of its cluster manager"),
        (false, Some(_)) => bail!("--member is for a cluster manager: a cluster in a file has none"),
        (true, Some(member)) => {
            let begun = Agent::start(&arguments, member, fence.clone(), interrupt)?;
            let cluster = begun.cluster.clone();
            agent = Some(begun);
            cluster
        }
        (false, None) => connect(&arguments.servers, &arguments.entry, PATIENCE)?.cluster,
    };
    let config = config(&arguments, &cluster, is_managed.then_some(fence), interrupt)?;
    let metrics =
        arguments.metrics.filter(|address| !address.ip().is_loopback()).map(|address| format!("http://{address}"));
    exposed_addresses(&config).into_iter().chain(metrics).for_each(|address| warn_of_exposure(&address));
    let mut server = Server::start(config, |_| {})?;
    server.advice().iter().for_each(|advice| eprintln!("dunlin: {advice}"));
    let metrics = arguments.metrics.map(|address| server.serve_metrics(address)).transpose()?;
    output::line(ready_line(&server, &arguments, &cluster, metrics))?;
    if !is_managed && !arguments.new {
        let name = &arguments.name;
        eprintln!("dunlin: {name} is empty and closed: fill it with dunlin kv cluster refill {name}");
    }
    if let Some(agent) = &mut agent {
        agent.go(server.incarnation());
    }
    notify::ready();
    while !interrupt.is_set() && server.is_running() {
        interrupt.wait(LOOK);
    }
    notify::stopping();
    // It leaves first, so that nobody waits for it.
    let left = agent.map(Agent::stop);
    server.stop()?;
    left.transpose()?;
    output::line("ended")?;
    Ok(ExitCode::SUCCESS)
}

fn config(
    arguments: &Arguments,
    cluster: &Description,
    fence: Option<MemberFence>,
    interrupt: &Interrupt,
) -> Result<ServerConfig> {
    let name = &arguments.name;
    let Some(number) = cluster.server(name) else {
        let names: Vec<&str> = cluster.servers().iter().map(|server| server.name.as_str()).collect();
        bail!("cluster {} has no server {name}: its servers are {}", cluster.name(), names.join(", "));
    };
    let mut config = ServerConfig::default();
    config.listen.clone_from(&arguments.at);
    if config.listen.is_empty() {
        config.listen = vec![cluster.servers()[number as usize].address.clone()];
    }
    config.memory_bytes = arguments.memory;
    config.held_bytes_max = arguments.held as u64;
    config.cores = arguments.cores;
    config.pin.clone_from(&arguments.pin);
    config.mode = match arguments.mode {
        ModeArgument::Cache => Mode::Cache,
        ModeArgument::Store => Mode::Store,
    };
    config.tier = arguments.tier.settings(arguments.memory)?;
    config.schedule = arguments.tier.schedule()?;
    config.interrupt = interrupt.clone();
    // With a cluster manager, the agent opens it.
    let is_open = arguments.new && fence.is_none();
    config.replica = Some(ReplicaConfig {
        server: name.clone(),
        cluster: cluster.clone(),
        fence: fence.map(|fence| Arc::new(fence) as Arc<dyn Fence>),
        state: if is_open { ReplicaState::Open } else { ReplicaState::Closed },
    });
    Ok(config)
}

fn ready_line(server: &Server, arguments: &Arguments, cluster: &Description, metrics: Option<SocketAddr>) -> String {
    let native = server.addresses().iter().map(ToString::to_string);
    let metrics = metrics.map(|address| format!("metrics at http://{address}/metrics"));
    let places: Vec<String> = native.chain(metrics).collect();
    let cores = if server.cores() == 1 { "1 core".to_owned() } else { format!("{} cores", server.cores()) };
    format!(
        "serving replicas at {}; {} of cluster {}, {cores}, {}{}; ctrl-C ends it",
        places.join(", "),
        arguments.name,
        cluster.name(),
        human_bytes(arguments.memory as u64),
        arguments.tier.summary(arguments.memory)
    )
}

/// The thread on which the server is a member, and is filled.
struct Agent {
    cluster: Description,
    companion: Companion<anyhow::Error>,
    go: Option<oneshot::Sender<u64>>,
}

impl Agent {
    /// Reads the description, and waits until the server listens.
    fn start(arguments: &Arguments, member: u64, fence: MemberFence, interrupt: &Interrupt) -> Result<Agent> {
        let (place, entry) = (arguments.servers.clone(), arguments.entry.clone());
        let (name, is_new) = (arguments.name.clone(), arguments.new);
        let (go, went) = oneshot::channel();
        let begin = move |mut stopped: Stopped| {
            let connected = connect(&place, &entry, PATIENCE)?;
            connected.endpoint.propagate_panics();
            let cluster = connected.cluster.clone();
            let work = move || match connected.endpoint.block_on(select(went, &mut stopped)) {
                Either::Left((Ok(incarnation), _)) => {
                    let process = Process { name, incarnation, member, is_new };
                    attend(&connected, &entry.entry, &process, &fence, stopped)
                }
                // The server did not start.
                _ => Ok(()),
            };
            Ok((cluster, work))
        };
        let (cluster, companion) = Companion::start("member", interrupt, begin)?;
        Ok(Agent { cluster, companion, go: Some(go) })
    }

    /// The server with this incarnation listens.
    fn go(&mut self, incarnation: u64) {
        // If the thread is gone, stopping says why.
        let _ = self.go.take().map(|go| go.send(incarnation));
    }

    /// Leaves.
    fn stop(self) -> Result<()> {
        self.companion.stop()
    }
}

/// The process that is to be a member.
struct Process {
    name: String,
    incarnation: u64,
    member: u64,
    is_new: bool,
}

/// Is a member until it is stopped, then leaves.
fn attend(connected: &Connected, path: &str, process: &Process, fence: &MemberFence, stopped: Stopped) -> Result<()> {
    let Some(manager) = &connected.manager else { return Ok(()) };
    let mut config = ClusterConfig::default();
    config.deadline = PATIENCE;
    let cluster = connected.client(config)?;
    let Process { name, incarnation, member, is_new } = process;
    let (incarnation, member, is_new) = (*incarnation, *member, *is_new);
    let attendance = Attendance {
        coordinator: &**manager,
        cluster: &cluster,
        path,
        server: name,
        incarnation,
        member,
        is_new,
        fence,
    };
    connected.endpoint.block_on(async {
        let serving = std::pin::pin!(attendance.serve(|event| tell(name, &event)));
        match select(serving, stopped).await {
            Either::Left((error, _)) => Err(error.into()),
            Either::Right(_) => {
                attendance.leave().await;
                Ok(())
            }
        }
    })
}

fn tell(name: &str, event: &MemberEvent) {
    match event {
        MemberEvent::Joined { epoch } => eprintln!("dunlin: {name} has joined: epoch {epoch}"),
        MemberEvent::Waits(why) => eprintln!("dunlin: {name} cannot be filled yet: {why}"),
        MemberEvent::Filled(refilled) => {
            let (items, bytes, sources) = (refilled.items, human_bytes(refilled.bytes), refilled.sources);
            eprintln!("dunlin: {name} is open: {items} items of {bytes} from {sources} servers");
        }
        MemberEvent::FoundOpen => eprintln!("dunlin: {name} is open: somebody has opened it"),
        MemberEvent::Lost(why) => eprintln!("dunlin: {name} is no member any more, and joins again: {why}"),
        _ => {}
    }
}
