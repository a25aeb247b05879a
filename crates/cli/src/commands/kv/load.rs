//! `dunlin kv load`: keys and values from a file into a server.

use std::fmt::Display;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::builder::RangedU64ValueParser;
use dunlin_kv::client::{ClientConfig, KvClient};
use dunlin_kv::transfer::{self, Loading, Misfit, Skipped, Target};
use dunlin_net::{Addr, AnyTransport};
use dunlin_records::{Column, Columns, Format, HeaderRow, Input, Progress, Reader};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::Interrupt;
use dunlin_serve::signals::EXIT_INTERRUPTED;
use indicatif::{ProgressBar, ProgressStyle};

use crate::arguments::at::At;
use crate::commands::top::human;
use crate::{exit, output};

/// Records that are named when they are left out; the rest is counted.
const SKIPPED_NAMED_MAX: u64 = 20;
/// Timeout of one record.
const DEADLINE: Duration = Duration::from_secs(10);
/// Interval at which the progress bar is updated.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// Load keys and values from a file: TSV, CSV, JSON lines, or a Debian package index
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A record that cannot be loaded is named with its line and left out; the exit code is then 3. Of several records with the same key the last wins.
The format follows the file's name unless --format says it; what begins like gzip is decompressed. `dunlin kv dump` writes what this reads.

  tsv       key TAB value; \\t \\n \\r \\\\ \\xHH stand for bytes
  csv       quoted as RFC 4180 says; a column `encoding` that says base64 holds for key and value of its row
  jsonl     {\"key\": ..., \"value\": ...}, or key_base64 and value_base64; a value that is no string is stored as its JSON
  packages  paragraphs of a package index under name_version_architecture

Columns `flags` and `expires` (seconds since 1970) are loaded too. Without --header the first line of TSV and CSV is taken for names if a column
is asked for by name, or if it has both `key` and `value`.

Examples:
  dunlin kv load words.tsv --at shm:kv
  dunlin kv load cities.csv --at udp://127.0.0.1:7700 --key-column geonameid --value-column name
  zcat events.jsonl.gz | dunlin kv load - --at shm:kv --format jsonl --key-column id --value-column payload
  dunlin kv load /var/lib/dpkg/status --at shm:kv")]
pub struct Arguments {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    at: At,
}

/// What is loaded, and how.
#[derive(Debug, clap::Args)]
pub struct Source {
    /// The file; - for standard input
    file: PathBuf,
    /// tsv, csv, jsonl or packages
    #[arg(long)]
    format: Option<Format>,
    /// Name of the column or JSON field that is the key, or its number from 1
    #[arg(long, value_name = "COLUMN")]
    key_column: Option<Column>,
    /// The same for the value
    #[arg(long, value_name = "COLUMN")]
    value_column: Option<Column>,
    /// Whether the first line of TSV and CSV contains names
    #[arg(long, value_enum, default_value = "auto")]
    header: Header,
    /// Treat a backslash in TSV as a plain character
    #[arg(long)]
    no_escapes: bool,
    /// End at the first record that cannot be loaded
    #[arg(long)]
    strict: bool,
    /// Records in flight at a time
    #[arg(long, value_name = "RECORDS", default_value = "256", value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    in_flight: usize,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Header {
    Auto,
    Yes,
    No,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let server = arguments.at.server()?;
    let opened = arguments.source.open()?;
    let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(server)?, EndpointConfig::default())?);
    let mut config = ClientConfig::default();
    config.deadline = Some(DEADLINE);
    let client = KvClient::new(&endpoint, server, config);
    let loaded = load(&arguments.source, opened, &endpoint, &client, server, interrupt);
    client.close();
    loaded
}

