//! What the commands that ask the cluster manager have in common: where it is, a time limit, and exit codes.

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use dunlin_coord::embedded::Embedded;
use dunlin_coord::{CoordError, Coordinator};
use dunlin_serve::Interrupt;
use dunlin_serve::signals::EXIT_INTERRUPTED;
use dunlin_smr::ClusterId;

use super::joins::NotSafe;
use super::manager::Manager;
use crate::commands::raft::cluster::{
    self, EXIT_CONDITION, EXIT_FAILED, EXIT_IN_DOUBT, EXIT_NOT_FOUND, Interrupted, Replicas,
};
use crate::commands::seconds;
use crate::output;

/// Where the cluster manager is, and how long to wait for it.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// Its nodes, all or some, more than half of them present members: ID=ADDRESS,... with addresses as udp://HOST:PORT or shm:NAME
    #[arg(long, value_name = "REPLICAS", required_unless_present = "etcd", conflicts_with = "etcd")]
    peers: Option<Replicas>,
    /// The number of their cluster, as `dunlin raft status` shows it: no other is asked. Without it that counts which most of these nodes are of
    #[arg(long, value_name = "NUMBER", conflicts_with = "etcd")]
    cluster: Option<ClusterId>,
    /// Instead, the etcd that keeps it: http://HOST:PORT,...
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd: Vec<String>,
    /// What the keys in that etcd begin with
    #[arg(long, value_name = "PATH", default_value = "/dunlin")]
    prefix: String,
    /// How long to wait for the answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Duration,
}

/// How a command ended that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As wished.
    Done,
    /// There is no such thing.
    NotFound,
}

/// Runs `work` with the cluster manager, unless a signal comes. What went wrong is printed, with the exit code for that.
pub fn ask(target: &Target, interrupt: &Interrupt, work: impl AsyncFnOnce(&Manager) -> Result<Outcome>) -> Result<ExitCode> {
    attend(target, async |manager: &Manager| {
        unless_interrupted(manager, interrupt, work(manager)).await.unwrap_or_else(|| Err(Interrupted.into()))
    })
}

/// The same for work that looks for signals itself.
pub fn attend(target: &Target, work: impl AsyncFnOnce(&Manager) -> Result<Outcome>) -> Result<ExitCode> {
    let error = match try_ask(target, work) {
        Ok(Outcome::Done) => return Ok(ExitCode::SUCCESS),
        Ok(Outcome::NotFound) => return Ok(ExitCode::from(EXIT_NOT_FOUND)),
        Err(error) => error,
    };
    let code = match error.downcast_ref::<CoordError>() {
        Some(error) => exit_code(error),
        None if error.is::<Interrupted>() => EXIT_INTERRUPTED,
        None if error.is::<NotSafe>() => EXIT_CONDITION,
        None => EXIT_FAILED,
    };
    Ok(output::report(&error, ExitCode::from(code)))
}

fn exit_code(error: &CoordError) -> u8 {
    match error {
        error if error.may_have_run() => EXIT_IN_DOUBT,
        CoordError::NotFound { .. } => EXIT_NOT_FOUND,
        CoordError::NotLive { .. }
        | CoordError::Live { .. }
        | CoordError::Held { .. }
        | CoordError::LeaseLost { .. }
        | CoordError::EpochChanged { .. }
        | CoordError::EpochsCut { .. }
        | CoordError::LeasesRun { .. }
        | CoordError::Exists { .. }
        | CoordError::Changed { .. } => EXIT_CONDITION,
        _ => EXIT_FAILED,
    }
}

/// Does some work, unless a signal comes before it is done.
pub async fn unless_interrupted<R>(manager: &Manager, interrupt: &Interrupt, work: impl Future<Output = R>) -> Option<R> {
    cluster::unless_interrupted(interrupt, |time| pause(manager, time), work).await
}

/// Waits for so long.
pub async fn pause(manager: &Manager, time: Duration) {
    manager.sleep_until(manager.now().saturating_add(time.as_nanos() as u64)).await;
}

fn try_ask(target: &Target, work: impl AsyncFnOnce(&Manager) -> Result<Outcome>) -> Result<Outcome> {
    let Some(peers) = &target.peers else { return ask_etcd(target, work) };
    let (endpoint, client) = cluster::connect(peers, target.cluster, target.timeout)?;
    endpoint.block_on(async {
        let manager = Manager::Embedded(Box::new(Embedded::new(client)));
        let outcome = work(&manager).await;
        if outcome.is_ok() {
            manager.close().await;
        }
        manager.warn_of_strangers();
        outcome
    })
}

#[cfg(feature = "etcd")]
fn ask_etcd(target: &Target, work: impl AsyncFnOnce(&Manager) -> Result<Outcome>) -> Result<Outcome> {
    use dunlin_coord::etcd::{Etcd, EtcdConfig};

    let config = EtcdConfig { prefix: target.prefix.clone(), timeout: target.timeout, ..EtcdConfig::default() };
    let etcd = Etcd::new(&target.etcd, config)?;
    etcd.block_on(work(&Manager::Etcd(etcd.clone())))
}

#[cfg(not(feature = "etcd"))]
fn ask_etcd(_: &Target, _: impl AsyncFnOnce(&Manager) -> Result<Outcome>) -> Result<Outcome> {
    Err(without_etcd())
}

/// Why an etcd cannot be used.
#[cfg(not(feature = "etcd"))]
pub fn without_etcd() -> anyhow::Error {
    anyhow::anyhow!(
        "this program was built without etcd: install protobuf-compiler and libprotobuf-dev, and build it with \
         cargo build --release --features etcd"
    )
}
