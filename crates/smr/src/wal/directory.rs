//! A directory of a real file system.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use thiserror::Error;

use super::disk::{Disk, DiskFile};

/// Permissions of files: only the node's user may read them.
const FILE_MODE: u32 = 0o600;
/// Permissions of the directory, if it is created.
const DIRECTORY_MODE: u32 = 0o700;
/// The file that is locked while a process uses the directory; it is never removed.
pub const LOCK_NAME: &str = "lock";

/// Why a directory cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Another process, or another part of this one, has it open.
    #[error("{} is in use by another node: stop that one, or give this one a directory of its own", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A file system operation failed.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A directory in exclusive use, until its last handle and its last file are dropped.
#[derive(Debug, Clone)]
pub struct Directory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// The directory itself, to flush it.
    handle: File,
    /// Holds the lock while it is open.
    _lock: File,
}

impl Directory {
    /// Locks a directory for this process, and creates it if it does not exist; its parent must exist.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn open(path: &Path) -> Result<Directory, DirectoryError> {
        let io = |what, path: &Path, source| DirectoryError::Io { what, path: path.to_owned(), source };
        match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(io("make the directory", path, source)),
        }
        if is_blank(path).map_err(|source| io("list", path, source))? {
            // Also if it existed: the process that created it may have ended before the name was flushed.
            let parent = match path.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(|source| io("flush", parent, source))?;
        }
        let handle = File::open(path).map_err(|source| io("open", path, source))?;
        let lock_path = path.join(LOCK_NAME);
        let lock =
            options().create(true).truncate(false).open(&lock_path).map_err(|source| io("open", &lock_path, source))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(DirectoryError::InUse { path: path.to_owned() }),
            Err(error) => return Err(io("lock", &lock_path, error.into())),
        }
        Ok(Directory { inner: Arc::new(Inner { path: path.to_owned(), handle, _lock: lock }) })
    }

    fn file(&self, name: &str, options: &OpenOptions) -> io::Result<DirectoryFile> {
        Ok(DirectoryFile { file: options.open(self.place(name))?, _directory: self.inner.clone() })
    }
}

/// Whether a directory has never been used.
fn is_blank(path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        if entry?.file_name() != LOCK_NAME {
            return Ok(false);
        }
    }
    Ok(true)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(FILE_MODE);
    options
}

impl Disk for Directory {
    type File = DirectoryFile;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.inner.path)? {
            // A name that is not UTF-8 was not created here.
            if let Ok(name) = entry?.file_name().into_string()
                && name != LOCK_NAME
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str, len: u64) -> io::Result<DirectoryFile> {
        let file = self.file(name, options().create(true).truncate(true))?;
        if len > 0 {
            match fallocate(&file.file, FallocateFlags::empty(), 0, len) {
                Ok(()) => {}
                // If the file system cannot reserve space, a full disk is found later, which stops the node cleanly,
                // too.
                Err(Errno::OPNOTSUPP) => file.file.set_len(len)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<DirectoryFile> {
        self.file(name, &options())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.place(from), self.place(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.place(name))
    }

    fn flush_directory(&self) -> io::Result<()> {
        self.inner.handle.sync_all()
    }

    fn place(&self, name: &str) -> PathBuf {
        self.inner.path.join(name)
    }

    fn random(&self) -> io::Result<u64> {
        getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
    }
}

/// A file of a [`Directory`].
#[derive(Debug)]
pub struct DirectoryFile {
    file: File,
    /// Keeps the lock.
    _directory: Arc<Inner>,
}

impl DiskFile for DirectoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
