//! Snapshots of a state machine as files beside the log: `docs/log-format.md` describes their format.
//!
//! A snapshot is written under a temporary name, flushed and renamed, and the directory is flushed; only then may the
//! log refer to it.

use std::path::PathBuf;

use super::disk::{Disk, DiskFile};
use super::error::{Failure, WalError};
use super::format::{SNAPSHOT_VERSION, VERSION_AT, u32_at, u64_at};
use super::part::Part;
use super::record::Position;
use super::segment::UNFINISHED;

/// Maximum bytes of a block.
pub const SNAPSHOT_BLOCK_BYTES: usize = 256 << 10;
/// Maximum bytes of the description of a snapshot.
pub const SNAPSHOT_ABOUT_BYTES_MAX: usize = 64 << 10;

const NAME_START: &str = "snapshot-";
const MAGIC: [u8; 8] = *b"\x89DNLRSN\n";
const HEADER_BYTES: usize = 48;
const BLOCK_HEADER_BYTES: usize = 16;

/// Returns the name of a group's snapshot that ends with this entry. For group 0 it contains no group number, as before
/// there were groups.
pub fn snapshot_name(group: u16, position: Position) -> String {
    let Position { index, term } = position;
    match group {
        0 => format!("{NAME_START}{index:016x}-{term:016x}"),
        group => format!("{NAME_START}{group:04x}-{index:016x}-{term:016x}"),
    }
}

pub fn is_snapshot_name(name: &str) -> bool {
    let Some(numbers) = name.strip_prefix(NAME_START) else { return false };
    let numbers: Option<Vec<u64>> = numbers.split('-').map(|number| u64::from_str_radix(number, 16).ok()).collect();
    let (group, index, term) = match numbers.as_deref() {
        Some([index, term]) => (0, *index, *term),
        Some([group, index, term]) if *group > 0 => (*group, *index, *term),
        _ => return false,
    };
    u16::try_from(group).is_ok_and(|group| snapshot_name(group, Position { index, term }) == name)
}

/// Writes a snapshot. If it is dropped before it is finished, it leaves a file that the next opening of the log
/// removes.
///
/// It may be used on any thread.
#[derive(Debug)]
pub struct SnapshotWriter<D: Disk> {
    disk: D,
    file: D::File,
    group: u16,
    position: Position,
    block: Vec<u8>,
    at: u64,
    blocks: u32,
}

