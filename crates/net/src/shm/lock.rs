//! Liveness through locks: a process that ends, however it ends, loses its locks, and unlike process numbers locks are
//! never reused.
//!
//! The locks are open-file-description locks (`fcntl` `F_OFD_SETLK`), one byte of the region file each. They belong to
//! the open file, not to the process: two endpoints of one process exclude each other too, and closing another
//! descriptor of the same file releases nothing. A child made by `fork` without `exec` shares them and keeps them
//! alive.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The byte the owner of a region holds for life.
pub(crate) const OWNER_BYTE: u32 = 0;

/// The byte that a process holds while it removes the name of a dead region. Not the owner's byte: a region must not
/// look alive to others because a process cleans up. It lies beyond the bytes of all slots.
pub(crate) const REMOVER_BYTE: u32 = 1 << 17;

/// The byte that the holder of a sender slot holds for life.
pub(crate) fn slot_byte(slot: u16) -> u32 {
    1 + slot as u32
}

/// Locks one byte unless another open file has it locked. The lock is held until `file` is closed.
///
/// # Errors
/// The system's error, other than that the lock is taken.
pub(crate) fn try_lock(file: &File, byte: u32) -> io::Result<bool> {
    match fcntl(file, libc::F_OFD_SETLK, &mut byte_lock(byte)) {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether another open file has the lock on one byte. If the system cannot tell, the holder counts as alive: waiting
/// longer does no harm, but taking something from a live sender would.
pub(crate) fn is_locked(file: &File, byte: u32) -> bool {
    let mut lock = byte_lock(byte);
    match fcntl(file, libc::F_OFD_GETLK, &mut lock) {
        Ok(()) => lock.l_type != libc::F_UNLCK as libc::c_short,
        Err(_) => true,
    }
}

fn byte_lock(byte: u32) -> libc::flock {
    // SAFETY: a C struct of integers, for which zero is valid, and `l_pid` must be zero.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = 1;
    lock
}

fn fcntl(file: &File, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: both commands take a pointer to a `flock`, which lives through the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, lock as *mut libc::flock) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
