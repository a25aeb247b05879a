//! `dunlin sim hunt`: random faults in the simulated datacenter, from seeds.

use std::io::{IsTerminal, stderr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use dunlin_hunt::{Failure, Hunt, Progress, Story};
use dunlin_serve::Interrupt;
use dunlin_sim::FaultPlan;

use crate::arguments::time::time;
use crate::exit;
use crate::output::{self, OutputError};

/// How long a hunt may go on.
const LENGTH: RangeInclusive<Duration> = Duration::from_millis(600)..=Duration::from_secs(70 * 86_400);

/// Hunt for bugs: random work under random faults, each run drawn from a seed
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each seed is a datacenter of its own in virtual time, with endpoints that call each other while packets, links and hosts fail. Then
everything heals, and must end as promised. Ends with 1 at the first seed that does not, and prints why (where the history of a key is
not linearizable: all that was done to it, when, by whom, with which answer) and the command that repeats it. Ends
with 1 also if more keys than one in 100 seeds, and more than two, could not be decided.

Examples:
  dunlin sim hunt --seeds 1000
  dunlin sim hunt --for 1h --jobs 2
  dunlin sim hunt --kind kv --seeds 300                  the key-value service: is the history of each key linearizable?
  dunlin sim hunt --kind raft --for 1h                   replicated state machines: is anything lost, done twice, or seen too early?
  dunlin sim hunt --kind coord --seeds 100               the cluster manager: members, epochs, leases with fencing tokens, tree, watches
  dunlin sim hunt --kind txn --seeds 100                 transactions: are they strictly serializable, and is any lost?
  dunlin sim hunt --kind seq --seeds 100                 sequencers: do numbers rise, and does none come twice?
  dunlin sim hunt --seed 4711 --trace hunt-4711          one seed again, with its packets, calls, queues and faults as files
  dunlin sim hunt --seed 4711 --faults fewer.toml        with other faults than its own")]
pub struct Arguments {
    /// What to test under faults
    #[arg(long, value_enum, default_value_t = Kind::Rpc)]
    kind: Kind,
    /// Seeds to run; without it and --for, 1000
    #[arg(long, value_name = "NUMBER", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    seeds: Option<u64>,
    /// Stop after this time
    #[arg(long = "for", value_name = "TIME", value_parser = time(LENGTH))]
    length: Option<Duration>,
    /// The only seed, or the first of --seeds or --for
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Write packets.pcap, calls.txt, queues.csv, rtts.csv, faults.toml, topology.toml and scenario.txt of the only
    /// seed to DIR; not of the kinds txn and seq
    #[arg(long, value_name = "DIR", requires = "seed", conflicts_with_all = ["seeds", "length"])]
    trace: Option<PathBuf>,
    /// Let the faults of FILE happen in the only seed, instead of its own; not with the kinds txn and seq
    #[arg(long, value_name = "FILE", requires = "seed", conflicts_with_all = ["seeds", "length"])]
    faults: Option<PathBuf>,
    /// Seeds to run at once; without it, one for each core
    #[arg(long, value_name = "NUMBER", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    jobs: Option<usize>,
}

/// The subject of a hunt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Endpoints that call each other
    Rpc,
    /// Clients and a server of the key-value service
    Kv,
    /// Clients and replicas of a state machine, which crash and restart
    Raft,
    /// Members, holders of leases, writers and watchers of a cluster manager
    Coord,
    /// Transactions on nodes that fail, and their service with a cluster manager
    Txn,
    /// Clients and sequencers, which crash, stand still and are replaced
    Seq,
}

impl Kind {
    fn hunted(self) -> dunlin_hunt::Kind {
        match self {
            Kind::Rpc => dunlin_hunt::Kind::Rpc,
            Kind::Kv => dunlin_hunt::Kind::Kv,
            Kind::Raft => dunlin_hunt::Kind::Raft,
            Kind::Coord => dunlin_hunt::Kind::Coord,
            Kind::Txn => dunlin_hunt::Kind::Txn,
            Kind::Seq => dunlin_hunt::Kind::Seq,
        }
    }

    /// The command that runs its hunt.
    fn command(self) -> &'static str {
        match self {
            Kind::Rpc => "dunlin sim hunt",
            Kind::Kv => "dunlin sim hunt --kind kv",
            Kind::Raft => "dunlin sim hunt --kind raft",
            Kind::Coord => "dunlin sim hunt --kind coord",
            Kind::Txn => "dunlin sim hunt --kind txn",
            Kind::Seq => "dunlin sim hunt --kind seq",
        }
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    match arguments.seed {
        Some(seed) if arguments.seeds.is_none() && arguments.length.is_none() => replay(seed, arguments),
        _ => hunt(arguments, interrupt),
    }
}

