//! The file is replaced entirely or not at all, even if the writing process is killed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dunlin_store::snapshot::{Misfit, SaveError, SnapshotLock, Turn, load_file, save};
use dunlin_store::{Condition, MEMORY_BYTES_MIN, Mode, Model, Partition, PartitionConfig, Put, Refused, Store, Sweep};

const FILE: &str = "DUNLIN_TEST_SNAPSHOT";
const TURNS: &str = "DUNLIN_TEST_TURNS";
const ITEMS: usize = 2_000;
/// Times that a writer is killed.
const KILLS: usize = 12;
const SIGKILL: i32 = 9;
const SIGXFSZ: i32 = 25;

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replaced-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Returns items that all name the round in which they were stored.
fn partition(round: u32) -> Model {
    let mut partition = Model::new();
    for number in 0..ITEMS {
        let text = format!("key-{number}");
        let key = partition.key(text.as_bytes()).unwrap();
        partition.put(&key, &[0; 500], Put { flags: round, ..Put::default() }).unwrap();
    }
    partition
}

fn take(partition: &mut impl Sweep, path: &Path) -> Result<(), SaveError> {
    let (mut parts, collector) = save(1, 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| collector.write_to(path));
        while parts[0].turn(partition) != Turn::Over {
            std::thread::yield_now();
        }
        writer.join().unwrap().map(drop)
    })
}

/// Returns the round of a complete file.
fn round(path: &Path) -> u32 {
    let mut found = [Model::new()];
    load_file(path, 0, &mut found, |_| Some(0), Misfit::Refuse, |_| {}).unwrap();
    let rounds: std::collections::BTreeSet<u32> = (0..ITEMS)
        .map(|number| {
            let text = format!("key-{number}");
            let key = found[0].key(text.as_bytes()).unwrap();
            found[0].peek(&key).expect("every item is there").flags
        })
        .collect();
    assert_eq!(rounds.len(), 1, "items of several snapshots");
    rounds.into_iter().next().unwrap()
}

/// Takes snapshots until it is killed, and reports each. If it is given a number of turns, it stops there in the second
/// snapshot, and waits to be killed.
#[test]
#[ignore = "a process for the other tests"]
fn child() {
    let Ok(path) = std::env::var(FILE) else { return };
    let path = Path::new(&path);
    let turns: Option<usize> = std::env::var(TURNS).ok().map(|turns| turns.parse().unwrap());
    for next in round(path) + 1.. {
        take(&mut partition(next), path).unwrap();
        println!("saved");
        if let Some(turns) = turns {
            wait_inside(&mut partition(next + 1), path, turns);
        }
    }
}

/// Begins to take a snapshot, and never ends.
fn wait_inside(partition: &mut Model, path: &Path, turns: usize) {
    let (mut parts, collector) = save(1, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| collector.write_to(path));
        while !path.with_extension("tmp").exists() {
            std::thread::yield_now();
        }
        for _ in 0..turns {
            assert_ne!(parts[0].turn(partition), Turn::Over, "so many turns are the whole snapshot");
        }
        println!("inside");
        loop {
            std::thread::park();
        }
    });
}

#[test]
fn a_killed_writer_leaves_the_last_complete_snapshot() {
    let directory = directory("killed");
    let path = directory.join("snapshot");
    take(&mut partition(1), &path).unwrap();
    let (mut stale, mut last) = (0, 1);
    for kill in 0..KILLS {
        let is_inside = kill % 2 == 0;
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "replaced::child", "--ignored", "--nocapture"]).env(FILE, &path).stdout(Stdio::piped());
        if is_inside {
            child.env(TURNS, kill.to_string());
        }
        let mut child = child.spawn().unwrap();
        let told = if is_inside { "inside" } else { "saved" };
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with(told)), "the writer ended by itself");
        // If it does not wait for the kill, it is killed at a random place, different from time to time.
        child.kill().unwrap();
        // A child that failed before it could be killed has not passed.
        assert_eq!(child.wait().unwrap().signal(), Some(SIGKILL));
        let is_stale = path.with_extension("tmp").exists();
        stale += u32::from(is_stale);
        let found = round(&path);
        if is_inside {
            assert!(is_stale && found == last + 1, "{found} after {last}");
        } else {
            assert!(found > last, "{found} after {last}");
        }
        last = found;
    }
    println!("{stale} of {KILLS} were killed in the middle of a file; the last complete one is number {last}");
    take(&mut partition(last + 1), &path).unwrap();
    assert_eq!(round(&path), last + 1, "an unfinished file is taken over");
    assert!(!path.with_extension("tmp").exists());
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Does what a server does at its start: it takes the right to the file, loads it, and saves again.
fn start(path: &Path, expected: Option<u32>) {
    let lock = SnapshotLock::take(path).unwrap();
    assert_eq!(path.exists(), expected.is_some());
    if let Some(expected) = expected {
        assert_eq!(round(path), expected);
    }
    let next = expected.unwrap_or(0) + 100;
    take(&mut partition(next), path).unwrap();
    drop(lock);
    assert_eq!(round(path), next);
    let left: Vec<_> =
        std::fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["snapshot"], "nothing else stays behind");
}

