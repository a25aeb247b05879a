//! Where a cluster is described, and a client of it.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dunlin_coord::embedded::Embedded;
use dunlin_kv::KvCluster;
use dunlin_kv::client::Outcome;
use dunlin_kv::cluster::{ClusterConfig, ClusterError, Description, MemberDirectory, description_at};
use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};

use crate::arguments::at::Place;
use crate::arguments::time::ordinary;
use crate::commands::coord::manager::Manager;
use crate::commands::kv::client::Found;
use crate::commands::raft::cluster::Replicas;
use crate::{exit, output};

/// A cluster of key-value servers: a file, or the cluster manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterPlace {
    /// Described in a file.
    File(PathBuf),
    /// Described in an entry of a cluster manager, whose members the servers are.
    Manager(Place),
}

impl FromStr for ClusterPlace {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<ClusterPlace> {
        if let Some(path) = text.strip_prefix("file:") {
            return Ok(ClusterPlace::File(path.into()));
        }
        match text.parse()? {
            Place::Server(_) => bail!(
                "a cluster is described in file:PATH, or by a cluster manager: ID=ADDRESS,... or http://HOST:PORT,..."
            ),
            place => Ok(ClusterPlace::Manager(place)),
        }
    }
}

/// The entry of a cluster manager that describes the cluster.
#[derive(Debug, Clone, clap::Args)]
pub struct EntryArguments {
    /// The entry of the cluster manager that describes the cluster, with the text of such a file
    #[arg(long, value_name = "PATH", default_value = "/kv")]
    pub entry: String,
    /// What the keys in an etcd begin with
    #[arg(long, value_name = "PREFIX", default_value = "/dunlin")]
    pub prefix: String,
}

/// The cluster, and how long to wait for it.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// Where the cluster is described: file:PATH; or its cluster manager, ID=ADDRESS,... or http://HOST:PORT,..., or a
    /// name in clusters.toml for that
    #[arg(long = "at", value_name = "WHERE", env = "DUNLIN_AT")]
    place: ClusterPlace,
    #[command(flatten)]
    entry: EntryArguments,
    /// How long to wait for the answer: less than 10 s
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = ordinary)]
    pub timeout: Duration,
}

/// A cluster whose description is known, and what runs operations on it.
pub struct Connected {
    /// The endpoint that everything runs on.
    pub endpoint: Rc<Endpoint<AnyTransport>>,
    /// The cluster manager, if there is one.
    pub manager: Option<Rc<Manager>>,
    /// The description.
    pub cluster: Description,
}

impl Connected {
    /// Returns a client.
    pub fn client(&self, config: ClusterConfig) -> Result<KvCluster<AnyTransport>> {
        Ok(match &self.manager {
            None => KvCluster::new(&self.endpoint, self.cluster.clone(), config)?,
            Some(manager) => {
                let directory = Rc::new(MemberDirectory::new(manager.clone(), &self.cluster));
                KvCluster::with_directory(&self.endpoint, self.cluster.clone(), config, directory)?
            }
        })
    }
}

/// Reads the description of a cluster. Operations of a cluster manager take so long at most.
pub fn connect(place: &ClusterPlace, entry: &EntryArguments, timeout: Duration) -> Result<Connected> {
    match place {
        ClusterPlace::File(path) => {
            let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            let cluster = Description::parse(&text).with_context(|| path.display().to_string())?;
            let addresses: Vec<&Addr> = cluster.servers().iter().map(|server| &server.address).collect();
            let endpoint = endpoint(&addresses, timeout)?;
            Ok(Connected { endpoint, manager: None, cluster })
        }
        ClusterPlace::Manager(place) => {
            let (endpoint, manager) = manager(place, entry, timeout)?;
            let cluster = endpoint.block_on(description_at(&*manager, &entry.entry))?;
            Ok(Connected { endpoint, manager: Some(manager), cluster })
        }
    }
}

