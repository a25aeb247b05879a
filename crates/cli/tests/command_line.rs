//! Wrong use gives one clear line and a non-zero exit.

use std::process::{Command, Output};

fn dunlin(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dunlin")).args(arguments).output().unwrap()
}

/// Asserts that the arguments are refused in one line that contains `why`.
fn refused(arguments: &[&str], why: &str) {
    let output = dunlin(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments:?} was accepted");
    assert!(message.contains(why), "{arguments:?}: {message}");
    assert!(output.stdout.is_empty());
    assert_eq!(message.trim_end().lines().count(), 1, "{arguments:?}: {message}");
}

#[test]
fn refuses_with_one_line() {
    refused(&["bench", "run", "rpc-nothing"], "there is no experiment \"rpc-nothing\": choose one of rpc-latency");
    refused(&["bench", "run", "all", "--json", "/nowhere/report.json"], "cannot write /nowhere/report.json");
    refused(&["bench", "run", "all", "--seconds", "soon"], "not a number of seconds");
    refused(&["bench", "run", "all", "--seconds", "-1"], "--seconds");
    refused(&["bench", "run", "rpc-latency", "--busy-core", "1023"], "core 1023 cannot be used");
    refused(&["frobnicate"], "frobnicate");
}

#[cfg(not(feature = "peers"))]
#[test]
fn says_how_to_build_what_this_build_lacks() {
    refused(&["bench", "run", "rpc-peers"], "`cargo run --release --features peers -- bench run rpc-peers`");
}

#[test]
fn help_shows_examples() {
    for arguments in [&["--help"][..], &["bench", "--help"], &["bench", "run", "--help"]] {
        let output = dunlin(arguments);
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("Examples:\n  dunlin "), "{arguments:?}");
    }
}

#[test]
fn lists_the_experiments() {
    let output = dunlin(&["bench", "list"]);
    assert!(output.status.success());
    let list = String::from_utf8_lossy(&output.stdout);
    for experiment in dunlin_bench::experiments::ALL {
        assert!(list.contains(experiment.name));
    }
}
