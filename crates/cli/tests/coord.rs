//! `dunlin coord` as processes: nodes, members and watchers.

mod program;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use program::raft::{Directory, free_replica};
use program::{Server, dunlin};
use serde_json::Value;

/// Long enough for a busy machine, and short enough to wait for.
const FAILURE_TIMEOUT: &str = "4s";

/// A command that reports events, line by line. Killed at the end of its test.
struct Told {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Told {
    fn start(command: &mut Command) -> Told {
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Told { process, lines }
    }

    /// Its next line; empty if it has ended.
    fn next(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command that ends, with its exit code and output.
fn ask(arguments: &[&str], target: &[&str]) -> (i32, String, String) {
    let mut command = dunlin(&[&["coord"], arguments, target, &["--timeout", "20s"]].concat());
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code().unwrap(), text(&stdout), text(&stderr))
}

fn status(target: &[&str]) -> Value {
    let (code, out, err) = ask(&["status", "--json"], target);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

fn told(arguments: &[&str], target: &[&str]) -> Told {
    Told::start(&mut dunlin(&[&["coord"], arguments, target].concat()))
}

/// The text after the revision, which differs between runs.
fn happening(line: &str) -> &str {
    line.split_once(' ').map_or("", |(_, rest)| rest)
}

/// However short the failure timeout is, several heartbeats fit it. A busy machine may keep one member from sending
/// them, but not one after the other; and no heartbeat waits for a disk here.
#[test]
fn a_member_stays_live_with_a_short_failure_timeout() {
    let node = free_replica(1);
    let arguments = ["coord", "serve", "--id", "1", "--new", "--volatile", "--peers", &node];
    let _server = Server::start(dunlin(&[&arguments[..], &["--failure-timeout", "500ms"]].concat()));
    let target = ["--at", &node];
    let mut seen = Vec::new();
    for id in ["7", "8", "9"] {
        let mut member = told(&["join", id], &target);
        assert!(member.next().starts_with(&format!("joined as member {id}")));
        let epoch = status(&target)["epoch"].clone();
        let begun = std::time::Instant::now();
        // The members are in order of their ids.
        let failed = loop {
            let now = status(&target);
            let health = now["members"].as_array().unwrap().last().map(|last| last["health"].clone());
            if now["epoch"] != epoch || health != Some("live".into()) {
                break now;
            }
            if begun.elapsed().as_secs() >= 5 {
                member.signal("-TERM");
                assert_eq!(member.next(), "left");
                return;
            }
        };
        seen.push(failed);
    }
    panic!("none of three stays live: {seen:?}");
}

/// Behaviour common to both back ends: a member is killed, watchers are told, its lease lapses, another member leaves.
fn members_come_and_fail(target: &[&str]) {
    assert_eq!(ask(&["get", "/volumes/7"], target).0, 1, "nothing is there yet");
    let from = status(target)["revision"].to_string();
    let mut watch = told(&["watch", "--after", &from, "--count", "8"], target);
    let mut fails = told(&["join", "7", "--about", "here", "--lease", "/locks/a", "--ttl", "2s"], target);
    let joined = fails.next();
    assert!(joined.starts_with("joined as member 7, incarnation ") && joined.contains(": epoch 1;"), "{joined}");
    assert!(fails.next().starts_with("holds /locks/a with token "));
    let mut stays = told(&["join", "8"], target);
    assert!(stays.next().contains(": epoch 2;"));
    let (code, _, err) = ask(&["join", "9", "--lease", "/locks/a"], target);
    assert!(code == 3 && err.contains("held by member 7"), "{code} {err}");
    let now = status(target);
    assert_eq!((&now["epoch"], &now["leases"][0]["member"]), (&4.into(), &7.into()), "one has come and gone: {now}");
    assert_eq!((&now["members"][0]["about"], &now["members"][0]["health"]), (&"here".into(), &"live".into()));

    fails.signal("-KILL");
    let token = now["leases"][0]["token"].to_string();
    let ended = format!("lease /locks/a with token {token} ended");
    let mut seen: Vec<String> = (0..7).map(|_| happening(&watch.next()).to_owned()).collect();
    // Their order depends on timing.
    seen[5..].sort();
    let expected = [
        "member 7 joined: epoch 1",
        "lease /locks/a granted to member 7",
        "member 8 joined: epoch 2",
        "member 9 joined: epoch 3",
        "member 9 left: epoch 4",
        &ended,
        "member 7 failed: epoch 5",
    ];
    assert_eq!(seen, expected);
    while stays.next() != "epoch 5" {}
    stays.signal("-TERM");
    while stays.next() != "left" {}
    assert!(stays.process.wait().unwrap().success());
    assert_eq!(happening(&watch.next()), "member 8 left: epoch 6");
    assert!(watch.process.wait().unwrap().success());

    assert_eq!(ask(&["forget", "8"], target).0, 1);
    assert_eq!(ask(&["forget", "7"], target).0, 0);
    let (code, version, err) = ask(&["set", "/volumes/7", "1,2,3", "--if", "absent"], target);
    assert!(code == 0 && version.starts_with("version "), "{err}");
    assert_eq!(ask(&["set", "/volumes/7", "none", "--if", "absent"], target).0, 3);
    assert_eq!(ask(&["get", "/volumes/7"], target), (0, "1,2,3".into(), String::new()));
    let (code, text, _) = ask(&["status"], target);
    let expected = format!("members: none\nleases: none\ntree:\n  /volumes/7  {}  1,2,3\n", version.trim_end());
    assert!(code == 0 && text.starts_with("epoch 6, ") && text.ends_with(&expected), "{text}");
    assert_eq!(ask(&["del", "/volumes/7", "--if", "version=1"], target).0, 3);
    assert_eq!(ask(&["del", "/volumes/7"], target).0, 0);
    transactions_and_epochs(target);
}

/// The epoch is 6, and the tree is empty.
fn transactions_and_epochs(target: &[&str]) {
    let both =
        ["txn", "--if", "epoch=6", "--if", "/volumes/8:absent", "--set", "/volumes/8=4,5", "--set", "/repairs/8=5"];
    let (code, revision, err) = ask(&both, target);
    assert!(code == 0 && revision.starts_with("revision "), "{err}");
    let (code, _, err) = ask(&both, target);
    assert!(code == 3 && err.contains("/volumes/8 is there already"), "{err}");
    let former = ["txn", "--if", "/locks/a:token=1", "--set", "/volumes/8=6"];
    let (code, _, err) = ask(&former, target);
    assert!(code == 3 && err.contains("lease /locks/a is not held with token 1 any more"), "{err}");
    let same = revision.trim_end().replace("revision ", "/volumes/8:version=");
    assert_eq!(ask(&["txn", "--if", &same, "--delete", "/repairs/8", "--delete", "/volumes/8"], target).0, 0);
    assert_eq!(ask(&["get", "/repairs/8"], target).0, 1);

    let (code, epochs, _) = ask(&["epochs", "--after", "4"], target);
    let epochs: Vec<&str> = epochs.lines().map(happening).collect();
    assert_eq!((code, epochs), (0, vec!["member 7 failed: epoch 5", "member 8 left: epoch 6"]));
    assert_eq!(ask(&["epochs", "--cut", "5"], target).0, 0);
    let (code, _, err) = ask(&["epochs", "--after", "4"], target);
    assert!(code == 3 && err.contains("the epochs up to 5 are cut"), "{err}");
    // Without --after, the known epochs are shown.
    let (code, epochs, err) = ask(&["epochs"], target);
    assert_eq!((code, epochs.lines().map(happening).collect()), (0, vec!["member 8 left: epoch 6"]), "{err}");
    assert!(err.contains("the epochs up to 5 are cut"), "{err}");
}

#[test]
fn three_nodes_tell_of_a_member_that_is_killed() {
    let directory = Directory::new("coord");
    let peers = [1, 2, 3].map(free_replica).join(",");
    let serve = |id: u64, more: &[&str]| {
        let (id_text, data) = (id.to_string(), directory.of(id));
        let node = ["coord", "serve", "--id", &id_text, "--peers", &peers, "--data", &data];
        Server::start(dunlin(&[&node[..], &["--failure-timeout", FAILURE_TIMEOUT], more].concat()))
    };
    let mut nodes: Vec<Server> = (1..=3).map(|id| serve(id, &["--new"])).collect();
    let target = ["--at", &peers];
    members_come_and_fail(&target);
    // All state survives a restart of one node, and its directory is rejected by a key-value replica.
    let before = status(&target);
    nodes.remove(0).kill();
    let data = directory.of(1);
    let other = dunlin(&["raft", "serve", "--id", "1", "--peers", &peers, "--data", &data]).output().unwrap();
    assert!(String::from_utf8_lossy(&other.stderr).contains("of a coordinator replica"), "{other:?}");
    nodes.push(serve(1, &[]));
    assert_eq!(status(&target), before);
}

#[test]
fn who_cannot_renew_a_lease_ends_before_another_has_it() {
    let replica = free_replica(1);
    let node = ["coord", "serve", "--id", "1", "--new", "--volatile", "--peers", &replica];
    let mut node = Server::start(dunlin(&node));
    let mut holder =
        dunlin(&["coord", "join", "7", "--lease", "/locks/a", "--lease", "/locks/b", "--ttl", "2s", "--at", &replica]);
    let mut holder = Told::start(holder.stderr(Stdio::piped()));
    assert!(holder.next().starts_with("joined as member 7"));
    let mut held: Vec<String> = (0..2).map(|_| holder.next()).collect();
    held.sort();
    assert!(
        held[0].starts_with("holds /locks/a with token ") && held[1].starts_with("holds /locks/b with token "),
        "{held:?}"
    );
    node.kill();
    // It does not wait for an answer, and does not claim to hold anything.
    assert_eq!(holder.next(), "");
    let mut said = String::new();
    holder.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(
        said.contains("could not be renewed in time, so another may have it soon: stop what rests on it"),
        "{said}"
    );
    assert_eq!(holder.process.wait().unwrap().code(), Some(3));
}

#[test]
fn wrong_use_is_told() {
    let (code, _, err) = ask(&["status"], &[]);
    assert!(code == 2 && err.contains("--at <WHERE>"), "{err}");
    let (code, _, err) = ask(&["watch", "--scope", "forest"], &["--at", "1=udp://127.0.0.1:9"]);
    assert!(code == 2 && err.contains("write all, members"), "{err}");
    let (code, _, err) = ask(&["get", "volumes"], &["--at", "1=udp://127.0.0.1:9"]);
    assert!(code == 2 && err.contains("slash"), "{err}");
    // Nobody is there: a command that got no answer says so.
    let nobody = ["--at", "1=udp://127.0.0.1:9", "--timeout", "200ms"];
    for arguments in [&["watch", "--after", "1"][..], &["watch"], &["status"], &["join", "7"], &["get", "/a"]] {
        let output = dunlin(&[&["coord"], arguments, &nobody].concat()).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && !err.trim().is_empty(), "{arguments:?}: {output:?}");
    }
    let data = ["--id", "1", "--volatile", "--peers", "1=udp://127.0.0.1:9"];
    let serve = dunlin(&[&["coord", "serve"], &data[..], &["--check-every", "2s"]].concat()).output().unwrap();
    assert!(String::from_utf8_lossy(&serve.stderr).contains("--check-every 2s is too long"), "{serve:?}");
    if cfg!(not(feature = "etcd")) {
        let (code, _, err) = ask(&["status"], &["--at", "http://127.0.0.1:9"]);
        assert!(code == 2 && err.contains("--features etcd"), "{err}");
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    use std::path::PathBuf;

    use dunlin_coord::etcd::local::{self, LocalEtcd, Scratch};

    use super::*;

    #[test]
    fn an_etcd_tells_of_a_member_that_is_killed() {
        let named = std::env::var_os("DUNLIN_ETCD").map(PathBuf::from);
        let program = named.clone().unwrap_or_else(|| local::PROGRAM.into());
        if local::installed_version(&program).is_none() {
            assert_eq!(named, None, "DUNLIN_ETCD names no etcd that runs");
            println!("SKIPPED: there is no etcd here; install Debian's etcd-server, or name one in DUNLIN_ETCD");
            return;
        }
        let scratch = Scratch::make(&std::env::temp_dir(), "cli-etcd").unwrap();
        let etcd = LocalEtcd::start(&program, 1, scratch.path()).unwrap();
        let endpoint = etcd.endpoints().remove(0);
        let _watchman =
            Server::start(dunlin(&["coord", "watchman", "--at", &endpoint, "--failure-timeout", FAILURE_TIMEOUT]));
        members_come_and_fail(&["--at", &endpoint]);
    }
}
