//! Writes a snapshot to the disk, piece by piece. Each piece is flushed before the next is written, so a flush of the
//! log waits for at most one piece.

use bytes::Bytes;

use super::disk::Disk;
use super::error::Failure;
use super::part::Part;
use super::record::Position;
use super::snapshot::SnapshotWriter;

/// A snapshot to write.
#[derive(Debug)]
pub struct Source {
    /// The part of the log that it belongs to.
    pub part: Part,
    pub position: Position,
    pub about: Vec<u8>,
    pub data: Bytes,
    /// The bytes of a piece.
    pub piece_bytes: usize,
}

/// A snapshot being written.
#[derive(Debug)]
pub struct Job<D: Disk> {
    disk: D,
    source: Source,
    writer: Option<SnapshotWriter<D>>,
    /// Bytes written so far.
    at: usize,
}

impl<D: Disk> Job<D> {
    pub fn new(disk: D, source: Source) -> Job<D> {
        Job { disk, source, writer: None, at: 0 }
    }

    /// Writes the next piece.
    pub fn write_piece(&mut self) -> Result<(), Failure> {
        let Source { part, position, about, data, piece_bytes } = &self.source;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(SnapshotWriter::create(self.disk.clone(), *part, *position, about)?),
        };
        let end = data.len().min(self.at.saturating_add(*piece_bytes));
        writer.write(&data[self.at..end])?;
        self.at = end;
        Ok(())
    }

    /// Flushes the piece. Returns `None` if it was the last: then the snapshot has its name.
    pub fn flush_piece(mut self) -> Result<Option<Job<D>>, Failure> {
        let is_last = self.at == self.source.data.len();
        match self.writer.take() {
            Some(writer) if is_last => writer.finish().map(|_| None),
            Some(writer) => {
                writer.flush()?;
                Ok(Some(Job { writer: Some(writer), ..self }))
            }
            None => Ok(Some(self)),
        }
    }
}
