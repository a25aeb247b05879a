//! `dunlin man`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::output;

/// Write manual pages: one for this program, and one for each of its commands
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin man /usr/local/share/man/man1
  dunlin man . && man ./dunlin-kv-serve.1")]
pub struct Arguments {
    /// Their directory, which is created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs the command.
pub fn run<C: CommandFactory>(arguments: &Arguments) -> Result<ExitCode> {
    let directory = &arguments.directory;
    let wrong = || format!("cannot write manual pages to {}", directory.display());
    fs::create_dir_all(directory).with_context(wrong)?;
    clap_mangen::generate_to(C::command(), directory).with_context(wrong)?;
    output::line(format_args!("manual pages are in {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
