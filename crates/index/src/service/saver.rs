//! Snapshots of a running server: one at a time, on a thread of their own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dunlin_serve::{Failure, side};
use dunlin_store::snapshot::{SnapshotLock, beside};
use tokio::sync::{Mutex, oneshot};

use super::server::ServerError;
use super::{SharedIndex, stats::SnapshotFigures};
use crate::snapshot::{self, NotSaved, Saved};

/// Files of rescues that are kept. A server that fails again and again must not fill the disk.
const RESCUES_MAX: u32 = 8;

/// Saves snapshots of an index. Clones share the right to do so.
#[derive(Debug, Clone)]
pub(super) struct Saver {
    shared: Arc<SharedIndex>,
    target: Option<Arc<Target>>,
    progress: Arc<Progress>,
}

/// Where snapshots are saved, and the right to do so, held as long as any part of the server may save.
#[derive(Debug)]
struct Target {
    path: PathBuf,
    _lock: SnapshotLock,
}

#[derive(Debug, Default)]
struct Progress {
    /// Locked by the thread that saves.
    turn: Arc<Mutex<()>>,
    /// Whether the server ends, so that a snapshot in progress is not worth completing.
    is_ending: AtomicBool,
    /// Whether a core has failed; known once the server runs.
    failure: OnceLock<Failure>,
    saved: AtomicU64,
    failed: AtomicU64,
}

/// The result of a snapshot, when it is over.
pub(super) type Outcome = oneshot::Receiver<Result<Saved, ServerError>>;

/// A snapshot that is being saved.
#[derive(Debug)]
pub struct Saving(pub(super) Outcome);

impl Saving {
    /// Returns its result; `None` while it is being saved.
    pub fn poll(&mut self) -> Option<Result<Saved, ServerError>> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(dunlin_serve::ServeError::Ended.into())),
        }
    }
}

impl Saver {
    /// Saves to `path`, if there is one, and locks it against other servers.
    pub fn new(shared: &Arc<SharedIndex>, path: Option<&Path>) -> Result<Saver, ServerError> {
        let lock = |path: &Path| SnapshotLock::take(path).map(|lock| Target { path: path.to_owned(), _lock: lock });
        let target = path.map(lock).transpose().map_err(ServerError::Lock)?;
        Ok(Saver { shared: shared.clone(), target: target.map(Arc::new), progress: Arc::default() })
    }

    /// Replaces no snapshot any more once a core has failed.
    pub fn watch(&self, failure: &Failure) {
        // A server is started once.
        let _ = self.progress.failure.set(failure.clone());
    }

    /// Whether there is a file to save to.
    pub fn has_file(&self) -> bool {
        self.target.is_some()
    }

    pub fn figures(&self) -> SnapshotFigures {
        let Progress { saved, failed, .. } = &*self.progress;
        SnapshotFigures { saved: saved.load(Ordering::Relaxed), failed: failed.load(Ordering::Relaxed) }
    }

    /// Begins a snapshot. Its result comes through the channel.
    pub fn begin(&self) -> Result<Outcome, ServerError> {
        let target = self.target.clone().ok_or(ServerError::NoSnapshot)?;
        if self.shared.is_damaged() {
            return Err(ServerError::Damaged { what: "stop the server".into() });
        }
        let turn = self.progress.turn.clone().try_lock_owned().map_err(|_| ServerError::Saving)?;
        let saver = self.clone();
        let (done, end) = oneshot::channel();
        let work = move || {
            let result = saver.save_while_sound(&target.path, |_| !saver.progress.is_ending.load(Ordering::Relaxed));
            if let Err(error) = &result {
                tracing::error!(path = %target.path.display(), %error, "a snapshot was not saved");
            }
            // Before the result is sent: a server that ends then removes the file of the lock.
            drop((turn, target, saver));
            // The caller may be gone.
            let _ = done.send(result);
        };
        side::start("snapshot", work)?;
        Ok(end)
    }

