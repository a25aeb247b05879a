//! The file is replaced as a whole or not at all, also when the process that writes it is killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dunlin_store::snapshot::{Misfit, SaveError, Turn, load_file, save};
use dunlin_store::{Model, Put, Store};

const FILE: &str = "DUNLIN_TEST_SNAPSHOT";
const ITEMS: usize = 2_000;
/// Times that a writer is killed.
const KILLS: u64 = 12;

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replaced-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Items that all say which round they were stored in.
fn partition(round: u32) -> Model {
    let mut partition = Model::new();
    for number in 0..ITEMS {
        let text = format!("key-{number}");
        let key = partition.key(text.as_bytes()).unwrap();
        partition.put(&key, &[0; 500], Put { flags: round, ..Put::default() }).unwrap();
    }
    partition
}

fn take(partition: &mut Model, path: &Path) -> Result<(), SaveError> {
    let (mut parts, collector) = save(1, 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| collector.write_to(path));
        while parts[0].turn(partition) != Turn::Over {
            std::thread::yield_now();
        }
        writer.join().unwrap().map(drop)
    })
}

/// The round of a complete file.
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

/// Takes one snapshot after the other until it is killed.
#[test]
#[ignore = "a process for the other tests"]
fn child() {
    let Ok(path) = std::env::var(FILE) else { return };
    let path = Path::new(&path);
    for next in round(path) + 1.. {
        take(&mut partition(next), path).unwrap();
    }
}

#[test]
fn a_killed_writer_leaves_the_last_complete_snapshot() {
    let directory = directory("killed");
    let path = directory.join("snapshot");
    take(&mut partition(1), &path).unwrap();
    let (mut stale, mut last) = (0, 1);
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "replaced::child", "--ignored", "--nocapture"])
            .env(FILE, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // It has begun to write; where it stands then is chance, and different from time to time.
        let unfinished = directory.join("snapshot.tmp");
        let before = last;
        while !unfinished.exists() || (last == before && kill % 2 == 1) {
            assert!(child.try_wait().unwrap().is_none(), "the writer ended by itself");
            last = round(&path);
            std::thread::sleep(Duration::from_micros(100));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        stale += u32::from(unfinished.exists());
        let found = round(&path);
        assert!(found >= before, "{found} after {before}");
        last = found;
    }
    println!("{stale} of {KILLS} were killed in the middle of a file; the last complete one is number {last}");
    take(&mut partition(last + 1), &path).unwrap();
    assert_eq!(round(&path), last + 1, "an unfinished file is taken over");
    assert!(!directory.join("snapshot.tmp").exists());
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_file_has_one_writer() {
    let directory = directory("busy");
    let path = directory.join("snapshot");
    let (mut parts, collector) = save(1, 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| collector.write_to(&path));
        // Its header is written once it has the lock.
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
