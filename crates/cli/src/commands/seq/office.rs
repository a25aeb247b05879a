//! The office of a sequencer under a cluster manager: who holds it hands out numbers.

use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::builder::RangedU64ValueParser;
use dunlin_coord::embedded::Embedded;
use dunlin_net::AnyTransport;
use dunlin_rpc::Endpoint;
use dunlin_seq::reserve::{Coordinated, CoordinatedConfig, Keeper, KeeperConfig, KeeperStats, RANGE_MAX};
use dunlin_seq::{Counter, RUN_MAX};
use dunlin_serve::{Companion, Interrupt, Stopped};
use futures::future::{Either, select};

use super::direct::PUBLISH_EVERY;
use crate::arguments::at::Place;
use crate::arguments::time::ordinary;
use crate::commands::coord::manager::Manager;
use crate::commands::raft::cluster::{self, Target};

/// How long giving up the office and the membership may take.
const LEAVE_MAX: Duration = Duration::from_secs(8);

/// Operations of the cluster manager time out after this part of the lease: several fit a term.
const OPERATIONS_OF_LEASE: u32 = 5;
/// The term is renewed so often within a lease.
const RENEWALS_OF_LEASE: u32 = 6;

/// Where numbers are reserved, if not by the operator.
#[derive(Debug, Clone, clap::Args)]
pub struct OfficeArguments {
    /// Reserve numbers under a lease of this cluster manager, whose nodes are ID=ADDRESS,..., or which is an etcd,
    /// http://HOST:PORT,...: numbers never come twice, and of all sequencers of one --office one serves
    #[arg(long, value_name = "MANAGER", requires = "member")]
    coord: Option<Place>,
    /// The id of this sequencer as a member; one process at a time may use it
    #[arg(long, value_name = "ID", requires = "coord")]
    member: Option<u64>,
    /// The path of the lease, and of the entry with the reserved numbers
    #[arg(long, value_name = "PATH", default_value = "/seq", requires = "coord")]
    office: String,
    /// The time of the lease: another sequencer takes over so long after a crash
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = ordinary, requires = "coord")]
    ttl: Duration,
    /// Numbers that are reserved at a time: a crash loses up to one and a half times as many
    #[arg(long, value_name = "NUMBER", default_value = "1000000", requires = "coord", value_parser = RangedU64ValueParser::<u64>::new().range(2 * u64::from(RUN_MAX)..=RANGE_MAX))]
    range: u64,
    /// What the keys in an etcd begin with
    #[arg(long, value_name = "PREFIX", default_value = "/dunlin", requires = "coord")]
    prefix: String,
}

impl OfficeArguments {
    /// Whether numbers are reserved under a cluster manager.
    pub fn is_given(&self) -> bool {
        self.coord.is_some()
    }

    /// Starts to compete for the office, on a thread of its own, which gives it up when it is stopped.
    ///
    /// # Errors
    /// If an argument is wrong, or the cluster manager cannot be reached at all.
    pub fn compete(
        &self,
        about: String,
        start: u64,
        counter: Arc<Counter>,
        stats: OfficeStats,
        interrupt: &Interrupt,
    ) -> Result<Option<Companion<anyhow::Error>>> {
        let (Some(place), Some(member)) = (self.coord.clone(), self.member) else { return Ok(None) };
        let config = CoordinatedConfig { member, about, name: self.office.clone(), lease: self.ttl, start };
        let (range, prefix) = (self.range, self.prefix.clone());
        let begin = move |mut stopped: Stopped| {
            let (endpoint, keeper) = begin(&place, prefix, config, range, &counter)?;
            let work = move || {
                let timers = endpoint.timers();
                endpoint.block_on(async {
                    while let Either::Right(_) = select(&mut stopped, pin!(timers.sleep(PUBLISH_EVERY))).await {
                        stats.set(keeper.stats());
                    }
                    // If the cluster manager does not answer, the lease ends by itself.
                    select(pin!(keeper.stop()), pin!(timers.sleep(LEAVE_MAX))).await;
                    stats.set(keeper.stats());
                });
                Ok(())
            };
            Ok(((), work))
        };
        let ((), candidacy) = Companion::start("office", interrupt, begin)?;
        Ok(Some(candidacy))
    }
}

/// The counters of a keeper on another thread, as of a moment ago.
#[derive(Clone, Default)]
pub struct OfficeStats(Arc<Mutex<KeeperStats>>);

impl OfficeStats {
    /// The counters.
    pub fn get(&self) -> KeeperStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stats: KeeperStats) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }
}

/// An endpoint of this thread.
pub type End = Rc<Endpoint<AnyTransport>>;

fn begin(
    place: &Place,
    prefix: String,
    config: CoordinatedConfig,
    range: u64,
    counter: &Arc<Counter>,
) -> Result<(End, Keeper)> {
    let (lease, pause) = (config.lease, KeeperConfig::default().pause);
    let (endpoint, manager) = connect(place, prefix, lease / OPERATIONS_OF_LEASE)?;
    let reserve = Coordinated::new(manager, config)?;
    let keeper = KeeperConfig { range, renew: lease / RENEWALS_OF_LEASE, pause };
    let keeper = Keeper::start(&endpoint, counter, reserve, keeper);
    Ok((endpoint, keeper))
}

/// The cluster manager, and the endpoint that its operations run on. A panic of one of its tasks is one of the thread
/// that turns it.
pub fn connect(place: &Place, prefix: String, timeout: Duration) -> Result<(End, Manager)> {
    let (endpoint, manager) = open(place, prefix, timeout)?;
    endpoint.propagate_panics();
    Ok((endpoint, manager))
}

fn open(place: &Place, prefix: String, timeout: Duration) -> Result<(End, Manager)> {
    match place {
        Place::Replicas(replicas, cluster) => {
            let target = Target { replicas: replicas.clone(), cluster: *cluster, timeout };
            let (endpoint, client) = cluster::connect(&target)?;
            Ok((endpoint, Manager::Embedded(Box::new(Embedded::new(client)))))
        }
        Place::Etcd(urls) => etcd(urls, prefix, timeout),
        Place::Server(addr) => {
            bail!(
                "--coord {addr}: give the nodes of a cluster manager, ID=ADDRESS,..., or an etcd, http://HOST:PORT,..."
            )
        }
    }
}

#[cfg(feature = "etcd")]
fn etcd(urls: &[String], prefix: String, timeout: Duration) -> Result<(End, Manager)> {
    use dunlin_coord::etcd::{Etcd, EtcdConfig};
    use dunlin_rpc::EndpointConfig;

    // It carries no packets: it runs the tasks.
    let endpoint = Endpoint::new(AnyTransport::bind(&"udp://127.0.0.1:0".parse()?)?, EndpointConfig::default())?;
    let etcd = Etcd::new(urls, EtcdConfig { prefix, timeout, ..EtcdConfig::default() })?;
    Ok((Rc::new(endpoint), Manager::Etcd(etcd)))
}

#[cfg(not(feature = "etcd"))]
fn etcd(_: &[String], _: String, _: Duration) -> Result<(End, Manager)> {
    Err(crate::commands::coord::without_etcd())
}
