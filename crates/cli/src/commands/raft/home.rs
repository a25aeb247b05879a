//! The directory of a replica: its log, and a file that names its owner.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use dunlin_smr::DurableLog;
use dunlin_smr::wal::{self, Directory, Disk, HardState, LOCK_NAME, Opening, Wal, WalConfig};

/// The file that names the owner of the directory.
const NAME: &str = "replica.toml";
/// Its permissions: those of the log beside it.
const FILE_MODE: u32 = 0o600;
const EXPLANATION: &str = "# Whose directory this is, written by the command that serves it. Do not change it.\n";

/// The state that a replica replicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Items.
    KeyValue {
        /// Maximum size of the keys and values of a group, in bytes.
        limit: u64,
        /// Number of groups.
        groups: u16,
    },
    /// The cluster manager.
    Coordinator,
    /// Reservations of numbers.
    Sequencer,
}

impl Kind {
    fn groups(self) -> u16 {
        match self {
            Kind::KeyValue { groups, .. } => groups,
            Kind::Coordinator | Kind::Sequencer => 1,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::KeyValue { .. } => "key-value",
            Kind::Coordinator => "coordinator",
            Kind::Sequencer => "sequencer",
        }
    }

    /// The command that founds a cluster of such replicas from a copy.
    fn restore_command(self) -> &'static str {
        match self {
            Kind::KeyValue { .. } => "dunlin raft restore",
            Kind::Coordinator => "dunlin coord restore",
            // Nothing restores one: its state is a number.
            Kind::Sequencer => "dunlin seq serve --replicated --start",
        }
    }
}

/// The version of the cluster manager's commands. A log with commands of another version would be misread.
const COMMANDS: &str = "3";

/// The owner of a directory. None of it changes after the first start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The id of the replica.
    pub id: u64,
    /// What it replicates.
    pub kind: Kind,
}

/// Whether there is a log yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// There may be no log yet.
    Made,
    /// A state is being restored, and may be incomplete.
    Restoring,
    /// There is a log. If it is missing, the replica's promises are lost.
    Begun,
}

/// How a replica is started. Only the operator knows: an empty directory looks the same before the first start and
/// after the log was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// For the first time, to found a cluster.
    New,
    /// For the first time, to be added to a cluster.
    Join,
    /// Again: there is a log.
    Again,
}

impl Start {
    fn flag(self) -> Option<&'static str> {
        match self {
            Start::New => Some("--new"),
            Start::Join => Some("--join"),
            Start::Again => None,
        }
    }
}

/// An open log.
type Opened = (Vec<DurableLog<Directory>>, Opening);

/// Locks a directory, and opens the log of each group in it. Both are created if this is the first start.
///
/// # Errors
/// The directory is in use, or belongs to another replica; its log is damaged or missing; or this is the first start
/// and should not be, or the reverse. The message says what to do.
pub fn open(path: &Path, owner: Owner, start: Start) -> Result<Opened> {
    // Before anything is created: if a mount is missing, nothing must be left behind.
    if start == Start::Again && is_absent_or_empty(path)? {
        return Err(no_log(path, owner));
    }
    let directory = Directory::open(path)?;
    let known = look(&directory, path, owner)?;
    match known {
        Some(State::Restoring) => bail!(
            "a state was being restored in {}, and that did not come to its end: remove the directory, and restore it again \
             ({})",
            path.display(),
            owner.kind.restore_command()
        ),
        Some(State::Made) if start == Start::Again => {
            bail!(
                "the first start in {} did not come to its end: start it as then, with --new or --join",
                path.display()
            )
        }
        Some(State::Made | State::Begun) => {}
        None if start == Start::Again => return Err(no_log(path, owner)),
        None => write(&directory, path, owner, State::Made)?,
    }
    let (log, opening) = wal::open(directory.clone(), WalConfig::new(owner.id))?;
    if known != Some(State::Begun) {
        write(&directory, path, owner, State::Begun)?;
    }
    if let (Some(flag), false) = (start.flag(), is_blank(&log)) {
        bail!(
            "{} has the log of replica {}, so this is not its first start: leave out {flag}, lest it begins anew when the log is lost one day",
            path.display(),
            owner.id
        );
    }
    Ok((DurableLog::of_groups(&log, owner.kind.groups())?, opening))
}

