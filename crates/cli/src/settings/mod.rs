//! Settings of commands from a file: one mechanism for every command that flattens [`Source`] into its arguments.
//!
//! The keys of the file are the long names of the command's options. Its settings are appended to the arguments of the
//! command line, which take precedence, and one parser checks both: so a file can express exactly what the command line
//! can.

mod file;
mod print;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, Parser};

use self::file::FileError;
pub use self::file::what;

/// Sources of settings besides the command line.
#[derive(Debug, Clone, clap::Args)]
#[allow(dead_code, reason = "both are looked at before the arguments become this")]
pub struct Source {
    /// Read settings from FILE, in TOML, with the long names of these options as keys; the command line takes
    /// precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective settings, as a file for --config, and end
    #[arg(long)]
    print_config: bool,
}

/// Names of the arguments of [`Source`], which a file cannot give.
const OF_SOURCE: [&str; 2] = ["config", "print_config"];

/// The result of parsing the command line and the file.
pub enum Parsed<A> {
    /// Run a command.
    Run(A),
    /// Print this.
    Print(String),
}

/// Why parsing failed.
#[derive(Debug)]
pub enum Refusal {
    /// The file is invalid.
    File(FileError),
    /// The arguments are invalid, including those from the file.
    Arguments {
        /// The error.
        error: Box<clap::Error>,
        /// The file.
        file: Option<PathBuf>,
    },
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Self {
        Refusal::File(error)
    }
}

/// Parses arguments, and the file that they name.
pub fn parse<A: Parser>(mut words: Vec<OsString>) -> Result<Parsed<A>, Refusal> {
    let mut command = A::command();
    command.build();
    let asked = leniently::<A>(&words).map(|matches| source(&command, &matches));
    let (path, is_print) = asked.unwrap_or_default();
    if let Some(path) = &path {
        let extra = leniently::<A>(&words).map(|matches| file::words(&command, &matches, path));
        words.extend(extra.transpose()?.unwrap_or_default());
    }
    let refused = |error: clap::Error| Refusal::Arguments { error: Box::new(error), file: path.clone() };
    let strict = command.clone().try_get_matches_from(&words);
    match strict {
        // Missing arguments are left out.
        Err(error) if !is_print || error.kind() != ErrorKind::MissingRequiredArgument => return Err(refused(error)),
        Ok(matches) if !is_print => return A::from_arg_matches(&matches).map(Parsed::Run).map_err(refused),
        _ => {}
    }
    let text = leniently::<A>(&words).map(|matches| print::text(&command, &matches));
    Ok(Parsed::Print(text.unwrap_or_default()))
}

/// The arguments as far as they can be parsed; `None` if they ask for help.
fn leniently<A: Parser>(words: &[OsString]) -> Option<ArgMatches> {
    // A command that was already built would not list nested subcommands.
    A::command().ignore_errors(true).try_get_matches_from(words).ok()
}

/// The selected subcommand, its full name, and its arguments.
fn leaf<'a>(command: &'a Command, matches: &'a ArgMatches) -> (&'a Command, String, &'a ArgMatches) {
    let (mut leaf, mut name, mut of_leaf) = (command, command.get_name().to_owned(), matches);
    while let Some((sub, matches)) = of_leaf.subcommand()
        && let Some(command) = leaf.find_subcommand(sub)
    {
        (leaf, of_leaf) = (command, matches);
        name = format!("{name} {sub}");
    }
    (leaf, name, of_leaf)
}

/// The named file, and whether to print settings. A command without [`Source`] has neither.
fn source(command: &Command, matches: &ArgMatches) -> (Option<PathBuf>, bool) {
    let (_, _, matches) = leaf(command, matches);
    let path = matches.try_get_one::<PathBuf>(OF_SOURCE[0]).ok().flatten();
    let is_print = matches.try_get_one::<bool>(OF_SOURCE[1]).ok().flatten();
    (path.map(|path: &PathBuf| Path::to_owned(path)), is_print.copied().unwrap_or(false))
}

/// The settings that a file may contain, with their keys.
fn settings(command: &Command) -> impl Iterator<Item = (String, &clap::Arg)> {
    let all = command.get_arguments().filter(|setting| {
        let id = setting.get_id().as_str();
        !OF_SOURCE.contains(&id) && !matches!(id, "help" | "version")
    });
    all.map(|setting| {
        let key = setting.get_long().map_or_else(|| setting.get_id().as_str().replace('_', "-"), str::to_owned);
        (key, setting)
    })
}

#[cfg(test)]
mod tests;
