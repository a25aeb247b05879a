//! A cluster is copied to a file and lost, and another is founded from the file.

mod program;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use program::raft::{Directory, ask, done, found, free_replica, status};
use program::{Server, dunlin};

const KEYS: usize = 12;

fn key(number: usize) -> String {
    format!("bird {number}")
}

/// Serves a directory with two groups.
fn serve(id: &str, data: &str, replica: &str, more: &[&str]) -> Server {
    let arguments = ["raft", "serve", "--id", id, "--data", data, "--peers", replica, "--groups", "2"];
    Server::start(dunlin(&[&arguments, more].concat()))
}

#[test]
fn a_cluster_is_founded_from_the_copy_of_another() {
    let directory = Directory::new("backup");
    let replicas = [1, 2, 3].map(free_replica).join(",");
    let groups: &[&str] = &["--groups", "2"];
    let mut servers: Vec<Server> = (1..=3).map(|id| found(&directory, &replicas, id, groups)).collect();
    let versions: Vec<String> = (0..KEYS)
        .map(|number| done(&["put", "--at", &replicas, &key(number), &key(number), "--timeout", "20s"]))
        .map(|out| out.trim().strip_prefix("version ").unwrap().to_owned())
        .collect();
    // Any replica reads the latest write.
    for from in ["any", "1", "2", "3"] {
        assert_eq!(done(&["get", "--at", &replicas, &key(3), "--read-from", from, "--timeout", "20s"]), key(3));
    }
    let (code, _, err) = ask(&["get", "--at", &replicas, &key(3), "--read-from", "9"]);
    assert!(code == 2 && err.contains("replica 9 is not known here"), "{code} {err}");

    let file = directory.of(100);
    let old = status(&replicas)["cluster"].as_str().unwrap().to_owned();
    let said = done(&["backup", "--at", &replicas, &file, "--cluster", &old, "--timeout", "20s"]);
    assert!(said.starts_with(&format!("cluster {old}, 2 groups\n")), "{said}");
    let (code, _, err) = ask(&["backup", "--at", &replicas, &file]);
    assert!(code == 2 && err.contains("is there already"), "{code} {err}");
    // Its output is closed: the copy is kept nevertheless.
    let unheard = directory.of(102);
    let backup =
        format!("exec {} raft backup --at {replicas} {unheard} --timeout 20s >&-", env!("CARGO_BIN_EXE_dunlin"));
    Command::new("bash").args(["-c", &backup]).output().unwrap();
    assert!(fs::exists(&unheard).unwrap());
    // What is written after that is not in it.
    done(&["put", "--at", &replicas, &key(0), "later"]);
    servers.iter_mut().for_each(Server::kill);

    let replica = free_replica(1);
    let data = directory.of(11);
    let restore = |file: &str, more: &[&str]| {
        ask(&[&["restore", file, "--id", "1", "--data", &data, "--peers", &replica], more].concat())
    };
    let whole = fs::read(&file).unwrap();
    let refused = |bytes: &[u8], more: &[&str], why: &str| {
        let damaged = directory.of(101);
        fs::write(&damaged, bytes).unwrap();
        let (code, out, err) = restore(&damaged, more);
        assert!(code != 0 && out.is_empty() && err.contains(why), "{code} {out} {err}");
        assert!(!fs::exists(&data).unwrap(), "nothing is made for a file that is refused");
    };
    refused(&[], &[], "it ends before its header does");
    refused(&whole[..whole.len() - 1], &[], "it ends before the state of group 1 does");
    refused(&[&whole[..], &[0]].concat(), &[], "something follows its end");
    refused(&[&[0; 8], &whole[8..]].concat(), &[], "it is no copy of a cluster");
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    refused(&flipped(8), &[], "it is of version 17 of the format");
    refused(&flipped(20), &[], "its header is not as it was written");
    refused(&flipped(41), &[], "the header of group 0 is not as it was written");
    refused(&flipped(whole.len() - 1), &[], "the state of group 1 is not as it was written");

    // A full disk: files are limited to 1 KiB.
    let full = format!(
        "ulimit -f 1; exec {} raft restore {file} --id 1 --data {data} --peers {replica}",
        env!("CARGO_BIN_EXE_dunlin")
    );
    let full = Command::new("bash").args(["-c", &full]).output().unwrap();
    assert!(!full.status.success() && full.stdout.is_empty(), "{full:?}");
    let again = ["serve", "--id", "1", "--data", &data, "--peers", &replica, "--groups", "2"];
    for more in [&[][..], &["--new"]] {
        let (code, out, err) = ask(&[&again, more].concat());
        assert!(
            code == 2 && out.is_empty() && err.contains("restore it again (dunlin raft restore)"),
            "{code} {out} {err}"
        );
    }

    let two = format!("{replica},{}", free_replica(2));
    let (code, _, err) = ask(&["restore", &file, "--id", "1", "--data", &directory.of(12), "--peers", &two]);
    assert!(code != 0 && err.contains("--peers names 2 replicas"), "{code} {err}");
    let (code, out, err) = restore(&file, &[]);
    assert_eq!(code, 0, "{out}{err}");
    let new = out.strip_prefix("cluster ").unwrap()[..16].to_owned();
    assert!(new != old && out.contains(&format!("with the state of cluster {old}")), "{out}");
    let (code, _, err) = restore(&file, &[]);
    assert!(code != 0 && err.contains("has the log of replica 1 already"), "{code} {err}");
    let mut server = serve("1", &data, &replica, &[]);
    for _ in 0..2 {
        for number in 0..KEYS {
            assert_eq!(
                done(&["get", "--at", &replica, &key(number), "--cluster", &new, "--timeout", "20s"]),
                key(number)
            );
        }
        server.kill();
        server = serve("1", &data, &replica, &[]);
    }
    let (code, _, err) = ask(&["get", "--at", &replica, &key(1), "--cluster", &old]);
    assert!(code == 2 && err.contains(&format!("a replica of cluster {new} has answered")), "{code} {err}");
    // Versions are what they were, and go on rising.
    let version = |text: &str| text.trim().trim_start_matches("version ").parse::<u64>().unwrap();
    let unchanged = format!("version={}", version(&versions[1]));
    let changed = done(&["put", "--at", &replica, &key(1), "knot", "--if", &unchanged, "--timeout", "20s"]);
    assert!(version(&changed) > version(&versions[1]), "{changed} {versions:?}");

    // Another joins it.
    let second = free_replica(2);
    let _second = serve("2", &directory.of(22), &second, &["--join"]);
    done(&["add", "--at", &replica, &second, "--timeout", "20s"]);
    assert_eq!(status(&replica)["members"], serde_json::json!([1, 2]));
}

