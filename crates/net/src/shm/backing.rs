//! Memory for the parts of a region file that are used.
//!
//! A region is a sparse file: most bulk buffers are never used. But touching a hole of a mapped file while the file
//! system is full kills the process (SIGBUS), and containers often have small file systems. So memory is reserved
//! before it is touched, by a call that can fail. The owner of a region reserves what it cannot work without when it
//! creates the region; senders reserve the rest.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::shm::layout::Layout;

/// Bulk buffers reserved at a time.
const STEP: u32 = 16;
/// Requests for a buffer that are refused without a system call after the file system refused one.
const REQUESTS_PER_RETRY: u32 = 64;
/// Times a reservation is retried after a signal interrupts it.
const INTERRUPTIONS_MAX: u32 = 1000;

/// What to do about a full file system.
pub(crate) const ADVICE: &str = "make room there; in a container, with a larger --shm-size";

/// Reserves space for `len` bytes of `file` from `offset` on.
///
/// # Errors
/// The system's error, above all that there is no space. A file system that does not support the call counts as having
/// space.
pub(crate) fn reserve(file: &File, offset: usize, len: usize) -> io::Result<()> {
    for _ in 0..INTERRUPTIONS_MAX {
        // SAFETY: the call takes integers only.
        let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as libc::off_t, len as libc::off_t) };
        if result == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EINTR) => {}
            e if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(()),
            e => return Err(e),
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

/// Which bulk buffers of a region a sender may touch.
#[derive(Debug)]
pub(crate) struct BulkBacking {
    file: Option<(Arc<File>, PathBuf)>,
    present: u32,
    /// Requests left to refuse since the file system's last refusal; 0 if it has refused none.
    refused: u32,
    was_logged: bool,
}

impl BulkBacking {
    /// For the region file at `path`: the buffers that its owner reserved.
    pub(crate) fn of_file(file: Arc<File>, path: PathBuf, layout: &Layout) -> Self {
        BulkBacking { file: Some((file, path)), present: layout.bulk_reserved(), refused: 0, was_logged: false }
    }

    /// For private memory, in tests: all buffers.
    #[cfg(test)]
    pub(crate) fn private() -> Self {
        BulkBacking { file: None, present: u32::MAX, refused: 0, was_logged: false }
    }

    /// Makes sure that buffer `index` can be touched; false if there is no memory for it.
    #[inline]
    pub(crate) fn ensure(&mut self, layout: &Layout, index: u32) -> bool {
        index < self.present || self.grow(layout, index)
    }

    #[cold]
    fn grow(&mut self, layout: &Layout, index: u32) -> bool {
        let Some((file, path)) = &self.file else { return false };
        if self.refused > 0 {
            self.refused = (self.refused + 1) % REQUESTS_PER_RETRY;
            return false;
        }
        let start = layout.bulk_end(self.present);
        let reserve_to = |end: u32| reserve(file, start, layout.bulk_end(end) - start);
        let far = index.saturating_add(STEP).min(layout.sizes.bulk_buffers);
        let near = index + 1;
        let result = reserve_to(far).map(|()| far).or_else(|_| reserve_to(near).map(|()| near));
        match result {
            Ok(present) => self.present = present,
            Err(cause) => {
                self.refused = 1;
                if !std::mem::replace(&mut self.was_logged, true) {
                    tracing::warn!(
                        region = %path.display(), present = self.present, wanted = layout.sizes.bulk_buffers, %cause,
                        "packets are dropped because the file system of the region has no space for more long ones: {ADVICE}"
                    );
                }
            }
        }
        index < self.present
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::shm::file::OwnFile;
    use crate::shm::layout::Sizes;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    fn layout() -> Layout {
        Layout::new(Sizes { queue_len: 64, bulk_buffers: 56, mtu: 4096, senders_max: 1 }).unwrap()
    }

    #[test]
    fn memory_is_taken_in_steps_and_only_as_far_as_used() {
        let layout = layout();
        let file = Arc::new(OwnFile::unnamed(Path::new("/dev/shm"), layout.file_bytes as u64).unwrap());
        let mut backing = BulkBacking::of_file(file.clone(), PathBuf::from("region"), &layout);
        let pages = || file.metadata().unwrap().blocks() / 8;
        assert!(backing.ensure(&layout, 15));
        assert_eq!(pages(), 0, "the owner reserves the first ones");
        assert!(backing.ensure(&layout, 16));
        assert_eq!(pages(), 16);
        assert!(backing.ensure(&layout, 31));
        assert_eq!(pages(), 16);
        assert!(backing.ensure(&layout, 55));
        assert_eq!(pages(), 40);
    }

    #[test]
    fn what_cannot_be_had_is_not_touched() {
        let layout = layout();
        // A file opened read-only fails as a full file system does.
        let file = Arc::new(File::open("/proc/self/exe").unwrap());
        let mut backing = BulkBacking::of_file(file, PathBuf::from("region"), &layout);
        for _ in 0..1000 {
            assert!(backing.ensure(&layout, 15) && !backing.ensure(&layout, 16));
        }
    }
}
