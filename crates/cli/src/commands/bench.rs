//! `dunlin bench`: the experiments.

mod report;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use clap::builder::RangedU64ValueParser;
use dunlin_bench::experiments;
use dunlin_lab::peer::Launcher;
use dunlin_lab::{Settings, Simulations};
use dunlin_serve::Interrupt;
use dunlin_sim::{CostModel, Topology};
use serde_json::{Value, json};

use crate::arguments::time::ordinary;
use crate::output::{self, OutputError};
use crate::reports::{self, Collected, Files};

/// With fewer items, results are meaningless.
const ITEMS_MIN: u64 = 1000;

/// Repeat the experiments of the papers on this machine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin bench list
  dunlin bench run rpc-latency
  dunlin bench run rpc-rate --for 3s --save rate.json --save rate.html
  dunlin bench run all --check
  dunlin bench report rate.json --save rate.html")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    Run(Box<Run>),
    Report(report::Arguments),
}

/// List the experiments
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin bench list
  dunlin bench list --json | jq -r '.[].name'")]
struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Run experiments
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each case is run five times in processes of its own, server and client on a core each; the table shows the median, the lowest
and the highest run beside the raw floor of the same transport, taken in the same run.
Experiments whose name begins with sim or rein-sim run in virtual time instead, once for each seed; --for scales how
much of it.
In names and cases * stands for any text. --case measures the cases with such a name only, and those that their targets
refer to; experiments that measure all cases together say so.

Examples:
  dunlin bench run rpc-latency
  dunlin bench run 'rpc-*' kv-rate --runs 3
  dunlin bench run rpc-rate --case 'shm*' --for 3s --save rate.json
  dunlin bench run rpc-rate --compare rate.json --check    fails if a row is worse than all runs before
  dunlin bench run sim-latency --case 'CX4*' --pcap cx4.pcap
  dunlin bench run sim-loss --topology mine.toml           on the network of this file (dunlin sim topology)
  dunlin bench run rpc-rate --busy-core 1      with a neighbour that wants core 1 too
  dunlin bench run sim-incast --seeds 5        in virtual time
  dunlin bench run all --check                 fails if a target is missed")]
struct Run {
    /// Names of experiments, in which * stands for any text, or `all`
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Measure only cases of this name, in which * stands for any text; may be repeated
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
    /// Runs of each case in real time
    #[arg(long, value_name = "NUMBER", default_value = "5", value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: u32,
    /// Length of each measured run
    #[arg(long = "for", value_name = "TIME", default_value = "1s", value_parser = ordinary)]
    length: Duration,
    /// Keep this core busy with another process all the while
    #[arg(long, value_name = "CORE")]
    busy_core: Option<usize>,
    /// Maximum number of items in key-value experiments: for a machine with little memory, or a quick look
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(ITEMS_MIN..))]
    items_max: Option<u64>,
    /// Seed of experiments in virtual time: the same seed gives the same figures, on any machine
    #[arg(long, value_name = "SEED", default_value = "1")]
    seed: u64,
    /// Run each case in virtual time with this many seeds, starting with --seed
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    seeds: u32,
    /// CPU time of packets in virtual time, as printed by `dunlin sim calibrate`; by default that of the paper's
    /// cluster
    #[arg(long, value_name = "FILE")]
    cost: Option<PathBuf>,
    /// Capture the packets of the first run in virtual time in this file, for Wireshark
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Simulate this network (see dunlin sim topology) instead of that of the experiment; no paper's figure is shown then
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Compare with the figures of an earlier run, saved as JSON
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Exit with 1 if a target is missed or, with --compare, if a row is worse than it was
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    files: Files,
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    match arguments.command {
        Command::List(arguments) => {
            list(&arguments)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(arguments) => run_experiments(*arguments, interrupt),
        Command::Report(arguments) => report::run(&arguments),
    }
}

fn list(arguments: &List) -> Result<(), OutputError> {
    if arguments.json {
        let all = experiments::all().map(|it| json!({ "name": it.name, "paper": it.paper, "about": it.about }));
        return output::line(all.collect::<Value>());
    }
    for experiment in experiments::all() {
        output::line(format_args!("{:<23} {:<20} {}", experiment.name, experiment.paper, experiment.about))?;
    }
    Ok(())
}

fn run_experiments(arguments: Run, interrupt: Interrupt) -> Result<ExitCode> {
    let experiments = experiments::find(&arguments.names)?;
    arguments.files.check()?;
    let cost = arguments.cost.as_deref().map(read_cost).transpose()?;
    let topology = arguments.topology.as_deref().map(read_topology).transpose()?;
    let old = arguments.compare.as_deref().map(reports::read).transpose()?;
    // Each experiment would overwrite the file of the one before.
    ensure!(
        arguments.pcap.is_none() || experiments.len() == 1,
        "--pcap takes the packets of one experiment: name only one"
    );
    let simulations = Simulations { seed: arguments.seed, seeds: arguments.seeds, cost };
    let items_max = arguments.items_max.unwrap_or(u64::MAX);
    let settings = Settings {
        run: arguments.length,
        runs: arguments.runs as usize,
        items_max,
        busy_core: arguments.busy_core,
        simulations,
        cases: arguments.cases.clone(),
        capture: arguments.pcap,
        topology,
        ..Settings::default()
    };
    let mut collected = Collected::new(&arguments.files);
    let mut left_out = BTreeSet::new();
    for experiment in experiments {
        let outcome = experiment.run(settings.clone(), Launcher::new(interrupt.clone()))?;
        left_out.extend(outcome.left_out.iter().map(|case| format!("\n  {}: {case}", experiment.name)));
        if !collected.add(outcome) {
            break;
        }
    }
    if collected.is_empty() && !arguments.cases.is_empty() {
        let cases: String = left_out.into_iter().collect();
        bail!("no case has a name like {}; there are:{cases}", arguments.cases.join(" or "));
    }
    let worse = old.map_or(Ok(0), |old| collected.compare(&old))?;
    if arguments.check { collected.finish_checked(worse) } else { collected.finish() }
}

fn read_topology(file: &Path) -> Result<Topology> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Topology::from_toml(&text).with_context(|| format!("{} is no topology", file.display()))
}

fn read_cost(file: &Path) -> Result<CostModel> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is no cost model", file.display()))
}
