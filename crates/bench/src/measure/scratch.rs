//! A directory for the files of one run.

use std::path::{Path, PathBuf};

use crate::BenchError;

/// A directory below that for temporary files, which is removed with all that is in it when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one, of a name that no other process has.
    ///
    /// # Errors
    /// [`BenchError::Io`].
    pub fn make(what: &str) -> Result<Scratch, BenchError> {
        let path = std::env::temp_dir().join(format!("dunlin-{what}-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(BenchError::io(format!("make the directory {}", path.display())))?;
        Ok(Scratch(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left over is in the directory for what may be removed.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
