//! What the commands that ask an index have in common: where it is, a time limit, and exit codes.

use std::io::{self, BufWriter, StdoutLock, Write, stdout};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use dunlin_index::{ClientConfig, IndexError};
use dunlin_net::{Addr, AnyTransport};
use dunlin_records::{Format, Record, Writer, escape};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::Interrupt;
use dunlin_serve::signals::EXIT_INTERRUPTED;

use crate::arguments::at::At;
use crate::arguments::time::ordinary;
use crate::commands::raft::cluster::{Interrupted, unless_interrupted};
use crate::output::OutputError;
use crate::{exit, output};

/// The server, and how long to wait for it.
#[derive(Debug, clap::Args)]
pub struct Server {
    #[command(flatten)]
    at: At,
    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = ordinary)]
    timeout: Duration,
}

/// A client on an endpoint of this thread.
pub type Client = dunlin_index::Client<AnyTransport>;

/// Whether a command did what it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// All that it was told of was there.
    All,
    /// Nothing, or only some.
    NotAll,
}

/// What an error of a client means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Nothing can have changed.
    Reads,
    /// A write may have been done although the answer is missing.
    Writes,
}

/// Opens an endpoint and a client for a server. It connects with the first call.
pub fn open(address: &Addr, timeout: Duration) -> Result<(Rc<Endpoint<AnyTransport>>, Client)> {
    let config = EndpointConfig { connect_timeout: timeout, ..EndpointConfig::default() };
    let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(address)?, config)?);
    let client = Client::new(&endpoint, address.clone(), ClientConfig { timeout, ..ClientConfig::default() });
    Ok((endpoint, client))
}

/// Runs `work` with a client, unless a signal comes. What went wrong is printed, with the exit code for that.
pub fn ask(
    server: &Server,
    interrupt: &Interrupt,
    purpose: Purpose,
    work: impl AsyncFnOnce(&Client) -> Result<Found>,
) -> Result<ExitCode> {
    let error = match try_ask(server, interrupt, work) {
        Ok(Found::All) => return Ok(ExitCode::SUCCESS),
        Ok(Found::NotAll) => return Ok(ExitCode::from(exit::NOT_FOUND)),
        Err(error) => error,
    };
    let is_in_doubt = match error.downcast_ref::<IndexError>() {
        Some(IndexError::Call { why, .. }) => purpose == Purpose::Writes && why.may_have_run,
        _ => false,
    };
    let code = match () {
        () if error.is::<Interrupted>() => EXIT_INTERRUPTED,
        () if is_in_doubt => exit::IN_DOUBT,
        () => exit::FAILED,
    };
    Ok(output::report(&error, ExitCode::from(code)))
}

fn try_ask(server: &Server, interrupt: &Interrupt, work: impl AsyncFnOnce(&Client) -> Result<Found>) -> Result<Found> {
    let (endpoint, client) = open(server.at.server()?, server.timeout)?;
    let timers = endpoint.timers();
    let work = unless_interrupted(interrupt, |time| timers.sleep(time), work(&client));
    endpoint.block_on(work).unwrap_or_else(|| Err(Interrupted.into()))
}

/// Prints items on standard output, a line for each: key and value with a tab between them, escaped as in TSV, or JSON.
pub enum Lines {
    Text(BufWriter<StdoutLock<'static>>),
    Json(Box<Writer<BufWriter<StdoutLock<'static>>>>),
}

impl Lines {
    /// Begins to print.
    pub fn new(is_json: bool) -> Result<Lines> {
        let out = BufWriter::new(stdout().lock());
        if !is_json {
            return Ok(Lines::Text(out));
        }
        Ok(Lines::Json(Box::new(Writer::new(out, Format::JsonLines).map_err(OutputError)?)))
    }

    /// Prints an item.
    pub fn item(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let printed = match self {
            Lines::Text(out) => text(out, key, value),
            Lines::Json(writer) => {
                writer.write(&Record { key: key.to_vec(), value: value.to_vec(), ..Record::default() })
            }
        };
        Ok(printed.map_err(OutputError)?)
    }

    /// Prints what is buffered.
    pub fn end(self) -> Result<()> {
        let ended = match self {
            Lines::Text(mut out) => out.flush(),
            Lines::Json(writer) => writer.finish().map(drop),
        };
        Ok(ended.map_err(OutputError)?)
    }
}

fn text(out: &mut impl Write, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut line = Vec::with_capacity(key.len() + value.len() + 2);
    escape(key, &mut line);
    line.push(b'\t');
    escape(value, &mut line);
    line.push(b'\n');
    out.write_all(&line)
}
