//! Writes a snapshot to a stream.

use std::io::{self, Write};

use super::format::{BLOCK_BYTES_MAX, BlockHeader, Content, HEADER_BYTES, Header, TRAILER_BYTES, Trailer};
use super::origin::Origin;
use super::record::Block;
use crate::item::UnixSeconds;

/// The amount that a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Items.
    pub records: u64,
    /// Blocks.
    pub blocks: u64,
    /// Length of the file, in bytes.
    pub file_bytes: u64,
}

/// Writes a snapshot, block by block.
///
/// Without [`Writer::finish`], readers reject the output as truncated.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    totals: Totals,
    payload_bytes: u64,
    headers_checksum: u32,
}

impl<W: Write> Writer<W> {
    /// Writes the header. `taken_at` is the time of the snapshot.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn new(output: W, taken_at: UnixSeconds) -> io::Result<Writer<W>> {
        Writer::of(Content::Partitions, output, taken_at)
    }

    /// As [`Writer::new`], for a snapshot of something else than partitions.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn of(content: Content, mut output: W, taken_at: UnixSeconds) -> io::Result<Writer<W>> {
        let header = Header { content, taken_at, version: content.version() }.to_bytes();
        output.write_all(&header)?;
        let totals = Totals { file_bytes: HEADER_BYTES as u64, ..Totals::default() };
        Ok(Writer { output, totals, payload_bytes: 0, headers_checksum: crc32c::crc32c(&header) })
    }

    /// Writes the snapshot's origin: at most once, before the first block.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn write_origin(&mut self, origin: &Origin) -> io::Result<()> {
        let bytes = origin.to_bytes();
        self.output.write_all(&bytes)?;
        self.headers_checksum = crc32c::crc32c_append(self.headers_checksum, &bytes);
        self.totals.file_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Writes a block, unless it is empty.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn write(&mut self, block: &Block) -> io::Result<()> {
        self.write_payload(block.payload(), block.records())
    }

    /// Writes a block of records of any kind, unless it is empty.
    ///
    /// # Errors
    /// Errors of the output.
    ///
    /// # Panics
    /// If there are more than [`BLOCK_BYTES_MAX`] bytes.
    pub fn write_payload(&mut self, payload: &[u8], records: u32) -> io::Result<()> {
        if records == 0 {
            return Ok(());
        }
        assert!(payload.len() <= BLOCK_BYTES_MAX, "a block within the limit");
        let header = BlockHeader {
            payload_bytes: payload.len() as u32,
            records,
            payload_checksum: crc32c::crc32c(payload),
            number: self.totals.blocks,
        };
        let header = header.to_bytes();
        self.output.write_all(&header)?;
        self.output.write_all(payload)?;
        self.headers_checksum = crc32c::crc32c_append(self.headers_checksum, &header);
        self.payload_bytes += payload.len() as u64;
        self.totals.blocks += 1;
        self.totals.records += u64::from(records);
        self.totals.file_bytes += (header.len() + payload.len()) as u64;
        Ok(())
    }

    /// Writes the trailer; returns the output, and the totals.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn finish(mut self) -> io::Result<(W, Totals)> {
        let trailer = Trailer {
            blocks: self.totals.blocks,
            records: self.totals.records,
            payload_bytes: self.payload_bytes,
            headers_checksum: self.headers_checksum,
        };
        self.output.write_all(&trailer.to_bytes())?;
        self.totals.file_bytes += TRAILER_BYTES as u64;
        self.output.flush()?;
        Ok((self.output, self.totals))
    }
}