/// Creates the directory of a replica whose log begins with a state, which `begin` writes. Until that is complete the
/// directory is not served, whatever happens in between.
///
/// # Errors
/// As [`open`]; there is a log already; those of `begin`.
pub fn restore(
    path: &Path,
    owner: Owner,
    begin: impl FnOnce(&mut [DurableLog<Directory>]) -> Result<()>,
) -> Result<()> {
    let directory = Directory::open(path)?;
    if look(&directory, path, owner)?.is_none() {
        write(&directory, path, owner, State::Restoring)?;
    }
    let (log, _) = wal::open(directory.clone(), WalConfig::new(owner.id))?;
    ensure!(
        is_blank(&log),
        "{} has the log of replica {} already: give a directory that is empty or not there",
        path.display(),
        owner.id
    );
    write(&directory, path, owner, State::Restoring)?;
    begin(&mut DurableLog::of_groups(&log, owner.kind.groups())?)?;
    write(&directory, path, owner, State::Begun)
}

/// What a directory's file says of the log in it; `None` if the directory is empty.
fn look(directory: &Directory, path: &Path, owner: Owner) -> Result<Option<State>> {
    let file = path.join(NAME);
    let known = match fs::read_to_string(&file) {
        Ok(text) => Some(parse(&text).with_context(|| format!("{} says not whose directory this is", file.display()))?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let others = directory.list().with_context(|| format!("cannot list {}", path.display()))?;
    let is_empty = others.iter().all(|name| name.starts_with(NAME));
    let Some((found, state)) = known else {
        ensure!(
            is_empty,
            "{} has files, but no {NAME}, so it is not the directory of a replica: give one that is empty or not there",
            path.display()
        );
        return Ok(None);
    };
    check(path, found, owner)?;
    ensure!(
        state != State::Begun || !is_empty,
        "the log that was in {} is gone, and with it what replica {} promised: remove it from the cluster, and add one with an id \
         that was never used, in another directory",
        path.display(),
        owner.id
    );
    Ok(Some(state))
}

/// Whether nothing was written to the log of any group.
fn is_blank(log: &Wal<Directory>) -> bool {
    let mut groups = log.groups().into_iter().map(|group| log.of_group(group));
    groups.all(|log| log.last().index == 0 && log.hard_state() == HardState::default())
}

fn is_absent_or_empty(path: &Path) -> Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == LOCK_NAME))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).with_context(|| format!("cannot list {}", path.display())),
    }
}

/// The advice for a directory without a log.
fn no_log(path: &Path, Owner { id, .. }: Owner) -> Error {
    anyhow!(
        "there is no log in {}. If replica {id} was never started before, start it once with --new, to found a cluster with all of --peers, or with \
         --join, to be added to one. If it was, look for its directory (is it mounted?), and if that is lost, never start it again under this id, \
         since it may have promised what is lost: remove it from the cluster (dunlin raft remove), and add another with an id that was never used \
         (dunlin raft serve --join, dunlin raft add)",
        path.display()
    )
}

fn check(path: &Path, found: Owner, wanted: Owner) -> Result<()> {
    let place = path.display();
    let Owner { id, kind } = found;
    ensure!(
        id == wanted.id,
        "{place} is the directory of replica {id}, not of replica {}: give each its own",
        wanted.id
    );
    match (kind, wanted.kind) {
        (Kind::KeyValue { limit, groups }, Kind::KeyValue { limit: wanted, groups: wanted_groups }) => {
            ensure!(
                limit == wanted,
                "{place} was begun with --limit {limit}, which all replicas of a cluster share and keep: start it with that"
            );
            ensure!(
                groups == wanted_groups,
                "{place} was begun with --groups {groups}, which all replicas of a cluster share and keep: start it with that"
            );
        }
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
        // Older directories have one group and no such line.
        Some("key-value") if !table.contains_key("groups") => Kind::KeyValue { limit: number("limit")?, groups: 1 },
        Some("key-value") => {
            let groups = u16::try_from(number("groups")?).ok().filter(|groups| *groups > 0);
            Kind::KeyValue { limit: number("limit")?, groups: groups.context("it has no such number of groups")? }
        }
        Some("coordinator") if table.get("commands").and_then(toml::Value::as_str) != Some(COMMANDS) => bail!(
            "it is of a cluster manager of an earlier version, whose commands this program does not execute: begin a new cluster \
             in another directory, or go on with that version"
        ),
        Some("coordinator") => Kind::Coordinator,
        Some("sequencer") => Kind::Sequencer,
        _ => bail!("it does not say what is replicated"),
    };
    let owner = Owner { id: number("id")?, kind };
    let flag = |name: &str| table.get(name).and_then(toml::Value::as_bool);
    let state = match flag("begun") {
        Some(true) => State::Begun,
        Some(false) if flag("restoring") == Some(true) => State::Restoring,
        Some(false) => State::Made,
        None => bail!("it does not say whether the log has begun"),
    };
    Ok((owner, state))
}

