//! Real files, and the thread that writes them.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::Wake;
use std::thread;
use std::time::{Duration, Instant};

use dunlin_smr::wal::{Directory, Disk, DiskFile, Entry, HardState, Wal, WalConfig, WalError, open};

use super::{OWNER, payload};

/// A directory that is removed when this is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        Temporary(std::env::temp_dir().join(format!("dunlin-wal-{name}-{}", std::process::id())))
    }

    fn open(&self) -> Wal<Directory> {
        self.open_through(|directory| directory)
    }

    fn open_through<D: Disk>(&self, wrap: impl FnOnce(Directory) -> D) -> Wal<D> {
        let config = WalConfig { segment_bytes: 64 << 10, ..WalConfig::new(OWNER) };
        open(wrap(Directory::open(&self.0).unwrap()), config).unwrap().0
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

/// A directory whose disk hangs while its gate is shut.
#[derive(Debug, Clone)]
struct Gated<D> {
    inner: D,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        drop(self.opened.wait_while(self.is_shut.lock().unwrap(), |is_shut| *is_shut).unwrap());
    }

    fn set(&self, is_shut: bool) {
        *self.is_shut.lock().unwrap() = is_shut;
        self.opened.notify_all();
    }
}

impl Gated<Directory> {
    fn file(&self, file: io::Result<<Directory as Disk>::File>) -> io::Result<Gated<<Directory as Disk>::File>> {
        Ok(Gated { inner: file?, gate: self.gate.clone() })
    }
}

impl Disk for Gated<Directory> {
    type File = Gated<<Directory as Disk>::File>;

    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Self::File> {
        self.file(self.inner.create(name, len))
    }

    fn open(&self, name: &str) -> io::Result<Self::File> {
        self.file(Disk::open(&self.inner, name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn flush_directory(&self) -> io::Result<()> {
        self.inner.flush_directory()
    }

    fn place(&self, name: &str) -> PathBuf {
        self.inner.place(name)
    }

    fn random(&self) -> io::Result<u64> {
        self.inner.random()
    }
}

impl<F: DiskFile> DiskFile for Gated<F> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.gate.pass();
        self.inner.flush()
    }
}

/// A replica notices a hung disk by a turn of the writer that stays under way.
#[test]
fn a_flush_that_hangs_is_under_way_until_it_ends() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let place = Temporary::new("hang");
    let gate = Arc::<Gate>::default();
    let mut wal = place.open_through(|inner| Gated { inner, gate: gate.clone() });
    let until = |wal: &Wal<Gated<Directory>>, is_so: &dyn Fn(Option<u64>) -> bool| {
        let begun = Instant::now();
        while !is_so(wal.under_way()) {
            assert!(begun.elapsed() < PATIENCE, "{:?} is under way", wal.under_way());
            thread::sleep(Duration::from_millis(1));
        }
        wal.under_way()
    };
    let mut turns = Vec::new();
    for index in 1..=2 {
        until(&wal, &|turn| turn.is_none());
        gate.set(true);
        wal.append(Entry { index, term: 1, kind: 1, payload: b"entry" }).unwrap();
        let ticket = wal.submit();
        let turn = until(&wal, &|turn| turn.is_some());
        thread::sleep(Duration::from_millis(20));
        assert_eq!((wal.under_way(), wal.durable() < ticket), (turn, true), "it hangs");
        gate.set(false);
        wal.wait().unwrap();
        turns.push(turn);
    }
    until(&wal, &|turn| turn.is_none());
    assert_ne!(turns[0], turns[1], "each has a number of its own");
    wal.close().unwrap();
}
