//! What the log asks of a disk: few files in one directory, and two kinds of flush.

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The directory of one node. Clones are handles of the same directory, for other threads.
///
/// What a crash leaves is what was flushed: the bytes and the length of a file by [`DiskFile::flush`], its name by
/// [`Disk::flush_directory`]. Of everything else any part may be there or not.
pub trait Disk: Clone + Debug + Send + 'static {
    /// An open file.
    type File: DiskFile;

    /// The names of all files.
    ///
    /// # Errors
    /// Those of the file system.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes a file of so many bytes, all zero, whose space is reserved. One that has the name is replaced.
    ///
    /// # Errors
    /// Those of the file system; [`io::ErrorKind::StorageFull`] if there is no space for it.
    fn create(&self, name: &str, len: u64) -> io::Result<Self::File>;

    /// Opens a file to read and write.
    ///
    /// # Errors
    /// Those of the file system.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Gives a file another name, at once: whoever had that name is gone.
    ///
    /// # Errors
    /// Those of the file system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the file system.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Brings the names of files to the disk.
    ///
    /// # Errors
    /// Those of the disk. After one nobody knows what is on it.
    fn flush_directory(&self) -> io::Result<()>;

    /// What a file is called in messages.
    fn place(&self, name: &str) -> PathBuf;

    /// A random number, by which a new log is told from others.
    ///
    /// # Errors
    /// The system has none.
    fn random(&self) -> io::Result<u64>;

    /// How long the next flush of a file takes in virtual time. Real disks take the time itself.
    fn flush_time(&self) -> Duration {
        Duration::ZERO
    }

    /// No flush ends before this virtual time, in nanoseconds: the disk hangs until then. Real disks take the time itself.
    fn hangs_until(&self) -> u64 {
        0
    }
}

/// A file of a [`Disk`]. Several may be open for the same file, by several threads.
#[allow(clippy::len_without_is_empty, reason = "the length of a file is asked of the file system, and may fail")]
pub trait DiskFile: Debug + Send + 'static {
    /// Its length in bytes.
    ///
    /// # Errors
    /// Those of the file system.
    fn len(&self) -> io::Result<u64>;

    /// Reads as many bytes as there are from `offset` on, up to those that are asked for, and gives their number.
    ///
    /// # Errors
    /// Those of the disk.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes; the file becomes longer if they end behind it.
    ///
    /// # Errors
    /// Those of the disk. Some of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Brings all that was written to the disk, and the length.
    ///
    /// # Errors
    /// Those of the disk. After one nobody knows what is on it, and another flush that succeeds does not change that.
    fn flush(&self) -> io::Result<()>;
}
