//! What the commands that ask a server have in common: where it is, a time limit, and exit codes.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use dunlin_kv::KvClient;
use dunlin_kv::client::{ClientConfig, KvError, Outcome};
use dunlin_net::AnyTransport;
use dunlin_rpc::{Endpoint, EndpointConfig};

use crate::arguments::at::At;
use crate::arguments::time::ordinary;
use crate::{exit, output};

/// The server, and how long to wait for it.
#[derive(Debug, clap::Args)]
pub struct Server {
    #[command(flatten)]
    at: At,
    /// How long to wait for the answer
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = ordinary)]
    timeout: Duration,
}

/// A client on an endpoint of this thread.
pub type Client = KvClient<AnyTransport>;

/// Connects to a server and runs `work`. What went wrong is printed, with the exit code for that.
pub fn ask(server: &Server, work: impl AsyncFnOnce(&Client) -> Result<Found>) -> Result<ExitCode> {
    match try_ask(server, work) {
        Ok(Found::All) => Ok(ExitCode::SUCCESS),
        Ok(Found::NotAll) => Ok(ExitCode::from(exit::NOT_FOUND)),
        Ok(Found::NotAsExpected) => Ok(ExitCode::from(exit::CONDITION)),
        Err(error) => {
            let outcome = error.downcast_ref::<KvError>().map(KvError::outcome);
            let code = if outcome == Some(Outcome::MaybeExecuted) { exit::IN_DOUBT } else { exit::FAILED };
            Ok(output::report(&error, ExitCode::from(code)))
        }
    }
}

/// Whether the requested items were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// All of them.
    All,
    /// None, or only some.
    NotAll,
    /// It was, but the condition does not hold.
    NotAsExpected,
}

fn try_ask(server: &Server, work: impl AsyncFnOnce(&Client) -> Result<Found>) -> Result<Found> {
    let address = server.at.server()?;
    let config = EndpointConfig { connect_timeout: server.timeout, ..EndpointConfig::default() };
    let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(address)?, config)?);
    let mut settings = ClientConfig::default();
    settings.sessions_per_core = 1;
    settings.deadline = Some(server.timeout);
    endpoint.block_on(async {
        let client = KvClient::connect(&endpoint, address, settings).await?;
        let found = work(&client).await.with_context(|| format!("asking {address}"));
        client.close();
        found
    })
}
