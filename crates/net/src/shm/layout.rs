//! Where everything lies in a region file.
//!
//! ```text
//! header page   magic, version, sizes, nonce | tail | head, shut count | wait word, closed | bulk pressure     (a line each)
//! cells         queue_len x 128 B
//! sender slots  senders_max x 192 B
//! bulk owners   bulk_buffers x 4 B, rounded up to 64
//! shut cells    queue_len bits
//! bulk buffers  bulk_buffers x (mtu rounded up to 64), from a page boundary on
//! ```
//!
//! A process that opens a region computes the layout from the sizes in its header, within its own limits, and accepts
//! the layout only if it gives exactly the size of the file. After that it never reads the header's sizes again.

/// First word of every region.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"dunlnshm");
/// Changes whenever the layout or the meaning of a field changes.
pub(crate) const VERSION: u64 = 3;

/// Bytes of a cell: two cache lines, the first of which is enough for a packet of 48 B.
pub(crate) const CELL_BYTES: usize = 128;
/// Where the packet begins in a cell.
pub(crate) const CELL_PAYLOAD: usize = 16;
/// Longest packet that lies in its cell, in bytes; a longer one takes a bulk buffer.
pub const INLINE_BYTES_MAX: usize = CELL_BYTES - CELL_PAYLOAD;

/// Words of the header, as byte offsets. Words that different processes write are 128 bytes apart, because processors
/// fetch cache lines in pairs.
pub(crate) mod header {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const QUEUE_LEN: usize = 16;
    pub(crate) const BULK_BUFFERS: usize = 24;
    pub(crate) const MTU: usize = 32;
    pub(crate) const SENDERS_MAX: usize = 40;
    pub(crate) const NONCE: usize = 48;
    pub(crate) const SENDERS_FENCE: usize = 56;
    pub(crate) const TAIL: usize = 128;
    pub(crate) const HEAD: usize = 256;
    pub(crate) const SHUT_COUNT: usize = 264;
    pub(crate) const WAIT: usize = 384;
    pub(crate) const CLOSED: usize = 388;
    pub(crate) const BULK_PRESSURE: usize = 512;
    pub(crate) const BYTES: usize = 4096;
}

/// Fields of a sender slot, as byte offsets in it. The intent, written for every burst, has a cache line of its own.
pub(crate) mod slot {
    use crate::addr::SHM_NAME_BYTES_MAX;

    pub(crate) const INTENT: usize = 0;
    pub(crate) const GENERATION: usize = 64;
    pub(crate) const NAME_LEN: usize = 68;
    pub(crate) const NONCE: usize = 72;
    pub(crate) const NAME: usize = 80;
    pub(crate) const BYTES: usize = 192;
    /// Set in the generation while its holder writes the other fields.
    pub(crate) const BEING_WRITTEN: u32 = 1 << 31;
    const _: () = assert!(NAME + SHM_NAME_BYTES_MAX <= BYTES);
}

const PAGE: usize = 4096;
const MTU_MAX: u32 = 65_472;
const COUNT_MAX: u32 = 1 << 20;
/// Bulk buffers that the owner of a region reserves: enough for a few sessions to make progress when the file system is
/// full. Senders rely on them.
const BULK_RESERVED: u32 = 16;

/// The sizes that determine a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) queue_len: u32,
    pub(crate) bulk_buffers: u32,
    pub(crate) mtu: u32,
    pub(crate) senders_max: u32,
}

impl Sizes {
    /// Checks each size against its limits; the error is the name of the setting and what is wrong with it.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let range = |name: &'static str, value: u32, min: u32, max: u32| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err((name, format!("{value} is not within {min} to {max}")))
            }
        };
        range("queue_len", self.queue_len, 64, COUNT_MAX)?;
        if !self.queue_len.is_power_of_two() {
            return Err(("queue_len", format!("{} is not a power of two", self.queue_len)));
        }
        range("bulk_buffers", self.bulk_buffers, 1, COUNT_MAX)?;
        range("mtu", self.mtu, INLINE_BYTES_MAX as u32, MTU_MAX)?;
        range("senders_max", self.senders_max, 1, u16::MAX as u32)
    }
}

