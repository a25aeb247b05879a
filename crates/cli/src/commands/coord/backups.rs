//! `dunlin coord backup`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;

use crate::commands::raft::backups;
use crate::commands::raft::cluster::Cluster;

/// Write a copy of the state of a cluster manager to a file
///
/// The copy has everything that was acknowledged before the command was started, as of one instant, with checksums and
/// the number of the cluster. Nodes continue to serve. Exit code 0 when it is on disk, 2 if it failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file is new, and gets its name when it is whole. `dunlin coord restore` founds a cluster manager from it. What an etcd keeps is copied by its own tools.

Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord backup monday.backup
  dunlin coord restore monday.backup --id 1 --data new1 --peers 1=udp://127.0.0.1:7911")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The file that is written
    file: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    backups::write(&arguments.cluster, &arguments.file, interrupt)
}
