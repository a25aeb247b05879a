//! Reads a settings file as arguments.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use thiserror::Error;
use toml::{Table, Value};

use super::{leaf, settings};

/// Maximum size of the file, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Why a file of settings cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// It is not TOML.
    #[error("{} is not TOML: {why}", path.display())]
    NotToml {
        /// The file.
        path: PathBuf,
        /// The position and the error.
        why: String,
    },
    /// It has an unknown key.
    #[error("{}: `{command}` has no setting {key:?}{}", path.display(), hint(nearest.as_deref()))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The command.
        command: String,
        /// The key.
        key: String,
        /// The setting with the most similar name, if any.
        nearest: Option<String>,
    },
    /// It has an invalid value for an option.
    #[error("{}: {key}: {why}", path.display())]
    BadValue {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The error.
        why: String,
    },
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or("; --print-config lists them".to_owned(), |nearest| format!("; did you mean {nearest:?}?"))
}

/// The settings of a file as arguments for the selected subcommand, without those that the command line gives or
/// excludes.
pub fn words(command: &Command, matches: &ArgMatches, path: &Path) -> Result<Vec<OsString>, FileError> {
    let (command, name, matches) = leaf(command, matches);
    let mut words = Vec::new();
    for (key, value) in read(path)? {
        let bad = |why: String| FileError::BadValue { path: path.to_owned(), key: key.clone(), why };
        let setting = settings(command).find(|(known, _)| *known == key).map(|(_, setting)| setting);
        let Some(setting) = setting else {
            let nearest = nearest(command, &key);
            return Err(FileError::UnknownKey { path: path.to_owned(), command: name, key, nearest });
        };
        let given = of_setting(setting, &key, value).map_err(bad)?;
        check(command, &given).map_err(bad)?;
        if !is_overruled(command, matches, setting) {
            words.extend(given);
        }
    }
    Ok(words)
}

fn read(path: &Path) -> Result<Table, FileError> {
    let unreadable = |why| FileError::Unreadable { path: path.to_owned(), why };
    let mut text = String::new();
    // Reading a device would never end.
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    if read.map_err(unreadable)? as u64 > BYTES_MAX {
        return Err(unreadable(io::Error::other(format!("settings take {BYTES_MAX} bytes at most"))));
    }
    text.parse().map_err(|why: toml::de::Error| {
        let line = why.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        FileError::NotToml { path: path.to_owned(), why: format!("line {line}: {}", why.message()) }
    })
}

/// The most similar known key, if one is similar enough.
fn nearest(command: &Command, key: &str) -> Option<String> {
    let near = settings(command).map(|(known, _)| (strsim::damerau_levenshtein(&known, key), known)).min()?;
    (near.0 * 2 <= key.len().max(2)).then_some(near.1)
}

/// The equivalent command-line arguments.
fn of_setting(setting: &Arg, key: &str, value: Value) -> Result<Vec<OsString>, String> {
    match (setting.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(given)) => {
            Ok(given.then(|| format!("--{key}").into()).into_iter().collect())
        }
        (ArgAction::SetTrue, _) => Err("give true or false".into()),
        (ArgAction::Count, Value::Integer(times @ 0..=255)) => Ok(vec![format!("--{key}").into(); times as usize]),
        (ArgAction::Count, _) => Err("give a number".into()),
        (action, Value::Array(values)) => {
            let takes_several = matches!(action, ArgAction::Append);
            if !takes_several {
                return Err("give one value, not several".into());
            }
            values.into_iter().map(|value| Ok(word(setting, key, &scalar(value)?))).collect()
        }
        (_, value) => Ok(vec![word(setting, key, &scalar(value)?)]),
    }
}

fn scalar(value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        other => Err(format!("give a text or a number; this is of type {}", other.type_str())),
    }
}

fn word(setting: &Arg, key: &str, value: &str) -> OsString {
    if setting.is_positional() { value.into() } else { format!("--{key}={value}").into() }
}

/// Checks these arguments in isolation, so that errors are attributed to the file.
fn check(command: &Command, words: &[OsString]) -> Result<(), String> {
    let name = OsString::from(command.get_name());
    match command.clone().try_get_matches_from([name].iter().chain(words)) {
        Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => Err(what(&error)),
        _ => Ok(()),
    }
}

/// An argument error in one line.
pub fn what(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let what: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    what.join(" ").trim_start_matches("error: ").to_owned()
}

/// Whether the command line gives this setting, or one that excludes it.
fn is_overruled(command: &Command, matches: &ArgMatches, setting: &Arg) -> bool {
    let is_given = |setting: &Arg| matches.value_source(setting.get_id().as_str()) == Some(ValueSource::CommandLine);
    let excludes = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|excluded| excluded.get_id() == other.get_id())
    };
    let mut given = command.get_arguments().filter(|other| is_given(other));
    given.any(|other| other.get_id() == setting.get_id() || excludes(other, setting) || excludes(setting, other))
}