/// Loads records into a target, which an endpoint of this thread reaches, and reports that.
pub fn load<T: Target>(
    arguments: &Source,
    Opened(input, format): Opened,
    endpoint: &Endpoint<AnyTransport>,
    target: &T,
    server: &Addr,
    interrupt: &Interrupt,
) -> Result<ExitCode>
where
    T::Error: Send + Sync + 'static,
{
    let bar = progress_bar(input.len);
    let progress = input.progress.clone();
    let records = reader(arguments, input, format);
    let started = Instant::now();
    let mut watch = Watch { bar: &bar, progress, shown: started, named: 0, interrupt };
    let mut loading = Loading::new(arguments.in_flight);
    if arguments.strict {
        loading = loading.strict();
    }
    let outcome = endpoint.block_on(transfer::load(target, records, loading, &mut watch));
    bar.finish_and_clear();
    let loaded = outcome.with_context(|| format!("loading {} into {server}", arguments.file.display()))?;
    let seconds = started.elapsed().as_secs_f64();
    output::line(format_args!(
        "{} records loaded, {} of keys and values, in {seconds:.1} s ({}/s)",
        loaded.records,
        human::bytes(loaded.bytes),
        human::count(loaded.records as f64 / seconds.max(1e-3))
    ))?;
    if interrupt.is_set() {
        eprintln!("dunlin: interrupted; what was loaded until then stays");
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    if loaded.skipped > 0 {
        eprintln!("dunlin: {} records were left out", loaded.skipped);
        return Ok(ExitCode::from(exit::CONDITION));
    }
    Ok(ExitCode::SUCCESS)
}

/// A file that can be read.
pub struct Opened(Input, Format);

impl Source {
    /// Opens the file, before a server is asked.
    pub fn open(&self) -> Result<Opened> {
        let is_stdin = self.file == Path::new("-");
        let Some(format) = self.format.or_else(|| Format::of_file(&self.file)) else {
            let what = if is_stdin { "standard input".into() } else { self.file.display().to_string() };
            bail!("the name does not tell the format of {what}: say --format tsv, csv, jsonl or packages");
        };
        let input = if is_stdin { Input::stdin() } else { Input::open(&self.file) };
        Ok(Opened(input.with_context(|| format!("cannot read {}", self.file.display()))?, format))
    }
}

fn reader(arguments: &Source, input: Input, format: Format) -> Reader<Box<dyn std::io::BufRead + Send>> {
    let header = match arguments.header {
        Header::Auto => HeaderRow::Auto,
        Header::Yes => HeaderRow::Present,
        Header::No => HeaderRow::Absent,
    };
    let columns = Columns { key: arguments.key_column.clone(), value: arguments.value_column.clone(), header };
    if arguments.no_escapes && format == Format::Tsv {
        Reader::tsv_without_escapes(input.reader, &columns)
    } else {
        Reader::new(input.reader, format, &columns)
    }
}

/// Shows the progress, names skipped records, and ends at an interrupt.
struct Watch<'a> {
    bar: &'a ProgressBar,
    progress: Progress,
    shown: Instant,
    named: u64,
    interrupt: &'a Interrupt,
}

impl<E: Display> transfer::Watch<E> for Watch<'_> {
    fn loaded(&mut self, records: u64) -> bool {
        if self.shown.elapsed() >= BAR_INTERVAL {
            self.shown = Instant::now();
            self.bar.set_position(self.progress.bytes());
            self.bar.set_message(format!("{records} records"));
        }
        !self.interrupt.is_set()
    }

    fn skipped(&mut self, skipped: &Skipped<E>) {
        self.named += 1;
        match self.named {
            ..=SKIPPED_NAMED_MAX => self.bar.suspend(|| eprintln!("dunlin: left out: {skipped}")),
            more if more == SKIPPED_NAMED_MAX + 1 => {
                self.bar.suspend(|| eprintln!("dunlin: more records are left out, and only counted"));
            }
            _ => {}
        }
        if matches!(skipped.why, Misfit::Record(_)) {
            self.bar.tick();
        }
    }
}

pub fn progress_bar(len: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bytes = "{spinner:.cyan} {bar:24.cyan/dim} {bytes}/{total_bytes} {bytes_per_sec} {elapsed} {wide_msg}";
    let open_end = "{spinner:.cyan} {bytes} {bytes_per_sec} {elapsed} {wide_msg}";
    let (bar, template) = match len {
        Some(len) => (ProgressBar::new(len), bytes),
        None => (ProgressBar::no_length(), open_end),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("a constant template is valid"))
}
