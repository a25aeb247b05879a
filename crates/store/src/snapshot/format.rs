//! The layout of a file: header, block headers, trailer. All numbers are little-endian. See `docs/snapshot-format.md`.

use super::error::SnapshotError;
use crate::item::UnixSeconds;
use crate::key::KEY_BYTES_MAX;
use crate::store::VALUE_BYTES_MAX;

/// The version that is written. This one and `VERSION_WITHOUT_ORIGIN` can be read.
pub const VERSION: u32 = 2;
/// The previous version, whose files do not record their origin.
pub const VERSION_WITHOUT_ORIGIN: u32 = 1;
/// The version that is written of [`Content::Index`], and the only one that can be read.
pub const VERSION_OF_INDEX: u32 = 1;
/// A block is closed when its records reach this many bytes.
pub const BLOCK_BYTES: usize = 256 << 10;
/// No block has more bytes of records: a longer one is rejected before it is read.
pub const BLOCK_BYTES_MAX: usize = 2 << 20;
const _: () = assert!(BLOCK_BYTES + RECORD_HEADER_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX <= BLOCK_BYTES_MAX);

/// Whose items a file holds. The files differ in their first bytes and in their records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Of partitions.
    Partitions,
    /// Of an ordered index; its crate reads and writes the records.
    Index,
}

impl Content {
    /// The first bytes of a file.
    const fn magic(self) -> [u8; 8] {
        match self {
            Content::Partitions => *b"\x89DNLSNP\n",
            Content::Index => *b"\x89DNLIDX\n",
        }
    }

    /// The version that is written.
    pub(super) const fn version(self) -> u32 {
        match self {
            Content::Partitions => VERSION,
            Content::Index => VERSION_OF_INDEX,
        }
    }

    /// The oldest version that can be read.
    pub(super) const fn oldest(self) -> u32 {
        match self {
            Content::Partitions => VERSION_WITHOUT_ORIGIN,
            Content::Index => VERSION_OF_INDEX,
        }
    }

    /// Bytes of the shortest record.
    const fn record_bytes_min(self) -> u64 {
        match self {
            // At least one byte of key follows the header.
            Content::Partitions => RECORD_HEADER_BYTES as u64 + 1,
            // Two lengths.
            Content::Index => 8,
        }
    }
}

pub const HEADER_BYTES: usize = 32;
pub const BLOCK_HEADER_BYTES: usize = 32;
pub const TRAILER_BYTES: usize = 40;
pub const RECORD_HEADER_BYTES: usize = 14;
pub const BLOCK_TAG: u32 = u32::from_le_bytes(*b"BLOK");
pub const TRAILER_TAG: u32 = u32::from_le_bytes(*b"ENDS");

/// The offset of the version.
pub const VERSION_AT: u64 = 8;

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

fn seal<const N: usize>(mut bytes: [u8; N]) -> [u8; N] {
    put_seal(&mut bytes);
    bytes
}

/// Writes the checksum of all bytes but the last four into the last four.
pub fn put_seal(bytes: &mut [u8]) {
    let (body, checksum) = bytes.split_at_mut(bytes.len() - 4);
    checksum.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

/// Checks the checksum that [`put_seal`] wrote.
pub fn check_seal(bytes: &[u8], offset: u64, part: &'static str) -> Result<(), SnapshotError> {
    let (body, _) = bytes.split_at(bytes.len() - 4);
    check_sum(body, u32_at(bytes, bytes.len() - 4), offset, part)
}

/// Checks the bytes at an offset against their checksum.
pub fn check_sum(bytes: &[u8], stored: u32, offset: u64, part: &'static str) -> Result<(), SnapshotError> {
    let computed = crc32c::crc32c(bytes);
    if computed == stored { Ok(()) } else { Err(SnapshotError::Checksum { offset, part, stored, computed }) }
}

pub fn check_reserved(is_zero: bool, offset: u64) -> Result<(), SnapshotError> {
    if is_zero { Ok(()) } else { Err(SnapshotError::Malformed { offset, what: "reserved bytes are not zero" }) }
}

/// The header of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub content: Content,
    pub taken_at: UnixSeconds,
    pub version: u32,
}

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.content.magic());
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..24].copy_from_slice(&u64::from(self.taken_at).to_le_bytes());
        seal(bytes)
    }

    /// Whether the file may record its origin.
    pub fn has_origin(self) -> bool {
        self.content == Content::Partitions && self.version != VERSION_WITHOUT_ORIGIN
    }

    pub fn parse(content: Content, bytes: &[u8; HEADER_BYTES]) -> Result<Header, SnapshotError> {
        let magic = content.magic();
        if let Some(offset) = (0..magic.len()).find(|at| bytes[*at] != magic[*at]) {
            return Err(SnapshotError::NotASnapshot { offset: offset as u64 });
        }
        let version = u32_at(bytes, VERSION_AT as usize);
        let (oldest, newest) = (content.oldest(), content.version());
        if !(oldest..=newest).contains(&version) {
            return Err(SnapshotError::Version { offset: VERSION_AT, found: version, oldest, newest });
        }
        check_seal(bytes, 0, "the header")?;
        check_reserved(u32_at(bytes, 12) == 0, 12)?;
        check_reserved(u32_at(bytes, 24) == 0, 24)?;
        let taken_at = u64_at(bytes, 16).try_into();
        Ok(Header {
            content,
            version,
            taken_at: taken_at
                .map_err(|_| SnapshotError::Malformed { offset: 16, what: "the time of the snapshot is past 2106" })?,
        })
    }
}