fn hunt(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
    if arguments.seed.unwrap_or(0).checked_add(arguments.seeds.unwrap_or(0)).is_none() {
        anyhow::bail!("so many seeds from that one on go beyond the last, 2^64 - 1: give a smaller --seed or --seeds");
    }
    let hunt = Hunt {
        kind: arguments.kind.hunted(),
        first: arguments.seed.unwrap_or(0),
        seeds: if arguments.length.is_none() { arguments.seeds.or(Some(1000)) } else { arguments.seeds },
        time: arguments.length,
        jobs: arguments.jobs.unwrap_or_else(cores),
    };
    let show_live = stderr().is_terminal();
    let (progress, failure) = hunt.run(interrupt, |progress| {
        if show_live {
            eprint!("\r{}  ", describe(progress));
        }
    });
    if show_live {
        eprintln!();
    }
    output::line(describe(&progress))?;
    let Some(failure) = failure else {
        let Some(why) = too_little_judged(&progress) else { return Ok(ExitCode::SUCCESS) };
        output::line(why)?;
        return Ok(ExitCode::from(exit::NOT_FOUND));
    };
    report(arguments.kind, &failure)?;
    if !hunt.kind.has_plan() {
        return Ok(ExitCode::from(exit::NOT_FOUND));
    }
    eprintln!("looking for fewer faults with which it fails ...");
    if let Some((plan, _)) = dunlin_hunt::shrink(arguments.kind.hunted(), failure.seed) {
        let path = format!("hunt-{}-faults.toml", failure.seed);
        std::fs::write(&path, plan.to_toml()).with_context(|| format!("writing {path}"))?;
        let command = arguments.kind.command();
        let faults = plan.faults.len();
        output::line(format_args!(
            "it fails with {faults} faults too: {command} --seed {} --faults {path}",
            failure.seed
        ))?;
    }
    Ok(ExitCode::from(exit::NOT_FOUND))
}

fn replay(seed: u64, arguments: &Arguments) -> Result<ExitCode> {
    if (arguments.trace.is_some() || arguments.faults.is_some()) && !arguments.kind.hunted().has_plan() {
        let command = arguments.kind.command();
        anyhow::bail!("{command} draws its faults while it runs: leave --trace and --faults out");
    }
    let faults = arguments.faults.as_ref().map(|path| {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        FaultPlan::from_toml(&text).with_context(|| format!("reading {}", path.display()))
    });
    let faults = faults.transpose()?;
    let result = dunlin_hunt::replay(arguments.kind.hunted(), seed, faults.as_ref(), arguments.trace.as_deref())?;
    if let Some(directory) = &arguments.trace {
        output::line(format_args!("what happened is in {}", directory.display()))?;
    }
    match result {
        Ok(story) => {
            output::line(tell(seed, &story))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => {
            report(arguments.kind, &failure)?;
            Ok(ExitCode::from(exit::NOT_FOUND))
        }
    }
}

/// Describes a seed that broke no promise.
fn tell(seed: u64, story: &Story) -> String {
    let verdict = match story.undecided {
        0 => "keeps every promise".into(),
        keys => format!("breaks no promise that could be judged, {keys} keys undecided"),
    };
    format!(
        "seed {seed} {verdict}: {} calls, {} packets, {:.3} s of virtual time, digest {:016x}",
        story.calls,
        story.packets,
        story.virtual_time.as_secs_f64(),
        story.digest
    )
}

/// Says why a hunt without a broken promise has failed all the same, if it has.
fn too_little_judged(progress: &Progress) -> Option<String> {
    let (keys, most) = (progress.undecided, progress.undecided_max());
    (keys > most).then(|| {
        let seeds: Vec<String> = progress.undecided_seeds.iter().map(u64::to_string).collect();
        format!(
            "{keys} keys are undecided, and {most} may be: their histories need a longer search. The first seeds with such \
             keys: {}",
            seeds.join(", ")
        )
    })
}

fn report(kind: Kind, failure: &Failure) -> Result<(), OutputError> {
    let Failure { why, seed, .. } = failure;
    let command = kind.command();
    if !kind.hunted().has_plan() {
        return output::line(format_args!(
            "{why}\nseed {seed} breaks a promise; repeat it by:\n{command} --seed {seed}"
        ));
    }
    output::line(format_args!("{why}\nseed {seed} breaks a promise; repeat it, with a trace, by:"))?;
    output::line(format_args!("{command} --seed {seed} --trace hunt-{seed}"))
}

fn describe(progress: &Progress) -> String {
    let seconds = progress.elapsed.as_secs_f64();
    let undecided = match progress.undecided {
        0 => String::new(),
        keys => format!(", {keys} keys undecided"),
    };
    let changes = match (progress.changes, progress.replaced) {
        (0, _) => String::new(),
        (changes, replaced) => {
            format!(", {changes} changes of members or leaders, {replaced} damaged replicas replaced")
        }
    };
    format!(
        "{} seeds in {seconds:.1} s ({:.1} a second, {:.1} s of processor time), {} calls, {:.1} M packets{changes}{undecided}",
        progress.seeds,
        progress.seeds as f64 / seconds.max(1e-9),
        progress.processor_time.as_secs_f64(),
        progress.calls,
        progress.packets as f64 / 1e6
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undecided_keys_are_told_with_their_seeds_and_bounded() {
        let mut progress = Progress { seeds: 150, undecided: 5, undecided_seeds: vec![7, 120], ..Progress::default() };
        assert_eq!(too_little_judged(&progress), None);
        progress.undecided = 6;
        let why = too_little_judged(&progress).unwrap();
        assert!(why.starts_with("6 keys are undecided, and 5 may be") && why.ends_with(": 7, 120"), "{why}");
    }

    #[test]
    fn a_seed_with_undecided_keys_is_not_said_to_keep_every_promise() {
        let mut story = Story { calls: 2, packets: 3, ..Story::default() };
        assert!(tell(5, &story).starts_with("seed 5 keeps every promise: 2 calls"));
        story.undecided = 2;
        let told = tell(5, &story);
        assert!(told.contains("2 keys undecided") && !told.contains("every promise"), "{told}");
    }
}
