//! Signal handling of a service: the first ctrl-C or termination signal ends it gracefully, a second one at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::{flag, low_level};

use crate::error::ServeError;
use crate::interrupt::Interrupt;

/// Exit code of a process ended by SIGINT, by the convention of shells.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Makes the first SIGINT or SIGTERM set an interrupt, and the second one end the process with [`EXIT_INTERRUPTED`].
///
/// From now on a write beyond the file size limit (`ulimit -f`) returns an error, and raises no signal.
///
/// # Errors
/// [`ServeError::System`].
pub fn install() -> Result<Interrupt, ServeError> {
    let interrupt = Interrupt::default();
    for signal in [SIGINT, SIGTERM] {
        // In this order: the second signal finds the flag that the first one set, and a thread that is woken finds it
        // set.
        flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED.into(), interrupt.flag())
            .and_then(|_| flag::register(signal, interrupt.flag()))
            .map_err(refused)?;
        ring_on(signal, &interrupt)?;
    }
    flag::register(SIGXFSZ, Arc::default()).map_err(refused)?;
    Ok(interrupt)
}

/// Notes each SIGUSR1, and rings.
///
/// # Errors
/// [`ServeError::System`].
pub fn on_user_signal(interrupt: &Interrupt) -> Result<Asked, ServeError> {
    let asked = Asked::default();
    flag::register(SIGUSR1, asked.0.clone()).map_err(refused)?;
    ring_on(SIGUSR1, interrupt)?;
    Ok(asked)
}

/// Whether a signal has come.
#[derive(Debug, Default)]
pub struct Asked(Arc<AtomicBool>);

impl Asked {
    /// Whether a signal has come since the last call.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Without a bell, the waiting thread polls the flag.
fn ring_on(signal: i32, interrupt: &Interrupt) -> Result<(), ServeError> {
    let Some(button) = interrupt.button() else { return Ok(()) };
    low_level::pipe::register(signal, button).map(drop).map_err(refused)
}

fn refused(why: std::io::Error) -> ServeError {
    ServeError::System { what: "a signal handler", why: why.to_string() }
}
