//! ctrl-C and termination: the first asks to finish, the second ends at once. And files that are as long as they may be.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use dunlin_bench::peer::Interrupt;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// Exit code of a process that was ended by SIGINT, as a shell counts it.
pub const EXIT_INTERRUPTED: u8 = 130;

/// A flag that the first signal sets.
pub fn interrupt() -> Result<Interrupt> {
    let interrupt = Interrupt::default();
    for signal in [SIGINT, SIGTERM] {
        // In this order: the second signal finds the flag set by the first.
        flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED.into(), interrupt.flag())
            .and_then(|_| flag::register(signal, interrupt.flag()))
            .context("cannot handle signals")?;
    }
    // Whoever writes beyond a limit on the length of files (`ulimit -f`) is told by the error of the write, and not ended by this signal.
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).context("cannot handle signals")?;
    Ok(interrupt)
}
