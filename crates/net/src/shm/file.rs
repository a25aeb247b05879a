//! Region files: made, found, taken over from the dead, and removed.
//!
//! A file gets its name only once it is complete and its owner's lock is held, so a name without a lock always belongs to
//! the dead. Such a name is taken over by whoever gets the lock of the dead file first.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::addr::{Addr, ShmName};
use crate::error::NetError;
use crate::shm::lock::{self, OWNER_BYTE};

/// Random names begin so; nobody asks for them again, so those of the dead may be removed at any time.
pub(crate) const ANONYMOUS_PREFIX: &str = "anon-";

/// Times a name is tried while others come and go under it.
const LINK_ATTEMPTS_MAX: u32 = 16;
/// Directory entries looked at for regions of dead anonymous endpoints, at each creation.
const SWEEP_ENTRIES_MAX: usize = 4096;
/// Regions of dead anonymous endpoints removed at each creation.
const SWEEP_REMOVALS_MAX: usize = 64;

/// The region file of a live endpoint of this process. Dropping it removes the name, then the lock.
#[derive(Debug)]
pub(crate) struct OwnFile {
    file: File,
    path: PathBuf,
}

impl OwnFile {
    /// Makes a file of `bytes` zeros without a name, with the owner's lock held.
    ///
    /// # Errors
    /// [`NetError::Io`].
    pub(crate) fn unnamed(directory: &Path, bytes: u64) -> Result<File, NetError> {
        let doing = |what: &str| format!("{what} a region of {bytes} bytes in {}", directory.display());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_TMPFILE)
            .open(directory)
            .map_err(|source| NetError::Io { doing: doing("create"), source })?;
        file.set_len(bytes).map_err(|source| NetError::Io { doing: doing("size"), source })?;
        match lock::try_lock(&file, OWNER_BYTE) {
            Ok(true) => Ok(file),
            Ok(false) => Err(NetError::Io { doing: doing("lock"), source: io::ErrorKind::WouldBlock.into() }),
            Err(source) => Err(NetError::Io { doing: doing("lock"), source }),
        }
    }

    /// Gives an unnamed, locked file its name, taking the name over from a dead endpoint.
    ///
    /// # Errors
    /// [`NetError::InUse`], [`NetError::BadRegion`], [`NetError::Io`].
    pub(crate) fn publish(file: File, directory: &Path, name: &ShmName) -> Result<Self, NetError> {
        let path = path_of(directory, name);
        for _ in 0..LINK_ATTEMPTS_MAX {
            match link(&file, &path) {
                Ok(()) => return Ok(OwnFile { file, path }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => remove_if_dead(&path, name)?,
                Err(source) => return Err(NetError::Io { doing: format!("name region {}", path.display()), source }),
            }
        }
        Err(NetError::InUse { addr: Addr::Shm(name.clone()) })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        // If someone removed the name and another endpoint has it now, it is not ours to remove.
        if names(&self.path, &self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The file of the endpoint called `name`.
pub(crate) fn path_of(directory: &Path, name: &ShmName) -> PathBuf {
    directory.join(format!("{}{}", file_prefix(), name.as_str()))
}

fn file_prefix() -> String {
    // SAFETY: the call only returns a number.
    let uid = unsafe { libc::geteuid() };
    format!("dunlin-{uid}-")
}

/// Opens an existing region file of this user, or says [`None`] if there is none.
///
/// # Errors
/// [`NetError::BadRegion`] if something else has the name, [`NetError::Io`].
pub(crate) fn open(path: &Path) -> Result<Option<File>, NetError> {
    // O_NONBLOCK: should the name belong to a FIFO, opening it must not wait.
    let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(NetError::Io { doing: format!("open region {}", path.display()), source }),
    };
    let metadata = file.metadata().map_err(|source| NetError::Io { doing: format!("stat {}", path.display()), source })?;
    // SAFETY: the call only returns a number.
    let uid = unsafe { libc::geteuid() };
    let why = if !metadata.is_file() {
        "it is not a regular file"
    } else if metadata.uid() != uid {
        "it belongs to another user"
    } else {
        return Ok(Some(file));
    };
    Err(NetError::BadRegion { path: path.display().to_string(), why: why.into() })
}

/// Removes the name of a dead endpoint; that it is gone already is fine.
fn remove_if_dead(path: &Path, name: &ShmName) -> Result<(), NetError> {
    let Some(file) = open(path)? else { return Ok(()) };
    match lock::try_lock(&file, OWNER_BYTE) {
        Ok(true) => {}
        Ok(false) => return Err(NetError::InUse { addr: Addr::Shm(name.clone()) }),
        Err(source) => return Err(NetError::Io { doing: format!("lock {}", path.display()), source }),
    }
    // With the lock of the dead file held, nobody else removes its name; but it may have been removed before.
    if names(path, &file) {
        std::fs::remove_file(path).map_err(|source| NetError::Io { doing: format!("remove {}", path.display()), source })?;
    }
    Ok(())
}

/// Removes regions that dead anonymous endpoints left behind. Best effort, bounded.
pub(crate) fn sweep_anonymous(directory: &Path) {
    let prefix = format!("{}{ANONYMOUS_PREFIX}", file_prefix());
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut removed = 0;
    for entry in entries.take(SWEEP_ENTRIES_MAX).flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|n| n.starts_with(&prefix)) else { continue };
        let Ok(name) = ShmName::new(&name[file_prefix().len()..]) else { continue };
        if remove_if_dead(&path_of(directory, &name), &name).is_ok() {
            removed += 1;
        }
        if removed == SWEEP_REMOVALS_MAX {
            return;
        }
    }
}

/// Whether `path` is a name of `file`.
fn names(path: &Path, file: &File) -> bool {
    match (std::fs::symlink_metadata(path), file.metadata()) {
        (Ok(a), Ok(b)) => a.dev() == b.dev() && a.ino() == b.ino(),
        _ => false,
    }
}

/// Gives a file made with `O_TMPFILE` a name, unless the name exists.
fn link(file: &File, path: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both are C strings that live through the call.
    let result =
        unsafe { libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
