//! Signals of a service: ctrl-C and termination end it gracefully, a second one at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::{flag, low_level};

use crate::error::ServeError;
use crate::interrupt::Interrupt;

/// Exit code of a process that was ended by SIGINT, as a shell counts it.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Has the first SIGINT or SIGTERM set an interrupt, and the second one end the process with [`EXIT_INTERRUPTED`].
///
/// A write beyond a limit on the length of files (`ulimit -f`) gives an error from now on, and no signal.
///
/// # Errors
/// [`ServeError::System`].
pub fn install() -> Result<Interrupt, ServeError> {
    let interrupt = Interrupt::default();
    for signal in [SIGINT, SIGTERM] {
        // In this order: the second signal finds the flag set by the first, and whoever is woken finds it set.
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
    /// Whether it has come since this was asked last.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Without a bell, whoever waits looks again and again.
fn ring_on(signal: i32, interrupt: &Interrupt) -> Result<(), ServeError> {
    let Some(button) = interrupt.button() else { return Ok(()) };
    low_level::pipe::register(signal, button).map(drop).map_err(refused)
}

fn refused(why: std::io::Error) -> ServeError {
    ServeError::System { what: "a signal handler", why: why.to_string() }
}
