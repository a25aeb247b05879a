//! `dunlin kv dump`: keys and values of a server or a snapshot into a file.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, ErrorKind, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dunlin_kv::client::{ClientConfig, KvClient};
use dunlin_kv::transfer::{DumpError, dump_server, dump_snapshot};
use dunlin_net::{Addr, AnyTransport};
use dunlin_records::{Format, GzipEncoder, Writer};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::Interrupt;
use dunlin_serve::signals::EXIT_INTERRUPTED;
use dunlin_store::snapshot::Reader;
use indicatif::ProgressBar;

use super::load::progress_bar;
use crate::arguments::at::Place;
use crate::output::OutputError;

/// Timeout of one request.
const DEADLINE: Duration = Duration::from_secs(10);
/// Interval at which the progress bar is updated.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// Dump the keys and values of a server, or of a snapshot, as TSV, CSV or JSON lines
#[derive(Debug, clap::Args)]
#[command(after_help = "\
`dunlin kv load` reads what this writes to the same keys, values, flags and expiries, whatever bytes they have. The format follows the file's
name unless --format says it; a name that ends with .gz is compressed. The file gets its name when it is complete.

A server goes on serving meanwhile: what changes during the dump is in it or not. A snapshot is one moment.

Examples:
  dunlin kv dump items.tsv --at shm:kv
  dunlin kv dump items.jsonl.gz --at udp://127.0.0.1:7700
  dunlin kv dump --snapshot kv.snapshot --format csv | head")]
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

/// Where records are written, and how.
#[derive(Debug, clap::Args)]
pub struct Destination {
    /// The file; - for standard output
    #[arg(default_value = "-")]
    file: PathBuf,
    /// tsv, csv or jsonl; tsv on standard output unless told
    #[arg(long)]
    format: Option<Format>,
}

