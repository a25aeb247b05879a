//! A file that replaces another only once it is complete.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::error::SaveError;

/// Attempts to lock a file while others rename or remove theirs of the same name.
const LOCK_TRIES: usize = 10;
/// Permissions of the file: only the user may read the items.
const MODE: u32 = 0o600;

/// A file with a name of its own, with the suffix `.tmp`, until [`Replacement::commit`]. Dropping it earlier removes
/// the file; a killed process leaves it behind, and the next one takes it over.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    path: PathBuf,
    unfinished: PathBuf,
    is_complete: bool,
}

impl Replacement {
    /// Begins a replacement of a file, which need not exist.
    ///
    /// # Errors
    /// [`SaveError::Busy`] if another process or thread is writing it, [`SaveError::Io`].
    pub fn create(path: &Path) -> Result<Replacement, SaveError> {
        let unfinished = beside(path, ".tmp");
        let io = |what, source| SaveError::Io { what, path: unfinished.clone(), source };
        let file = open_locked(&unfinished)?;
        file.set_len(0).map_err(|source| io("truncate", source))?;
        Ok(Replacement { file, path: path.to_owned(), unfinished, is_complete: false })
    }

    /// Returns its present name.
    pub fn unfinished(&self) -> &Path {
        &self.unfinished
    }

    /// Flushes it to the disk, and renames it.
    ///
    /// # Errors
    /// [`SaveError::Io`]. If only flushing the directory failed, the new file already has its name.
    pub fn commit(mut self) -> Result<(), SaveError> {
        let io = |what, path: &Path, source| SaveError::Io { what, path: path.to_owned(), source };
        self.file.sync_all().map_err(|source| io("sync", &self.unfinished, source))?;
        fs::rename(&self.unfinished, &self.path).map_err(|source| io("rename", &self.unfinished, source))?;
        self.is_complete = true;
        sync_directory(&self.path).map_err(|source| io("sync the directory of", &self.path, source))
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_complete {
            // Nothing depends on this: the next one takes the file over.
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}

/// Flushes the name of a file to the disk.
///
/// # Errors
/// The system's error.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Returns the path in the same directory with `suffix` appended to the name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// Opens or creates the file of that name, and locks it, without truncating it: it may be in use. The holder of the
/// lock may rename or remove the file.
pub fn open_locked(path: &Path) -> Result<File, SaveError> {
    let io = |what, source| SaveError::Io { what, path: path.to_owned(), source };
    for _ in 0..LOCK_TRIES {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(MODE);
        let file = options.open(path).map_err(|source| io("create", source))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(SaveError::Busy { path: path.to_owned() }),
            Err(error) => return Err(io("lock", error.into())),
        }
        // The previous holder of the lock may have finished, so that the name now refers to another file, and this one
        // has another name.
        let ours = file.metadata().map_err(|source| io("look at", source))?;
        match fs::metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io("look at", error)),
        }
    }
    Err(SaveError::Busy { path: path.to_owned() })
}