/// As in docs/replication.md: one member is replaced, another moves, and a copy is restored. Each of its groups has its
/// own members.
#[test]
fn members_are_replaced_and_moved_and_a_copy_is_restored() {
    const GROUPS: [&str; 2] = ["--groups", "2"];
    let directory = Directory::new("moved");
    let at = [1, 2, 3, 4].map(free_replica);
    let mut known = at[..3].join(",");
    let mut servers: Vec<Server> = (1..=3).map(|id| found(&directory, &known, id, &GROUPS)).collect();
    done(&["put", "--at", &known, "bird", "dunlin", "--timeout", "20s"]);

    servers.push(program::raft::serve(&directory, &at[3], 4, &[&["--join"], &GROUPS[..]].concat()));
    done(&["add", "--at", &known, &at[3], "--timeout", "20s"]);
    known = at.join(",");
    done(&["transfer", "--at", &known, "2", "--timeout", "20s"]);
    done(&["remove", "--at", &known, "1", "--timeout", "20s"]);
    servers[0].kill();

    servers[1].kill();
    let moved = free_replica(2);
    servers.push(program::raft::serve(&directory, &moved, 2, &[&["--moved"], &GROUPS[..]].concat()));
    // One replica of the list is gone, and one has moved; after an interruption, the same command continues.
    for _ in 0..2 {
        done(&["move", "--at", &known, &moved, "--timeout", "20s"]);
    }
    known = [&moved, &at[2], &at[3]].map(String::as_str).join(",");
    done(&["move", "--at", &known, &moved, "--timeout", "20s"]);
    assert_eq!(status(&known)["members"], serde_json::json!([2, 3, 4]));

    let (file, new) = (directory.of(100), free_replica(1));
    done(&["backup", "--at", &known, &file, "--timeout", "20s"]);
    done(&["restore", &file, "--id", "1", "--data", &directory.of(11), "--peers", &new]);
    let data = directory.of(11);
    let again = ["raft", "serve", "--id", "1", "--data", &data, "--peers", &new];
    let _new = Server::start(dunlin(&[&again, &GROUPS[..]].concat()));
    assert_eq!(done(&["get", "--at", &new, "bird", "--timeout", "20s"]), "dunlin");
}

