//! `dunlin kv proxy`.

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use dunlin_kv::cluster::ClusterConfig;
use dunlin_kv::memcached::{Acceptor, ConnectionLimit, FORWARD_BYTES_DEFAULT, Forwarder, Listen};
use dunlin_serve::drive::drive;
use dunlin_serve::{Interrupt, limits, notify};
use tokio::task::{LocalSet, spawn_local};

use super::cluster::{ClusterPlace, EntryArguments, PolicyArgument, connect};
use crate::arguments::time::{Human, human, ordinary};
use crate::commands::warn_of_exposure;
use crate::output;
use crate::settings::Source;

/// Default maximum of connections: each may hold a value of 1 MiB that its client has not read.
const CONNECTIONS: &str = "1024";
/// File descriptors besides those of connections.
const DESCRIPTORS_SPARE: u64 = 128;
/// How long connections may be idle.
const IDLE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(u32::MAX as u64);

/// Forward memcached clients to a cluster, until ctrl-C
///
/// What mcrouter is for memcached servers. Run it beside each application, or beside each server. It forwards get, gets,
/// set, add, replace, cas and delete. What has no well-defined effect on several replicas is answered with SERVER_ERROR:
/// append, prepend, incr, decr, touch, gat, flush_all and the meta commands. A write that only some replicas have is
/// answered with SERVER_ERROR, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv proxy --servers file:shop.toml                             tcp://127.0.0.1:11211
  dunlin kv proxy --servers file:shop.toml --memcached unix:/run/user/1000/shop.sock
  dunlin kv proxy --servers 1=udp://10.0.0.1:7901,2=udp://10.0.0.2:7901,3=udp://10.0.0.3:7901 --entry /kv/shop")]
pub struct Arguments {
    /// Where the cluster is described: file:PATH; or its cluster manager, ID=ADDRESS,... or http://HOST:PORT,..., or a
    /// name in clusters.toml for that
    #[arg(long, value_name = "CLUSTER")]
    servers: ClusterPlace,
    #[command(flatten)]
    entry: EntryArguments,
    /// Where memcached clients connect: tcp://HOST:PORT or unix:PATH, any number
    #[arg(long, value_name = "ADDRESS", default_value = "tcp://127.0.0.1:11211")]
    memcached: Vec<Listen>,
    /// Memcached connections at a time
    #[arg(long, value_name = "CONNECTIONS", default_value = CONNECTIONS, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Time without a command after which a memcached connection is closed; 0 for never
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = human(IDLE))]
    idle: Human,
    /// How long an operation may take, with all attempts: less than 10 s
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = ordinary)]
    patience: Duration,
    /// How long a replica that is read may take before another one is asked, too
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = ordinary)]
    failover: Duration,
    /// How gets of many keys are ranked at servers where requests wait
    #[arg(long, default_value = "total")]
    policy: PolicyArgument,
    #[command(flatten)]
    _source: Source,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let is_open = |listen: &&Listen| matches!(listen, Listen::Tcp(address) if !address.ip().is_loopback());
    arguments.memcached.iter().filter(is_open).for_each(|listen| warn_of_exposure(&listen.to_string()));
    if let Err(error) = limits::allow_descriptors(u64::from(arguments.connections) + DESCRIPTORS_SPARE) {
        eprintln!("dunlin: warning: {error}");
    }
    let connected = connect(&arguments.servers, &arguments.entry, arguments.patience)?;
    let mut config = ClusterConfig::default();
    config.deadline = arguments.patience;
    config.failover_after = arguments.failover;
    config.policy = arguments.policy.policy();
    let cluster = connected.client(config)?;
    let (name, servers) = (connected.cluster.name().to_owned(), connected.cluster.servers().len());
    let idle = (!arguments.idle.0.is_zero()).then_some(arguments.idle.0);
    let forwarder = Forwarder::new(cluster, idle, FORWARD_BYTES_DEFAULT);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no event loop")?;
    let local = LocalSet::new();
    let served = local.block_on(&runtime, async {
        let limit = ConnectionLimit::new(arguments.connections as usize);
        let mut places = Vec::new();
        for listen in &arguments.memcached {
            let acceptor =
                Acceptor::bind(listen, limit.clone()).with_context(|| format!("cannot listen at {listen}"))?;
            places.push(acceptor.listen().to_string());
            let forwarder = forwarder.clone();
            spawn_local(async move {
                loop {
                    let socket = acceptor.accept().await;
                    spawn_local(Rc::clone(&forwarder).serve(socket));
                }
            });
        }
        let places = places.join(", ");
        output::line(format_args!(
            "serving memcached clients at {places}; from cluster {name} of {servers} servers; ctrl-C ends it"
        ))?;
        notify::ready();
        tokio::select! {
            driven = drive(&connected.endpoint) => match driven? {},
            () = interrupt.until_set() => Ok::<(), anyhow::Error>(()),
        }
    });
    notify::stopping();
    served?;
    output::line("ended")?;
    Ok(ExitCode::SUCCESS)
}
