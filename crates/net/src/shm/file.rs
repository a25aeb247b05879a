//! Region files: how they are created, found, taken over from the dead, and removed.
//!
//! A file gets its name only once it is complete and its owner's lock is held, so a name without a lock always belongs
//! to a dead endpoint. An endpoint that wants such a name takes it over; an endpoint that creates any other region, or
//! opens a socket, removes it in passing.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::addr::{Addr, ShmName};
use crate::error::NetError;
use crate::shm::bell;
use crate::shm::layout::{MAGIC, header};
use crate::shm::lock::{self, OWNER_BYTE, REMOVER_BYTE};

/// Prefix of random names.
pub(crate) const ANONYMOUS_PREFIX: &str = "anon-";

/// Attempts to take a name while other endpoints take and release it.
const LINK_ATTEMPTS_MAX: u32 = 16;
/// Pause while another process removes a dead name: it has two system calls to make.
const LINK_PAUSE: Duration = Duration::from_millis(1);
/// Directory entries looked at for regions of dead endpoints, at each creation.
const SWEEP_ENTRIES_MAX: usize = 4096;
/// Regions of dead endpoints removed at each creation.
const SWEEP_REMOVALS_MAX: usize = 64;

/// The region file of a live endpoint of this process. Dropping it removes the name, then the lock.
#[derive(Debug)]
pub(crate) struct OwnFile {
    file: File,
    path: PathBuf,
}

impl OwnFile {
    /// Creates a file of `bytes` zeros without a name, with the owner's lock held.
    ///
    /// # Errors
    /// [`NetError::Io`].
    pub(crate) fn unnamed(directory: &Path, bytes: u64) -> Result<File, NetError> {
        let doing = |what: &str| format!("{what} a region of {bytes} bytes in {}", directory.display());
        let refused =
            |cause| NetError::Io { doing: doing("create") + " (this user must be able to write there)", cause };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_TMPFILE)
            .open(directory)
            .map_err(refused)?;
        file.set_len(bytes).map_err(|cause| NetError::Io { doing: doing("size"), cause })?;
        match lock::try_lock(&file, OWNER_BYTE) {
            Ok(true) => Ok(file),
            Ok(false) => Err(NetError::Io { doing: doing("lock"), cause: io::ErrorKind::WouldBlock.into() }),
            Err(cause) => Err(NetError::Io { doing: doing("lock"), cause }),
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
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => take_over(&path, name)?,
                Err(cause) => return Err(NetError::Io { doing: format!("name region {}", path.display()), cause }),
            }
        }
        Err(NetError::InUse { addr: Addr::Shm(name.clone()) })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        // If the name was removed and another endpoint has it now, it is not ours to remove.
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

/// Opens an existing region file of this user; [`None`] if there is none.
///
/// # Errors
/// [`NetError::BadRegion`] if something else has the name, [`NetError::Io`].
pub(crate) fn open(path: &Path) -> Result<Option<File>, NetError> {
    // O_NONBLOCK: if the name belongs to a FIFO, opening it must not block.
    let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(NetError::Io { doing: format!("open region {}", path.display()), cause }),
    };
    let metadata =
        file.metadata().map_err(|cause| NetError::Io { doing: format!("stat {}", path.display()), cause })?;
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

/// Frees a name that a dead endpoint may have left.
fn take_over(path: &Path, name: &ShmName) -> Result<(), NetError> {
    let Some(file) = open(path)? else { return Ok(()) };
    match remove_if_dead(path, &file) {
        Ok(Removal::Done) => Ok(()),
        Ok(Removal::Alive) => Err(NetError::InUse { addr: Addr::Shm(name.clone()) }),
        Ok(Removal::UnderWay) => {
            std::thread::sleep(LINK_PAUSE);
            Ok(())
        }
        Err(cause) => Err(NetError::Io { doing: format!("remove {}", path.display()), cause }),
    }
}

/// The outcome of removing a region that was in the way.
enum Removal {
    /// Its owner was dead and the name is free, for the moment.
    Done,
    /// Its owner lives.
    Alive,
    /// Another process is about to remove it.
    UnderWay,
}

/// Removes the name `path` of `file` if its owner is dead. It is no error if the name is already gone.
fn remove_if_dead(path: &Path, file: &File) -> io::Result<Removal> {
    // A dead owner stays dead: nobody takes the owner's lock of a file that has had a name.
    if lock::is_locked(file, OWNER_BYTE) {
        return Ok(Removal::Alive);
    }
    if !lock::try_lock(file, REMOVER_BYTE)? {
        return Ok(Removal::UnderWay);
    }
    // Nobody else removes this name now; but it may have been removed before, and belong to another endpoint.
    if names(path, file) {
        // Remove first what can be found only through the region, so that nothing stays for ever if this process dies
        // here.
        if let Some(nonce) = nonce_of(file) {
            bell::remove(path, nonce);
        }
        std::fs::remove_file(path)?;
    }
    Ok(Removal::Done)
}

/// Removes regions that dead endpoints of this user left behind. Best effort, bounded. Other files are left alone.
pub fn sweep(directory: &Path) {
    let prefix = file_prefix();
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut removed = 0;
    for entry in entries.take(SWEEP_ENTRIES_MAX).flatten() {
        if !entry.file_name().as_bytes().starts_with(prefix.as_bytes()) {
            continue;
        }
        let path = entry.path();
        let Ok(Some(file)) = open(&path) else { continue };
        if is_region(&file) && matches!(remove_if_dead(&path, &file), Ok(Removal::Done)) {
            removed += 1;
        }
        if removed == SWEEP_REMOVALS_MAX {
            return;
        }
    }
}

/// Whether a file begins as a region of any version: the owner's lock means the same in all of them.
fn is_region(file: &File) -> bool {
    let mut magic = [0; 8];
    file.read_exact_at(&mut magic, header::MAGIC as u64).is_ok() && u64::from_ne_bytes(magic) == MAGIC
}

/// The nonce of a region. It may be any value if another process wrote to the region.
fn nonce_of(file: &File) -> Option<u64> {
    let mut nonce = [0; 8];
    file.read_exact_at(&mut nonce, header::NONCE as u64).ok().map(|()| u64::from_ne_bytes(nonce))
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
