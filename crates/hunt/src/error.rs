//! The error of a hunt. A broken promise is a result: [`Failure`](crate::Failure).

use std::io;
use std::path::PathBuf;

/// A file of a trace could not be written.
///
/// The displayed message is complete: there is no source, which a chain of causes would repeat.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {cause}", file.display())]
pub struct TraceError {
    /// The file, or the directory of the trace.
    pub file: PathBuf,
    /// The system's answer.
    pub cause: io::Error,
}

impl TraceError {
    /// Names the file of a failed operation.
    pub(crate) fn of(file: PathBuf) -> impl FnOnce(io::Error) -> Self {
        move |cause| TraceError { file, cause }
    }
}
