//! `dunlin kv load`, `dump` and `stats`, and `dunlin top` into a pipe, as processes beside a server.

mod program;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use program::{Server, dunlin};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server over shared memory, and its address.
fn serve(name: &str, arguments: &[&str]) -> (Server, String) {
    let address = format!("shm:test-data-{name}-{}", std::process::id());
    (serve_at(&address, arguments), address)
}

fn serve_at(address: &str, arguments: &[&str]) -> Server {
    Server::start(dunlin(&[&["kv", "serve", "--memory", "64MiB", "--at", address], arguments].concat()))
}

fn run(arguments: &[&str]) -> Output {
    dunlin(arguments).output().unwrap()
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("dunlin-test-data-{}-{name}", std::process::id()))
}

#[test]
fn what_is_loaded_comes_back() {
    let (_server, address) = serve("load", &["--mode", "store", "--cores", "2"]);
    let (csv, tsv, json) = (temporary("in.csv"), temporary("out.tsv"), temporary("out.jsonl.gz"));
    std::fs::write(&csv, "id,name,flags\n7,\"two\nlines\",3\n8,tab\there,0\n9\n").unwrap();
    let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let columns = ["--key-column", "id", "--value-column", "name"];
    let loaded = run(&[&["kv", "load", &path(&csv), "--at", &address][..], &columns].concat());
    assert_eq!(loaded.status.code(), Some(3), "{}", text(&loaded.stderr));
    assert!(text(&loaded.stdout).starts_with("2 records loaded"), "{}", text(&loaded.stdout));
    assert!(text(&loaded.stderr).contains("line 5: only 1 fields"), "{}", text(&loaded.stderr));
    let strict = run(&[&["kv", "load", &path(&csv), "--at", &address, "--strict"][..], &columns].concat());
    assert_eq!(strict.status.code(), Some(2));

    assert!(run(&["kv", "dump", "--at", &address, &path(&tsv)]).status.success());
    let dump = std::fs::read_to_string(&tsv).unwrap();
    let mut lines: Vec<&str> = dump.lines().collect();
    lines[1..].sort_unstable();
    assert_eq!(lines, ["key\tvalue\tflags\texpires", "7\ttwo\\nlines\t3\t", "8\ttab\\there\t0\t"]);

    // Through another server and another format.
    let (_second_server, second) = serve("second", &[]);
    assert!(run(&["kv", "dump", "--at", &address, &path(&json)]).status.success());
    let loaded = run(&["kv", "load", &path(&json), "--at", &second]);
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    let got = run(&["kv", "get", "--at", &second, "7"]);
    assert_eq!(text(&got.stdout), "two\nlines");
    for file in [csv, tsv, json] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn standard_input_and_output_will_do() {
    let (_server, address) = serve("pipes", &[]);
    let mut load = dunlin(&["kv", "load", "-", "--at", &address, "--format", "jsonl"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    load.stdin.take().unwrap().write_all(b"{\"key\": \"a\", \"value\": [1, 2]}\n").unwrap();
    assert!(load.wait_with_output().unwrap().status.success());
    let dump = run(&["kv", "dump", "--at", &address, "--format", "csv"]);
    assert_eq!(text(&dump.stdout), "key,value,flags,expires,encoding\na,\"[1, 2]\",0,,\n");
    let refused = |arguments: &[&str], why: &str| {
        let output = run(arguments);
        assert!(
            !output.status.success() && text(&output.stderr).contains(why),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
    };
    refused(&["kv", "load", "-", "--at", &address], "say --format");
    refused(&["kv", "load", "/nowhere/file.tsv", "--at", &address], "cannot read /nowhere/file.tsv");
    // What is no source has no header either.
    let toml = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for source in [["--snapshot", "/nowhere/kv.snapshot"], ["--at", "shm:test-data-nobody"], ["--snapshot", toml]] {
        for format in ["tsv", "csv"] {
            let output = run(&[&["kv", "dump", "--format", format], &source[..]].concat());
            assert!(!output.status.success() && output.stdout.is_empty(), "{source:?}: {}", text(&output.stdout));
        }
    }
    refused(&["kv", "dump", "--snapshot", "/nowhere/kv.snapshot"], "cannot read /nowhere/kv.snapshot");
    refused(&["kv", "dump"], "--at <WHERE>");
    refused(&["kv", "dump", "--at", &address, "out.unknown"], "say --format");
}

#[test]
fn a_reader_that_has_had_enough_ends_a_dump_in_silence() {
    let (_server, address) = serve("enough", &["--mode", "store"]);
    let snapshot = temporary("enough.snapshot");
    let (keeper, kept) = serve("enough-kept", &["--snapshot", snapshot.to_str().unwrap()]);
    for server in [&address, &kept] {
        let mut set = dunlin(&["kv", "set", "--at", server, "large", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        // More than any buffer on the way holds.
        set.stdin.take().unwrap().write_all(&vec![b'x'; 500_000]).unwrap();
        assert!(set.wait().unwrap().success());
    }
    assert!(keeper.stop("-TERM").ends_with("ended\n"));
    for source in [["--at", &address], ["--snapshot", snapshot.to_str().unwrap()]] {
        for format in ["tsv", "csv", "jsonl"] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut dump = dunlin(&[&["kv", "dump", "--format", format], &source[..]].concat());
            let dump = dump.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
            assert_eq!((dump.status.code(), text(&dump.stderr)), (Some(141), String::new()), "{source:?} as {format}");
        }
    }
    std::fs::remove_file(snapshot).unwrap();
}

#[test]
fn a_pipe_is_written_to_and_not_replaced() {
    let (_server, address) = serve("fifo", &[]);
    assert!(run(&["kv", "set", "--at", &address, "bird", "dunlin"]).status.success());
    let pipe = temporary("pipe.tsv");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read_to_string(pipe).unwrap()
    });
    let dumped = run(&["kv", "dump", "--at", &address, pipe.to_str().unwrap()]);
    let is_pipe = std::fs::metadata(&pipe).unwrap().file_type().is_fifo();
    std::fs::remove_file(&pipe).unwrap();
    assert!(dumped.status.success() && is_pipe, "{}", text(&dumped.stderr));
    assert_eq!(reader.join().unwrap(), "key\tvalue\tflags\texpires\nbird\tdunlin\t0\t\n");
}

#[test]
fn a_snapshot_is_dumped_without_a_server() {
    let (snapshot, dump) = (temporary("snapshot"), temporary("dump.tsv"));
    let (server, address) = serve("snapshot", &["--snapshot", snapshot.to_str().unwrap()]);
    assert!(run(&["kv", "set", "--at", &address, "bird", "dunlin"]).status.success());
    assert!(run(&["kv", "snapshot", "--at", &address]).status.success());
    server.stop("-TERM");
    let dumped = run(&["kv", "dump", "--snapshot", snapshot.to_str().unwrap(), dump.to_str().unwrap()]);
    assert!(dumped.status.success(), "{}", text(&dumped.stderr));
    assert_eq!(std::fs::read_to_string(&dump).unwrap(), "key\tvalue\tflags\texpires\nbird\tdunlin\t0\t\n");
    let bytes = std::fs::read(&snapshot).unwrap();
    std::fs::write(&snapshot, &bytes[..bytes.len() - 1]).unwrap();
    let before = std::fs::read(&dump).unwrap();
    let dumped = run(&["kv", "dump", "--snapshot", snapshot.to_str().unwrap(), dump.to_str().unwrap()]);
    assert!(!dumped.status.success());
    assert_eq!(std::fs::read(&dump).unwrap(), before, "a dump that is not complete replaces nothing");
    for file in [snapshot, dump] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn statistics_count_what_was_done() {
    let (_server, address) = serve("stats", &["--cores", "2"]);
    for key in ["a", "b", "c"] {
        assert!(run(&["kv", "set", "--at", &address, key, "1"]).status.success());
    }
    run(&["kv", "get", "--at", &address, "a"]);
    run(&["kv", "get", "--at", &address, "none"]);
    let json = run(&["kv", "stats", "--at", &address, "--json"]);
    let stats: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let sum = |kind: &str, what: &str| {
        let cores = stats["cores"].as_array().unwrap().iter();
        cores.filter_map(|core| core["operations"][kind][what].as_u64()).sum::<u64>()
    };
    assert_eq!((sum("set", "hits"), sum("get", "hits"), sum("get", "misses")), (3, 1, 1));
    assert_eq!(stats["cores"].as_array().unwrap().len(), 2);
    let shown = text(&run(&["kv", "stats", "--at", &address]).stdout);
    assert!(shown.contains("items  3, 6 B of keys and values") && shown.contains("hit ratio  50.0%"), "{shown}");
    assert!(!run(&["kv", "stats", "--at", "shm:test-data-nobody"]).status.success());
}

/// `dunlin top` into a pipe.
struct Top {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Top {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }
}

#[test]
fn top_prints_lines_and_follows_a_restart() {
    let (mut server, address) = serve("top", &[]);
    let mut process = dunlin(&["top", "--at", &address, "--interval", "50ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(process.stderr.take().unwrap());
    let mut top = Top { output: BufReader::new(process.stdout.take().unwrap()), process };
    assert!(top.line().trim_start().starts_with("ops/s"));
    let columns = top.line().split_whitespace().count();
    assert_eq!(columns, 12);
    server.kill();
    let mut error = String::new();
    errors.read_line(&mut error).unwrap();
    assert!(error.contains("asking again"), "{error}");
    let _server = serve_at(&address, &[]);
    while !error.contains("was started again") {
        error.clear();
        assert!(errors.read_line(&mut error).unwrap() > 0, "it ended");
    }
    assert_eq!(top.line().split_whitespace().count(), columns);
    assert!(Command::new("kill").args(["-INT", &top.process.id().to_string()]).status().unwrap().success());
    assert!(top.process.wait().unwrap().success());
}

#[test]
fn top_ends_after_its_count() {
    let (_server, address) = serve("count", &[]);
    let output = run(&["top", "--at", &address, "--interval", "20ms", "--count", "3"]);
    assert!(output.status.success());
    assert_eq!(text(&output.stdout).lines().count(), 4);
    let nobody = run(&["top", "--at", "shm:test-data-nobody"]);
    assert!(!nobody.status.success() && text(&nobody.stderr).contains("no statistics from shm:test-data-nobody"));
}
