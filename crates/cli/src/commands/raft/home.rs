//! The directory of a replica: its log, and a file that says whose it is.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use dunlin_smr::DurableLog;
use dunlin_smr::wal::{self, Directory, Disk, Opening, WalConfig};

/// The file that says whose the directory is.
const NAME: &str = "replica.toml";
/// Its rights: those of the log beside it.
const FILE_MODE: u32 = 0o600;
const EXPLANATION: &str = "# Whose directory this is, written by the command that serves it. Do not change it.\n";

/// What a replica replicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Items.
    KeyValue {
        /// What keys and values may take, in bytes.
        limit: u64,
    },
    /// The cluster manager.
    Coordinator,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::KeyValue { .. } => "key-value",
            Kind::Coordinator => "coordinator",
        }
    }
}

/// Whose a directory is. All of it stays as it was at the first start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The number of the cluster.
    pub cluster: u64,
    /// The id of the replica.
    pub id: u64,
    /// What it replicates.
    pub kind: Kind,
}

/// Whether there is a log yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// There may be none.
    Made,
    /// There is one: if it is gone, what the replica promised is gone.
    Begun,
}

/// Locks a directory, made if it is not there, and opens the log in it.
///
/// # Errors
/// It is in use, of another replica, or its log is damaged or gone; the message says what to do.
pub fn open(path: &Path, owner: Owner) -> Result<(DurableLog<Directory>, Opening)> {
    let directory = Directory::open(path)?;
    let file = path.join(NAME);
    let known = match fs::read_to_string(&file) {
        Ok(text) => Some(parse(&text).with_context(|| format!("{} says not whose directory this is", file.display()))?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let others = directory.list().with_context(|| format!("cannot list {}", path.display()))?;
    let is_empty = others.iter().all(|name| name.starts_with(NAME));
    match known {
        Some((found, state)) => {
            check(path, found, owner)?;
            if state == State::Begun && is_empty {
                bail!(
                    "the log that was in {} is gone, and with it what replica {} promised: remove it from the cluster, and add one with an id \
                     that was never used, in another directory",
                    path.display(),
                    owner.id
                );
            }
        }
        None if is_empty => write(&directory, path, owner, State::Made)?,
        None => bail!(
            "{} has files, but no {NAME}, so it is not the directory of a replica: give one that is empty or not there",
            path.display()
        ),
    }
    let (log, opening) = wal::open(directory.clone(), WalConfig::new(owner.id))?;
    if known.is_none_or(|(_, state)| state == State::Made) {
        write(&directory, path, owner, State::Begun)?;
    }
    Ok((DurableLog::new(log)?, opening))
}

fn check(path: &Path, found: Owner, wanted: Owner) -> Result<()> {
    let place = path.display();
    let Owner { cluster, id, kind } = found;
    ensure!(
        cluster == wanted.cluster,
        "{place} is of cluster {cluster}, not of cluster {}: give each its own directory",
        wanted.cluster
    );
    ensure!(id == wanted.id, "{place} is the directory of replica {id}, not of replica {}: give each its own", wanted.id);
    match (kind, wanted.kind) {
        (Kind::KeyValue { limit }, Kind::KeyValue { limit: wanted }) => ensure!(
            limit == wanted,
            "{place} was begun with --limit {limit}, which all replicas of a cluster share and keep: start it with that"
        ),
        (kind, wanted) => ensure!(
            kind == wanted,
            "{place} is the directory of a {} replica, not of a {} one: give each its own",
            kind.name(),
            wanted.name()
        ),
    }
    Ok(())
}

fn parse(text: &str) -> Result<(Owner, State)> {
    let table: toml::Table = text.parse()?;
    let number = |name: &str| {
        let value = table.get(name).and_then(toml::Value::as_str).and_then(|text| text.parse::<u64>().ok());
        value.with_context(|| format!("it has no number {name:?}"))
    };
    let kind = match table.get("kind").and_then(toml::Value::as_str) {
        Some("key-value") => Kind::KeyValue { limit: number("limit")? },
        Some("coordinator") => Kind::Coordinator,
        _ => bail!("it does not say what is replicated"),
    };
    let owner = Owner { cluster: number("cluster")?, id: number("id")?, kind };
    let state = match table.get("begun").and_then(toml::Value::as_bool) {
        Some(true) => State::Begun,
        Some(false) => State::Made,
        None => bail!("it does not say whether the log has begun"),
    };
    Ok((owner, state))
}

/// Writes the file, whole or not at all, and for good.
fn write(directory: &Directory, path: &Path, owner: Owner, state: State) -> Result<()> {
    let Owner { cluster, id, kind } = owner;
    // Numbers of 64 bits: the format has no larger ones than those with a sign.
    let begun = state == State::Begun;
    let limit = match kind {
        Kind::KeyValue { limit } => format!("limit = \"{limit}\"\n"),
        Kind::Coordinator => String::new(),
    };
    let kind = kind.name();
    let text = format!("{EXPLANATION}cluster = \"{cluster}\"\nid = \"{id}\"\nkind = \"{kind}\"\n{limit}begun = {begun}\n");
    let (file, unfinished) = (path.join(NAME), path.join(format!("{NAME}.new")));
    let written = write_flushed(&unfinished, &text).and_then(|()| fs::rename(&unfinished, &file));
    written.and_then(|()| directory.flush_directory()).with_context(|| format!("cannot write {}", file.display()))
}

fn write_flushed(path: &PathBuf, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { cluster: u64::MAX, id: 3, kind: Kind::KeyValue { limit: 1 << 20 } };

    fn refused(path: &Path, owner: Owner, why: &str) {
        let error = format!("{:#}", open(path, owner).unwrap_err());
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn a_directory_has_one_owner() {
        let path = std::env::temp_dir().join(format!("dunlin-test-home-{}", std::process::id()));
        let (log, opening) = open(&path, OWNER).unwrap();
        assert!(opening.is_new);
        refused(&path, OWNER, "is in use by another node");
        drop(log);
        let (log, opening) = open(&path, OWNER).unwrap();
        assert!(!opening.is_new);
        drop(log);
        refused(&path, Owner { id: 4, ..OWNER }, "is the directory of replica 3, not of replica 4");
        refused(&path, Owner { cluster: 0, ..OWNER }, "is of cluster 18446744073709551615, not of cluster 0");
        refused(&path, Owner { kind: Kind::KeyValue { limit: 5 }, ..OWNER }, "start it with that");
        refused(&path, Owner { kind: Kind::Coordinator, ..OWNER }, "of a key-value replica, not of a coordinator one");

        let saved = fs::read_to_string(path.join(NAME)).unwrap();
        fs::write(path.join(NAME), "id = 3").unwrap();
        refused(&path, OWNER, "says not whose directory this is");
        fs::remove_file(path.join(NAME)).unwrap();
        refused(&path, OWNER, "it is not the directory of a replica");

        // Whoever empties a directory takes with it what the replica promised.
        fs::remove_dir_all(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join(NAME), saved).unwrap();
        refused(&path, OWNER, "is gone, and with it what replica 3 promised");
        fs::remove_dir_all(&path).unwrap();
    }
}
