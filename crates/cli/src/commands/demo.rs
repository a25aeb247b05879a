//! `dunlin demo`: a demonstration of less than a minute.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use dunlin_bench::experiments::{self, DEMO};
use dunlin_lab::Settings;
use dunlin_lab::peer::Launcher;
use dunlin_lab::report::Machine;
use dunlin_serve::Interrupt;

use crate::arguments::time::ordinary;
use crate::reports::{Collected, Files};

/// Server and client, both always busy.
const PROCESSES: usize = 2;

/// Show what this machine can do: calls compared with the raw floor and the paper, a key-value service on real data,
/// and a replicated one
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A server and a client run as separate processes, each on a core of its own: first over shared memory, then over UDP loopback.
Then a key-value server takes the package index of this machine, or FILE; it is driven over shared memory, UDP and its memcached port, each alone
and all at once, by Dunlin's client and by a memcached library; it is killed, started again from its snapshot, and every record is compared.
At last three replicas with durable logs serve writes, the one that leads is killed, and the gap in service is shown; nothing acknowledged may be lost.

Examples:
  dunlin demo
  dunlin demo --save demo.html                 keep the figures as a page with plots
  dunlin demo --records words.tsv              serve records of your own: .tsv, .csv, .jsonl, or a file named Packages
  dunlin demo --for 10s --save demo.json")]
pub struct Arguments {
    /// About how long calls are measured; the key-value service takes about a third as long, and a few seconds; the
    /// replicas take four
    #[arg(long = "for", value_name = "TIME", default_value = "20s", value_parser = ordinary)]
    length: Duration,
    /// Records for the key-value service, in a format of `dunlin kv load`
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    #[command(flatten)]
    files: Files,
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    arguments.files.check()?;
    if let Some(data) = &arguments.records {
        experiments::check_demo_data(data)?;
    }
    eprintln!(
        "A server and a client, two processes on a core each: {:.0} s of measuring.",
        arguments.length.as_secs_f64()
    );
    warn_if_busy(&Machine::detect());
    let settings = Settings { data: arguments.records.clone(), ..experiments::demo_settings(arguments.length) };
    let outcome = DEMO.run(settings, Launcher::new(interrupt))?;
    let mut collected = Collected::new(&arguments.files);
    collected.add(outcome);
    collected.finish()
}

/// A demo right after its own build sees the load of that build, so the advice is the same in both cases.
fn warn_if_busy(machine: &Machine) {
    if machine.is_busy_for(PROCESSES) {
        eprintln!(
            "This machine is or just was busy (load {:.1} over the last minute): other work makes these figures worse; \
             stop it, wait a minute, and run the demo again.",
            machine.load
        );
    }
}
