//! Prints settings as a file.

use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::Value;

use super::{leaf, settings};

/// The settings of the selected subcommand. A setting without a value is printed as a comment.
pub fn text(command: &Command, matches: &ArgMatches) -> String {
    let (command, name, matches) = leaf(command, matches);
    let mut text = format!("# Settings of `{name}`, which takes this file with --config.\n");
    for (key, setting) in settings(command) {
        text.push('\n');
        for line in about(setting).lines() {
            text.push_str(format!("# {line}").trim_end());
            text.push('\n');
        }
        text.push_str(&line(&key, setting, matches));
    }
    text
}

fn about(setting: &Arg) -> String {
    let mut about = setting.get_help().map(ToString::to_string).unwrap_or_default();
    if !matches!(setting.get_action(), ArgAction::SetTrue | ArgAction::Count) {
        let possible = setting.get_possible_values();
        let names: Vec<&str> = possible.iter().map(|value| value.get_name()).collect();
        if !names.is_empty() {
            about.push_str(&format!(": {}", names.join(", ")));
        }
    }
    about
}

fn line(key: &str, setting: &Arg, matches: &ArgMatches) -> String {
    let id = setting.get_id().as_str();
    match setting.get_action() {
        ArgAction::SetTrue => format!("{key} = {}\n", matches.get_flag(id)),
        ArgAction::Count => format!("{key} = {}\n", matches.get_count(id)),
        action => {
            let raw = matches.get_raw(id).into_iter().flatten();
            let values: Vec<Value> = raw.map(|word| value(&word.to_string_lossy())).collect();
            let is_list = matches!(action, ArgAction::Append);
            match &values[..] {
                [] => {
                    let name = setting.get_value_names().and_then(|names| names.first()).map_or("VALUE", |name| name);
                    if is_list { format!("# {key} = [{name:?}]\n") } else { format!("# {key} = {name:?}\n") }
                }
                [one] if !is_list => format!("{key} = {one}\n"),
                _ => format!("{key} = {}\n", Value::Array(values)),
            }
        }
    }
}

/// A number if that is equivalent.
fn value(text: &str) -> Value {
    match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(number), _) if number.to_string() == text => Value::Integer(number),
        (_, Ok(number)) if number.is_finite() && text.contains('.') && number.to_string() == text => {
            Value::Float(number)
        }
        _ => Value::String(text.to_owned()),
    }
}
