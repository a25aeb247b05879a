//! Message buffers: the memory of requests and responses.
//!
//! A [`MsgBuf`] owns its memory and moves. Its data is contiguous, with [`HEADROOM_BYTES`] before it for the header of
//! the first packet, so that a one-packet message is one contiguous piece (paper, section 4.2.1). Headers of later
//! packets are written elsewhere when they are sent: software transports gather, so storing them would only cost
//! memory.
//!
//! Buffers come from caches by size class, and return there: in steady state no call reaches the system's allocator.
//! Buffers below 128 KiB are cached by the thread that drops them, longer ones by the process for all of its threads.
//! All caches and buffers of the process together stay below [`set_limit_bytes`].

mod class;
mod pool;
mod system;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use pool::Contents;

pub use class::MESSAGE_BYTES_MAX;
pub(crate) use class::capacity_for;
pub(crate) use pool::Trimmer;
pub use pool::{allocated_bytes, limit_bytes, outstanding, set_limit_bytes};

/// Bytes before the data: the buffer's own fields, then room for the first packet's header.
const FRONT_BYTES: usize = 32;
/// Bytes kept free before the data for the first packet's header: enough for any header but one with both extensions.
pub const HEADROOM_BYTES: usize = FRONT_BYTES - size_of::<Front>();

/// The buffer's own fields. They are in the buffer's memory, so that a [`MsgBuf`] is one word: it moves in a register,
/// while two words written one by one and copied as one would wait for the store buffer.
#[derive(Clone, Copy)]
#[repr(C)]
struct Front {
    len: u32,
    class: u32,
}

/// Why a buffer is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No buffer is that large.
    #[error("a message of {len} bytes exceeds the largest buffer of {MESSAGE_BYTES_MAX} bytes")]
    TooLarge {
        /// Bytes requested.
        len: usize,
    },
    /// The process's limit for message buffers would be exceeded.
    #[error("message buffers already hold {allocated} bytes of {limit}: drop some, or raise msgbuf::set_limit_bytes")]
    LimitReached {
        /// Bytes that all buffers and caches hold now.
        allocated: u64,
        /// The limit.
        limit: u64,
    },
}

/// An owned buffer for one message. See the [module](self).
///
/// ```
/// use dunlin_rpc::MsgBuf;
///
/// let mut buf = MsgBuf::copy_from(b"hello world")?;
/// buf[..5].copy_from_slice(b"HELLO");
/// buf.set_len(5);
/// assert_eq!(&buf[..], b"HELLO");
/// # Ok::<(), dunlin_rpc::msgbuf::AllocError>(())
/// ```
pub struct MsgBuf {
    /// First data byte; the headroom ends here, and its [`Front`] starts [`FRONT_BYTES`] before.
    data: NonNull<u8>,
}

// SAFETY: a MsgBuf owns its memory alone, and any thread may free it.
unsafe impl Send for MsgBuf {}
// SAFETY: shared references only read.
unsafe impl Sync for MsgBuf {}

impl MsgBuf {
    /// A buffer of `len` zeros. To fill a buffer without clearing it first, use [`MsgBuf::written`].
    ///
    /// # Errors
    /// [`AllocError`] beyond the largest class, or at the process's limit.
    pub fn with_len(len: usize) -> Result<MsgBuf, AllocError> {
        let (mut buf, contents) = MsgBuf::take(len)?;
        // Clearing zeros again would touch every page of a large buffer.
        if contents == Contents::Leftovers {
            buf.fill(0);
        }
        Ok(buf)
    }

    #[inline(always)]
    fn take(len: usize) -> Result<(MsgBuf, Contents), AllocError> {
        let class = class::class_for(len).ok_or(AllocError::TooLarge { len })?;
        let (data, contents) = pool::take(class)?;
        let mut buf = MsgBuf { data };
        *buf.front_mut() = Front { len: len as u32, class: class as u32 };
        Ok((buf, contents))
    }

