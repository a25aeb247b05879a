//! `dunlin raft restore`, and code shared with `dunlin coord restore`.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser;
use dunlin_smr::StateMachine as _;
use dunlin_smr::backup::{BackupReader, GroupState, NewCluster};
use dunlin_smr::kv::KvMachine;

use super::cluster::Replicas;
use super::home::{self, Kind, Owner};
use super::serve::limit;
use crate::arguments::size::human_bytes;
use crate::commands::coord::restores::coordinator;
use crate::output;

/// The source and the target of a restore.
#[derive(Debug, clap::Args)]
pub struct Founding {
    /// The file
    file: PathBuf,
    /// The id of the first replica
    #[arg(long, value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    id: u64,
    /// The directory to create
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Where the replica is reached: ID=ADDRESS, with an address as udp://HOST:PORT or shm:NAME
    #[arg(long, value_name = "REPLICAS")]
    peers: Replicas,
}

/// Found a new cluster with the state that `dunlin raft backup` wrote
///
/// It makes the directory of the only member of that cluster; serve it, then add others. The new cluster has its own
/// number: clients of the old one do not mistake it for that. Exit code 0 when the directory is complete; otherwise
/// nothing was founded, and an existing directory is not served.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Versions go on rising from where they were. Sessions of clients are not restored: a command of the old cluster that was in doubt is not recognised when it is sent again.
A file that is damaged, or of other replicas than these, is refused before anything is made.

Examples:
  dunlin raft restore monday.backup --id 1 --data new1 --peers 1=udp://10.0.0.1:7901
  dunlin raft serve --id 1 --data new1 --peers 1=udp://10.0.0.1:7901
  dunlin raft serve --id 2 --data new2 --peers 2=udp://10.0.0.2:7901 --join      on another machine
  dunlin raft add --at 1=udp://10.0.0.1:7901 2=udp://10.0.0.2:7901")]
pub struct Arguments {
    #[command(flatten)]
    founding: Founding,
    /// Maximum size of the keys and values of a group, as for `dunlin raft serve`
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = limit)]
    limit: u64,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let limit = arguments.limit;
    found(&arguments.founding, |groups| Kind::KeyValue { limit, groups }, |state| check(state, limit))
}

/// Founds a cluster. Each group is checked before anything is created: `check` describes its contents.
pub fn found(
    founding: &Founding,
    kind: impl FnOnce(u16) -> Kind,
    check: impl Fn(&GroupState) -> Result<String>,
) -> Result<ExitCode> {
    let Founding { file, id, data, peers } = founding;
    ensure!(
        peers.0.len() == 1,
        "--peers names {} replicas: give only replica {id}, and add others later",
        peers.0.len()
    );
    let addr = peers.address(*id);
    let addr = addr.with_context(|| format!("replica {id} is not among --peers: say where it is reached"))?;
    let refused = || format!("{} is refused", file.display());
    let opened = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    let mut copy = BackupReader::begin(BufReader::new(opened)).with_context(refused)?;
    let about = copy.about();
    let mut states = Vec::new();
    while let Some(state) = copy.next_group().with_context(refused)? {
        let found = check(&state).with_context(|| format!("group {} of {}", states.len(), file.display()))?;
        eprintln!("dunlin: group {} of {}: {found}, up to entry {}", states.len(), about.groups, state.index);
        states.push(state);
    }
    let new = NewCluster::draw(*id, addr, about.groups)?;
    let owner = Owner { id: *id, kind: kind(about.groups) };
    home::restore(data, owner, |logs| {
        new.begin(logs, &states).with_context(|| format!("cannot write the log in {}", data.display()))
    })?;
    output::line(format_args!(
        "cluster {}, with the state of cluster {}, in {}",
        new.number(),
        about.cluster,
        data.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Restores a machine as a replica would, and returns its number of items.
fn check(state: &GroupState, limit: u64) -> Result<String> {
    let bytes = state.of_machine()?;
    ensure!(coordinator(bytes).is_err(), "it is of a cluster manager: restore it with `dunlin coord restore`");
    let no_memory = || format!("no memory for --limit {}", human_bytes(limit));
    let mut machine = KvMachine::new(limit).with_context(no_memory)?;
    machine.restore(bytes)?;
    Ok(format!("{} items", machine.items()))
}