/// What is dumped.
pub trait Records {
    /// Writes all records, and returns their number and the writer. Calls `begin` when the source is known to be valid.
    fn write<W: Write>(
        &self,
        begin: impl FnOnce() -> Result<Writer<W>, DumpError>,
        interrupt: &Interrupt,
    ) -> Result<(u64, Writer<W>)>;
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

/// Writes records to where they shall be, and reports that.
pub fn dump_to(arguments: &Destination, records: &impl Records, interrupt: &Interrupt) -> Result<ExitCode> {
    let is_stdout = arguments.file == Path::new("-");
    let format = match arguments.format.or_else(|| Format::of_path(&arguments.file)) {
        Some(Format::Packages) => bail!("package indices are only read: choose tsv, csv or jsonl"),
        Some(format) => format,
        None if is_stdout => Format::Tsv,
        None => {
            bail!("the name does not tell the format of {}: say --format tsv, csv or jsonl", arguments.file.display())
        }
    };
    if is_stdout {
        let outcome = dump(records, format, BufWriter::new(stdout().lock()), interrupt);
        return report(outcome.map(|(records, _)| records), "standard output");
    }
    let name = arguments.file.display().to_string();
    // A pipe or a device is written directly. Otherwise a new file of the same name would replace it.
    if fs::metadata(&arguments.file).is_ok_and(|metadata| !metadata.is_file()) {
        return report(dump_to_file(arguments, records, format, &arguments.file, interrupt), &name);
    }
    let unfinished = unfinished(&arguments.file);
    let outcome = dump_to_file(arguments, records, format, &unfinished, interrupt);
    let outcome = outcome.and_then(|records| {
        fs::rename(&unfinished, &arguments.file).with_context(|| format!("cannot write {name}"))?;
        Ok(records)
    });
    if outcome.is_err() {
        // It may not exist.
        let _ = fs::remove_file(&unfinished);
    }
    report(outcome, &name)
}

fn report(outcome: Result<u64>, name: &str) -> Result<ExitCode> {
    match outcome {
        Ok(records) => {
            eprintln!("{records} records written to {name}");
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => match error.downcast_ref::<DumpError>() {
            Some(DumpError::Interrupted) => {
                eprintln!("dunlin: interrupted");
                Ok(ExitCode::from(EXIT_INTERRUPTED))
            }
            Some(DumpError::Write(why)) if why.kind() == ErrorKind::BrokenPipe => {
                Err(OutputError(why.kind().into()).into())
            }
            _ => Err(error),
        },
    }
}

/// The name of the incomplete file.
fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    file.with_file_name(name)
}

fn dump_to_file(
    arguments: &Destination,
    records: &impl Records,
    format: Format,
    path: &Path,
    interrupt: &Interrupt,
) -> Result<u64> {
    let cannot = || format!("cannot write {}", path.display());
    let file = File::create(path).with_context(cannot)?;
    let file = if arguments.file.extension().is_some_and(|extension| extension == "gz") {
        let (records, output) = dump(records, format, GzipEncoder::new(BufWriter::new(file)), interrupt)?;
        output
            .finish()
            .with_context(cannot)?
            .into_inner()
            .map_err(|error| error.into_error())
            .map(|file| (records, file))
    } else {
        let (records, output) = dump(records, format, BufWriter::new(file), interrupt)?;
        output.into_inner().map_err(|error| error.into_error()).map(|file| (records, file))
    };
    let (records, file) = file.with_context(cannot)?;
    if file.metadata().with_context(cannot)?.is_file() {
        file.sync_all().with_context(cannot)?;
    }
    Ok(records)
}

/// Writes everything, and returns the number of records and the output. Writes nothing until the source is known to be
/// valid.
fn dump<W: Write>(records: &impl Records, format: Format, output: W, interrupt: &Interrupt) -> Result<(u64, W)> {
    let begin = || Writer::new(output, format).map_err(DumpError::Write);
    let (records, writer) = records.write(begin, interrupt)?;
    Ok((records, writer.finish().map_err(DumpError::Write)?))
}

fn from_server<W: Write>(
    server: &Addr,
    begin: impl FnOnce() -> Result<Writer<W>, DumpError>,
    interrupt: &Interrupt,
) -> Result<(u64, Writer<W>)> {
    let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(server)?, EndpointConfig::default())?);
    let mut config = ClientConfig::default();
    config.deadline = Some(DEADLINE);
    let client = KvClient::new(&endpoint, server, config);
    let items = endpoint.block_on(client.stats()).with_context(|| format!("dumping {server}"))?.store().items;
    let mut writer = begin()?;
    let bar = progress_bar(None);
    let mut shown = Instant::now();
    let mut watch = |records| show(&bar, &mut shown, interrupt, || format!("{records} of about {items} records"));
    let outcome = endpoint.block_on(dump_server(&client, &mut writer, &mut watch));
    bar.finish_and_clear();
    client.close();
    Ok((outcome?, writer))
}

fn from_snapshot<W: Write>(
    path: &Path,
    begin: impl FnOnce() -> Result<Writer<W>, DumpError>,
    interrupt: &Interrupt,
) -> Result<(u64, Writer<W>)> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let bar = progress_bar(file.metadata().ok().map(|metadata| metadata.len()));
    let mut shown = Instant::now();
    let mut watch = |records| show(&bar, &mut shown, interrupt, || format!("{records} records"));
    let mut snapshot = Reader::new(BufReader::new(bar.wrap_read(BufReader::new(file)))).map_err(DumpError::Snapshot)?;
    let mut writer = begin()?;
    let outcome = dump_snapshot(&mut snapshot, &mut writer, &mut watch);
    bar.finish_and_clear();
    Ok((outcome?, writer))
}

/// Shows a message ten times a second. Returns false if the command is to end.
pub fn show(bar: &ProgressBar, shown: &mut Instant, interrupt: &Interrupt, message: impl FnOnce() -> String) -> bool {
    if shown.elapsed() >= BAR_INTERVAL {
        *shown = Instant::now();
        bar.set_message(message());
        bar.tick();
    }
    !interrupt.is_set()
}
