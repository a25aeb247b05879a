//! A segment as a file: its name, its frames in order, and where they end.

use std::path::PathBuf;

use super::disk::{Disk, DiskFile};
use super::error::WalError;
use super::format::{
    ALIGNMENT, FRAME_HEADER_BYTES, FrameHeader, HeaderError, Place, SEGMENT_HEADER_BYTES, SegmentHeader, VERSION_AT,
    frame_bytes,
};
use super::window::Window;
use crate::mutation::{Mutation, is_planted};

const NAME_START: &str = "log-";
/// The suffix of incomplete files.
pub const UNFINISHED: &str = ".tmp";

/// Returns the name of a segment.
pub fn segment_name(number: u64) -> String {
    format!("{NAME_START}{number:016x}")
}

/// Returns the number of the segment with this name.
pub fn segment_number(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix(NAME_START)?, 16).ok()?;
    (segment_name(number) == name).then_some(number)
}

/// What is at an offset of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A frame with this header; its records are intact.
    Frame(FrameHeader),
    /// Only zeros, to the end of the file.
    End,
    /// Something that is not an intact frame.
    Broken(&'static str),
}

/// A segment being read.
#[derive(Debug)]
pub struct Segment<F> {
    pub file: F,
    pub path: PathBuf,
    pub header: SegmentHeader,
    window: Window,
}

impl<F: DiskFile> Segment<F> {
    /// Opens a segment and checks its header, but not its owner.
    pub fn open<D: Disk<File = F>>(disk: &D, number: u64) -> Result<Segment<F>, WalError> {
        let name = segment_name(number);
        let path = disk.place(&name);
        let io = |what, source| WalError::Io { what, path: path.clone(), source };
        let damaged = |offset, what| WalError::Damaged { path: path.clone(), offset, what };
        let file = disk.open(&name).map_err(|source| io("open", source))?;
        let len = file.len().map_err(|source| io("look at", source))?;
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let read = file.read_at(0, &mut bytes).map_err(|source| io("read", source))?;
        if read < bytes.len() {
            return Err(damaged(len, "the segment was truncated"));
        }
        let header = match SegmentHeader::parse(&bytes) {
            Ok(header) => header,
            Err(HeaderError::Damaged(what)) => return Err(damaged(0, what)),
            Err(HeaderError::Version(found)) => return Err(WalError::Version { path, offset: VERSION_AT, found }),
        };
        if header.number != number {
            return Err(damaged(32, "the segment has the name of another one"));
        }
        if len < u64::from(header.file_bytes) {
            return Err(damaged(len, "the segment was truncated"));
        }
        if len > u64::from(header.file_bytes) {
            return Err(damaged(u64::from(header.file_bytes), "the segment is longer than it was made"));
        }
        Ok(Segment { file, path, header, window: Window::default() })
    }

    pub fn io(&self, what: &'static str, source: std::io::Error) -> WalError {
        WalError::Io { what, path: self.path.clone(), source }
    }

    pub fn damaged(&self, offset: u64, what: &'static str) -> WalError {
        WalError::Damaged { path: self.path.clone(), offset, what }
    }

    fn place(&self, offset: u32) -> Place {
        Place { log: self.header.log, segment: self.header.number, offset }
    }

    fn bytes(&mut self, offset: u32, len: usize) -> Result<&[u8], WalError> {
        match self.window.get(&self.file, u64::from(offset), len) {
            Ok(bytes) => Ok(bytes),
            Err(source) => Err(WalError::Io { what: "read", path: self.path.clone(), source }),
        }
    }

    /// Returns what is at an offset, which is a multiple of [`ALIGNMENT`].
    pub fn found_at(&mut self, offset: u32) -> Result<Found, WalError> {
        if offset as usize + FRAME_HEADER_BYTES > self.header.file_bytes as usize {
            return Ok(if self.is_zero_from(offset)? { Found::End } else { Found::Broken("these bytes are no frame") });
        }
        let place = self.place(offset);
        let Some(header) = FrameHeader::parse(self.bytes(offset, FRAME_HEADER_BYTES)?, place) else {
            let is_end = self.is_zero_from(offset)?;
            return Ok(if is_end { Found::End } else { Found::Broken("these bytes are no frame") });
        };
        let padded = frame_bytes(header.payload_bytes as usize) - FRAME_HEADER_BYTES;
        let bytes = self.bytes(offset + FRAME_HEADER_BYTES as u32, padded)?;
        if bytes.len() < padded {
            return Ok(Found::Broken("a frame is longer than its segment"));
        }
        let (records, padding) = bytes.split_at(header.payload_bytes as usize);
        let is_whole = crc32c::crc32c(records) == header.payload_checksum || is_planted(Mutation::TornFrameAccepted);
        if !is_whole || padding.iter().any(|byte| *byte != 0) {
            return Ok(Found::Broken("a frame has a wrong checksum"));
        }
        Ok(Found::Frame(header))
    }

    /// Returns the records of the frame found at `offset`.
    pub fn records(&mut self, offset: u32, header: &FrameHeader) -> Result<&[u8], WalError> {
        self.bytes(offset + FRAME_HEADER_BYTES as u32, header.payload_bytes as usize)
    }

    /// Whether there are only zeros from here to the end of the file.
    fn is_zero_from(&mut self, offset: u32) -> Result<bool, WalError> {
        Ok(self.last_nonzero_from(offset)?.is_none())
    }

    /// Returns the offset of the last non-zero byte from `offset` on.
    pub fn last_nonzero_from(&mut self, offset: u32) -> Result<Option<u32>, WalError> {
        const PIECE_BYTES: usize = 64 << 10;
        /// Most pieces are zeros: to compare is many times quicker than to search them.
        static ZEROS: [u8; PIECE_BYTES] = [0; PIECE_BYTES];
        let (mut at, mut last) = (offset, None);
        while at < self.header.file_bytes {
            let piece = self.bytes(at, PIECE_BYTES)?;
            if piece.is_empty() {
                break;
            }
            if *piece != ZEROS[..piece.len()]
                && let Some(found) = piece.iter().rposition(|byte| *byte != 0)
            {
                last = Some(at + found as u32);
            }
            at += piece.len() as u32;
        }
        Ok(last)
    }

    /// Whether the bytes at `offset` were flushed earlier, so that a crash cannot have torn them: a later frame says
    /// that its group began after them, and a group is begun only after the previous one was flushed.
    pub fn was_flushed(&mut self, offset: u32) -> Result<bool, WalError> {
        let mut at = offset;
        while at as usize + FRAME_HEADER_BYTES <= self.header.file_bytes as usize {
            let place = self.place(at);
            if FrameHeader::parse(self.bytes(at, FRAME_HEADER_BYTES)?, place)
                .is_some_and(|header| header.group_start > offset)
            {
                return Ok(true);
            }
            at += ALIGNMENT as u32;
        }
        Ok(false)
    }
}