    /// A buffer of `len` bytes that may contain earlier messages; the caller must overwrite all of them before anyone
    /// else sees them.
    ///
    /// # Errors
    /// As [`MsgBuf::with_len`].
    #[inline]
    pub(crate) fn unfilled(len: usize) -> Result<MsgBuf, AllocError> {
        Ok(MsgBuf::take(len)?.0)
    }

    /// A buffer with what `write` writes: it gets room for `len_max` bytes and returns how many it has written, from
    /// the first on. The previous contents of the room are unspecified, and do not become part of the message.
    ///
    /// # Errors
    /// As [`MsgBuf::with_len`] of `len_max`.
    ///
    /// # Panics
    /// If `write` returns more than `len_max`.
    ///
    /// ```
    /// use dunlin_rpc::MsgBuf;
    ///
    /// let buf = MsgBuf::written(100, |room| {
    ///     room[..5].copy_from_slice(b"hello");
    ///     5
    /// })?;
    /// assert_eq!(&buf[..], b"hello");
    /// # Ok::<(), dunlin_rpc::msgbuf::AllocError>(())
    /// ```
    #[inline]
    pub fn written(len_max: usize, write: impl FnOnce(&mut [u8]) -> usize) -> Result<MsgBuf, AllocError> {
        let mut buf = MsgBuf::unfilled(len_max)?;
        let len = write(&mut buf);
        buf.truncate(len);
        Ok(buf)
    }

    /// Appends what `write` writes, as [`MsgBuf::written`].
    ///
    /// # Panics
    /// If there is no room for `len_max` bytes in [`MsgBuf::capacity`], or `write` returns more than that.
    pub fn append_written(&mut self, len_max: usize, write: impl FnOnce(&mut [u8]) -> usize) {
        let before = self.len();
        self.expose(before + len_max);
        // Until `write` has returned, the buffer keeps its length.
        let mut appended = Appended { buf: self, len: before };
        let len = write(&mut appended.buf[before..]);
        assert!(len <= len_max, "{len} bytes were written into room for {len_max}");
        appended.len += len;
    }

    /// Sets the length; the caller overwrites what this adds.
    ///
    /// # Panics
    /// As [`MsgBuf::set_len`].
    #[inline]
    pub(crate) fn expose(&mut self, len: usize) {
        assert!(self.try_expose(len), "a buffer of {} bytes cannot hold {len}", self.capacity());
    }

    /// The same, if the buffer can hold `len` bytes.
    #[inline]
    pub(crate) fn try_expose(&mut self, len: usize) -> bool {
        let fits = len <= self.capacity();
        if fits {
            self.front_mut().len = len as u32;
        }
        fits
    }

    /// Truncates the message to what was written.
    ///
    /// # Panics
    /// If it is already shorter.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        assert!(len <= self.len(), "{len} bytes were written into room for {}", self.len());
        self.front_mut().len = len as u32;
    }

    #[inline]
    fn front(&self) -> Front {
        // SAFETY: every allocation begins with FRONT_BYTES before the data, aligned to 64; they are initialised.
        unsafe { *self.data.sub(FRONT_BYTES).cast::<Front>().as_ref() }
    }

    #[inline]
    fn front_mut(&mut self) -> &mut Front {
        // SAFETY: as in `front`, and `&mut self` is exclusive.
        unsafe { self.data.sub(FRONT_BYTES).cast::<Front>().as_mut() }
    }

    /// Bytes of the message.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.front().len as usize
    }

    /// A buffer that holds a copy of `bytes`.
    ///
    /// # Errors
    /// As [`MsgBuf::with_len`].
    #[inline]
    pub fn copy_from(bytes: &[u8]) -> Result<MsgBuf, AllocError> {
        let mut buf = MsgBuf::unfilled(bytes.len())?;
        buf.copy_from_slice(bytes);
        Ok(buf)
    }

    /// Bytes it can hold without another allocation.
    #[inline]
    pub fn capacity(&self) -> usize {
        class::capacity(self.front().class as usize)
    }

    /// Sets the length; bytes beyond the old one are zero.
    ///
    /// # Panics
    /// If `len` exceeds [`MsgBuf::capacity`].
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        let before = self.len();
        self.expose(len);
        if len > before {
            self[before..].fill(0);
        }
    }

    /// Writes `header` directly before the data, for a packet with the first `data_len` bytes of it.
    ///
    /// # Panics
    /// If the header exceeds [`HEADROOM_BYTES`] or `data_len` the length.
    #[inline(always)]
    pub(crate) fn put_header(&mut self, header: &[u8], data_len: usize) {
        assert!(header.len() <= HEADROOM_BYTES && data_len <= self.len());
        // SAFETY: the allocation has HEADROOM_BYTES initialised bytes right before `data`, owned by this buffer.
        let room = unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().sub(header.len()), header.len()) };
        room.copy_from_slice(header);
    }

    /// The last `header_len` bytes of headroom and the first `data_len` of data, contiguous.
    ///
    /// # Panics
    /// As [`MsgBuf::put_header`].
    #[inline]
    pub(crate) fn header_and_data(&self, header_len: usize, data_len: usize) -> &[u8] {
        assert!(header_len <= HEADROOM_BYTES && data_len <= self.len());
        // SAFETY: headroom and data lie in one allocation and are initialised.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr().sub(header_len), header_len + data_len) }
    }
}

