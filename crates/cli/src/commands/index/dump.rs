//! `dunlin index dump`: keys and values of an index or a snapshot into a file.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dunlin_index::snapshot::Items;
use dunlin_index::{Order, Range};
use dunlin_kv::transfer::DumpError;
use dunlin_net::Addr;
use dunlin_records::{Record, Writer};
use dunlin_serve::Interrupt;

use super::client::open;
use crate::arguments::at::Place;
use crate::commands::kv::dump::{Destination, Records, dump_to, show};
use crate::commands::kv::load::progress_bar;

/// Timeout of one request.
const DEADLINE: Duration = Duration::from_secs(10);

/// Dump the keys and values of an index, or of a snapshot, in key order as TSV, CSV or JSON lines
#[derive(Debug, clap::Args)]
#[command(after_help = "\
`dunlin index load` reads what this writes to the same keys and values, whatever bytes they have. The format follows the file's name unless
--format says it; a name that ends with .gz is compressed. The file gets its name when it is complete.

A server goes on serving meanwhile: what changes during the dump is in it or not.

Examples:
  dunlin index dump items.tsv --at shm:index
  dunlin index dump items.jsonl.gz --at udp://127.0.0.1:7730
  dunlin index dump --snapshot index.snapshot --format csv | head")]
pub struct Arguments {
    #[command(flatten)]
    destination: Destination,
    /// The server: shm:NAME, udp://HOST:PORT, or a name in clusters.toml
    #[arg(long, value_name = "WHERE", env = "DUNLIN_AT", required_unless_present = "snapshot")]
    at: Option<Place>,
    /// Dump this snapshot, and ask no server
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    dump_to(&arguments.destination, arguments, interrupt)
}

impl Records for Arguments {
    fn write<W: Write>(
        &self,
        begin: impl FnOnce() -> Result<Writer<W>, DumpError>,
        interrupt: &Interrupt,
    ) -> Result<(u64, Writer<W>)> {
        match (&self.snapshot, &self.at) {
            (Some(path), _) => from_snapshot(path, begin, interrupt),
            (None, Some(at)) => from_server(at.server()?, begin, interrupt),
            (None, None) => bail!("say what to dump: --at a server, or --snapshot FILE"),
        }
    }
}

fn record(key: &[u8], value: &[u8]) -> Record {
    Record { key: key.to_vec(), value: value.to_vec(), ..Record::default() }
}

fn from_server<W: Write>(
    server: &Addr,
    begin: impl FnOnce() -> Result<Writer<W>, DumpError>,
    interrupt: &Interrupt,
) -> Result<(u64, Writer<W>)> {
    let (endpoint, client) = open(server, DEADLINE)?;
    let bar = progress_bar(None);
    let outcome = endpoint.block_on(async {
        let items = client.stats().await.with_context(|| format!("dumping {server}"))?.index.items;
        let (mut writer, mut records, mut shown) = (begin()?, 0, Instant::now());
        let mut pages = client.scan(Range::ALL, Order::Ascending)?;
        while let Some(page) = pages.next().await? {
            for (key, value) in page.items() {
                writer.write(&record(key, value)).map_err(DumpError::Write)?;
                records += 1;
            }
            if !show(&bar, &mut shown, interrupt, || format!("{records} of about {items} records")) {
                return Err(DumpError::Interrupted.into());
            }
        }
        Ok((records, writer))
    });
    bar.finish_and_clear();
    outcome
}

fn from_snapshot<W: Write>(
    path: &Path,
    begin: impl FnOnce() -> Result<Writer<W>, DumpError>,
    interrupt: &Interrupt,
) -> Result<(u64, Writer<W>)> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let bar = progress_bar(file.metadata().ok().map(|metadata| metadata.len()));
    let mut shown = Instant::now();
    let cannot_read = || format!("cannot read {}", path.display());
    let mut snapshot = Items::new(BufReader::new(bar.wrap_read(BufReader::new(file)))).with_context(cannot_read)?;
    let (mut writer, mut records) = (begin()?, 0);
    let outcome = loop {
        let block = match snapshot.next_block() {
            Ok(Some(block)) => block,
            Ok(None) => break Ok((records, writer)),
            Err(error) => break Err(error).with_context(cannot_read),
        };
        for item in block {
            let (_, key, value) = item.with_context(cannot_read)?;
            writer.write(&record(key, value)).map_err(DumpError::Write)?;
            records += 1;
        }
        if !show(&bar, &mut shown, interrupt, || format!("{records} records")) {
            break Err(DumpError::Interrupted.into());
        }
    };
    bar.finish_and_clear();
    outcome
}