/// Writes the file atomically and durably.
fn write(directory: &Directory, path: &Path, owner: Owner, state: State) -> Result<()> {
    let Owner { id, kind } = owner;
    // TOML integers are signed, so 64-bit numbers are written as strings.
    let begun = state == State::Begun;
    let limit = match kind {
        Kind::KeyValue { limit, groups } => format!("limit = \"{limit}\"\ngroups = \"{groups}\"\n"),
        Kind::Coordinator => format!("commands = \"{COMMANDS}\"\n"),
        Kind::Sequencer => String::new(),
    };
    let kind = kind.name();
    let restoring = if state == State::Restoring { "restoring = true\n" } else { "" };
    let text = format!("{EXPLANATION}id = \"{id}\"\nkind = \"{kind}\"\n{limit}begun = {begun}\n{restoring}");
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
    use dunlin_smr::log::{Batch, Urgency};
    use dunlin_smr::{LogStore, raft};

    use super::*;

    const OWNER: Owner = Owner { id: 3, kind: Kind::KeyValue { limit: 1 << 20, groups: 1 } };

    fn refused(path: &Path, owner: Owner, why: &str) {
        refused_to(Start::Again, path, owner, why);
    }

    fn refused_to(start: Start, path: &Path, owner: Owner, why: &str) {
        let error = format!("{:#}", open(path, owner, start).unwrap_err());
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn a_cluster_manager_of_other_commands_is_refused() {
        let of = |commands: &str| parse(&format!("id = \"3\"\nkind = \"coordinator\"\n{commands}begun = true\n"));
        assert_eq!(of("commands = \"3\"\n").unwrap().0, Owner { id: 3, kind: Kind::Coordinator });
        for earlier in ["", "commands = \"2\"\n"] {
            assert!(of(earlier).unwrap_err().to_string().contains("of an earlier version"));
        }
    }

    #[test]
    fn a_directory_has_one_owner() {
        let path = std::env::temp_dir().join(format!("dunlin-test-home-{}", std::process::id()));
        let (log, opening) = open(&path, OWNER, Start::New).unwrap();
        assert!(opening.is_new);
        refused(&path, OWNER, "is in use by another node");
        drop(log);
        // Until something is in the log, nothing was promised, and every start is possible.
        for start in [Start::Join, Start::New, Start::Again] {
            let (_log, opening) = open(&path, OWNER, start).unwrap();
            assert!(!opening.is_new);
        }
        refused(&path, Owner { id: 4, ..OWNER }, "is the directory of replica 3, not of replica 4");
        refused(&path, Owner { kind: Kind::KeyValue { limit: 5, groups: 1 }, ..OWNER }, "start it with that");
        let others = Owner { kind: Kind::KeyValue { limit: 1 << 20, groups: 2 }, ..OWNER };
        refused(&path, others, "was begun with --groups 1");
        refused(&path, Owner { kind: Kind::Coordinator, ..OWNER }, "of a key-value replica, not of a coordinator one");

        let saved = fs::read_to_string(path.join(NAME)).unwrap();
        fs::write(path.join(NAME), "id = 3").unwrap();
        refused(&path, OWNER, "says not whose directory this is");
        fs::remove_file(path.join(NAME)).unwrap();
        refused(&path, OWNER, "it is not the directory of a replica");

        // Emptying a directory destroys the replica's promises.
        fs::remove_dir_all(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join(NAME), saved).unwrap();
        refused(&path, OWNER, "is gone, and with it what replica 3 promised");
        refused_to(Start::New, &path, OWNER, "is gone, and with it what replica 3 promised");
        fs::remove_dir_all(&path).unwrap();
    }

    /// Kills the first start at each step, with any part of the file being written.
    #[test]
    fn a_first_start_goes_on_after_a_kill_at_any_step() {
        let path = std::env::temp_dir().join(format!("dunlin-test-home-killed-{}", std::process::id()));
        let segment = "log-0000000000000001";
        drop(open(&path, OWNER, Start::New).unwrap());
        let log = fs::read(path.join(segment)).unwrap();
        let begun = fs::read(path.join(NAME)).unwrap();
        let made = String::from_utf8(begun.clone()).unwrap().replace("begun = true", "begun = false").into_bytes();
        assert_ne!(made, begun);
        let (new, unfinished) = (format!("{NAME}.new"), format!("{segment}.tmp"));
        let file = |name: &str, bytes: &[u8]| (name.to_owned(), bytes.to_vec());
        let (lock, known) = (file(LOCK_NAME, b""), file(NAME, &made));
        let steps = [
            vec![],
            vec![lock.clone()],
            vec![lock.clone(), file(&new, b"")],
            vec![lock.clone(), file(&new, &made)],
            vec![lock.clone(), known.clone()],
            vec![lock.clone(), known.clone(), file(&unfinished, b"")],
            vec![lock.clone(), known.clone(), file(&unfinished, &log[..100])],
            vec![lock.clone(), known.clone(), file(&unfinished, &log)],
            vec![lock.clone(), known.clone(), file(segment, &log)],
            vec![lock.clone(), known.clone(), file(segment, &log), file(&new, &begun[..10])],
            vec![lock.clone(), known, file(segment, &log), file(&new, &begun)],
            vec![lock, file(NAME, &begun), file(segment, &log)],
        ];
        for (step, files) in steps.iter().enumerate() {
            fs::remove_dir_all(&path).unwrap();
            fs::create_dir(&path).unwrap();
            files.iter().for_each(|(name, bytes)| fs::write(path.join(name), bytes).unwrap());
            for start in [Start::New, Start::Again] {
                let opened = open(&path, OWNER, start);
                assert!(opened.is_ok(), "after step {step}, {start:?}: {:#}", opened.unwrap_err());
            }
        }
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn only_a_first_start_begins_a_log() {
        let path = std::env::temp_dir().join(format!("dunlin-test-home-start-{}", std::process::id()));
        refused(&path, OWNER, "start it once with --new, to found a cluster");
        assert!(!path.exists(), "where a mount is missing, nothing is made");
        fs::create_dir(&path).unwrap();
        refused(&path, OWNER, "never start it again under this id");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);

        // The purpose of a start that was not completed is unknown.
        write(&Directory::open(&path).unwrap(), &path, OWNER, State::Made).unwrap();
        refused(&path, OWNER, "did not come to its end");
        let (mut logs, _) = open(&path, OWNER, Start::New).unwrap();
        let mut log = logs.remove(0);
        // From its first vote on, the log has begun.
        let vote = raft::eraftpb::HardState { term: 2, vote: 1, ..Default::default() };
        log.append(Batch { hard_state: Some(vote), urgency: Urgency::Urgent, ..Batch::default() }).unwrap();
        drop(log);
        refused_to(Start::New, &path, OWNER, "leave out --new, lest it begins anew");
        refused_to(Start::Join, &path, OWNER, "leave out --join, lest it begins anew");
        drop(open(&path, OWNER, Start::Again).unwrap());
        fs::remove_dir_all(&path).unwrap();
    }
    /// An incomplete first log must be neither served nor used to found a cluster.
    #[test]
    fn a_state_that_was_not_restored_to_its_end_is_not_served() {
        let path = std::env::temp_dir().join(format!("dunlin-test-home-restore-{}", std::process::id()));
        let disk_full = |_: &mut [DurableLog<Directory>]| bail!("no space left on device");
        let failed = |owner, why: &str| {
            let error = format!("{:#}", restore(&path, owner, disk_full).unwrap_err());
            assert!(error.contains(why), "{error}");
        };
        let vote = |logs: &mut [DurableLog<Directory>]| {
            let vote = raft::eraftpb::HardState { term: 2, vote: 1, ..Default::default() };
            logs[0].append(Batch { hard_state: Some(vote), urgency: Urgency::Urgent, ..Batch::default() }).unwrap();
            Ok(())
        };
        let unfinished =
            |why: &str| [Start::Again, Start::New, Start::Join].map(|start| refused_to(start, &path, OWNER, why));
        failed(OWNER, "no space left");
        unfinished("restore it again (dunlin raft restore)");
        failed(Owner { id: 4, ..OWNER }, "is the directory of replica 3, not of replica 4");
        // Killed when everything is written, before that is recorded.
        let killed = restore(&path, OWNER, |logs| vote(logs).and_then(|()| disk_full(logs)));
        assert!(killed.is_err());
        unfinished("did not come to its end: remove the directory");
        failed(OWNER, "give a directory that is empty or not there");
        fs::remove_dir_all(&path).unwrap();

        // Once there is room, it continues.
        failed(OWNER, "no space left");
        restore(&path, OWNER, vote).unwrap();
        drop(open(&path, OWNER, Start::Again).unwrap());
        refused_to(Start::New, &path, OWNER, "leave out --new");
        failed(OWNER, "give a directory that is empty or not there");
        drop(open(&path, OWNER, Start::Again).unwrap());
        fs::remove_dir_all(&path).unwrap();

        // A log that was founded, and has promised nothing yet.
        drop(open(&path, OWNER, Start::New).unwrap());
        failed(OWNER, "no space left");
        unfinished("did not come to its end: remove the directory");
        fs::remove_dir_all(&path).unwrap();

        let coordinator = Owner { id: 3, kind: Kind::Coordinator };
        failed(coordinator, "no space left");
        refused(&path, coordinator, "restore it again (dunlin coord restore)");
        fs::remove_dir_all(&path).unwrap();
    }
}
