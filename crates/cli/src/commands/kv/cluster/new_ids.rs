//! `dunlin kv cluster new-id`.

use std::process::ExitCode;

use anyhow::{Result, anyhow};

use crate::output;

/// Draw the id of a new cluster, for its description
///
/// Two clusters with one id, one name and servers of the same names would mix their items if a server of one got the
/// address of a server of the other.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv cluster new-id")]
pub struct Arguments {}

/// Runs the command.
pub fn run(_: &Arguments) -> Result<ExitCode> {
    let id = getrandom::u64().map_err(|why| anyhow!("the system gives no random numbers: {why}"))?;
    output::line(format_args!("{id:016x}"))?;
    Ok(ExitCode::SUCCESS)
}
