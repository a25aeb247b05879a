//! Writes a group of frames, then flushes once. A thread or virtual time drives it; see `commit`.

use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile};
use super::error::Failure;
use super::format::{FrameHeader, Place, SEGMENT_HEADER_BYTES, SegmentHeader, frame_bytes};
use super::segment::{UNFINISHED, segment_name};
use super::work::{Task, Work, put_header};

/// Writes frames.
#[derive(Debug)]
pub struct Writer<D: Disk> {
    disk: D,
    file: D::File,
    log: u64,
    segment: u64,
    /// The number of the last group.
    group: u64,
    /// Whether the file was written to since its last flush.
    is_dirty: bool,
    removals: Vec<String>,
    flushes: u64,
}

impl<D: Disk> Writer<D> {
    /// Continues after the group with this number, in a segment that has room.
    pub fn new(disk: D, file: D::File, log: u64, segment: u64, group: u64) -> Writer<D> {
        Writer { disk, file, log, segment, group, is_dirty: false, removals: Vec::new(), flushes: 0 }
    }

    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Returns the number of flushes of segments so far.
    pub fn flushes(&self) -> u64 {
        self.flushes
    }

    fn failure(&self, what: &'static str, name: &str, source: io::Error) -> Failure {
        Failure { what, path: self.disk.place(name), source: Arc::new(source) }
    }

    /// Writes all frames. [`Writer::finish`] flushes those of the last segment.
    pub fn begin(&mut self, work: &mut Work) -> Result<(), Failure> {
        let Work { bytes, tasks, .. } = work;
        let mut tasks = tasks.drain(..).peekable();
        let mut frames = Run::default();
        while let Some(task) = tasks.next() {
            match task {
                Task::Frame { start, offset, sequence, payload_bytes, payload_checksum } => {
                    if frames.is_empty() {
                        self.group += 1;
                        frames = Run { start, end: start, offset };
                    }
                    let header = FrameHeader {
                        payload_bytes,
                        payload_checksum,
                        sequence,
                        group: self.group,
                        group_start: frames.offset,
                    };
                    put_header(&mut bytes[start..], &header, Place { log: self.log, segment: self.segment, offset });
                    frames.end = start + frame_bytes(payload_bytes as usize);
                }
                Task::Roll(header) => {
                    self.write(&mut frames, bytes)?;
                    self.flush()?;
                    let Some(Task::Frame { start, offset, sequence, payload_bytes, payload_checksum }) = tasks.next()
                    else {
                        unreachable!("a segment begins with a frame: the log puts one behind each roll")
                    };
                    self.group += 1;
                    let first = FrameHeader {
                        payload_bytes,
                        payload_checksum,
                        sequence,
                        group: self.group,
                        group_start: offset,
                    };
                    put_header(&mut bytes[start..], &first, Place { log: self.log, segment: header.number, offset });
                    self.file =
                        create_segment(&self.disk, header, &bytes[start..start + frame_bytes(payload_bytes as usize)])?;
                    self.segment = header.number;
                }
                Task::Remove(names) => self.removals.extend(names),
            }
        }
        self.write(&mut frames, bytes)
    }

    fn write(&mut self, frames: &mut Run, bytes: &[u8]) -> Result<(), Failure> {
        if !frames.is_empty() {
            self.is_dirty = true;
            let written = self.file.write_at(u64::from(frames.offset), &bytes[frames.start..frames.end]);
            written.map_err(|source| self.failure("write", &segment_name(self.segment), source))?;
            *frames = Run::default();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if self.is_dirty {
            self.file.flush().map_err(|source| self.failure("flush", &segment_name(self.segment), source))?;
            self.is_dirty = false;
            self.flushes += 1;
        }
        Ok(())
    }

    /// Flushes the frames that [`Writer::begin`] wrote.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.flush()
    }

    /// Removes obsolete files. If a crash interrupts this, the next opening removes the rest.
    pub fn remove(&mut self) -> Result<(), Failure> {
        let removals = std::mem::take(&mut self.removals);
        self.remove_all(removals)
    }

    /// Removes these files.
    pub fn remove_all(&self, names: Vec<String>) -> Result<(), Failure> {
        for name in names {
            match self.disk.remove(&name) {
                // A snapshot that was received twice: the previous removal deleted its file.
                Err(source) if source.kind() == std::io::ErrorKind::NotFound => {}
                removed => removed.map_err(|source| self.failure("remove", &name, source))?,
            }
        }
        Ok(())
    }
}

/// Frames that are consecutive in memory and in the segment.
#[derive(Debug, Default)]
struct Run {
    start: usize,
    end: usize,
    offset: u32,
}

impl Run {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// Creates a segment with its first frame. It gets its name when all of that is durable, so that a named segment always
/// has its first frame.
pub fn create_segment<D: Disk>(disk: &D, header: SegmentHeader, first: &[u8]) -> Result<D::File, Failure> {
    let name = segment_name(header.number);
    let unfinished = name.clone() + UNFINISHED;
    let failure = |what, source| Failure { what, path: disk.place(&name), source: Arc::new(source) };
    let file = disk.create(&unfinished, u64::from(header.file_bytes)).map_err(|source| failure("make", source))?;
    file.write_at(0, &header.to_bytes()).map_err(|source| failure("write", source))?;
    file.write_at(SEGMENT_HEADER_BYTES as u64, first).map_err(|source| failure("write", source))?;
    file.flush().map_err(|source| failure("flush", source))?;
    disk.rename(&unfinished, &name).map_err(|source| failure("rename", source))?;
    disk.flush_directory().map_err(|source| failure("flush the directory of", source))?;
    Ok(file)
}
