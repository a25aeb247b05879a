//! A piece of mapped memory that other processes may share.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Memory mapped readable and writable, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is only an address range; all access goes through atomics or racing copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`, shared.
    ///
    /// If another process truncates the file later, touching the missing part ends this process (SIGBUS). Only
    /// processes of the same user could do that, and those can end it anyway.
    pub(crate) fn of_file(file: &File, len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Maps `len` fresh zero bytes, shared with forked children.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        // Miri supports only private mappings; within one process they behave the same.
        let flags = if cfg!(miri) { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
        Self::map(len, flags | libc::MAP_ANONYMOUS, -1)
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        // SAFETY: a new mapping at an address the kernel chooses changes no existing memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))?;
        Ok(Mapping { start, len })
    }

    /// Maps the pages of the first `len` bytes, so that no packet pays for a page fault. Only a hint: old kernels do
    /// not support it.
    pub(crate) fn populate(&self, len: usize) {
        // SAFETY: the range is within the mapping; populating changes no content.
        unsafe { libc::madvise(self.start.as_ptr().cast(), len.min(self.len), libc::MADV_POPULATE_WRITE) };
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what was mapped, and every user holds the mapping by reference or `Arc`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
