//! The file of a packet capture.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A buffered file that remembers its first error: whoever writes packets to it goes on without it.
pub struct Capture {
    path: PathBuf,
    file: BufWriter<File>,
    error: Option<io::Error>,
}

impl Capture {
    /// Makes the file, or empties it.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| cannot_write(path))?;
        Ok(Capture { path: path.to_owned(), file: BufWriter::new(file), error: None })
    }

    /// Writes what is left, and says whether all of it was written.
    pub fn finish(mut self) -> Result<()> {
        let written = self.error.take().map_or_else(|| self.file.flush(), Err);
        // What could not be written is not tried again when it is dropped.
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
