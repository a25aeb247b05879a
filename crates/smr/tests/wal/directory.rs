//! Real files, and the thread that writes them.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::task::Wake;

use dunlin_smr::wal::{Directory, Entry, HardState, Wal, WalConfig, WalError, open};

use super::{OWNER, payload};

/// A directory that is removed when this is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        Temporary(std::env::temp_dir().join(format!("dunlin-wal-{name}-{}", std::process::id())))
    }

    fn open(&self) -> Wal<Directory> {
        let config = WalConfig { segment_bytes: 64 << 10, ..WalConfig::new(OWNER) };
        open(Directory::open(&self.0).unwrap(), config).unwrap().0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Sends to a channel when woken.
struct Tell(mpsc::SyncSender<()>);

impl Wake for Tell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.try_send(());
    }
}

#[test]
fn what_a_thread_wrote_is_read_by_the_next_process() {
    let place = Temporary::new("thread");
    let mut wal = place.open();
    let (sender, woken) = mpsc::sync_channel(1);
    wal.set_waker(Some(Arc::new(Tell(sender)).into()));
    let mut last = wal.durable();
    for index in 1..=500 {
        wal.append(Entry { index, term: 1, kind: 1, payload: &payload(index, 1, 200) }).unwrap();
        wal.set_hard_state(HardState { term: 1, vote: 1, commit: index - 1 }).unwrap();
        last = wal.submit();
    }
    while wal.durable() < last {
        woken.recv().unwrap();
    }
    assert!(wal.flushes() <= 500 && wal.segments() > 1, "{} flushes, {} segments", wal.flushes(), wal.segments());
    wal.close().unwrap();

    let mut wal = place.open();
    let mut found = Vec::new();
    for index in 1..=500 {
        assert_eq!(wal.read(index, &mut found).unwrap(), (1, 1));
        assert_eq!(found, payload(index, 1, 200));
    }
    assert_eq!(wal.hard_state(), HardState { term: 1, vote: 1, commit: 499 });
    let position = wal.last();
    let writer = dunlin_smr::wal::SnapshotWriter::create(wal.disk().clone(), wal.log(), position, b"").unwrap();
    wal.compact(writer.finish().unwrap(), 490).unwrap();
    wal.close().unwrap();
    let names: Vec<_> = std::fs::read_dir(&place.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "the lock, one segment and the snapshot: {names:?}");
    for name in names {
        assert_eq!(std::fs::metadata(place.0.join(name)).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_directory_has_one_user() {
    let place = Temporary::new("lock");
    let wal = place.open();
    let error = Directory::open(&place.0).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} is in use by another node: stop that one, or give this one a directory of its own",
            place.0.display()
        )
    );
    drop(wal);
    place.open();
}

#[test]
fn what_is_not_written_yet_cannot_be_read() {
    let place = Temporary::new("early");
    let mut wal = place.open();
    wal.append(Entry { index: 1, term: 1, kind: 1, payload: b"a" }).unwrap();
    assert!(matches!(wal.read(1, &mut Vec::new()), Err(WalError::NotWritten { index: 1 })));
    wal.submit();
    wal.wait().unwrap();
    assert!(wal.read(1, &mut Vec::new()).is_ok());
}