/// An endpoint that reaches all of these addresses: in shared memory, and over UDP.
fn endpoint(addresses: &[&Addr], timeout: Duration) -> Result<Rc<Endpoint<AnyTransport>>> {
    let udp = addresses.iter().filter_map(|address| match address {
        Addr::Udp(address) => Some(*address),
        _ => None,
    });
    let any = match udp.clone().find(|address| !address.ip().is_loopback()).or(udp.clone().next()) {
        Some(SocketAddr::V6(address)) if address.ip().is_loopback() => Ipv6Addr::LOCALHOST.into(),
        Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        Some(SocketAddr::V4(address)) if !address.ip().is_loopback() => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    let udp = UdpTransport::bind(UdpConfig::new(SocketAddr::new(any, 0)))?;
    let transport = AnyTransport::joined(ShmTransport::new(&ShmConfig::anonymous())?, udp)?;
    let config = EndpointConfig { connect_timeout: timeout.min(CONNECT_TIMEOUT_MAX), ..EndpointConfig::default() };
    Ok(Rc::new(Endpoint::new(transport, config)?))
}

/// How long a server may take to open a session before another replica is asked.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(1);

type End = Rc<Endpoint<AnyTransport>>;

fn manager(place: &Place, entry: &EntryArguments, timeout: Duration) -> Result<(End, Rc<Manager>)> {
    match place {
        Place::Replicas(Replicas(replicas), cluster) => {
            let addresses: Vec<&Addr> = replicas.iter().map(|(_, address)| address).collect();
            let endpoint = endpoint(&addresses, timeout)?;
            let attempt_timeout = (timeout / (replicas.len() as u32 + 1)).min(CONNECT_TIMEOUT_MAX);
            let config = dunlin_smr::ClientConfig {
                cluster: *cluster,
                timeout,
                attempt_timeout,
                ..dunlin_smr::ClientConfig::default()
            };
            let client = dunlin_smr::Client::new(&endpoint, replicas.iter().cloned(), config);
            Ok((endpoint, Rc::new(Manager::Embedded(Box::new(Embedded::new(client))))))
        }
        Place::Etcd(urls) => etcd(urls, entry, timeout),
        Place::Server(address) => bail!("{address} is one server, and no cluster"),
    }
}

#[cfg(feature = "etcd")]
fn etcd(urls: &[String], entry: &EntryArguments, timeout: Duration) -> Result<(End, Rc<Manager>)> {
    use dunlin_coord::etcd::{Etcd, EtcdConfig};

    let endpoint = endpoint(&[], timeout)?;
    let config = EtcdConfig { prefix: entry.prefix.clone(), timeout, ..EtcdConfig::default() };
    Ok((endpoint, Rc::new(Manager::Etcd(Etcd::new(urls, config)?))))
}

#[cfg(not(feature = "etcd"))]
fn etcd(_: &[String], _: &EntryArguments, _: Duration) -> Result<(End, Rc<Manager>)> {
    Err(crate::commands::coord::without_etcd())
}

/// Runs `work` with a client of a cluster. What went wrong is printed, with the exit code for that.
pub fn ask(
    target: &Target,
    config: ClusterConfig,
    work: impl AsyncFnOnce(&KvCluster<AnyTransport>) -> Result<Found>,
) -> Result<ExitCode> {
    let connected = connect(&target.place, &target.entry, target.timeout)?;
    let mut config = config;
    config.deadline = target.timeout;
    let client = connected.client(config)?;
    let found = connected.endpoint.block_on(async {
        let found = work(&client).await;
        client.close();
        if let Some(manager) = &connected.manager {
            manager.close().await;
        }
        found
    });
    match found {
        Ok(Found::All) => Ok(ExitCode::SUCCESS),
        Ok(Found::NotAll) => Ok(ExitCode::from(exit::NOT_FOUND)),
        Ok(Found::NotAsExpected) => Ok(ExitCode::from(exit::CONDITION)),
        Err(error) => {
            let outcome = error.downcast_ref::<ClusterError>().map(ClusterError::outcome);
            let code = if outcome == Some(Outcome::MaybeExecuted) { exit::IN_DOUBT } else { exit::FAILED };
            Ok(output::report(&error, ExitCode::from(code)))
        }
    }
}
