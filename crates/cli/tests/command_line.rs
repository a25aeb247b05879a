//! Wrong usage gives one clear line and a non-zero exit code.

mod program;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

fn dunlin(arguments: &[&str]) -> Output {
    program::dunlin(arguments).output().unwrap()
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
    refused(&["bench", "run", "all", "--save", "/nowhere/report.json"], "cannot write /nowhere/report.json");
    refused(&["bench", "run", "all", "--save", "report.txt"], "ends in .json or .html");
    refused(&["bench", "run", "all", "--for", "soon"], "give a time");
    refused(&["bench", "run", "all", "--for", "3"], "3 of what? Write 3s or 3ms");
    refused(&["bench", "run", "all", "--for=-1s"], "give a time");
    refused(&["bench", "run", "rpc-latency", "--busy-core", "1023"], "core 1023 cannot be used");
    refused(
        &["demo", "--records", "/nowhere/data.tsv"],
        "dunlin: cannot read /nowhere/data.tsv: No such file or directory (os error 2)",
    );
    refused(&["demo", "--records", "/nowhere"], "dunlin: cannot read /nowhere: No such file or directory (os error 2)");
    let toml = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    refused(&["demo", "--records", toml], "the name does not tell the format");
    for count in ["0", "-1", "many"] {
        refused(&["top", "--at", "shm:nobody", &format!("--count={count}")], "give a number of intervals, 1 or more");
    }
    for expires in ["0", "-1s", "NaNs", "3651d"] {
        let expires = format!("--expires={expires}");
        refused(&["kv", "set", "--at", "shm:nobody", "k", "v", &expires], "give ");
    }
    refused(&["frobnicate"], "frobnicate");
}

/// Runs a command with standard output `output`; returns its exit code and standard error.
fn print_to(output: impl Into<Stdio>, arguments: &[&str]) -> (Option<i32>, String) {
    let done =
        program::dunlin(arguments).stdout(output).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

#[test]
fn output_that_cannot_be_written_is_an_error_of_one_line() {
    for arguments in [&["bench", "list"][..], &["sim", "topology", "cx4"], &["sim", "hunt", "--seeds", "1"]] {
        let (code, said) = print_to(File::options().write(true).open("/dev/full").unwrap(), arguments);
        assert_eq!(code, Some(2), "{said}");
        assert_eq!(said, "dunlin: cannot write to standard output: No space left on device (os error 28)\n");
    }
}

#[test]
fn a_reader_that_has_gone_ends_a_command_in_silence() {
    for arguments in [&["bench", "list"][..], &["sim", "topology", "cx4"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(print_to(writer, arguments), (Some(141), String::new()));
    }
}

#[cfg(not(feature = "peers"))]
#[test]
fn says_how_to_build_what_this_build_lacks() {
    refused(&["bench", "run", "rpc-peers"], "`cargo run --release --features peers -- bench run rpc-peers`");
    refused(&["bench", "run", "smr-etcd"], "`cargo run --release --features etcd -- bench run smr-etcd`");
}

#[test]
fn completions_and_manual_pages_are_of_all_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = dunlin(&["completions", shell]);
        let text = String::from_utf8_lossy(&script.stdout);
        assert!(script.status.success() && text.contains("failure-timeout"), "{shell}: {text}");
    }
    refused(&["completions", "cmd"], "cmd");
    let directory = std::env::temp_dir().join(format!("dunlin-test-man-{}", std::process::id()));
    let pages = dunlin(&["man", directory.to_str().unwrap()]);
    assert!(pages.status.success());
    for page in ["dunlin", "dunlin-kv-serve", "dunlin-coord-txn"] {
        let page = std::fs::read_to_string(directory.join(format!("{page}.1"))).unwrap();
        assert!(page.contains(".TH "), "{page}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
    refused(&["man", "/dev/null/pages"], "cannot write manual pages to /dev/null/pages");
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
    for experiment in dunlin_bench::experiments::all() {
        assert!(list.contains(experiment.name));
    }
}

/// Files that start threads: those of `serve`, through which all others do, and threads of a library below it.
const START_THREADS: [&str; 5] = [
    "rpc/src/endpoint/worker.rs",
    "serve/src/companion.rs",
    "serve/src/server.rs",
    "serve/src/side.rs",
    "smr/src/wal/commit.rs",
];
/// They measure or test, and serve nobody.
const TOOLS: [&str; 4] = ["bench", "fuzz", "hunt", "lab"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            found.push(entry);
        }
    }
}

/// Whether a file starts a thread that outlives the call, outside of its tests and examples.
fn starts_threads(file: &Path) -> bool {
    let text = fs::read_to_string(file).unwrap();
    let program = text.split("#[cfg(test)]").next().unwrap();
    let code = program.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.into_iter().any(|line| line.contains("thread::spawn(") || line.contains("thread::Builder"))
}

/// A thread whose panic nobody sees leaves a server that serves half of what it should.
#[test]
fn threads_are_started_where_their_failure_is_noticed() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for member in fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
        let is_tool = TOOLS.iter().any(|tool| member.ends_with(tool));
        let source = member.join("src");
        if !is_tool && source.is_dir() {
            sources(&source, &mut files);
        }
    }
    let of_crates = |file: &PathBuf| file.strip_prefix(crates).unwrap().to_str().unwrap().to_owned();
    let mut found: Vec<String> = files.iter().filter(|file| starts_threads(file)).map(of_crates).collect();
    found.sort();
    assert_eq!(found, START_THREADS, "start other threads by dunlin_serve::Companion or dunlin_serve::side");
}
