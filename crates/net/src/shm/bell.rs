//! Wakes a receiver that sleeps in an event loop with other descriptors: a FIFO beside its region file.
//!
//! The FIFO exists only for endpoints that asked for a descriptor ([`crate::Transport::wake_fd`]). Its name is that of
//! the region, followed by a `~` and the region's nonce; no endpoint's name may contain a `~`. So the name is never
//! reused, and a process that removes the region of a dead endpoint knows it and removes it first. Senders open the
//! FIFO when they first have to ring. They open it for reading, too, so that writing into it never raises SIGPIPE,
//! whatever became of the receiver; no sender ever reads.
//!
//! A byte in it means only "look". A process that writes extra bytes, or takes some out, can only cause a needless
//! look, or a sleep that lasts until its timeout.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::error::NetError;
use crate::shm::futex::Rung;
use crate::wake::owned;

/// Bytes that the FIFO holds, where the system lets us choose: one page, the minimum. A full FIFO is still readable.
const CAPACITY: usize = 4096;

/// The path of the bell of the region at `region` with this nonce.
pub(crate) fn path_of(region: &Path, nonce: u64) -> PathBuf {
    let mut path = OsString::from(region);
    path.push(format!("~{nonce:016x}"));
    path.into()
}

/// Removes the bell of a dead endpoint's region, if it had one.
pub(crate) fn remove(region: &Path, nonce: u64) {
    let _ = std::fs::remove_file(path_of(region, nonce));
}

/// Opens the FIFO at `path` if it is a FIFO of this user.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    let is_ours = metadata.file_type().is_fifo() && metadata.uid() == rustix::process::geteuid().as_raw();
    if is_ours { Ok(file) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "not a FIFO of this user")) }
}

/// Makes the FIFO readable. The write fails only if the FIFO is full, and then it is already readable.
fn ring(mut fifo: &File) {
    let _ = fifo.write(&[1]);
}

/// The bell of an endpoint of this process. Its name is kept apart because wakers may keep the bell for as long as they
/// like.
#[derive(Debug)]
pub(crate) struct OwnBell(File);

/// The name of an [`OwnBell`], removed when this is dropped.
#[derive(Debug)]
pub(crate) struct BellName(PathBuf);

impl OwnBell {
    /// Creates the FIFO.
    ///
    /// # Errors
    /// [`NetError::Io`].
    pub(crate) fn hang(path: PathBuf) -> Result<(Self, BellName), NetError> {
        let refused = |cause| NetError::Io { doing: format!("make the FIFO {}", path.display()), cause };
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).map_err(|errno| refused(errno.into()))?;
        let name = BellName(path.clone());
        let fifo = open(&path).map_err(refused)?;
        // If it stays larger, we read more only after someone filled it on purpose.
        let _ = rustix::pipe::fcntl_setpipe_size(&fifo, CAPACITY);
        Ok((OwnBell(fifo), name))
    }

    /// Returns a duplicate descriptor for the caller to keep.
    ///
    /// # Errors
    /// [`NetError::Io`] if the system has no descriptor left.
    pub(crate) fn fd(&self) -> Result<OwnedFd, NetError> {
        owned(&self.0)
    }

    /// Rings it from this process.
    pub(crate) fn ring(&self) {
        ring(&self.0);
    }

    /// Drains what was written.
    pub(crate) fn silence(&self) {
        let _ = (&self.0).read(&mut [0; CAPACITY]);
    }
}

impl Drop for BellName {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The bell of another endpoint.
#[derive(Debug)]
pub(crate) enum Bell {
    /// Not rung yet.
    At(PathBuf),
    /// Rung before.
    Open(File),
    /// Stands for a FIFO in tests on private memory: how often it was rung.
    #[cfg(test)]
    Counted(std::sync::Arc<std::sync::atomic::AtomicU32>),
}

impl Bell {
    /// Rings it. If nobody can, the receiver looks when its sleep times out.
    #[cold]
    pub(crate) fn ring(&mut self) -> Rung {
        if let Bell::At(path) = self
            && let Ok(fifo) = open(path)
        {
            *self = Bell::Open(fifo);
        }
        match self {
            // There is none, or this process may open no more files.
            Bell::At(_) => return Rung::No,
            Bell::Open(fifo) => ring(fifo),
            #[cfg(test)]
            Bell::Counted(rings) => drop(rings.fetch_add(1, std::sync::atomic::Ordering::SeqCst)),
        }
        Rung::Yes
    }
}
