//! `dunlin index load`: keys and values from a file into an index.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use dunlin_index::IndexError;
use dunlin_kv::transfer::Target;
use dunlin_records::Record;
use dunlin_serve::Interrupt;

use super::client::{Client, open};
use crate::arguments::at::At;
use crate::commands::kv::load::{Source, load};

/// Timeout of one record.
const DEADLINE: Duration = Duration::from_secs(10);

/// Load keys and values from a file: TSV, CSV, JSON lines, or a Debian package index
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A record that cannot be loaded is named with its line and left out; the exit code is then 3. That is so, too, if it has flags or expires: an
index keeps neither. Of several records with the same key the last wins. The format follows the file's name unless --format says it; what begins
like gzip is decompressed. `dunlin kv load --help` describes the formats. `dunlin index dump` writes what this reads.

Examples:
  dunlin index load words.tsv --at shm:index
  dunlin index load cities.csv --at udp://127.0.0.1:7730 --key-column geonameid --value-column name
  zcat events.jsonl.gz | dunlin index load - --at shm:index --format jsonl --key-column id --value-column payload
  dunlin kv dump --at shm:kv --format jsonl | dunlin index load - --at shm:index --format jsonl")]
pub struct Arguments {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    at: At,
}

/// Why a record was not stored.
#[derive(Debug)]
enum Refusal {
    /// It has what an index does not keep.
    Unfit(&'static str),
    Index(IndexError),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unfit(what) => write!(f, "the record {what}, which an index does not keep"),
            Refusal::Index(error) => error.fmt(f),
        }
    }
}

struct Loaded(Client);

impl Target for Loaded {
    type Error = Refusal;

    async fn store(&self, record: &Record) -> Result<(), Refusal> {
        if record.expires.is_some() {
            return Err(Refusal::Unfit("expires"));
        }
        if record.flags != 0 {
            return Err(Refusal::Unfit("has flags"));
        }
        self.0.put(&record.key, &record.value).await.map(drop).map_err(Refusal::Index)
    }

    fn is_misfit(error: &Refusal) -> bool {
        matches!(error, Refusal::Unfit(_) | Refusal::Index(IndexError::TooLong(_)))
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let server = arguments.at.server()?;
    let opened = arguments.source.open()?;
    let (endpoint, client) = open(server, DEADLINE)?;
    load(&arguments.source, opened, &endpoint, &Loaded(client), server, interrupt)
}