/// The kernel kills the writer at the write that would exceed this file length.
#[test]
fn a_writer_that_is_killed_at_any_length_leaves_a_start_that_works() {
    let directory = directory("length");
    let path = directory.join("snapshot");
    take(&mut partition(1), &path).unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    let sectors = (bytes - 1) / 512;
    let mut last = 1;
    for limit in [0, 1, 2, sectors / 3, sectors / 2, sectors - 1, sectors] {
        let mut child = Command::new("sh");
        child.args(["-c", "ulimit -c 0; ulimit -f \"$0\"; exec \"$@\""]).arg(limit.to_string());
        child.arg(std::env::current_exe().unwrap());
        child.args(["--exact", "replaced::child", "--ignored", "--nocapture"]).env(FILE, &path).stdout(Stdio::null());
        let status = child.stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.signal(), Some(SIGXFSZ), "{limit} of {sectors} sectors: {status}");
        assert!(std::fs::metadata(directory.join("snapshot.tmp")).unwrap().len() <= limit * 512);
        start(&path, Some(last));
        last += 100;
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Each state that a kill between two steps can leave: the lock is taken or not; the new file does not exist, is begun,
/// or is complete under its temporary name; and the same at the very first snapshot.
#[test]
fn a_kill_between_any_two_steps_leaves_a_start_that_works() {
    let directory = directory("steps");
    let path = directory.join("snapshot");
    let file = |round| {
        let other = directory.join("other");
        take(&mut partition(round), &other).unwrap();
        let bytes = std::fs::read(&other).unwrap();
        std::fs::remove_file(&other).unwrap();
        bytes
    };
    let (old, new) = (file(1), file(2));
    for is_first in [true, false] {
        for is_locked in [true, false] {
            for unfinished in [None, Some(0), Some(1), Some(new.len() / 2), Some(new.len() - 1), Some(new.len())] {
                let expected = if is_first { None } else { Some(1) };
                let _ = std::fs::remove_file(&path);
                if !is_first {
                    std::fs::write(&path, &old).unwrap();
                }
                if is_locked {
                    std::fs::write(directory.join("snapshot.lock"), b"").unwrap();
                }
                if let Some(bytes) = unfinished {
                    std::fs::write(directory.join("snapshot.tmp"), &new[..bytes]).unwrap();
                }
                start(&path, expected);
            }
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Tokens are not in the file. Every loaded item gets a new one, which none of its earlier versions had.
#[test]
fn a_token_of_before_matches_nothing_after() {
    let directory = directory("tokens");
    let path = directory.join("snapshot");
    let new = || Partition::new(PartitionConfig::new(Mode::Store, MEMORY_BYTES_MIN)).unwrap();
    let mut before = new();
    let key = before.key(b"key").unwrap();
    let tokens = [&b"1"[..], b"2", b"3"].map(|value| before.put(&key, value, Put::default()).unwrap().cas);
    take(&mut before, &path).unwrap();
    // Others were given out after the snapshot, and are lost.
    let lost = before.put(&key, b"4", Put::default()).unwrap().cas;
    for _ in 0..3 {
        let mut after = [new()];
        load_file(&path, 0, &mut after, |_| Some(0), Misfit::Refuse, |_| {}).unwrap();
        let [after] = &mut after;
        let key = after.key(b"key").unwrap();
        for token in tokens.into_iter().chain([lost]) {
            let put = Put { condition: Condition::Unchanged(token), ..Put::default() };
            assert_eq!(after.put(&key, b"wrong", put), Err(Refused::Changed), "token {token}");
            assert_eq!(after.put(&key, b"5", Put::default()).map(|stored| stored.cas == token), Ok(false));
        }
        let now = after.peek(&key).unwrap().cas;
        after.put(&key, b"right", Put { condition: Condition::Unchanged(now), ..Put::default() }).unwrap();
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_file_has_one_writer() {
    let directory = directory("busy");
    let path = directory.join("snapshot");
    let (mut parts, collector) = save(1, 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| collector.write_to(&path));
        // The header is written once the writer has the lock.
        while std::fs::metadata(directory.join("snapshot.tmp")).map_or(0, |file| file.len()) == 0 {
            std::thread::yield_now();
        }
        let error = save(1, 0).1.write_to(&path).unwrap_err();
        assert!(matches!(error, SaveError::Busy { .. }), "{error}");
        let mut partition = Model::new();
        while parts[0].turn(&mut partition) != Turn::Over {}
        writer.join().unwrap().unwrap();
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_cannot_be_written_is_said() {
    let (parts, collector) = save(1, 0);
    drop(parts);
    let error = collector.write_to(Path::new("/nonexistent/snapshot")).unwrap_err();
    assert_eq!(error.to_string(), "cannot create /nonexistent/snapshot.tmp");
    let directory = directory("refused");
    std::fs::create_dir(directory.join("snapshot.tmp")).unwrap();
    let (_parts, collector) = save(1, 0);
    assert!(matches!(collector.write_to(&directory.join("snapshot")), Err(SaveError::Io { .. })));
    std::fs::remove_dir_all(&directory).unwrap();
}