/// The header before the records of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    pub payload_bytes: u32,
    pub records: u32,
    pub payload_checksum: u32,
    /// Counted from zero.
    pub number: u64,
}

impl BlockHeader {
    pub fn to_bytes(self) -> [u8; BLOCK_HEADER_BYTES] {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        bytes[..4].copy_from_slice(&BLOCK_TAG.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.records.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.payload_checksum.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        seal(bytes)
    }

    /// Parses bytes at `offset` that begin with [`BLOCK_TAG`], where block `number` is expected.
    pub fn parse(
        content: Content,
        bytes: &[u8; BLOCK_HEADER_BYTES],
        offset: u64,
        number: u64,
    ) -> Result<BlockHeader, SnapshotError> {
        check_seal(bytes, offset, "the header of a block")?;
        let header = BlockHeader {
            payload_bytes: u32_at(bytes, 4),
            records: u32_at(bytes, 8),
            payload_checksum: u32_at(bytes, 12),
            number: u64_at(bytes, 16),
        };
        let malformed = |at, what| Err(SnapshotError::Malformed { offset: offset + at, what });
        if header.payload_bytes as usize > BLOCK_BYTES_MAX {
            return malformed(4, "a block is longer than blocks may be");
        }
        let bytes_min = u64::from(header.records) * content.record_bytes_min();
        if header.records == 0 || bytes_min > u64::from(header.payload_bytes) {
            return malformed(8, "a block cannot have that many records");
        }
        if header.number != number {
            return malformed(16, "a block is missing, or stands twice, or in the wrong place");
        }
        check_reserved(u32_at(bytes, 24) == 0, offset + 24)?;
        Ok(header)
    }
}

/// The trailer of a file, which is incomplete without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    pub blocks: u64,
    pub records: u64,
    pub payload_bytes: u64,
    /// The checksum of the header and all block headers, one after the other.
    pub headers_checksum: u32,
}

impl Trailer {
    pub fn to_bytes(self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[..4].copy_from_slice(&TRAILER_TAG.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.records.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.headers_checksum.to_le_bytes());
        seal(bytes)
    }

    /// Checks bytes at `offset` that begin with [`TRAILER_TAG`] against this expected trailer.
    pub fn check(self, bytes: &[u8; TRAILER_BYTES], offset: u64) -> Result<(), SnapshotError> {
        check_seal(bytes, offset, "the trailer")?;
        check_reserved(u32_at(bytes, 4) == 0, offset + 4)?;
        let malformed = |at, what| Err(SnapshotError::Malformed { offset: offset + at, what });
        if u64_at(bytes, 8) != self.blocks {
            return malformed(8, "the trailer counts other blocks than there are");
        }
        if u64_at(bytes, 16) != self.records {
            return malformed(16, "the trailer counts other records than there are");
        }
        if u64_at(bytes, 24) != self.payload_bytes {
            return malformed(24, "the trailer counts other bytes than there are");
        }
        if u32_at(bytes, 32) != self.headers_checksum {
            return malformed(32, "blocks of another snapshot are among the blocks");
        }
        Ok(())
    }
}
