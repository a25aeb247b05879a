//! Snapshots of a running server: one at a time, on a thread of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dunlin_store::snapshot::{Report, SnapshotLock, save};
use tokio::sync::oneshot;

use super::clock::moment;
use super::error::ServerError;
use super::mail::{Mail, Mailboxes};

/// Saves snapshots.
#[derive(Debug, Clone)]
pub(super) struct Saver {
    target: Option<Arc<Target>>,
    mailboxes: Mailboxes,
    is_saving: Arc<AtomicBool>,
}

/// Where snapshots are saved, and the right to do so, for as long as anything of the server may.
#[derive(Debug)]
struct Target {
    path: PathBuf,
    _lock: SnapshotLock,
}

/// The right of a thread to save; there is one.
struct Turn(Arc<AtomicBool>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Saver {
    /// Saves to `path`, if there is one, and keeps other servers from it.
    ///
    /// # Errors
    /// [`ServerError::Lock`].
    pub fn new(path: Option<&Path>, mailboxes: Mailboxes) -> Result<Saver, ServerError> {
        let lock = |path: &Path| SnapshotLock::take(path).map(|lock| Target { path: path.to_owned(), _lock: lock });
        let target = path.map(lock).transpose().map_err(ServerError::Lock)?;
        Ok(Saver { target: target.map(Arc::new), mailboxes, is_saving: Arc::default() })
    }

    /// Whether there is a file to save to.
    pub fn has_file(&self) -> bool {
        self.target.is_some()
    }

    /// Begins a snapshot of what all cores have now. Its end comes through the channel.
    ///
    /// # Errors
    /// [`ServerError::NoSnapshot`], [`ServerError::Saving`], [`ServerError::System`].
    pub fn begin(&self) -> Result<oneshot::Receiver<Result<Report, ServerError>>, ServerError> {
        let target = self.target.clone().ok_or(ServerError::NoSnapshot)?;
        if self.is_saving.swap(true, Ordering::Acquire) {
            return Err(ServerError::Saving);
        }
        let turn = Turn(self.is_saving.clone());
        let mailboxes = self.mailboxes.clone();
        let (done, end) = oneshot::channel();
        let work = move || {
            let (parts, collector) = save(mailboxes.iter().count(), moment());
            for (mailbox, part) in mailboxes.iter().zip(parts) {
                // A part that a core does not take ends the snapshot, as the collector finds out.
                let _ = mailbox.blocking_send(Mail::Snapshot(part));
            }
            let result = collector.write_to(&target.path).map_err(ServerError::from);
            // Before anybody hears of the end: a server that saves its last snapshot ends then, and the last who has the lock takes its file away.
            drop((turn, target));
            // Whoever asked may have gone away.
            let _ = done.send(result);
        };
        let thread = thread::Builder::new().name("snapshot".into()).spawn(work);
        thread.map_err(|why| ServerError::System { what: "a thread", why: why.to_string() })?;
        Ok(end)
    }
}
