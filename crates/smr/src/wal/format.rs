//! The layout of a segment: its header and the headers of frames. All numbers are little-endian. See
//! `docs/log-format.md`.

/// The version that is written. Version 1, whose records all belong to group 0, can also be read.
pub const VERSION: u32 = 2;
/// The first version: records had no groups.
pub const VERSION_WITHOUT_GROUPS: u32 = 1;
/// The version of snapshots.
pub const SNAPSHOT_VERSION: u32 = 1;
/// Maximum bytes of records in a frame.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Maximum bytes of an entry's payload.
pub const ENTRY_BYTES_MAX: usize = 8 << 20;
/// Maximum bytes of a segment.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 30;

pub const MAGIC: [u8; 8] = *b"\x89DNLLOG\n";
pub const SEGMENT_HEADER_BYTES: usize = 64;
pub const FRAME_HEADER_BYTES: usize = 40;
/// Frames begin at multiples of this.
pub const ALIGNMENT: usize = 8;
pub const FRAME_TAG: [u8; 4] = *b"FRAM";
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

/// Returns the bytes on the disk of a frame with this many bytes of records.
pub fn frame_bytes(payload: usize) -> usize {
    FRAME_HEADER_BYTES + payload.next_multiple_of(ALIGNMENT)
}

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// A random number that all segments of a log share.
    pub log: u64,
    /// The node that owns the log.
    pub owner: u64,
    /// The segment's number; segments of a log are numbered from 1.
    pub number: u64,
    /// The sequence number of its first frame.
    pub sequence: u64,
    /// The length of the file.
    pub file_bytes: u32,
    /// [`VERSION`], or an older one that can be read.
    pub version: u32,
}

/// Why the header of a segment is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderError {
    /// It is corrupt.
    Damaged(&'static str),
    /// Another version.
    Version(u32),
}

impl SegmentHeader {
    pub fn to_bytes(self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.file_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.log.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.owner.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.number.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.sequence.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Result<SegmentHeader, HeaderError> {
        if bytes[..8] != MAGIC {
            return Err(HeaderError::Damaged("this is no segment of a log of Dunlin"));
        }
        // Another version may have its checksum elsewhere, but a corrupt version number must not pass for another
        // version.
        let is_whole = crc32c::crc32c(&bytes[..60]) == u32_at(bytes, 60);
        let version = u32_at(bytes, VERSION_AT as usize);
        if version != VERSION && version != VERSION_WITHOUT_GROUPS {
            return Err(HeaderError::Version(version));
        }
        if !is_whole {
            return Err(HeaderError::Damaged("the header of the segment has a wrong checksum"));
        }
        if bytes[48..60] != [0; 12] {
            return Err(HeaderError::Damaged("reserved bytes are not zero"));
        }
        Ok(SegmentHeader {
            log: u64_at(bytes, 16),
            owner: u64_at(bytes, 24),
            number: u64_at(bytes, 32),
            sequence: u64_at(bytes, 40),
            file_bytes: u32_at(bytes, 12),
            version,
        })
    }
}

/// The header before the records of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The length of the records.
    pub payload_bytes: u32,
    /// The checksum of the records.
    pub payload_checksum: u32,
    /// The frame's number; frames are numbered from 1 through all segments.
    pub sequence: u64,
    /// The number of the flush that made it durable. Nothing of the next group is written before that flush succeeded.
    pub group: u64,
    /// The offset in the segment at which the first frame of the group begins.
    pub group_start: u32,
}

impl FrameHeader {
    /// The offset of the sequence number in the header.
    const SEQUENCE_AT: usize = 12;
    const CHECKSUM_AT: usize = FRAME_HEADER_BYTES - 4;

    /// Encodes the header. Its checksum covers the place as well: bytes that were written elsewhere, as a payload or in
    /// another log, are not a frame here.
    pub fn to_bytes(self, place: Place) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[..4].copy_from_slice(&FRAME_TAG);
        bytes[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.payload_checksum.to_le_bytes());
        bytes[Self::SEQUENCE_AT..20].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.group.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.group_start.to_le_bytes());
        let checksum = place.checksum(&bytes[..Self::CHECKSUM_AT]);
        bytes[Self::CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses a header, if these bytes were written as one for this place.
    pub fn parse(bytes: &[u8], place: Place) -> Option<FrameHeader> {
        if bytes.len() < FRAME_HEADER_BYTES
            || bytes[..4] != FRAME_TAG
            || place.checksum(&bytes[..Self::CHECKSUM_AT]) != u32_at(bytes, Self::CHECKSUM_AT)
        {
            return None;
        }
        let header = FrameHeader {
            payload_bytes: u32_at(bytes, 4),
            payload_checksum: u32_at(bytes, 8),
            sequence: u64_at(bytes, Self::SEQUENCE_AT),
            group: u64_at(bytes, 20),
            group_start: u32_at(bytes, 28),
        };
        let is_possible = header.payload_bytes as usize <= FRAME_BYTES_MAX
            && (SEGMENT_HEADER_BYTES as u32..=place.offset).contains(&header.group_start)
            && u32_at(bytes, 32) == 0;
        is_possible.then_some(header)
    }
}

/// The place of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The log, [`SegmentHeader::log`].
    pub log: u64,
    /// The number of the segment.
    pub segment: u64,
    /// The offset from its start.
    pub offset: u32,
}

impl Place {
    fn checksum(self, bytes: &[u8]) -> u32 {
        let mut seed = [0; 20];
        seed[..8].copy_from_slice(&self.log.to_le_bytes());
        seed[8..16].copy_from_slice(&self.segment.to_le_bytes());
        seed[16..].copy_from_slice(&self.offset.to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c(&seed), bytes)
    }
}
