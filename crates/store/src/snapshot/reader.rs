//! A snapshot as a stream that is read. Total over any bytes.

use std::io::Read;

use super::error::SnapshotError;
use super::format::{
    BLOCK_HEADER_BYTES, BLOCK_TAG, BlockHeader, HEADER_BYTES, Header, TRAILER_BYTES, TRAILER_TAG, Trailer, check_sum,
};
use super::origin::{ORIGIN_HEADER_BYTES, ORIGIN_TAG, Origin, OriginHeader};
use super::record::Record;
use crate::item::UnixSeconds;

/// Reads a snapshot, block by block. A block is given out only when it is whole.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    header: Header,
    /// Where in the file `input` stands.
    offset: u64,
    /// What was read so far, as the trailer of it would say.
    so_far: Trailer,
    payload: Vec<u8>,
    origin: Option<Origin>,
    /// The next tag, which was read already.
    tag: Option<[u8; 4]>,
    is_over: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header. The input is read in pieces from a few bytes to some hundred kilobytes: give it a buffer.
    ///
    /// # Errors
    /// [`SnapshotError`], if this is no snapshot.
    pub fn new(mut input: R) -> Result<Reader<R>, SnapshotError> {
        let mut offset = 0;
        let mut bytes = [0; HEADER_BYTES];
        read(&mut input, &mut bytes, &mut offset, "the header")?;
        let header = Header::parse(&bytes)?;
        let so_far = Trailer { blocks: 0, records: 0, payload_bytes: 0, headers_checksum: crc32c::crc32c(&bytes) };
        let mut reader =
            Reader { input, header, offset, so_far, payload: Vec::new(), origin: None, tag: None, is_over: false };
        if reader.header.has_origin() {
            reader.read_origin()?;
        }
        Ok(reader)
    }

    /// Reads what the snapshot was taken from, if it says so.
    fn read_origin(&mut self) -> Result<(), SnapshotError> {
        let start = self.offset;
        let mut tag = [0; 4];
        read(&mut self.input, &mut tag, &mut self.offset, "the origin")?;
        if u32::from_le_bytes(tag) != ORIGIN_TAG {
            self.tag = Some(tag);
            return Ok(());
        }
        let mut bytes = vec![0; ORIGIN_HEADER_BYTES];
        bytes[..4].copy_from_slice(&tag);
        read(&mut self.input, &mut bytes[4..], &mut self.offset, "the origin")?;
        let head = OriginHeader::parse(&bytes, start)?;
        // The number was checked.
        bytes.resize(ORIGIN_HEADER_BYTES + head.shapes_bytes(), 0);
        read(&mut self.input, &mut bytes[ORIGIN_HEADER_BYTES..], &mut self.offset, "the origin")?;
        self.origin = Some(head.parse_shapes(&bytes[ORIGIN_HEADER_BYTES..], start + ORIGIN_HEADER_BYTES as u64)?);
        self.so_far.headers_checksum = crc32c::crc32c_append(self.so_far.headers_checksum, &bytes);
        Ok(())
    }

    /// What the snapshot was taken from, if it says so.
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// When the snapshot was taken.
    pub fn taken_at(&self) -> UnixSeconds {
        self.header.taken_at
    }

    /// How many bytes of the file were read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next block; `None` when the trailer was read, and agrees with all that was before it.
    ///
    /// # Errors
    /// [`SnapshotError`] at the first byte that is wrong. Do not go on then.
    pub fn next_block(&mut self) -> Result<Option<Records<'_>>, SnapshotError> {
        if self.is_over {
            return Ok(None);
        }
        let mut tag = [0; 4];
        let mut start = self.offset;
        match self.tag.take() {
            Some(read) => (tag, start) = (read, start - 4),
            None => read(&mut self.input, &mut tag, &mut self.offset, "the header of a block, or the trailer")?,
        }
        match u32::from_le_bytes(tag) {
            BLOCK_TAG => self.read_block(start).map(Some),
            TRAILER_TAG => self.read_trailer(start).map(|()| None),
            _ => Err(SnapshotError::Malformed { offset: start, what: "neither a block nor the trailer begins here" }),
        }
    }

    fn read_block(&mut self, start: u64) -> Result<Records<'_>, SnapshotError> {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        bytes[..4].copy_from_slice(&BLOCK_TAG.to_le_bytes());
        read(&mut self.input, &mut bytes[4..], &mut self.offset, "the header of a block")?;
        let header = BlockHeader::parse(&bytes, start, self.so_far.blocks)?;
        let payload_at = self.offset;
        // The length was checked. Memory is taken as bytes come, all the same.
        self.payload.clear();
        let limit = u64::from(header.payload_bytes);
        let read = (&mut self.input).take(limit).read_to_end(&mut self.payload);
        self.offset += self.payload.len() as u64;
        read.map_err(|source| SnapshotError::Read { offset: self.offset, source })?;
        if (self.payload.len() as u64) < limit {
            return Err(SnapshotError::Truncated { offset: self.offset, part: "a block" });
        }
        check_sum(&self.payload, header.payload_checksum, payload_at, "a block")?;
        self.so_far.blocks += 1;
        self.so_far.records += u64::from(header.records);
        self.so_far.payload_bytes += limit;
        self.so_far.headers_checksum = crc32c::crc32c_append(self.so_far.headers_checksum, &bytes);
        Ok(Records { rest: &self.payload, offset: payload_at, left: header.records })
    }

    fn read_trailer(&mut self, start: u64) -> Result<(), SnapshotError> {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[..4].copy_from_slice(&TRAILER_TAG.to_le_bytes());
        read(&mut self.input, &mut bytes[4..], &mut self.offset, "the trailer")?;
        self.so_far.check(&bytes, start)?;
        let end = self.offset;
        match read(&mut self.input, &mut [0], &mut self.offset, "") {
            Err(SnapshotError::Truncated { .. }) => {}
            Ok(()) => return Err(SnapshotError::Malformed { offset: end, what: "something follows the trailer" }),
            Err(error) => return Err(error),
        }
        self.is_over = true;
        Ok(())
    }
}

/// Fills `bytes`, and moves the offset by what was read.
fn read(input: &mut impl Read, bytes: &mut [u8], offset: &mut u64, part: &'static str) -> Result<(), SnapshotError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match input.read(&mut bytes[filled..]) {
            Ok(0) => return Err(SnapshotError::Truncated { offset: *offset, part }),
            Ok(len) => {
                filled += len;
                *offset += len as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(SnapshotError::Read { offset: *offset, source }),
        }
    }
    Ok(())
}

/// The records of a block. An error ends them: a block that is not what its header says, though its checksum is right.
#[derive(Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    offset: u64,
    left: u32,
}

impl<'a> Records<'a> {
    /// Where in the file the next one begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn fail(&mut self, error: SnapshotError) -> Option<Result<Record<'a>, SnapshotError>> {
        (self.left, self.rest) = (0, &[]);
        Some(Err(error))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, SnapshotError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            if self.rest.is_empty() {
                return None;
            }
            return self.fail(SnapshotError::Malformed {
                offset: self.offset,
                what: "something follows the last record of a block",
            });
        }
        match Record::parse(self.rest, self.offset) {
            Ok((record, len)) => {
                self.rest = &self.rest[len..];
                self.offset += len as u64;
                self.left -= 1;
                Some(Ok(record))
            }
            Err(error) => self.fail(error),
        }
    }
}