    /// Saves a last snapshot, when the cores serve no more. One that is being saved is given up: it misses what was
    /// stored since it began. Workers may still remove a range for a caller that has waited too long: that ends first.
    pub async fn save_last(&self) -> Result<Saved, ServerError> {
        let target = self.target.as_ref().ok_or(ServerError::NoSnapshot)?;
        if self.shared.is_damaged() {
            return Err(ServerError::Damaged { what: self.rescue().await });
        }
        self.progress.is_ending.store(true, Ordering::Relaxed);
        let _turn = self.progress.turn.lock().await;
        self.shared.end_removals();
        self.save_while_sound(&target.path, |_| true)
    }

    /// Saves what there is after a core has failed, beside the snapshot and never in its place: the core may have left
    /// something half done. Returns what was saved, and where.
    pub async fn rescue(&self) -> String {
        let Some(target) = &self.target else { return "nothing was saved: the server has no snapshot file".into() };
        let path = target.path.display();
        self.progress.is_ending.store(true, Ordering::Relaxed);
        let _turn = self.progress.turn.lock().await;
        let name = |number| if number == 0 { ".rescue".into() } else { format!(".rescue.{number}") };
        let mut names = (0..RESCUES_MAX).map(|number| beside(&target.path, &name(number)));
        // A name that cannot be looked at may be in use.
        let Some(file) = names.find(|file| file.try_exists().is_ok_and(|exists| !exists)) else {
            let last = RESCUES_MAX - 1;
            return format!(
                "nothing was saved: there are files of {RESCUES_MAX} earlier failures, {path}.rescue to \
                 {path}.rescue.{last}: move them away; {path} is as it was before"
            );
        };
        match self.save_to(&file, |_| true) {
            Ok(Saved { items, .. }) => {
                format!(
                    "{items} items were saved to {}, which `dunlin index dump` reads; {path} is as it was before",
                    file.display()
                )
            }
            Err(error) => format!("nothing was saved ({error}), and {path} is as it was before"),
        }
    }

    /// Saves a snapshot, and gives it up if a core fails or a write panics before it replaces the file.
    fn save_while_sound(&self, path: &Path, mut goes_on: impl FnMut(u64) -> bool) -> Result<Saved, ServerError> {
        let has_failed = || self.progress.failure.get().is_some_and(|failure| failure.get().is_some());
        self.save_to(path, |items| goes_on(items) && !self.shared.is_damaged() && !has_failed())
    }

