//! The file of a tier: a header, then a part for each core.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_store::tier::{Label, TIER_BLOCKS_MIN, TIER_ITEM_BYTES, TIER_LABELLED_ITEM_BYTES, TierConfig};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use thiserror::Error;

use super::TierSettings;
use super::desk::READ_TIME_MAX;

/// The first bytes of the file.
const MAGIC: &[u8; 16] = b"dunlin kv tier 1";
/// Bytes before the first part.
const HEAD_BYTES: u64 = 4096;
/// How often a file is tried that another server has locked.
const LOCK_TRIES: u32 = 20;
const LOCK_WAIT: Duration = Duration::from_millis(25);
/// Smallest part of a core: blocks of 64 KiB.
const PART_BYTES_MIN: u64 = TIER_BLOCKS_MIN * (64 << 10);

/// What a tier reads from and writes to. Its calls block.
pub trait Device: Send + Sync + 'static {
    /// Reads this many bytes.
    ///
    /// # Errors
    /// Any error of the device; so is an end of the file.
    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;

    /// Writes all of these bytes.
    ///
    /// # Errors
    /// Any error of the device.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
}

/// A file that this process has locked.
#[derive(Debug)]
pub struct TierFile {
    file: File,
    part_bytes: u64,
    nonce: u64,
    /// After the file: it is dropped when that is closed.
    opened: Arc<()>,
}

/// Tells whether a file is still open.
pub(crate) struct Opened(Weak<()>);

impl Opened {
    /// Waits until it is closed, but no longer than a device may take.
    pub fn wait(&self) {
        let begun = Instant::now();
        while self.0.strong_count() > 0 && begun.elapsed() < READ_TIME_MAX {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Why a tier cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TierError {
    /// The file cannot be opened, locked or written.
    #[error("cannot {what} the tier {}: {source}", path.display())]
    Io {
        /// What failed.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another server uses it.
    #[error("another server uses the tier {}: give each server a file of its own", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It is another program's file, or damaged.
    #[error("{} is not the file of a tier, or its first bytes are damaged: it is not overwritten; choose another name, or remove it", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It is too small for the cores.
    #[error("a tier of {bytes} bytes is too small for {cores} cores: give it at least {least}")]
    TooSmall {
        /// Its size.
        bytes: u64,
        /// The cores.
        cores: u16,
        /// The least size.
        least: u64,
    },
    /// There is no room for it.
    #[error("cannot reserve {bytes} bytes for the tier {}: {source}; choose a smaller size or another disk", path.display())]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Why.
        source: io::Error,
    },
    /// A setting is out of bounds.
    #[error("a tier cannot have {reads} reads at a time: choose 1 to {}", super::READS_MAX)]
    Reads {
        /// The number of reads.
        reads: usize,
    },
    /// A store keeps everything in memory.
    #[error("a tier needs a cache: a store evicts nothing")]
    NoCache,
    /// A thread could not be started.
    #[error("cannot start a thread for the tier: {0}")]
    Thread(io::Error),
    /// There are no random numbers.
    #[error("no random numbers for the tier: {0}")]
    Random(getrandom::Error),
    /// The queue cannot be as it was asked for.
    #[error(transparent)]
    Schedule(#[from] dunlin_schedule::ConfigError),
}

impl TierFile {
    /// Creates or takes over the file for this many cores. What an earlier tier left in it is never read: each record has
    /// a number that is drawn here.
    ///
    /// # Errors
    /// [`TierError`].
    pub fn open(settings: &TierSettings, cores: u16) -> Result<TierFile, TierError> {
        let path = &settings.path;
        let failed = |what| move |source| TierError::Io { what, path: path.clone(), source };
        if !(1..=super::READS_MAX).contains(&settings.reads) {
            return Err(TierError::Reads { reads: settings.reads });
        }
        let part_bytes = settings.bytes.saturating_sub(HEAD_BYTES) / u64::from(cores);
        if part_bytes < PART_BYTES_MIN {
            let least = HEAD_BYTES + PART_BYTES_MIN * u64::from(cores);
            return Err(TierError::TooSmall { bytes: settings.bytes, cores, least });
        }
        // Only the owner may read other people's values.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path).map_err(failed("open"))?;
        lock(&file).map_err(|errno| match errno {
            Errno::WOULDBLOCK => TierError::InUse { path: path.clone() },
            errno => failed("lock")(errno.into()),
        })?;
        check(&mut file, path)?;
        // First of all: whatever interrupts the rest leaves a file that is known as ours.
        file.write_all_at(MAGIC, 0).and_then(|()| file.sync_data()).map_err(failed("write"))?;
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(TierError::Random)?;
        let nonce = u64::from_le_bytes(nonce);
        // An earlier, larger one gives its room back.
        file.set_len(HEAD_BYTES).map_err(failed("write"))?;
        reserve(&file, settings.bytes).map_err(|source| {
            // What was reserved before the disk was full.
            let _ = file.set_len(HEAD_BYTES);
            TierError::NoRoom { path: path.clone(), bytes: settings.bytes, source }
        })?;
        Ok(TierFile { file, part_bytes, nonce, opened: Arc::default() })
    }

    /// Returns what tells when the file is closed: threads may be in a call until then.
    pub(crate) fn opened(&self) -> Opened {
        Opened(Arc::downgrade(&self.opened))
    }

    /// Returns the offset of a core's part.
    pub(crate) fn part(&self, core: u16) -> u64 {
        HEAD_BYTES + u64::from(core) * self.part_bytes
    }

    /// Returns the settings of a core's partition. With a label, its index has what a replica of a cluster needs.
    pub(crate) fn config(&self, settings: &TierSettings, core: u16, cores: u16, label: Option<Label>) -> TierConfig {
        let item_bytes = if label.is_some() { TIER_LABELLED_ITEM_BYTES } else { TIER_ITEM_BYTES };
        let items_max = settings.index_bytes / usize::from(cores) / item_bytes;
        let mut config = TierConfig::new(self.part_bytes, self.nonce ^ u64::from(core));
        config.items_max = config.items_max.min(items_max.max(1));
        config.value_bytes_min = settings.value_bytes_min;
        config.label = label;
        config
    }
}

/// Locks a file. A server that has just ended may have a thread that is still reading it.
fn lock(file: &File) -> Result<(), Errno> {
    for _ in 0..LOCK_TRIES {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => thread::sleep(LOCK_WAIT),
            result => return result,
        }
    }
    Err(Errno::WOULDBLOCK)
}

/// Checks that a file is empty, or one of ours: also one whose first bytes have not reached the disk, since the machine
/// failed when the file was new. A longer file of zeros is none: images of disks begin with zeros, too.
fn check(file: &mut File, path: &Path) -> Result<(), TierError> {
    let mut first = Vec::new();
    let len = file.take(HEAD_BYTES + 1).read_to_end(&mut first).map_err(|source| TierError::Io {
        what: "read",
        path: path.to_owned(),
        source,
    })?;
    let is_new = len as u64 <= HEAD_BYTES && first.iter().all(|byte| *byte == 0);
    if is_new || MAGIC.starts_with(&first[..len.min(MAGIC.len())]) {
        Ok(())
    } else {
        Err(TierError::Foreign { path: path.to_owned() })
    }
}

/// Reserves room, so that a full disk is noticed now. A file system that cannot do that gets a file with holes.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(bytes),
        Err(errno) => Err(errno.into()),
    }
}

impl Device for TierFile {
    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }
}
