//! The office of a sequencer under a cluster manager: who holds it hands out numbers.

use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::builder::RangedU64ValueParser;
use dunlin_coord::embedded::Embedded;
use dunlin_net::AnyTransport;
use dunlin_rpc::Endpoint;
use dunlin_seq::reserve::{Coordinated, CoordinatedConfig, Keeper, KeeperConfig, KeeperStats, RANGE_MAX};
use dunlin_seq::{Counter, RUN_MAX};
use futures::future::{Either, select};
use tokio::sync::oneshot;

use super::direct::PUBLISH_EVERY;
use crate::arguments::at::Place;
use crate::arguments::time::ordinary;
use crate::commands::coord::manager::Manager;
use crate::commands::raft::cluster::{self, Target};

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

    /// Starts to compete for the office, on a thread of its own.
    ///
    /// # Errors
    /// If an argument is wrong, or the cluster manager cannot be reached at all.
    pub fn compete(
        &self,
        about: String,
        start: u64,
        counter: Arc<Counter>,
        stats: OfficeStats,
    ) -> Result<Option<Candidacy>> {
        let (Some(place), Some(member)) = (self.coord.clone(), self.member) else { return Ok(None) };
        let config = CoordinatedConfig { member, about, name: self.office.clone(), lease: self.ttl, start };
        let (range, prefix) = (self.range, self.prefix.clone());
        let ((started, has_started), (stop, stopped)) = (mpsc::channel(), oneshot::channel());
        let work = move || {
            let begun = begin(&place, prefix, config, range, &counter);
            let (endpoint, keeper) = match begun {
                Ok(begun) => begun,
                Err(error) => return drop(started.send(Err(error))),
            };
            // The other end may be gone.
            let _ = started.send(Ok(()));
            let timers = endpoint.timers();
            endpoint.block_on(async {
                // An error means that the owner is gone: it stops as well.
                let mut stopped = pin!(stopped);
                while let Either::Right(_) = select(stopped.as_mut(), pin!(timers.sleep(PUBLISH_EVERY))).await {
                    stats.set(keeper.stats());
                }
                keeper.stop().await;
                stats.set(keeper.stats());
            });
        };
        let thread = thread::Builder::new().name("office".into()).spawn(work).context("cannot start a thread")?;
        has_started.recv().context("the thread of the office has failed")??;
        Ok(Some(Candidacy { stop: Some(stop), thread: Some(thread) }))
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

/// A sequencer that holds the office or competes for it, until it is dropped: then it gives the office up.
pub struct Candidacy {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            eprintln!("dunlin: the thread of the office has failed: the office is free when the lease is over");
        }
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

/// The cluster manager, and the endpoint that its operations run on.
pub fn connect(place: &Place, prefix: String, timeout: Duration) -> Result<(End, Manager)> {
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