impl<D: Disk> SnapshotWriter<D> {
    /// Begins the snapshot that ends with the entry at `position`, of this part of a log ([`super::Wal::part`]; for
    /// group 0, the log's identity will do). `about` is for the user, for example the members. Only one may be written
    /// at a time for a position.
    ///
    /// # Errors
    /// [`Failure`]: the disk is full or broken. The log is not affected.
    ///
    /// # Panics
    /// If `about` is longer than [`SNAPSHOT_ABOUT_BYTES_MAX`].
    pub fn create(
        disk: D,
        part: impl Into<Part>,
        position: Position,
        about: &[u8],
    ) -> Result<SnapshotWriter<D>, Failure> {
        let part: Part = part.into();
        assert!(about.len() <= SNAPSHOT_ABOUT_BYTES_MAX, "what is said about a snapshot is short");
        let mut header = Vec::with_capacity(HEADER_BYTES + about.len());
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&SNAPSHOT_VERSION.to_le_bytes());
        header.extend_from_slice(&(about.len() as u32).to_le_bytes());
        for number in [part.identity(), position.index, position.term] {
            header.extend_from_slice(&number.to_le_bytes());
        }
        header.extend_from_slice(&crc32c::crc32c(about).to_le_bytes());
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        header.extend_from_slice(about);
        let group = part.group;
        let failure = |what, source| failure(&disk, group, position, what, source);
        let file =
            disk.create(&(snapshot_name(group, position) + UNFINISHED), 0).map_err(|source| failure("make", source))?;
        file.write_at(0, &header).map_err(|source| failure("write", source))?;
        Ok(SnapshotWriter { disk, file, group, position, block: Vec::new(), at: header.len() as u64, blocks: 0 })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`Failure`]: the disk is full or broken.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            if self.block.is_empty() {
                self.block.resize(BLOCK_HEADER_BYTES, 0);
            }
            let room = BLOCK_HEADER_BYTES + SNAPSHOT_BLOCK_BYTES - self.block.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if now.len() == room {
                self.write_block()?;
            }
        }
        Ok(())
    }

    /// Writes the block; an empty block marks the end.
    fn write_block(&mut self) -> Result<(), Failure> {
        self.block.resize(self.block.len().max(BLOCK_HEADER_BYTES), 0);
        let len = (self.block.len() - BLOCK_HEADER_BYTES) as u32;
        let payload_checksum = crc32c::crc32c(&self.block[BLOCK_HEADER_BYTES..]);
        self.block[..4].copy_from_slice(&len.to_le_bytes());
        self.block[4..8].copy_from_slice(&payload_checksum.to_le_bytes());
        self.block[8..12].copy_from_slice(&self.blocks.to_le_bytes());
        let checksum = block_checksum(self.position, self.at, &self.block[..12]);
        self.block[12..16].copy_from_slice(&checksum.to_le_bytes());
        let written = self.file.write_at(self.at, &self.block);
        written.map_err(|source| failure(&self.disk, self.group, self.position, "write", source))?;
        self.at += self.block.len() as u64;
        self.blocks += 1;
        self.block.clear();
        Ok(())
    }

    /// Flushes the whole blocks written so far, so that there is less to flush at the end.
    ///
    /// # Errors
    /// [`Failure`]: the disk is broken.
    pub fn flush(&self) -> Result<(), Failure> {
        self.file.flush().map_err(|source| failure(&self.disk, self.group, self.position, "flush", source))
    }

    /// Flushes the snapshot and gives it its name: from now on [`super::Wal::compact`] and [`super::Wal::reset`] may
    /// refer to it.
    ///
    /// # Errors
    /// [`Failure`]: the disk is full or broken; the snapshot does not exist then.
    pub fn finish(mut self) -> Result<Position, Failure> {
        if !self.block.is_empty() {
            self.write_block()?;
        }
        self.write_block()?;
        let failure = |what, source| failure(&self.disk, self.group, self.position, what, source);
        let name = snapshot_name(self.group, self.position);
        self.file.flush().map_err(|source| failure("flush", source))?;
        self.disk.rename(&(name.clone() + UNFINISHED), &name).map_err(|source| failure("rename", source))?;
        self.disk.flush_directory().map_err(|source| failure("flush the directory of", source))?;
        Ok(self.position)
    }
}

fn failure<D: Disk>(disk: &D, group: u16, position: Position, what: &'static str, source: std::io::Error) -> Failure {
    Failure { what, path: disk.place(&snapshot_name(group, position)), source: std::sync::Arc::new(source) }
}

/// Returns a block's checksum. It covers the block's place as well, so that a block of another snapshot is not valid
/// here.
fn block_checksum(position: Position, offset: u64, bytes: &[u8]) -> u32 {
    let mut seed = [0; 24];
    seed[..8].copy_from_slice(&position.index.to_le_bytes());
    seed[8..16].copy_from_slice(&position.term.to_le_bytes());
    seed[16..].copy_from_slice(&offset.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&seed), bytes)
}

/// Reads a snapshot, block by block.
#[derive(Debug)]
pub struct SnapshotReader<F> {
    file: F,
    path: PathBuf,
    position: Position,
    about: Vec<u8>,
    block: Vec<u8>,
    at: u64,
    blocks: u32,
    is_over: bool,
}