/// Byte offsets of the parts of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) sizes: Sizes,
    pub(crate) cells: usize,
    pub(crate) slots: usize,
    pub(crate) owners: usize,
    pub(crate) shut: usize,
    pub(crate) buffers: usize,
    /// Bytes from one bulk buffer to the next.
    pub(crate) buffer_bytes: usize,
    /// Bytes of the whole file.
    pub(crate) file_bytes: usize,
}

impl Layout {
    /// The layout for `sizes`, or what is wrong with them. The limits keep every sum below 2^37.
    pub(crate) fn new(sizes: Sizes) -> Result<Self, (&'static str, String)> {
        sizes.check()?;
        let cells = header::BYTES;
        let slots = cells + sizes.queue_len as usize * CELL_BYTES;
        let owners = slots + sizes.senders_max as usize * slot::BYTES;
        let shut = (owners + sizes.bulk_buffers as usize * 4).next_multiple_of(64);
        let buffers = (shut + sizes.queue_len as usize / 8).next_multiple_of(PAGE);
        let buffer_bytes = (sizes.mtu as usize).next_multiple_of(64);
        let file_bytes = (buffers + sizes.bulk_buffers as usize * buffer_bytes).next_multiple_of(PAGE);
        Ok(Layout { sizes, cells, slots, owners, shut, buffers, buffer_bytes, file_bytes })
    }

    /// Bytes at the start that every packet touches: the header and the cells.
    pub(crate) fn hot_bytes(&self) -> usize {
        self.slots
    }

    /// Bulk buffers whose memory is always reserved.
    pub(crate) fn bulk_reserved(&self) -> u32 {
        self.sizes.bulk_buffers.min(BULK_RESERVED)
    }

    /// Bytes at the start whose memory is always reserved: all but the bulk buffers that only a busy endpoint uses.
    pub(crate) fn fixed_bytes(&self) -> usize {
        self.bulk_end(self.bulk_reserved())
    }

    /// Where the first `count` bulk buffers end.
    pub(crate) fn bulk_end(&self, count: u32) -> usize {
        self.buffers + count as usize * self.buffer_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { queue_len: 4096, bulk_buffers: 4096, mtu: 8224, senders_max: 1024 };

    #[test]
    fn parts_follow_each_other_without_overlap() {
        let l = Layout::new(SIZES).unwrap();
        assert!(
            l.cells < l.slots
                && l.slots < l.owners
                && l.owners < l.shut
                && l.shut < l.buffers
                && l.buffers < l.file_bytes
        );
        assert!(l.shut - l.owners >= 4096 * 4 && l.buffers - l.shut >= 4096 / 8);
        assert_eq!(l.slots - l.cells, 4096 * CELL_BYTES);
        assert_eq!((l.slots % 64, l.owners % 64, l.shut % 64, l.buffers % PAGE, l.file_bytes % PAGE), (0, 0, 0, 0, 0));
        assert!(l.buffer_bytes >= 8224 && l.buffers + 4096 * l.buffer_bytes <= l.file_bytes);
    }

    #[test]
    fn sizes_outside_the_limits_are_named() {
        for (sizes, name) in [
            (Sizes { queue_len: 65, ..SIZES }, "queue_len"),
            (Sizes { queue_len: 0, ..SIZES }, "queue_len"),
            (Sizes { queue_len: 1 << 31, ..SIZES }, "queue_len"),
            (Sizes { bulk_buffers: 0, ..SIZES }, "bulk_buffers"),
            (Sizes { mtu: 65_473, ..SIZES }, "mtu"),
            (Sizes { senders_max: 65_536, ..SIZES }, "senders_max"),
        ] {
            assert_eq!(Layout::new(sizes).unwrap_err().0, name);
        }
    }
}
