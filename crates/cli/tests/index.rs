//! `dunlin index` as processes: a server and its clients, and the effects of stopping, killing and misusing it.

mod program;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::rc::Rc;

use dunlin_index::wire::{After, Code, LONG_PAGE, LONG_SCAN, OPERATE, Operation, ScanRequest};
use dunlin_index::{Client, ClientConfig, IndexError, KEY_BYTES_MAX, Order, Range, VALUE_BYTES_MAX};
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{CallError, Endpoint, EndpointConfig};
use program::{Server, dunlin};
use serde_json::Value;

fn index(arguments: &[&str]) -> Command {
    dunlin(&[&["index"], arguments].concat())
}

fn serve(arguments: &[&str]) -> Server {
    Server::start(index(&[&["serve", "--memory", "64MiB"], arguments].concat()))
}

/// A name that no other test and no other run uses.
fn shm(name: &str) -> String {
    format!("shm:test-index-{name}-{}", std::process::id())
}

/// A command's exit code, output and errors.
fn run(arguments: &[&str]) -> (i32, String, String) {
    ended(index(arguments).stdin(Stdio::null()).output().unwrap())
}

fn ended(output: Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// The same with an input.
fn run_with(arguments: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut command = index(arguments);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may end without reading all of it.
    let _ = process.stdin.take().unwrap().write_all(input);
    ended(process.wait_with_output().unwrap())
}

/// The output of a command that succeeds.
fn out(arguments: &[&str]) -> String {
    let (code, out, err) = run(arguments);
    assert_eq!(code, 0, "{arguments:?}: {out}{err}");
    out
}

fn refused(arguments: &[&str], why: &str) {
    let (code, out, err) = run(arguments);
    assert!(code == 2 && out.is_empty() && err.contains(why), "{arguments:?}: {code} {out} {err}");
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

/// A file that is removed at the end of its test.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str) -> TestFile {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("index-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        TestFile(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn items_are_stored_found_scanned_and_deleted_over_both_transports() {
    let server = serve(&["--at", &shm("both"), "--at", "udp://127.0.0.1:0", "--cores", "2", "--workers", "2"]);
    assert!(server.ready.contains("; 2 cores, 2 workers, 64 MiB; ctrl-C ends it"), "{}", server.ready);
    let [near, far] = &server.addresses[..] else { panic!("{:?}", server.addresses) };
    for number in 0..20 {
        assert_eq!(out(&["put", "--at", near, &format!("key/{number:02}"), &format!("value {number}")]), "");
    }
    assert_eq!(json(&out(&["put", "--at", far, "key/07", "seven", "--json"])), json(r#"{"existed": true}"#));
    assert_eq!(out(&["get", "--at", far, "key/07"]), "seven");
    assert_eq!(json(&out(&["get", "--at", far, "key/07", "--json"])), json(r#"{"key": "key/07", "value": "seven"}"#));
    assert_eq!(out(&["get", "--at", near, "key/01", "key/02"]), "key/01\tvalue 1\nkey/02\tvalue 2\n");
    let (code, found, _) = run(&["get", "--at", near, "none", "key/02"]);
    assert_eq!((code, &found[..]), (1, "key/02\tvalue 2\n"));
    assert_eq!(run(&["get", "--at", near, "none"]).0, 1);
    let (code, _, err) = run_with(&["put", "--at", far, "raw\tkey", "-"], &[0, 255, b'\n']);
    assert_eq!(code, 0, "{err}");
    let raw = index(&["get", "--at", near, "raw\tkey"]).output().unwrap();
    assert_eq!(raw.stdout, [0, 255, b'\n']);

    let keys = |arguments: &[&str]| -> Vec<String> {
        let text = out(&[&["scan", "--at", far], arguments].concat());
        text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&[]).len(), 21);
    assert_eq!(keys(&["--prefix", "key/", "--count", "3"]), ["key/00", "key/01", "key/02"]);
    let pages = |stats: &Value, name: &str| -> u64 {
        let cores = stats["cores"].as_array().unwrap();
        cores.iter().map(|core| core["service"][name].as_u64().unwrap()).sum()
    };
    // The three need no worker; all of them did.
    let stats = json(&out(&["stats", "--at", far, "--json"]));
    assert_eq!((pages(&stats, "short_pages"), pages(&stats, "long_pages")), (1, 1), "{stats}");
    assert_eq!(keys(&["--prefix", "key/", "--past", "key/17"]), ["key/18", "key/19"]);
    assert_eq!(keys(&["--from", "key/03", "--to", "key/05"]), ["key/03", "key/04"]);
    assert_eq!(keys(&["--from", "key/03", "--to", "key/05", "--backwards"]), ["key/04", "key/03"]);
    assert_eq!(keys(&["--backwards", "--count", "2"]), ["raw\\tkey", "key/19"]);
    assert!(keys(&["--prefix", "no such thing"]).is_empty());
    assert_eq!(out(&["scan", "--at", near, "--prefix", "raw"]), "raw\\tkey\t\\x00\\xff\\n\n");
    let lines = out(&["scan", "--at", near, "--prefix", "raw", "--json"]);
    assert_eq!(json(&lines), json(r#"{"key": "raw\tkey", "value_base64": "AP8K"}"#));
    assert_eq!(out(&["scan", "--at", near, "--total"]), "21\n");
    let total = out(&["scan", "--at", near, "--total", "--prefix", "key/", "--json"]);
    assert_eq!(json(&total), json(r#"{"items": 20}"#));

    assert_eq!(out(&["delete", "--at", near, "key/00"]), "");
    let long = "x".repeat(KEY_BYTES_MAX + 1);
    let (code, _, err) = run(&["delete", "--at", far, "key/01", &long]);
    assert!(code == 2 && err.contains("1 items deleted before an error: "), "{code} {err}");
    let (code, _, err) = run(&["delete", "--at", near, &long, "key/02"]);
    assert!(code == 2 && !err.contains("deleted before"), "{code} {err}");
    let (code, _, err) = run(&["delete", "--at", far, "key/00", "key/02"]);
    assert!(code == 1 && err.contains("there is no item \"key/00\""), "{code} {err}");
    let (code, deleted, _) = run(&["delete", "--at", far, "key/02", "--json"]);
    assert_eq!((code, json(&deleted)), (1, json(r#"{"key": "key/02", "existed": false}"#)));
    let stats = json(&out(&["stats", "--at", far, "--json"]));
    assert_eq!((&stats["index"]["items"], &stats["workers"]), (&json("18"), &json("2")));
    assert_eq!(stats["cores"].as_array().unwrap().len(), 2);
    let text = out(&["stats", "--at", near]);
    for part in ["items  18\n", "idle in free nodes", "levels  1 in the first of ", "long-scan", "count"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    refused(&["snapshot", "--at", near], "saved no snapshot: the server has no file for snapshots");
    assert_eq!(out(&["delete", "--at", far, "--from", "key/03", "--to", "key/05"]), "2 items deleted\n");
    let deleted = out(&["delete", "--at", near, "--prefix", "key/", "--json"]);
    assert_eq!(json(&deleted), json(r#"{"deleted": 15}"#));
    assert_eq!(out(&["delete", "--at", near, "--prefix", "key/"]), "0 items deleted\n");
    assert_eq!(keys(&[]), ["raw\\tkey"]);
    assert_eq!(server.stop("-TERM"), "ended\n");
}

/// Loads 10,000 items, and finds all of them after a graceful end; what came after the last snapshot ends with SIGKILL.
#[test]
fn everything_is_there_after_a_restart() {
    let (snapshot, records) = (TestFile::new("restart.snapshot"), TestFile::new("restart.tsv"));
    let name = shm("restart");
    let start = || serve(&["--at", &name, "--snapshot", snapshot.path()]);
    let server = start();
    let lines: String = (0..10_000).map(|number| format!("item/{number:05}\tvalue of {number}\n")).collect();
    std::fs::write(&records.0, &lines).unwrap();
    let loaded = out(&["load", records.path(), "--at", &name]);
    assert!(loaded.starts_with("10000 records loaded"), "{loaded}");
    assert_eq!(out(&["scan", "--at", &name]), lines);
    let said = server.stop("-TERM");
    assert!(said.starts_with("snapshot saved: 10000 items, ") && said.ends_with("\nended\n"), "{said}");

    let mut server = start();
    assert!(server.ready.contains(", 10000 items loaded; ctrl-C"), "{}", server.ready);
    assert_eq!(out(&["scan", "--at", &name]), lines);
    out(&["put", "--at", &name, "kept", "x"]);
    let saved = json(&out(&["snapshot", "--at", &name, "--json"]));
    assert_eq!(saved["items"], 10_001);
    assert_eq!(saved["file_bytes"], std::fs::metadata(&snapshot.0).unwrap().len());
    out(&["put", "--at", &name, "lost", "x"]);
    server.kill();

    let mut server = start();
    assert_eq!(out(&["scan", "--at", &name, "--total"]), "10001\n");
    assert_eq!(run(&["get", "--at", &name, "lost"]).0, 1);
    // A signal makes a snapshot, too.
    out(&["put", "--at", &name, "signalled", "x"]);
    let mut errors = BufReader::new(server.process.stderr.take().unwrap()).lines();
    server.signal("-USR1");
    let said = errors.next().unwrap().unwrap();
    assert!(said.starts_with("dunlin: snapshot saved: 10002 items, "), "{said}");
    refused(&["serve", "--at", &shm("second"), "--snapshot", snapshot.path()], "another server uses the snapshot");
    server.kill();

    // The dump of a snapshot is that of a server.
    let dump = out(&["dump", "--snapshot", snapshot.path()]);
    assert_eq!(dump.lines().count(), 1 + 10_002);
    let server = start();
    assert_eq!(out(&["dump", "--at", &name]), dump);
    server.stop("-INT");

    // A damaged file is refused, with the place of the damage, and left as it is. So is a file that was cut off.
    let good = std::fs::read(&snapshot.0).unwrap();
    let mut damaged = good.clone();
    damaged[good.len() / 2] ^= 1;
    for (bytes, why) in [(&damaged[..], "a block is damaged"), (&good[..good.len() - 1], "it was truncated")] {
        std::fs::write(&snapshot.0, bytes).unwrap();
        let arguments = ["serve", "--at", &name, "--snapshot", snapshot.path()];
        refused(&arguments, why);
        refused(&arguments, "cannot load the snapshot");
        assert_eq!(std::fs::read(&snapshot.0).unwrap(), bytes);
    }
    std::fs::write(&snapshot.0, good).unwrap();
    let small = ["serve", "--at", &name, "--memory", "100KiB", "--snapshot", snapshot.path()];
    refused(&small, "has room for");
    assert!(start().stop("-TERM").contains("10002 items"));
}

#[test]
fn what_is_dumped_is_loaded_and_records_that_do_not_fit_are_named() {
    let (first, second) = (shm("from"), shm("into"));
    let _servers = [serve(&["--at", &first]), serve(&["--at", &second])];
    let input = b"{\"key\": \"a\", \"value\": \"1\"}\n{\"key\": \"b\", \"value\": \"2\", \"flags\": 3}\n\
                  {\"key\": \"c\", \"value\": \"3\", \"expires\": 4000000000}\n{\"key_base64\": \"AP8=\", \"value\": \"x\"}\n\
                  not json\n{\"key\": \"a\", \"value\": \"last\"}\n";
    let load = ["load", "-", "--at", &first, "--format", "jsonl"];
    let (code, told, err) = run_with(&load, input);
    assert_eq!(code, 3, "{told}{err}");
    assert!(told.starts_with("3 records loaded"), "{told}");
    for why in [
        "line 2: key \"b\": the record has flags, which an index does not keep",
        "line 3: key \"c\": the record expires, which an index does not keep",
        "line 5",
        "3 records were left out",
    ] {
        assert!(err.contains(why), "{why} is not in {err}");
    }
    let file = TestFile::new("dump.csv.gz");
    out(&["dump", file.path(), "--at", &first]);
    out(&["load", file.path(), "--at", &second]);
    assert_eq!(out(&["scan", "--at", &second]), "\\x00\\xff\tx\na\tlast\n");
    assert_eq!(out(&["scan", "--at", &second]), out(&["scan", "--at", &first]));
    // The first record may have been stored by then.
    let (code, _, err) = run_with(&[&load[..], &["--strict"]].concat(), input);
    assert!(code == 2 && err.contains(": line "), "{code} {err}");
    refused(&["load", "-", "--at", &first], "say --format");
    refused(&["load", "/nowhere/file.tsv", "--at", &first], "cannot read /nowhere/file.tsv");
    refused(&["dump", "--snapshot", "/nowhere/index.snapshot"], "cannot read /nowhere/index.snapshot");
    refused(&["dump"], "--at <WHERE>");
    let toml = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    refused(&["dump", "--snapshot", toml], "this is no snapshot of Dunlin");
    // A reader that has had enough.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut dump = index(&["dump", "--at", &first]);
    let dump = dump.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!((dump.status.code(), &dump.stderr[..]), (Some(141), &b""[..]));
}

#[test]
fn wrong_use_is_refused_with_a_reason_and_silence_is_said() {
    let name = shm("wrong");
    let server = Server::start(index(&["serve", "--at", &name, "--memory", "1MiB"]));
    out(&["put", "--at", &name, "there", "before"]);
    refused(
        &["scan", "--at", &name, "--from", "b", "--to", "a"],
        "the lower bound of the scan is above its upper bound",
    );
    refused(&["scan", "--at", &name, "--total", "--from", "b", "--to", "a"], "is above its upper bound");
    refused(&["delete", "--at", &name, "--from", "b", "--to", "a"], "is above its upper bound");
    refused(&["delete", "--at", &name, "there", "--prefix", "t"], "cannot be used with");
    refused(&["delete", "--at", &name], "required");
    refused(&["scan", "--at", &name, "--prefix", "a", "--past", "b"], "does not begin with");
    refused(&["scan", "--at", &name, "--prefix", "a", "--to", "b"], "cannot be used with");
    refused(&["scan", "--at", &name, "--count", "0"], "0 is not in 1..");
    let long = "k".repeat((64 << 10) + 1);
    for arguments in [&["get", "--at", &name, &long][..], &["put", "--at", &name, &long, "v"]] {
        refused(arguments, "nothing was sent: the key has 65537 bytes, more than 65536");
    }
    let (code, _, err) = run_with(&["put", "--at", &name, "k", "-"], &vec![b'v'; VALUE_BYTES_MAX + 1]);
    assert!(code == 2 && err.contains("the value is longer than 1048576 bytes"), "{code} {err}");
    let (code, _, err) = run_with(&["put", "--at", &name, "large", "-"], &vec![b'v'; VALUE_BYTES_MAX]);
    assert!(code == 2 && err.contains("its memory budget is used up"), "{code} {err}");
    for command in [&["get", "k"][..], &["put", "k", "v"], &["delete", "k"], &["scan"], &["stats"], &["snapshot"]] {
        refused(&[command, &["--at", "shm:test-index-nobody", "--timeout", "100ms"]].concat(), "shm:test-index-nobody");
        refused(&[command, &["--at", "1=shm:one"]].concat(), "this asks one server");
    }
    refused(&["serve", "--at", &name], "in use");
    refused(&["serve", "--at", &shm("other"), "--workers", "0"], "0 is not in 1..=256");
    refused(&["serve", "--at", &shm("other"), "--memory", "100"], "too small for an index");
    refused(&["serve", "--at", &shm("other"), "--held", "1MiB"], "choose at least five times message_bytes_max");
    refused(
        &["serve", "--at", &shm("other"), "--snapshot", "/nowhere/file"],
        "there is no directory for /nowhere/file",
    );
    refused(&["serve", "--at", &shm("other"), "--snapshot", env!("CARGO_TARGET_TMPDIR")], "cannot");
    // A key-value server is no index.
    let kv = shm("kv");
    let _kv = Server::start(dunlin(&["kv", "serve", "--memory", "64MiB", "--at", &kv]));
    refused(&["get", "k", "--at", &kv], "does not answer as an index of this version");
    assert_eq!(out(&["scan", "--at", &name]), "there\tbefore\n", "nothing was lost");
    server.stop("-TERM");
}

/// Requests that no command sends, and a cursor of the server's earlier run.
#[test]
fn a_cursor_of_another_server_and_an_oversized_request_are_refused() {
    let name = shm("cursor");
    let server = serve(&["--at", &name]);
    let lines: String = (0..5000).map(|number| format!("{number:04}\tx\n")).collect();
    assert_eq!(run_with(&["load", "-", "--format", "tsv", "--at", &name], lines.as_bytes()).0, 0);
    let address: Addr = name.parse().unwrap();
    let endpoint = Endpoint::new(AnyTransport::for_peer(&address).unwrap(), EndpointConfig::default()).unwrap();
    let endpoint = Rc::new(endpoint);
    let client = Client::new(&endpoint, address.clone(), ClientConfig::default());
    let mut pages = client.scan(Range::ALL, Order::Ascending).unwrap();
    assert_eq!(endpoint.block_on(pages.next()).unwrap().unwrap().len(), 4096);
    endpoint.block_on(async {
        let session = endpoint.connect(&address).await.unwrap();
        let after = Some(After { key: b"0007", incarnation: 1 });
        let cursor = ScanRequest { range: Range::ALL, order: Order::Ascending, limits: LONG_PAGE, after };
        for (req_type, request, code) in [
            (LONG_SCAN, cursor.encode(), Code::OtherServer),
            (OPERATE, Operation::Put(b"k", &vec![0; VALUE_BYTES_MAX + 1]).encode(), Code::ValueTooLong),
            (OPERATE, Operation::Put(&[0; (64 << 10) + 1], b"").encode(), Code::KeyTooLong),
            (OPERATE, Vec::new(), Code::Malformed),
        ] {
            match session.call(req_type, request).await.unwrap_err().error {
                CallError::Application(error) => assert_eq!(Code::of(error.code()), Some(code)),
                other => panic!("{other}"),
            }
        }
        session.close().await;
    });
    server.stop("-TERM");
    let _server = serve(&["--at", &name]);
    let error = endpoint.block_on(pages.next()).unwrap_err();
    assert!(matches!(error, IndexError::Restarted { .. }), "{error}");
    assert!(error.to_string().contains("begin a new scan after the last key"), "{error}");
    assert_eq!(pages.last_key(), Some(&b"4095"[..]));
}

#[test]
fn top_and_metrics_show_an_index() {
    let name = shm("watched");
    let server = serve(&["--at", &name, "--metrics", "127.0.0.1:0", "--workers", "3"]);
    let lines: String = (0..3000).map(|number| format!("{number:04}\tx\n")).collect();
    assert_eq!(run_with(&["load", "-", "--format", "tsv", "--at", &name], lines.as_bytes()).0, 0);
    assert_eq!(out(&["scan", "--at", &name]).lines().count(), 3000);
    let top = |arguments: &[&str]| {
        let output = dunlin(&[&["top", "--at", &name, "--interval", "50ms"], arguments].concat()).output().unwrap();
        ended(output)
    };
    let (code, text, err) = top(&["--count", "2"]);
    assert_eq!((code, text.lines().count()), (0, 3), "{text}{err}");
    let heading: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    assert!(heading.contains(&"scan/s") && heading.contains(&"nodes"), "{text}");
    let (_, text, _) = top(&["--count", "1", "--json"]);
    let line = json(&text);
    assert!(line["items"] == 3000.0 && line["nodes"].as_f64() > Some(100.0) && line["busy"] == 0.0, "{line}");
    let port = server.ready.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    let page = |path: &str| {
        let mut stream = std::net::TcpStream::connect(port).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    let metrics = page("/metrics");
    for line in [
        "dunlin_index_items 3000",
        "dunlin_index_workers 3",
        "dunlin_index_nodes{shape=\"leaf28\"} ",
        "dunlin_index_memory_bytes_max 67108864",
        "dunlin_index_operations_total{core=\"0\",event=\"put\"} 3000",
        "dunlin_index_scans_total{core=\"0\"} 1",
        "dunlin_index_pages_in_progress{core=\"0\"} 0",
        "dunlin_index_handler_requests_total{core=\"0\",type=\"121\"} 3000",
        "dunlin_index_memory_idle_bytes ",
        "dunlin_index_layers 1",
        "dunlin_index_levels 3",
        "dunlin_index_handler_duration_seconds_count{core=\"0\",type=\"116\"} ",
    ] {
        assert!(metrics.lines().any(|found| found.starts_with(line)), "{line} is not in\n{metrics}");
    }
    assert!(page("/healthz").starts_with("HTTP/1.1 200"));
    server.stop("-TERM");
}
