//! The origin of a snapshot: partitions like these have room for all of it.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use super::error::SnapshotError;
use super::format::{check_reserved, check_seal, put_seal, u32_at, u64_at};
use super::reader::Reader;
use crate::shape::Shape;

/// Maximum number of partitions in a snapshot.
pub const PARTITIONS_MAX: usize = 4096;

pub const ORIGIN_TAG: u32 = u32::from_le_bytes(*b"ORIG");
pub const ORIGIN_HEADER_BYTES: usize = 32;
const SHAPE_BYTES: usize = 48;
const CHECKSUM_BYTES: usize = 4;

/// How keys were divided among partitions, and the shape of each partition. Keep it from clients: it contains the
/// secrets of the hashes.
#[derive(Clone, PartialEq, Eq)]
pub struct Origin {
    /// How keys were divided: 16 bytes defined by the service; zeros if it did not say.
    pub routing: [u8; 16],
    /// The partitions, in the order of [`super::save`]'s parts.
    pub partitions: Vec<Shape>,
}

impl std::fmt::Debug for Origin {
    /// Omits the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Origin").field("partitions", &self.partitions).finish_non_exhaustive()
    }
}

impl Origin {
    /// Returns the total bytes of the partitions' memory.
    pub fn memory_bytes(&self) -> u64 {
        self.partitions.iter().fold(0, |sum, shape| sum.saturating_add(shape.memory_bytes()))
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; ORIGIN_HEADER_BYTES];
        bytes[..4].copy_from_slice(&ORIGIN_TAG.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.partitions.len() as u32).to_le_bytes());
        bytes[8..24].copy_from_slice(&self.routing);
        put_seal(&mut bytes);
        for shape in &self.partitions {
            for number in [shape.secret[0], shape.secret[1], shape.memory, shape.segment, shape.lines] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            bytes.extend_from_slice(&u64::from(shape.kind).to_le_bytes());
        }
        bytes.extend_from_slice(&[0; CHECKSUM_BYTES]);
        put_seal(&mut bytes[ORIGIN_HEADER_BYTES..]);
        bytes
    }
}

/// The header before the shapes.
pub struct OriginHeader {
    routing: [u8; 16],
    partitions: usize,
}

impl OriginHeader {
    /// Parses bytes at `offset` that begin with [`ORIGIN_TAG`].
    pub fn parse(bytes: &[u8], offset: u64) -> Result<OriginHeader, SnapshotError> {
        check_seal(bytes, offset, "the origin")?;
        check_reserved(u32_at(bytes, 24) == 0, offset + 24)?;
        let partitions = u32_at(bytes, 4) as usize;
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(SnapshotError::Malformed { offset: offset + 4, what: "no snapshot is of so many partitions" });
        }
        let mut routing = [0; 16];
        routing.copy_from_slice(&bytes[8..24]);
        Ok(OriginHeader { routing, partitions })
    }

    /// Returns the length of the shapes that follow.
    pub fn shapes_bytes(&self) -> usize {
        self.partitions * SHAPE_BYTES + CHECKSUM_BYTES
    }

    /// Parses the shapes in these bytes, which are at `offset`, and returns the origin. A shape may be invalid: a
    /// partition that cannot take it does without.
    pub fn parse_shapes(self, bytes: &[u8], offset: u64) -> Result<Origin, SnapshotError> {
        check_seal(bytes, offset, "the origin")?;
        let (shapes, _) = bytes.as_chunks::<SHAPE_BYTES>();
        let mut partitions = Vec::with_capacity(self.partitions);
        for (at, bytes) in (offset..).step_by(SHAPE_BYTES).zip(shapes) {
            let [_, reserved @ ..] = u64_at(bytes, 40).to_le_bytes();
            check_reserved(reserved == [0; 7], at + 41)?;
            partitions.push(Shape {
                secret: [u64_at(bytes, 0), u64_at(bytes, 8)],
                memory: u64_at(bytes, 16),
                segment: u64_at(bytes, 24),
                lines: u64_at(bytes, 32),
                kind: bytes[40],
            });
        }
        Ok(Origin { routing: self.routing, partitions })
    }
}

/// Returns the origin recorded in a snapshot's file, if any: version 1 has none.
///
/// # Errors
/// [`SnapshotError`] if the file cannot be opened, or does not begin like a snapshot.
pub fn origin_of(path: &Path) -> Result<Option<Origin>, SnapshotError> {
    let file = File::open(path).map_err(|source| SnapshotError::Open { path: path.to_owned(), source })?;
    Reader::new(BufReader::new(file)).map(|reader| reader.origin().cloned())
}
