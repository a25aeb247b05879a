//! Shared by the client commands of the cluster manager: target, time limit, and exit codes.

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use dunlin_coord::embedded::Embedded;
use dunlin_coord::{CoordError, Coordinator};
use dunlin_net::clock::nanos;
use dunlin_serve::Interrupt;
use dunlin_serve::signals::EXIT_INTERRUPTED;

use super::joins::NotSafe;
use super::manager::Manager;
use crate::commands::raft::cluster::{self, Cluster, Interrupted};
use crate::{exit, output};

/// Where the cluster manager is, which may be an etcd (http://HOST:PORT,...), and how long to wait for it.
#[derive(Debug, clap::Args)]
pub struct Target {
    #[command(flatten)]
    cluster: Cluster,
    /// What the keys in an etcd begin with
    #[arg(long, value_name = "PREFIX", default_value = "/dunlin")]
    prefix: String,
}

/// The outcome of a command that got an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Done,
    /// The object does not exist.
    NotFound,
}

/// Runs `work` with the cluster manager, unless a signal comes. Errors are printed and determine the exit code.
pub fn ask(
    target: &Target,
    interrupt: &Interrupt,
    work: impl AsyncFnOnce(&Manager) -> Result<Outcome>,
) -> Result<ExitCode> {
    attend(target, async |manager: &Manager| {
        unless_interrupted(manager, interrupt, work(manager)).await.unwrap_or_else(|| Err(Interrupted.into()))
    })
}

/// The same for work that checks for signals itself.
pub fn attend(target: &Target, work: impl AsyncFnOnce(&Manager) -> Result<Outcome>) -> Result<ExitCode> {
    let error = match try_ask(target, work) {
        Ok(Outcome::Done) => return Ok(ExitCode::SUCCESS),
        Ok(Outcome::NotFound) => return Ok(ExitCode::from(exit::NOT_FOUND)),
        Err(error) => error,
    };
    let code = match error.downcast_ref::<CoordError>() {
        Some(error) => exit_code(error),
        None if error.is::<Interrupted>() => EXIT_INTERRUPTED,
        None if error.is::<NotSafe>() => exit::CONDITION,
        None => exit::FAILED,
    };
    Ok(output::report(&error, ExitCode::from(code)))
}

fn exit_code(error: &CoordError) -> u8 {
    match error {
        error if error.may_have_run() => exit::IN_DOUBT,
        CoordError::NotFound { .. } => exit::NOT_FOUND,
        CoordError::NotLive { .. }
        | CoordError::Live { .. }
        | CoordError::Held { .. }
        | CoordError::LeaseLost { .. }
        | CoordError::EpochChanged { .. }
        | CoordError::EpochAhead { .. }
        | CoordError::EpochsCut { .. }
        | CoordError::LeasesRun { .. }
        | CoordError::Exists { .. }
        | CoordError::Changed { .. } => exit::CONDITION,
        _ => exit::FAILED,
    }
}

/// Runs `work`, unless a signal comes first.
pub async fn unless_interrupted<R>(
    manager: &Manager,
    interrupt: &Interrupt,
    work: impl Future<Output = R>,
) -> Option<R> {
    cluster::unless_interrupted(interrupt, |time| pause(manager, time), work).await
}

/// Sleeps.
pub async fn pause(manager: &Manager, time: Duration) {
    manager.sleep_until(manager.now().saturating_add(nanos(time))).await;
}

fn try_ask(target: &Target, work: impl AsyncFnOnce(&Manager) -> Result<Outcome>) -> Result<Outcome> {
    if let Some(urls) = target.cluster.at.etcd() {
        return ask_etcd(target, urls, work);
    }
    let (endpoint, client) = cluster::connect(&target.cluster.target()?)?;
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
fn ask_etcd(target: &Target, urls: &[String], work: impl AsyncFnOnce(&Manager) -> Result<Outcome>) -> Result<Outcome> {
    use dunlin_coord::etcd::{Etcd, EtcdConfig};

    let config = EtcdConfig { prefix: target.prefix.clone(), timeout: target.cluster.timeout, ..EtcdConfig::default() };
    let etcd = Etcd::new(urls, config)?;
    etcd.block_on(work(&Manager::Etcd(etcd.clone())))
}

#[cfg(not(feature = "etcd"))]
fn ask_etcd(_: &Target, _: &[String], _: impl AsyncFnOnce(&Manager) -> Result<Outcome>) -> Result<Outcome> {
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
