//! Reads a snapshot from a stream. Total over any bytes.

use std::io::Read;

use super::error::SnapshotError;
use super::format::{
    BLOCK_HEADER_BYTES, BLOCK_TAG, BlockHeader, Content, HEADER_BYTES, Header, TRAILER_BYTES, TRAILER_TAG, Trailer,
    check_sum,
};
use super::origin::{ORIGIN_HEADER_BYTES, ORIGIN_TAG, Origin, OriginHeader};
use super::record::Record;
use crate::item::UnixSeconds;

/// Reads a snapshot, block by block. A block is returned only if it is intact.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    header: Header,
    /// The offset of `input` in the file.
    offset: u64,
    /// The trailer that the data read so far would have.
    so_far: Trailer,
    payload: Vec<u8>,
    origin: Option<Origin>,
    /// The next tag, if it was already read.
    tag: Option<[u8; 4]>,
    is_over: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header. Reads vary from a few bytes to some hundred kilobytes: pass a buffered input.
    ///
    /// # Errors
    /// [`SnapshotError`] if this is not a snapshot.
    pub fn new(input: R) -> Result<Reader<R>, SnapshotError> {
        Reader::of(Content::Partitions, input)
    }

    /// As [`Reader::new`], for a snapshot of something else than partitions.
    ///
    /// # Errors
    /// As [`Reader::new`]; also for a snapshot of something else than `content`.
    pub fn of(content: Content, mut input: R) -> Result<Reader<R>, SnapshotError> {
        let mut offset = 0;
        let mut bytes = [0; HEADER_BYTES];
        read(&mut input, &mut bytes, &mut offset, "the header")?;
        let header = Header::parse(content, &bytes)?;
        let so_far = Trailer { blocks: 0, records: 0, payload_bytes: 0, headers_checksum: crc32c::crc32c(&bytes) };
        let mut reader =
            Reader { input, header, offset, so_far, payload: Vec::new(), origin: None, tag: None, is_over: false };
        if reader.header.has_origin() {
            reader.read_origin()?;
        }
        Ok(reader)
    }

    /// Reads the snapshot's origin, if it is recorded.
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

    /// Returns the snapshot's origin, if it is recorded.
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// Returns when the snapshot was taken.
    pub fn taken_at(&self) -> UnixSeconds {
        self.header.taken_at
    }

    /// Returns how many bytes of the file were read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next block; `None` once the trailer was read, and matches everything before it.
    ///
    /// # Errors
    /// [`SnapshotError`] at the first wrong byte. Do not continue after that.
    pub fn next_block(&mut self) -> Result<Option<Records<'_>>, SnapshotError> {
        let payload = self.next_payload()?;
        Ok(payload.map(|Payload { bytes, offset, records }| Records { rest: bytes, offset, left: records }))
    }

    /// As [`Reader::next_block`], but returns the block's bytes: for records of another kind than [`Record`].
    ///
    /// # Errors
    /// As [`Reader::next_block`].
    pub fn next_payload(&mut self) -> Result<Option<Payload<'_>>, SnapshotError> {
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

    fn read_block(&mut self, start: u64) -> Result<Payload<'_>, SnapshotError> {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        bytes[..4].copy_from_slice(&BLOCK_TAG.to_le_bytes());
        read(&mut self.input, &mut bytes[4..], &mut self.offset, "the header of a block")?;
        let header = BlockHeader::parse(self.header.content, &bytes, start, self.so_far.blocks)?;
        let payload_at = self.offset;
        // The length was checked. Memory is still allocated only as bytes arrive.
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
        Ok(Payload { bytes: &self.payload, offset: payload_at, records: header.records })
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

/// Fills `bytes`, and advances the offset by the bytes read.
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

/// The bytes of a block, which match their checksum.
#[derive(Debug, Clone, Copy)]
pub struct Payload<'a> {
    /// The encoded records.
    pub bytes: &'a [u8],
    /// The offset in the file of the first.
    pub offset: u64,
    /// How many there are, as the header of the block says.
    pub records: u32,
}

/// The records of a block. An error ends them: then the block does not match its header, although its checksum is
/// right.
#[derive(Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    offset: u64,
    left: u32,
}

impl<'a> Records<'a> {
    /// Returns the offset in the file of the next record.
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
