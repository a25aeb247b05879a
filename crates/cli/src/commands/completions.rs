//! `dunlin completions`.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::output;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin completions bash > /etc/bash_completion.d/dunlin
  dunlin completions zsh > \"${fpath[1]}/_dunlin\"
  dunlin completions fish > ~/.config/fish/completions/dunlin.fish")]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

/// Runs the command.
pub fn run<C: CommandFactory>(arguments: &Arguments) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut C::command(), "dunlin", &mut script);
    output::value(&script)?;
    Ok(ExitCode::SUCCESS)
}
