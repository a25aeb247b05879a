//! Input files, compressed or not, with reading progress.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// How far a file has been read, in bytes of the file. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A file that is being read.
pub struct Input {
    /// The file's contents, decompressed.
    pub reader: Box<dyn BufRead + Send>,
    /// Bytes of the file, if that is known.
    pub len: Option<u64>,
    /// How far the file has been read.
    pub progress: Progress,
}

impl Input {
    /// Opens a file. A file that begins like gzip is decompressed.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path) -> io::Result<Input> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Input::of(file, metadata.is_file().then_some(metadata.len()))
    }

    /// Reads standard input.
    ///
    /// # Errors
    /// The system's error.
    pub fn stdin() -> io::Result<Input> {
        Input::of(io::stdin(), None)
    }

    fn of(source: impl Read + Send + 'static, len: Option<u64>) -> io::Result<Input> {
        let progress = Progress::default();
        let mut counted = BufReader::with_capacity(BUFFER_BYTES, Counted { source, progress: progress.clone() });
        let is_gzip = counted.fill_buf()?.starts_with(&GZIP);
        let reader: Box<dyn BufRead + Send> = if is_gzip {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(counted)))
        } else {
            Box::new(counted)
        };
        Ok(Input { reader, len, progress })
    }
}

struct Counted<R> {
    source: R,
    progress: Progress,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.progress.0.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
