//! Who may save to a name: two servers that save to one would lose the items of each other.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::error::SaveError;
use super::file::{beside, open_locked};

/// The right to load and save a snapshot, for as long as it is kept: a lock on a file of the same name with `.lock` behind. The snapshot
/// cannot be locked itself, since each one is another file.
///
/// The lock ends with the process, however that ends. The file is removed when this is dropped; a process that is killed leaves it behind,
/// and the next one takes it over.
#[derive(Debug)]
pub struct SnapshotLock {
    path: PathBuf,
    /// Open for as long as the lock lasts.
    _file: File,
}

impl SnapshotLock {
    /// Takes the right, for a snapshot that need not exist.
    ///
    /// # Errors
    /// [`SaveError::InUse`] if somebody has it, [`SaveError::Io`] if the file beside the snapshot cannot be made or locked.
    pub fn take(snapshot: &Path) -> Result<SnapshotLock, SaveError> {
        let path = beside(snapshot, ".lock");
        match open_locked(&path) {
            Ok(file) => Ok(SnapshotLock { path, _file: file }),
            Err(SaveError::Busy { .. }) => Err(SaveError::InUse { path: snapshot.to_owned() }),
            Err(error) => Err(error),
        }
    }
}

impl Drop for SnapshotLock {
    fn drop(&mut self) {
        // Nothing depends on it: the next one takes it over. It is removed while locked, so that nobody else's is.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_by_any_path() {
        let directory = std::env::temp_dir().join(format!("dunlin-snapshot-lock-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (path, other) = (directory.join("kv.snapshot"), directory.join("other.snapshot"));
        let first = SnapshotLock::take(&path).unwrap();
        let refused = SnapshotLock::take(&directory.join(".").join("kv.snapshot")).unwrap_err();
        assert!(matches!(refused, SaveError::InUse { .. }), "{refused}");
        let second = SnapshotLock::take(&other).unwrap();
        drop((first, second));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "nothing stays behind");
        // Of a process that was killed.
        fs::write(beside(&path, ".lock"), b"").unwrap();
        drop(SnapshotLock::take(&path).unwrap());
        fs::remove_dir(&directory).unwrap();
    }
}
