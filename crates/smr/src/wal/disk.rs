//! The operations that the log needs of a disk: a few files in one directory, and two kinds of flush.

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The directory of one node. Clones are handles of the same directory, for other threads.
///
/// A crash preserves what was flushed: a file's bytes and length by [`DiskFile::flush`], its name by
/// [`Disk::flush_directory`]. Any part of the rest may survive or not.
pub trait Disk: Clone + Debug + Send + 'static {
    /// An open file.
    type File: DiskFile;

    /// Returns the names of all files.
    ///
    /// # Errors
    /// Errors of the file system.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates a file of this many zero bytes, with its space reserved. Replaces an existing file of this name.
    ///
    /// # Errors
    /// Errors of the file system; [`io::ErrorKind::StorageFull`] if there is no space.
    fn create(&self, name: &str, len: u64) -> io::Result<Self::File>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// Errors of the file system.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Renames a file atomically, replacing any file of the new name.
    ///
    /// # Errors
    /// Errors of the file system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Errors of the file system.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Flushes the names of files.
    ///
    /// # Errors
    /// Errors of the disk. After one, the contents of the disk are unknown.
    fn flush_directory(&self) -> io::Result<()>;

    /// Returns how messages call a file.
    fn place(&self, name: &str) -> PathBuf;

    /// Returns a random number, which identifies a new log.
    ///
    /// # Errors
    /// If the system cannot provide one.
    fn random(&self) -> io::Result<u64>;

    /// Returns how long the next flush of a file takes in virtual time. Real disks take real time.
    fn flush_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the virtual time, in nanoseconds, before which no flush ends: the disk hangs until then. Real disks take
    /// real time.
    fn hangs_until(&self) -> u64 {
        0
    }
}

/// A file of a [`Disk`]. It may be open several times, by several threads.
#[allow(clippy::len_without_is_empty, reason = "the length of a file is asked of the file system, and may fail")]
pub trait DiskFile: Debug + Send + 'static {
    /// Returns its length in bytes.
    ///
    /// # Errors
    /// Errors of the file system.
    fn len(&self) -> io::Result<u64>;

    /// Reads the bytes from `offset` on, as many as exist, up to the length of `bytes`, and returns their number.
    ///
    /// # Errors
    /// Errors of the disk.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes; extends the file if they end past its end.
    ///
    /// # Errors
    /// Errors of the disk. Some of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Flushes all written bytes, and the length.
    ///
    /// # Errors
    /// Errors of the disk. After one, the contents of the disk are unknown, and a later successful flush does not
    /// change that.
    fn flush(&self) -> io::Result<()>;
}
