//! Threads for blocking work: on a disk, a pipe, a foreign event loop. They own no endpoint.

use std::thread::{self, JoinHandle};

use crate::error::ServeError;
use crate::panics::guarded_now;

/// Starts a thread with a name. If it panics, that is logged, and joining it returns `None`.
///
/// # Errors
/// [`ServeError::System`] if the system has no thread left.
pub fn start<R: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<JoinHandle<Option<R>>, ServeError> {
    let log = name.to_owned();
    let work = move || guarded_now(work, |why| tracing::error!(thread = log, why, "a thread has failed"));
    let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map_err(|why| ServeError::System { what: "a thread", why: why.to_string() })
}
