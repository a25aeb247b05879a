//! `dunlin coord release`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_coord::{Coordinator, Lease, Token};
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, ask};

/// End a lease whose holder is gone for good
///
/// Afterwards its member can join again, and others can acquire the lease. First make sure that nothing relies on it
/// any more: a live holder is not notified. Exit code 0 if it was released, 3 if the lease is not held with this token.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
`dunlin coord status` shows leases with their tokens. Without this command a lease ends with its time, after a restore also those that the copy has.

Example:
  dunlin coord release /locks/a 815 --at 1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903")]
pub struct Arguments {
    /// The name of the lease
    name: String,
    /// Its current token
    token: Token,
    #[command(flatten)]
    target: Target,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |manager| {
        let lease = Lease { name: arguments.name.clone(), token: arguments.token, ttl_ms: 0, safe_until: 0 };
        manager.release(&lease).await?;
        Ok(Outcome::Done)
    })
}
