//! The file of a packet capture.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A buffered file that remembers its first error: the writer of packets continues without it.
pub struct Capture {
    path: PathBuf,
    file: BufWriter<File>,
    error: Option<io::Error>,
}

impl Capture {
    /// Creates the file, or truncates it.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| cannot_write(path))?;
        Ok(Capture { path: path.to_owned(), file: BufWriter::new(file), error: None })
    }

    /// Flushes the file. Fails if any write has failed.
    pub fn finish(mut self) -> Result<()> {
        let written = self.error.take().map_or_else(|| self.file.flush(), Err);
        // Bytes that could not be written are not tried again on drop.
        let _ = self.file.into_parts();
        written.with_context(|| cannot_write(&self.path))
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write the packet capture {}", path.display())
}

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        if let Err(error) = &written
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.error = Some(error.kind().into());
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
