//! A directory for the files of one run.

use std::path::{Path, PathBuf};

use crate::LabError;

/// A temporary directory, which is removed with its contents when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory with a name that no other process uses.
    ///
    /// # Errors
    /// [`LabError::Io`].
    pub fn make(what: &str) -> Result<Scratch, LabError> {
        let path = std::env::temp_dir().join(format!("dunlin-{what}-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(LabError::io(format!("make the directory {}", path.display())))?;
        Ok(Scratch(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If it fails, the rest stays in the system's temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
