//! What the commands that ask a transaction service have in common: where it is, a time limit, and exit codes.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::Interrupt;
use dunlin_serve::signals::EXIT_INTERRUPTED;
use dunlin_txn::node::{RemoteConfig, RemoteError};
use dunlin_txn::{Outcome as Fate, Transaction, TxnError};

use crate::arguments::at::{At, Place};
use crate::arguments::time::ordinary;
use crate::commands::raft::cluster::{Interrupted, transport, unless_interrupted};
use crate::{exit, output};

/// How long one node may take to answer.
const ATTEMPT_TIMEOUT_MAX: Duration = Duration::from_millis(500);

/// Any node of the service, or several, and how long to wait for it.
#[derive(Debug, clap::Args)]
pub struct Target {
    #[command(flatten)]
    at: At,
    /// How long to wait, also while nodes fail and are replaced
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = ordinary)]
    timeout: Duration,
}

/// A client on an endpoint of this thread.
pub type Remote = dunlin_txn::node::Remote<AnyTransport>;

/// A transaction of it.
pub type Tx = Transaction<AnyTransport>;

/// The outcome of a command that got an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Done,
    /// The item does not exist.
    NotFound,
}

/// Runs `work` with a client, unless a signal comes. Errors are printed and determine the exit code.
pub fn ask(
    target: &Target,
    interrupt: &Interrupt,
    work: impl AsyncFnOnce(&Endpoint<AnyTransport>, &Remote) -> Result<Outcome>,
) -> Result<ExitCode> {
    let error = match try_ask(target, interrupt, work) {
        Ok(Outcome::Done) => return Ok(ExitCode::SUCCESS),
        Ok(Outcome::NotFound) => return Ok(ExitCode::from(exit::NOT_FOUND)),
        Err(error) => error,
    };
    Ok(output::report(&error, ExitCode::from(exit_code(&error))))
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let may_have_run = error.downcast_ref::<RemoteError>().is_some_and(RemoteError::may_have_run);
    match error.downcast_ref::<TxnError>() {
        _ if may_have_run => exit::IN_DOUBT,
        Some(error) if error.may_have_committed() => exit::IN_DOUBT,
        Some(TxnError::Exists { .. } | TxnError::Conflict { .. } | TxnError::RangeConflict { .. }) => exit::CONDITION,
        Some(TxnError::NoTable { .. }) => exit::NOT_FOUND,
        _ if error.is::<Interrupted>() => EXIT_INTERRUPTED,
        _ => exit::FAILED,
    }
}

fn try_ask(
    target: &Target,
    interrupt: &Interrupt,
    work: impl AsyncFnOnce(&Endpoint<AnyTransport>, &Remote) -> Result<Outcome>,
) -> Result<Outcome> {
    let (transport, at) = reach(target.at.place())?;
    let attempt_timeout = (target.timeout / 2).min(ATTEMPT_TIMEOUT_MAX);
    let config = EndpointConfig { connect_timeout: attempt_timeout, ..EndpointConfig::default() };
    let endpoint = Rc::new(Endpoint::new(transport, config)?);
    let config = RemoteConfig { timeout: target.timeout, attempt_timeout, ..RemoteConfig::default() };
    let timers = endpoint.timers();
    let asked = async {
        let remote = Remote::connect(&endpoint, at, config).await?;
        work(&endpoint, &remote).await
    };
    let asked = unless_interrupted(interrupt, |time| timers.sleep(time), asked);
    endpoint.block_on(asked).unwrap_or_else(|| Err(Interrupted.into()))
}

/// A transport that reaches all nodes, given the addresses of some.
fn reach(place: &Place) -> Result<(AnyTransport, Vec<Addr>)> {
    match place {
        Place::Replicas(replicas, _) => {
            Ok((transport(replicas)?, replicas.0.iter().map(|(_, addr)| addr.clone()).collect()))
        }
        Place::Server(addr @ Addr::Shm(_)) => {
            let shm = ShmTransport::new(&ShmConfig::anonymous())?;
            // The others may be on other hosts.
            let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            Ok((AnyTransport::joined(shm, UdpTransport::bind(UdpConfig::new(any))?)?, vec![addr.clone()]))
        }
        Place::Server(addr) => Ok((AnyTransport::for_peer(addr)?, vec![addr.clone()])),
        Place::Etcd(_) => {
            bail!("this asks nodes of a transaction service, and not the cluster manager: give --at udp://HOST:PORT")
        }
    }
}

/// Runs a transaction until it is known that it has committed, within the time limit. If it is in doubt, its outcome is
/// asked for, and it runs again if it was aborted.
pub async fn run<R>(remote: &Remote, mut work: impl AsyncFnMut(&mut Tx) -> Result<R, TxnError>) -> Result<R> {
    loop {
        let mut kept = None;
        let done = remote
            .run(async |tx| {
                kept = Some(work(tx).await?);
                Ok(())
            })
            .await;
        let is_again = match done {
            Err(TxnError::InDoubt { transaction }) => match remote.settle(transaction).await {
                Ok(Fate::Committed) => false,
                Ok(Fate::Aborted) => true,
                _ => return Err(TxnError::InDoubt { transaction }.into()),
            },
            Err(error) => return Err(error.into()),
            Ok(()) => false,
        };
        if let Some(result) = kept.filter(|_| !is_again) {
            return Ok(result);
        }
    }
}
