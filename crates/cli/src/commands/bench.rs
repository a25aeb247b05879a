//! `dunlin bench`: the experiments.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use dunlin_bench::experiments::{self, ALL};
use dunlin_bench::lab::Settings;
use dunlin_bench::peer::{Interrupt, Launcher};

use super::seconds;
use crate::reports::{Collected, Files};

/// Repeat the experiments of the papers on this machine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin bench list
  dunlin bench run rpc-latency
  dunlin bench run rpc-rate --seconds 3 --json rate.json --html rate.html
  dunlin bench run all --check")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the experiments
    List,
    Run(Run),
}

/// Run one experiment, or all
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each case is run five times in processes of its own, server and client on a core each; the table shows the median, the lowest
and the highest run beside the raw floor of the same transport, taken in the same run.

Examples:
  dunlin bench run rpc-latency
  dunlin bench run rpc-rate --seconds 3 --json rate.json
  dunlin bench run rpc-rate --busy-core 1      with a neighbour that wants core 1 too
  dunlin bench run all --check                 fails if a target is missed")]
struct Run {
    /// Name of the experiment, or `all`
    name: String,
    /// Length of each measured run
    #[arg(long, default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    seconds: Duration,
    /// Keep this core busy with another process all the while
    #[arg(long, value_name = "CORE")]
    busy_core: Option<usize>,
    /// Exit with 1 if a target is missed
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    files: Files,
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    match arguments.command {
        Command::List => {
            list();
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(arguments) => run_experiments(arguments, interrupt),
    }
}

fn list() {
    for experiment in ALL {
        println!("{:<23} {:<20} {}", experiment.name, experiment.paper, experiment.about);
    }
}

fn run_experiments(arguments: Run, interrupt: Interrupt) -> Result<ExitCode> {
    let experiments = experiments::find(&arguments.name)?;
    arguments.files.check()?;
    let settings = Settings { run: arguments.seconds, busy_core: arguments.busy_core, ..Settings::default() };
    let mut collected = Collected::default();
    for experiment in experiments {
        let outcome = experiment.run(settings.clone(), Launcher::new(interrupt.clone()))?;
        if !collected.add(outcome) {
            break;
        }
    }
    if arguments.check { collected.finish_checked(&arguments.files) } else { collected.finish(&arguments.files) }
}
