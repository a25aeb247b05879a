//! Rules for all commands.

use std::collections::BTreeMap;

use clap::{Arg, Command, CommandFactory};

use crate::{Arguments, HELP};

/// Calls `visit` with each command that runs without a subcommand, and its words.
fn each_leaf(command: &Command, words: &str, visit: &mut impl FnMut(&Command, &str)) {
    if !command.is_subcommand_required_set() {
        visit(command, words);
    }
    for subcommand in command.get_subcommands().filter(|command| command.get_name() != "help") {
        each_leaf(subcommand, &format!("{words} {}", subcommand.get_name()), visit);
    }
}

fn leaves(mut visit: impl FnMut(&Command, &str)) {
    let mut command = Arguments::command();
    command.build();
    each_leaf(&command, "dunlin", &mut visit);
}

#[test]
fn each_command_and_argument_says_what_it_is() {
    leaves(|command, words| {
        assert!(command.get_about().is_some(), "{words}");
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{words} {}", argument.get_id());
        }
    });
}

#[test]
fn each_command_shows_an_example() {
    let mut without = Vec::new();
    leaves(|command, words| {
        let help = command.clone().render_long_help().to_string();
        if !help.contains("xample") {
            without.push(words.to_owned());
        }
    });
    assert_eq!(without, Vec::<String>::new());
}

/// What an option takes.
fn takes(argument: &Arg) -> String {
    if !argument.get_action().takes_values() {
        return "nothing".into();
    }
    let names = argument.get_value_names().unwrap_or_default();
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_option_means_the_same_in_all_commands() {
    let mut meanings: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    leaves(|command, words| {
        for argument in command.get_arguments() {
            if let Some(name) = argument.get_long() {
                meanings.entry(name.to_owned()).or_default().insert(takes(argument), words.to_owned());
            }
        }
    });
    for (name, meanings) in meanings {
        assert_eq!(meanings.len(), 1, "--{name} takes {meanings:?}");
    }
}

#[test]
fn what_takes_a_time_or_a_place_is_called_so() {
    leaves(|command, words| {
        for argument in command.get_arguments() {
            let (name, takes) = (argument.get_long().unwrap_or_default(), takes(argument));
            let times =
                ["timeout", "for", "ttl", "interval", "election", "heartbeat", "idle", "spin", "expires", "tick"];
            assert!(!times.contains(&name) || takes == "TIME", "{words} --{name} takes {takes}");
            assert_eq!(name == "at", takes == "WHERE", "{words} --{name} takes {takes}");
            let units = ["SECONDS", "MILLISECONDS", "MICROSECONDS", "MINUTES", "SERVER"];
            assert!(!units.contains(&takes.as_str()), "{words} --{name} takes {takes}");
        }
    });
}

#[test]
fn services_that_are_asked_are_asked_in_the_same_way() {
    leaves(|command, words| {
        let has = |name: &str| command.get_arguments().any(|argument| argument.get_long() == Some(name));
        let is_client = has("timeout") || words.starts_with("dunlin top") || words.starts_with("dunlin kv stats");
        assert!(!is_client || has("at"), "{words} is asked where?");
        let is_server = [" serve", " replica", " proxy"].iter().any(|word| words.ends_with(word));
        assert_eq!(is_server, has("config") && has("print-config"), "{words}");
    });
}

#[test]
fn each_command_is_in_a_group() {
    let mut command = Arguments::command();
    command.build();
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        let groups = HELP.lines().next().unwrap_or_default();
        let is_grouped = groups.split([' ', ',', '.']).any(|word| word == command.get_name());
        assert!(is_grouped || !cfg!(feature = "bench"), "{}", command.get_name());
    }
}
