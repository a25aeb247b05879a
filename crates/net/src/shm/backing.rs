//! Memory for the parts of a region file that are touched.
//!
//! A region is a sparse file: most bulk buffers are never used. But touching a hole of a mapped file when the file system is
//! full kills the process (SIGBUS), and containers often have small ones. So memory is asked for by a call that can fail
//! before it is touched.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use crate::shm::layout::Layout;

/// Bulk buffers made present at a time.
const STEP: u32 = 16;

/// Asks the file system for `len` bytes of `file` from `offset` on.
///
/// # Errors
/// That there is no space, above all. A file system that cannot be asked counts as having it.
pub(crate) fn reserve(file: &File, offset: usize, len: usize) -> io::Result<()> {
    // SAFETY: the call takes integers only.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as libc::off_t, len as libc::off_t) };
    match result {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
            e => Err(e),
        },
    }
}

/// How many bulk buffers of a region a sender may touch.
#[derive(Debug)]
pub(crate) struct BulkBacking {
    file: Option<Arc<File>>,
    present: u32,
}

impl BulkBacking {
    /// Of a region file: none yet.
    pub(crate) fn of_file(file: Arc<File>) -> Self {
        BulkBacking { file: Some(file), present: 0 }
    }

    /// Of private memory, for tests: all.
    #[cfg(test)]
    pub(crate) fn private() -> Self {
        BulkBacking { file: None, present: u32::MAX }
    }

    /// Makes sure that buffer `index` can be touched; false if there is no memory for it.
    #[inline]
    pub(crate) fn ensure(&mut self, layout: &Layout, index: u32) -> bool {
        index < self.present || self.grow(layout, index)
    }

    #[cold]
    fn grow(&mut self, layout: &Layout, index: u32) -> bool {
        let Some(file) = &self.file else { return false };
        let end = index.saturating_add(STEP).min(layout.sizes.bulk_buffers);
        let start = layout.buffers + self.present as usize * layout.buffer_bytes;
        let bytes = (end - self.present) as usize * layout.buffer_bytes;
        if reserve(file, start, bytes).is_err() {
            return false;
        }
        self.present = end;
        true
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::shm::file::OwnFile;
    use crate::shm::layout::Sizes;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    #[test]
    fn memory_is_taken_in_steps_and_only_as_far_as_used() {
        let layout = Layout::new(Sizes { queue_len: 64, bulk_buffers: 40, mtu: 4096, senders_max: 1 }).unwrap();
        let file = Arc::new(OwnFile::unnamed(Path::new("/dev/shm"), layout.file_bytes as u64).unwrap());
        let mut backing = BulkBacking::of_file(file.clone());
        let pages = || file.metadata().unwrap().blocks() / 8;
        assert_eq!(pages(), 0);
        assert!(backing.ensure(&layout, 0));
        assert_eq!(pages(), 16);
        assert!(backing.ensure(&layout, 15));
        assert_eq!(pages(), 16);
        assert!(backing.ensure(&layout, 39));
        assert_eq!(pages(), 40);
    }

    #[test]
    fn what_cannot_be_had_is_not_touched() {
        let layout = Layout::new(Sizes { queue_len: 64, bulk_buffers: 40, mtu: 4096, senders_max: 1 }).unwrap();
        // A file that was opened for reading only refuses like a full file system does.
        let file = Arc::new(File::open("/proc/self/exe").unwrap());
        assert!(!BulkBacking::of_file(file).ensure(&layout, 0));
    }
}