impl<F: DiskFile> SnapshotReader<F> {
    /// Opens the snapshot that ends with the entry at `position`, of this part of a log. Checks its header, not its
    /// contents.
    ///
    /// # Errors
    /// [`WalError`], with the location of the damage.
    pub fn open<D: Disk<File = F>>(
        disk: &D,
        part: impl Into<Part>,
        position: Position,
    ) -> Result<SnapshotReader<F>, WalError> {
        let part: Part = part.into();
        let name = snapshot_name(part.group, position);
        let path = disk.place(&name);
        let io = |what, source| WalError::Io { what, path: path.clone(), source };
        let damaged = |offset, what| WalError::Damaged { path: path.clone(), offset, what };
        let file = match disk.open(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(WalError::Missing { path }),
            Err(source) => return Err(io("open", source)),
        };
        let mut header = [0; HEADER_BYTES];
        let read = file.read_at(0, &mut header).map_err(|source| io("read", source))?;
        if read < HEADER_BYTES {
            return Err(damaged(read as u64, "the snapshot was truncated"));
        }
        if header[..8] != MAGIC {
            return Err(damaged(0, "this is no snapshot of a log of Dunlin"));
        }
        let version = u32_at(&header, VERSION_AT as usize);
        if version != SNAPSHOT_VERSION {
            return Err(WalError::Version { path, offset: VERSION_AT, found: version });
        }
        if crc32c::crc32c(&header[..44]) != u32_at(&header, 44) {
            return Err(damaged(0, "the header of the snapshot has a wrong checksum"));
        }
        if u64_at(&header, 16) != part.identity() {
            return Err(damaged(16, "the snapshot is one of another log, or of another group"));
        }
        if (u64_at(&header, 24), u64_at(&header, 32)) != (position.index, position.term) {
            return Err(damaged(24, "the snapshot has the name of another one"));
        }
        let about_len = u32_at(&header, 12) as usize;
        if about_len > SNAPSHOT_ABOUT_BYTES_MAX {
            return Err(damaged(12, "what is said about the snapshot is longer than it may be"));
        }
        let mut about = vec![0; about_len];
        let read = file.read_at(HEADER_BYTES as u64, &mut about).map_err(|source| io("read", source))?;
        if read < about_len || crc32c::crc32c(&about) != u32_at(&header, 40) {
            return Err(damaged(HEADER_BYTES as u64, "what is said about the snapshot has a wrong checksum"));
        }
        let at = (HEADER_BYTES + about_len) as u64;
        Ok(SnapshotReader { file, path, position, about, block: Vec::new(), at, blocks: 0, is_over: false })
    }

    /// Returns its description.
    pub fn about(&self) -> &[u8] {
        &self.about
    }

    /// Returns the next bytes; `None` at the end.
    ///
    /// # Errors
    /// [`WalError`], with the location of the damage. The bytes returned before are intact.
    pub fn next_block(&mut self) -> Result<Option<&[u8]>, WalError> {
        if self.is_over {
            return Ok(None);
        }
        let mut header = [0; BLOCK_HEADER_BYTES];
        let (at, path) = (self.at, &self.path);
        let damaged = |offset, what| WalError::Damaged { path: path.clone(), offset, what };
        let io = |source| WalError::Io { what: "read", path: path.clone(), source };
        let read = self.file.read_at(at, &mut header).map_err(io)?;
        if read < BLOCK_HEADER_BYTES {
            return Err(damaged(at + read as u64, "the snapshot was truncated"));
        }
        let len = u32_at(&header, 0) as usize;
        if block_checksum(self.position, at, &header[..12]) != u32_at(&header, 12)
            || len > SNAPSHOT_BLOCK_BYTES
            || u32_at(&header, 8) != self.blocks
        {
            return Err(damaged(at, "the header of a block is not as it was written"));
        }
        self.block.resize(len, 0);
        let read = self.file.read_at(at + BLOCK_HEADER_BYTES as u64, &mut self.block).map_err(io)?;
        if read < len || crc32c::crc32c(&self.block) != u32_at(&header, 4) {
            return Err(damaged(at, "a block has a wrong checksum"));
        }
        self.at += (BLOCK_HEADER_BYTES + len) as u64;
        self.blocks += 1;
        self.is_over = len == 0;
        if self.is_over {
            if self.file.len().map_err(io)? != self.at {
                return Err(damaged(self.at, "something follows the end of the snapshot"));
            }
            return Ok(None);
        }
        Ok(Some(&self.block))
    }
}