    fn save_to(&self, path: &Path, goes_on: impl FnMut(u64) -> bool) -> Result<Saved, ServerError> {
        let result = snapshot::save(self.shared.index(), path, goes_on);
        let count = if result.is_ok() { &self.progress.saved } else { &self.progress.failed };
        count.fetch_add(1, Ordering::Relaxed);
        result.map_err(|source: NotSaved| ServerError::Save { path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures::executor::block_on;

    use super::*;
    use crate::wire::Code;
    use crate::{Index, pin};

    fn saver(test: &str, items: u64) -> (Saver, PathBuf) {
        let directory = std::env::temp_dir().join(format!("dunlin-index-{test}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let shared = SharedIndex::with_incarnation(Index::new(64 << 20).unwrap(), 1);
        for number in 0..items {
            shared.index().insert(&number.to_be_bytes(), b"a value", &pin()).unwrap();
        }
        let path = directory.join("index.snapshot");
        (Saver::new(&shared, Some(&path)).unwrap(), path)
    }

    fn items(path: &Path) -> usize {
        snapshot::load(&Index::new(64 << 20).unwrap(), path, |_| true).unwrap()
    }

    #[test]
    fn the_last_snapshot_has_what_came_after_one_was_begun() {
        let (saver, path) = saver("last", 10_000);
        let held = saver.progress.turn.clone().try_lock_owned().unwrap();
        assert!(matches!(saver.begin(), Err(ServerError::Saving)));
        drop(held);
        let begun = saver.begin().unwrap();
        saver.shared.index().insert(b"later", b"", &pin()).unwrap();
        let last = block_on(saver.save_last()).unwrap();
        // It was complete before, or was given up.
        match begun.blocking_recv().unwrap() {
            Ok(_) | Err(ServerError::Save { source: NotSaved::GivenUp, .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert_eq!((last.items, items(&path)), (10_001, 10_001));
        assert_eq!(last.file_bytes, fs::metadata(&path).unwrap().len());
        assert!(matches!(saver.begin().unwrap().blocking_recv().unwrap(), Ok(_) | Err(ServerError::Save { .. })));
        drop(saver);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_damaged_index_does_not_replace_the_snapshot() {
        let (saver, path) = saver("damaged", 100);
        block_on(saver.save_last()).unwrap();
        saver.shared.index().insert(b"later", b"", &pin()).unwrap();
        saver.shared.is_damaged.store(true, Ordering::Relaxed);
        assert!(matches!(saver.begin(), Err(ServerError::Damaged { .. })));
        let told = block_on(saver.save_last()).unwrap_err().to_string();
        assert!(told.contains("101 items were saved to ") && told.contains(".rescue"), "{told}");
        assert_eq!(items(&path), 100);
        drop(saver);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    /// A panic that comes while a snapshot is saved, even just before its end, keeps it from replacing the file.
    #[test]
    fn a_snapshot_in_progress_does_not_replace_the_file_after_a_failure() {
        for items_before in [10, 100_000] {
            let (saver, path) = saver("failing", items_before);
            block_on(saver.save_last()).unwrap();
            saver.shared.index().insert(b"later", b"", &pin()).unwrap();
            let mut calls = 0;
            let refused = saver.save_while_sound(&path, |_| {
                calls += 1;
                saver.shared.is_damaged.store(true, Ordering::Relaxed);
                true
            });
            assert!(matches!(refused, Err(ServerError::Save { source: NotSaved::GivenUp, .. })), "{refused:?}");
            assert_eq!((calls, items(&path)), (1, items_before as usize));
            drop(saver);
            fs::remove_dir_all(path.parent().unwrap()).unwrap();
        }
    }

    /// A worker may still remove a range when the cores have ended.
    #[test]
    fn the_last_snapshot_has_exactly_what_is_left_after_a_removal_was_ended() {
        let (saver, path) = saver("removal", 50_000);
        let shared = saver.shared.clone();
        let (began, begun) = std::sync::mpsc::channel();
        let removal = std::thread::spawn(move || {
            let limits = crate::wire::DELETE_PAGE;
            let (range, order) = (crate::Range::ALL, crate::Order::Ascending);
            let request = crate::wire::ScanRequest { range, order, limits, after: None }.encode();
            let mut removed = 0;
            loop {
                match shared.remove_part(&request) {
                    Ok((_, items)) => removed += items as usize,
                    Err(code) => return (removed, code),
                }
                let _ = began.send(());
            }
        });
        begun.recv().unwrap();
        let saved = block_on(saver.save_last()).unwrap();
        let (removed, code) = removal.join().unwrap();
        assert_eq!((saved.items as usize, items(&path), code), (50_000 - removed, 50_000 - removed, Code::Ending));
        assert_eq!(saver.shared.index().len(), 50_000 - removed);
        drop(saver);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_rescue_replaces_nothing() {
        let (saver, path) = saver("rescue", 100);
        block_on(saver.save_last()).unwrap();
        saver.shared.index().insert(b"later", b"", &pin()).unwrap();
        for number in 0..RESCUES_MAX {
            let told = block_on(saver.rescue());
            let file = beside(&path, &if number == 0 { ".rescue".into() } else { format!(".rescue.{number}") });
            assert!(told.starts_with("101 items were saved to ") && told.contains(&*file.to_string_lossy()), "{told}");
            assert_eq!((items(&file), items(&path)), (101, 100));
        }
        let told = block_on(saver.rescue());
        assert!(told.starts_with("nothing was saved: there are files of 8 earlier failures"), "{told}");
        drop(saver);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
