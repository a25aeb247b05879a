//! The exclusive right to save to a name: two servers saving to one name would lose each other's items.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::error::SaveError;
use super::file::{beside, open_locked};

/// The exclusive right to load and save a snapshot, as long as this value lives: a lock on a file of the same name with
/// the suffix `.lock`. The snapshot itself cannot be locked, since each one is a new file.
///
/// The lock ends with the process, however that ends. Dropping this removes the file; a killed process leaves it
/// behind, and the next one takes it over.
#[derive(Debug)]
pub struct SnapshotLock {
    path: PathBuf,
    /// The lock lasts as long as this is open.
    _file: File,
}

impl SnapshotLock {
    /// Takes the right for a snapshot, which need not exist.
    ///
    /// # Errors
    /// [`SaveError::InUse`] if another owner has it, [`SaveError::Io`] if the lock file cannot be created or locked.
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
        // Nothing depends on this: the next one takes the file over. It is removed while locked, so it cannot be
        // another owner's.
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
        // Left by a killed process.
        fs::write(beside(&path, ".lock"), b"").unwrap();
        drop(SnapshotLock::take(&path).unwrap());
        fs::remove_dir(&directory).unwrap();
    }
}