#[test]
fn a_cluster_manager_is_founded_from_the_copy_of_another() {
    let directory = Directory::new("coord-backup");
    let [node, new] = [1, 1].map(free_replica);
    let coord = |arguments: &[&str]| {
        let output = dunlin(&[&["coord"], arguments].concat()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let serve = |data: &str, node: &str, more: &[&str]| {
        Server::start(dunlin(&[&["coord", "serve", "--id", "1", "--data", data, "--peers", node], more].concat()))
    };
    let mut server = serve(&directory.of(1), &node, &["--new"]);
    let (code, version, err) = coord(&["set", "/volumes/7", "1,2,3", "--at", &node, "--timeout", "20s"]);
    assert_eq!(code, 0, "{err}");
    let join = |node: &str, more: &[&str], lines: usize| {
        let arguments = [&["coord", "join", "7", "--at", node, "--timeout", "20s"], more].concat();
        let mut process = dunlin(&arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let said: Vec<String> =
            BufReader::new(process.stdout.take().unwrap()).lines().take(lines).map(Result::unwrap).collect();
        process.kill().unwrap();
        process.wait().unwrap();
        said
    };
    let status = |node: &str| {
        let (code, out, err) = coord(&["status", "--json", "--at", node, "--timeout", "20s"]);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()
    };
    // A member with a lease of an hour, which is killed.
    let said = join(&node, &["--about", "here", "--lease", "/locks/a", "--ttl", "1h"], 2);
    let token = said[1].strip_prefix("holds /locks/a with token ").unwrap().to_owned();
    let before = status(&node);
    let file = directory.of(100);
    let (code, _, err) = coord(&["backup", "--at", &node, &file, "--timeout", "20s"]);
    assert_eq!(code, 0, "{err}");
    // `raft backup` writes the same. A replica takes one snapshot for copies in a minute, and the cluster manager may have
    // written since.
    server.kill();
    server = serve(&directory.of(1), &node, &[]);
    done(&["backup", "--at", &node, &directory.of(101), "--timeout", "20s"]);
    server.kill();

    let data = directory.of(11);
    let target = ["--id", "1", "--data", &data, "--peers", &new];
    let (code, out, err) = ask(&[&["restore", &directory.of(101)][..], &target].concat());
    assert!(code != 0 && out.is_empty() && err.contains("`dunlin coord restore`"), "{code} {out} {err}");
    assert!(!fs::exists(&data).unwrap());
    let (code, out, err) = coord(&[&["restore", &file][..], &target].concat());
    assert!(code == 0 && out.contains("with the state of cluster "), "{code} {out} {err}");
    let (code, _, err) = ask(&[&["serve"], &target[..]].concat());
    assert!(code == 2 && err.contains("of a coordinator replica"), "{code} {err}");
    let _server = serve(&data, &new, &[]);
    assert_eq!(coord(&["get", "/volumes/7", "--at", &new, "--timeout", "20s"]).1, "1,2,3");
    // It may have failed by now.
    let after = status(&new);
    assert!(after["epoch"].as_u64() >= before["epoch"].as_u64(), "{before} {after}");
    assert_eq!((&after["leases"], &after["tree"]), (&before["leases"], &before["tree"]));
    assert_eq!(after["members"][0]["incarnation"], before["members"][0]["incarnation"]);
    let (code, epochs, err) = coord(&["epochs", "--at", &new, "--timeout", "20s"]);
    assert!(code == 0 && epochs.contains("member 7 joined"), "{epochs} {err}");
    // Its member is locked out until that lease is over, or is ended.
    let release = |token: &str| coord(&["release", "/locks/a", token, "--at", &new, "--timeout", "20s"]).0;
    assert_eq!((release("1"), release(&token), release(&token)), (3, 0, 3));
    let said = join(&new, &["--lease", "/locks/a"], 2);
    let number = |text: &str| text.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(said[0].starts_with("joined as member 7") && number(&said[1]) > number(&token), "{said:?}");
    let (code, later, err) = coord(&["set", "/volumes/7", "4", "--at", &new, "--timeout", "20s"]);
    let number = |text: &str| text.trim().trim_start_matches("version ").parse::<u64>().unwrap();
    assert!(code == 0 && number(&later) > number(&version), "{later} {version} {err}");

    // A key-value cluster is refused.
    let keys = free_replica(2);
    let _keys = found(&directory, &keys, 2, &[]);
    done(&["put", "--at", &keys, "bird", "dunlin", "--timeout", "20s"]);
    done(&["backup", "--at", &keys, &directory.of(102), "--timeout", "20s"]);
    let target = ["--id", "1", "--data", &directory.of(12), "--peers", &new];
    let (code, _, err) = coord(&[&["restore", &directory.of(102)][..], &target].concat());
    assert!(
        code != 0 && err.contains("`dunlin raft restore`") && !fs::exists(directory.of(12)).unwrap(),
        "{code} {err}"
    );
}
