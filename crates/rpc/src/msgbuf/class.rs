//! Size classes of message buffers.
//!
//! Up to 4 KiB the size of a class, including what precedes the data, is a power of two, so that the smallest (32 B of
//! data) is one cache line with its header. From 8 KiB on the data alone is a power of two, so that an 8 MiB message
//! takes 8 MiB.

use super::FRONT_BYTES;

/// Data bytes of the largest class: 1 GiB.
pub const MESSAGE_BYTES_MAX: usize = 1 << 30;

const SMALL_CLASSES: usize = 7;
const SMALL_ALLOCATION_MIN: usize = 64;
const LARGE_CAPACITY_MIN: usize = 8192;

/// Number of classes.
pub(super) const CLASSES: usize = SMALL_CLASSES + 18;

/// Data bytes that a buffer of `class` holds.
#[inline]
pub(super) const fn capacity(class: usize) -> usize {
    if class < SMALL_CLASSES {
        (SMALL_ALLOCATION_MIN << class) - FRONT_BYTES
    } else {
        LARGE_CAPACITY_MIN << (class - SMALL_CLASSES)
    }
}

/// Data bytes of the buffer for a message of `len` bytes.
///
/// # Panics
/// Above [`MESSAGE_BYTES_MAX`].
#[inline]
pub(crate) const fn capacity_for(len: usize) -> usize {
    match class_for(len) {
        Some(class) => capacity(class),
        None => panic!("no buffer is that large"),
    }
}

/// Bytes to allocate for a buffer of `class`.
#[inline]
pub(super) const fn allocation(class: usize) -> usize {
    if class < SMALL_CLASSES { SMALL_ALLOCATION_MIN << class } else { capacity(class) + 64 }
}

/// The smallest class that holds `len` data bytes; `None` above [`MESSAGE_BYTES_MAX`].
#[inline]
pub(super) const fn class_for(len: usize) -> Option<usize> {
    if len <= capacity(SMALL_CLASSES - 1) {
        let last_byte = len + FRONT_BYTES - 1;
        Some((usize::BITS - (last_byte / SMALL_ALLOCATION_MIN).leading_zeros()) as usize)
    } else if len <= MESSAGE_BYTES_MAX {
        let rounded = if len < LARGE_CAPACITY_MIN { LARGE_CAPACITY_MIN } else { len.next_power_of_two() };
        Some(SMALL_CLASSES + (rounded / LARGE_CAPACITY_MIN).trailing_zeros() as usize)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_fits() {
        for len in (0..70_000).chain([8 << 20, (8 << 20) + 1, MESSAGE_BYTES_MAX]) {
            let class = class_for(len).unwrap();
            assert!(class < CLASSES && capacity(class) >= len);
            assert!(class == 0 || capacity(class - 1) < len, "{len} fits class {}", class - 1);
            assert!(allocation(class) >= capacity(class) + FRONT_BYTES);
        }
        assert_eq!(class_for(MESSAGE_BYTES_MAX + 1), None);
        assert_eq!(capacity(class_for(8 << 20).unwrap()), 8 << 20);
    }
}
