//! `dunlin raft backup`.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use dunlin_serve::Interrupt;
use dunlin_smr::backup::{About, BackupWriter};

use super::cluster::{Client, Cluster, Outcome, ask, groups};
use crate::arguments::size::human_bytes;
use crate::output;

/// Permissions of a copy: only its user may read it.
const FILE_MODE: u32 = 0o600;

/// Write a copy of the state of a cluster to a file
///
/// The copy has everything that was acknowledged before the command was started, of each group as of one instant, with
/// checksums and the number of the cluster. Replicas continue to serve. Exit code 0 when it is on disk, 2 if it failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file is new, and gets its name when it is whole. Sessions of clients are in it, and are left out of the cluster that `dunlin raft restore` founds from it. The
time limit is for each step: a leader with a large state may need more to take a snapshot of it. The copy of a cluster manager is restored by `dunlin coord restore`.

Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft backup monday.backup
  dunlin raft backup monday.backup --cluster 6f1f6d2a90c3b5e4 --timeout 1m
  dunlin raft restore monday.backup --id 1 --data new1 --peers 1=udp://127.0.0.1:7901")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The file to write
    file: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    write(&arguments.cluster, &arguments.file, interrupt)
}

/// Writes a copy of a cluster, with any machine.
pub fn write(cluster: &Cluster, path: &Path, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(cluster, interrupt, async |client| {
        ensure!(!path.exists(), "{} is there already: choose another name", path.display());
        let unfinished = Unfinished::create(path)?;
        let (about, bytes) = copy(client, &unfinished).await?;
        // Before printing: standard output may be closed.
        unfinished.keep(path)?;
        output::line(format_args!("cluster {}, {} groups", about.cluster, about.groups))?;
        output::line(format_args!("{} in {}", human_bytes(bytes), path.display()))?;
        Ok(Outcome::Done)
    })
}

/// Copies all groups; returns a description of the copy, and the bytes of their states.
async fn copy(client: &Client, unfinished: &Unfinished) -> Result<(About, u64)> {
    let clients = groups(client).await?;
    let Some(cluster) = client.cluster() else { bail!("the replicas have not said which cluster they are of") };
    let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let about = About { cluster, groups: clients.len() as u16, made };
    let mut copy =
        BackupWriter::begin(BufWriter::new(&unfinished.file), about).with_context(|| unfinished.cannot_write())?;
    let mut bytes = 0;
    for (group, client) in clients.iter().enumerate() {
        let state = client.backup().await?;
        copy.add(&state).with_context(|| unfinished.cannot_write())?;
        bytes += state.snapshot.len() as u64;
        eprintln!(
            "dunlin: group {group} of {}: up to entry {}, {} bytes",
            about.groups,
            state.index,
            state.snapshot.len()
        );
    }
    copy.finish().flush().with_context(|| unfinished.cannot_write())?;
    Ok((about, bytes))
}

/// A file that is removed unless it is kept.
struct Unfinished {
    path: PathBuf,
    file: File,
}

impl Unfinished {
    fn create(path: &Path) -> Result<Unfinished> {
        let mut name = path.as_os_str().to_owned();
        name.push(".tmp");
        let path = PathBuf::from(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path);
        match file {
            Ok(file) => Ok(Unfinished { path, file }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!("{} is there: another backup is under way, or was killed: remove it", path.display())
            }
            Err(error) => Err(error).with_context(|| format!("cannot make {}", path.display())),
        }
    }

    fn cannot_write(&self) -> String {
        format!("cannot write {}", self.path.display())
    }

    /// Gives the file its final name, durably. A file that was created under that name meanwhile is not replaced.
    fn keep(self, path: &Path) -> Result<()> {
        self.file.sync_all().with_context(|| self.cannot_write())?;
        fs::hard_link(&self.path, path).with_context(|| format!("cannot name it {}", path.display()))?;
        let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        File::open(parent)
            .and_then(|parent| parent.sync_all())
            .with_context(|| format!("cannot flush {}", parent.display()))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Once it is kept, this is its second name.
        let _ = fs::remove_file(&self.path);
    }
}
