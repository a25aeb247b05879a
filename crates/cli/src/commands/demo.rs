//! `dunlin demo`: half a minute that shows what this is.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use dunlin_bench::experiments::{self, DEMO};
use dunlin_bench::peer::{Interrupt, Launcher};
use dunlin_bench::report::Machine;

use super::seconds;
use crate::reports::{Collected, Files};

/// Server and client, busy all the time.
const PROCESSES: usize = 2;

/// Show latency, rate and bandwidth on this machine, beside the raw floor and the paper
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A server and a client run as separate processes, each on a core of its own: first over shared memory, then over UDP loopback.

Examples:
  dunlin demo
  dunlin demo --html demo.html                 keep the figures as a page with plots
  dunlin demo --seconds 10 --json demo.json")]
pub struct Arguments {
    /// About how long all of it takes
    #[arg(long, default_value = "20", value_parser = seconds, allow_negative_numbers = true)]
    seconds: Duration,
    #[command(flatten)]
    files: Files,
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    arguments.files.check()?;
    eprintln!("A server and a client, two processes on a core each: {:.0} s of measuring.", arguments.seconds.as_secs_f64());
    warn_if_busy(&Machine::detect());
    let outcome = DEMO.run(experiments::demo_settings(arguments.seconds), Launcher::new(interrupt))?;
    let mut collected = Collected::default();
    collected.add(outcome);
    collected.finish(&arguments.files)
}

/// A demo right after the build that it needed finds the load of that build, so the advice is the same for both.
fn warn_if_busy(machine: &Machine) {
    if machine.is_busy_for(PROCESSES) {
        eprintln!(
            "This machine is or just was busy (load {:.1} over the last minute): other work makes these figures worse; \
             stop it, wait a minute, and run the demo again.",
            machine.load
        );
    }
}
