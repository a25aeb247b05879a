//! What the commands that ask a server have in common: its address, a deadline, and exit codes.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use dunlin_kv::KvClient;
use dunlin_kv::client::ClientConfig;
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};

use crate::commands::seconds;
use crate::output;

/// Exit code when there is no item.
const EXIT_NOT_FOUND: u8 = 1;
/// Exit code when it is not known whether there is one.
const EXIT_FAILED: u8 = 2;

/// The server, and how long to wait for it.
#[derive(Debug, clap::Args)]
pub struct Server {
    /// The server: shm:NAME or udp://HOST:PORT
    #[arg(value_name = "SERVER")]
    pub address: String,
    /// How long to wait for the answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds, allow_negative_numbers = true)]
    pub deadline: Duration,
}

/// A client on an endpoint of this thread's.
pub type Client = KvClient<AnyTransport>;

/// Connects to a server and runs `work`. What went wrong is printed, with the exit code of these commands: 2.
pub fn ask(server: &Server, work: impl AsyncFnOnce(&Client) -> Result<Found>) -> Result<ExitCode> {
    match try_ask(server, work) {
        Ok(Found::All) => Ok(ExitCode::SUCCESS),
        Ok(Found::NotAll) => Ok(ExitCode::from(EXIT_NOT_FOUND)),
        Err(error) => Ok(output::report(&error, ExitCode::from(EXIT_FAILED))),
    }
}

/// Whether what was asked for was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// All of it.
    All,
    /// Not, or not all.
    NotAll,
}

fn try_ask(server: &Server, work: impl AsyncFnOnce(&Client) -> Result<Found>) -> Result<Found> {
    let address: Addr = server.address.parse()?;
    let config = EndpointConfig { connect_timeout: server.deadline, ..EndpointConfig::default() };
    let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(&address)?, config)?);
    let mut settings = ClientConfig::default();
    settings.sessions_per_core = 1;
    settings.deadline = Some(server.deadline);
    endpoint.block_on(async {
        let client = KvClient::connect(&endpoint, &address, settings).await?;
        let found = work(&client).await.with_context(|| format!("asking {address}"));
        client.close();
        found
    })
}
