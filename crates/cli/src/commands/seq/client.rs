//! What the commands that ask a sequencer have in common.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_seq::ClientConfig;
use dunlin_serve::Interrupt;
use dunlin_serve::signals::EXIT_INTERRUPTED;

use crate::arguments::at::{At, Place};
use crate::arguments::time::ordinary;
use crate::commands::raft::cluster::{Interrupted, transport, unless_interrupted};
use crate::{exit, output};

/// Where the sequencer is, and how long to wait for it.
#[derive(Debug, clap::Args)]
pub struct Target {
    #[command(flatten)]
    at: At,
    /// How long to wait for the answer
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = ordinary)]
    timeout: Duration,
}

impl Target {
    /// How long to wait.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A transport that reaches the sequencers, and their addresses.
    pub fn open(&self) -> Result<(AnyTransport, Vec<Addr>)> {
        match self.at.place() {
            Place::Replicas(replicas, _) => {
                Ok((transport(replicas)?, replicas.0.iter().map(|(_, addr)| addr.clone()).collect()))
            }
            place => {
                let server = place.server()?;
                Ok((AnyTransport::for_peer(server)?, vec![server.clone()]))
            }
        }
    }
}

/// A client on an endpoint of this thread.
pub type Client = dunlin_seq::Client<AnyTransport>;

/// Runs `work` with a client, unless a signal comes. An error is printed, with its exit code.
pub fn ask(
    target: &Target,
    interrupt: &Interrupt,
    work: impl AsyncFnOnce(&Endpoint<AnyTransport>, &Client) -> Result<()>,
) -> Result<ExitCode> {
    let error = match try_ask(target, interrupt, work) {
        Ok(()) => return Ok(ExitCode::SUCCESS),
        Err(error) => error,
    };
    let code = if error.is::<Interrupted>() { EXIT_INTERRUPTED } else { exit::FAILED };
    Ok(output::report(&error, ExitCode::from(code)))
}

fn try_ask(
    target: &Target,
    interrupt: &Interrupt,
    work: impl AsyncFnOnce(&Endpoint<AnyTransport>, &Client) -> Result<()>,
) -> Result<()> {
    let (transport, servers) = target.open()?;
    let attempt_timeout = (target.timeout / (servers.len() as u32 + 1)).min(ClientConfig::default().attempt_timeout);
    let config = EndpointConfig { connect_timeout: attempt_timeout, ..EndpointConfig::default() };
    let endpoint = Rc::new(Endpoint::new(transport, config)?);
    // With one batch in flight, callers get their numbers in the order in which they asked.
    let config = ClientConfig { timeout: target.timeout, attempt_timeout, batches_max: 1, ..ClientConfig::default() };
    let client = Client::new(&endpoint, servers, config);
    let timers = endpoint.timers();
    let work = unless_interrupted(interrupt, |time| timers.sleep(time), work(&endpoint, &client));
    endpoint.block_on(work).unwrap_or_else(|| Err(Interrupted.into()))
}
