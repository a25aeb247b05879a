//! A cluster is copied to a file, is lost, and another is founded from the file.

mod program;

use std::fs;

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
        .map(|number| done(&["put", &replicas, &key(number), &key(number), "--timeout", "20"]))
        .map(|out| out.trim().strip_prefix("version ").unwrap().to_owned())
        .collect();
    // Any replica reads what was written just now.
    for from in ["any", "1", "2", "3"] {
        assert_eq!(done(&["get", &replicas, &key(3), "--read-from", from, "--timeout", "20"]), key(3));
    }
    let (code, _, err) = ask(&["get", &replicas, &key(3), "--read-from", "9"]);
    assert!(code == 2 && err.contains("replica 9 is not known here"), "{code} {err}");

    let file = directory.of(100);
    let old = status(&replicas)["cluster"].as_str().unwrap().to_owned();
    let said = done(&["backup", &replicas, &file, "--cluster", &old, "--timeout", "20"]);
    assert!(said.starts_with(&format!("cluster {old}, 2 groups\n")), "{said}");
    let (code, _, err) = ask(&["backup", &replicas, &file]);
    assert!(code == 2 && err.contains("is there already"), "{code} {err}");
    // What is written after that is not in it.
    done(&["put", &replicas, &key(0), "later"]);
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

    let (code, out, err) = restore(&file, &[]);
    assert_eq!(code, 0, "{out}{err}");
    let new = out.strip_prefix("cluster ").unwrap()[..16].to_owned();
    assert!(new != old && out.contains(&format!("with the state of cluster {old}")), "{out}");
    let (code, _, err) = restore(&file, &[]);
    assert!(code != 0 && err.contains("this is not its first start"), "{code} {err}");
    let mut server = serve("1", &data, &replica, &[]);
    for _ in 0..2 {
        for number in 0..KEYS {
            assert_eq!(done(&["get", &replica, &key(number), "--cluster", &new, "--timeout", "20"]), key(number));
        }
        server.kill();
        server = serve("1", &data, &replica, &[]);
    }
    let (code, _, err) = ask(&["get", &replica, &key(1), "--cluster", &old]);
    assert!(code == 2 && err.contains(&format!("a replica of cluster {new} has answered")), "{code} {err}");
    // Versions are what they were, and go on rising.
    let changed = done(&["cas", &replica, &key(1), &versions[1], "knot", "--timeout", "20"]);
    let version = |text: &str| text.trim().trim_start_matches("version ").parse::<u64>().unwrap();
    assert!(version(&changed) > version(&versions[1]), "{changed} {versions:?}");

    // Another joins it.
    let second = free_replica(2);
    let _second = serve("2", &directory.of(22), &second, &["--join"]);
    done(&["add", &replica, &second, "--timeout", "20"]);
    assert_eq!(status(&replica)["members"], serde_json::json!([1, 2]));
}
