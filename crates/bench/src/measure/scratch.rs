//! A directory for the files of one run.

use std::path::{Path, PathBuf};

/// A directory below that for temporary files, which is removed with all that is in it when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Of a name that no other process has. It is not made yet.
    pub fn named(what: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("dunlin-{what}-{}", std::process::id())))
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