/// A buffer of which only the first `len` bytes count as written, even after a panic.
struct Appended<'a> {
    buf: &'a mut MsgBuf,
    len: usize,
}

impl Drop for Appended<'_> {
    fn drop(&mut self) {
        self.buf.front_mut().len = self.len as u32;
    }
}

impl Drop for MsgBuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `data` came from `pool::take` of this class and is given back once.
        unsafe { pool::give_back(self.data, self.front().class as usize) }
    }
}

impl Deref for MsgBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` never exceeds the capacity, and the pool hands out initialised memory.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len()) }
    }
}

impl DerefMut for MsgBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len()) }
    }
}

impl fmt::Debug for MsgBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MsgBuf({} of {} bytes)", self.len(), self.capacity())
    }
}

impl PartialEq for MsgBuf {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for MsgBuf {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_stands_right_before_the_data() {
        let mut buf = MsgBuf::copy_from(b"data").unwrap();
        buf.put_header(b"header..", 4);
        assert_eq!(buf.header_and_data(8, 4), b"header..data");
        assert_eq!(&buf[..], b"data");
    }

    #[test]
    fn a_dropped_buffer_is_used_again() {
        let before = outstanding();
        let first = MsgBuf::with_len(980).unwrap();
        let place = first.as_ptr();
        assert_eq!(outstanding(), before + 1);
        drop(first);
        let of_another_class = MsgBuf::with_len(50).unwrap();
        assert_ne!(of_another_class.as_ptr(), place);
        let of_the_same_class = MsgBuf::with_len(990).unwrap();
        assert_eq!(of_the_same_class.as_ptr(), place);
    }

    #[test]
    fn what_is_appended_is_what_was_written() {
        let mut buf = MsgBuf::written(40, |room| {
            room.fill(1);
            2
        })
        .unwrap();
        buf.append_written(30, |room| {
            assert_eq!(room.len(), 30);
            room[0] = 3;
            1
        });
        buf.append_written(0, |_| 0);
        assert_eq!(buf[..], [1, 1, 3]);
        let panics = |buf: &mut MsgBuf, max: usize, len: usize| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buf.append_written(max, |_| len))).is_err()
        };
        let capacity = buf.capacity();
        assert!(panics(&mut buf, capacity, 0) && panics(&mut buf, 4, 5));
        assert_eq!(buf[..], [1, 1, 3]);
    }

    #[test]
    fn too_much_is_refused() {
        assert_eq!(MsgBuf::with_len(MESSAGE_BYTES_MAX + 1), Err(AllocError::TooLarge { len: MESSAGE_BYTES_MAX + 1 }));
    }

    #[test]
    fn a_buffer_may_end_on_another_thread() {
        let buf = MsgBuf::copy_from(&[7; 100]).unwrap();
        std::thread::spawn(move || assert_eq!(buf[99], 7)).join().unwrap();
    }
}
