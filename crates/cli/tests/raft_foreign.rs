//! Clusters as processes that reach each other by mistake.

mod program;

use program::raft::{Directory, ask, done, found, free_replica, status, until};
use program::{Server, dunlin};
use serde_json::Value;

/// Writes this many keys, and reads them back.
const KEYS: u32 = 10;

fn write(replicas: &str, name: &str) {
    for number in 0..KEYS {
        done(&["put", "--at", replicas, &format!("{name} {number}"), name, "--timeout", "20s"]);
    }
}

fn read_back(replicas: &str, name: &str) {
    for number in 0..KEYS {
        assert_eq!(done(&["get", "--at", replicas, &format!("{name} {number}"), "--timeout", "20s"]), name, "{number}");
    }
}

/// The list of another cluster has the address of this cluster's third replica, which has the same id there.
#[test]
fn two_clusters_that_share_an_address_lose_nothing() {
    let (directory, other_directory) = (Directory::new("here"), Directory::new("there"));
    let [one, two, three] = [1, 2, 3].map(free_replica);
    let here = [one.clone(), two.clone(), three.clone()].join(",");
    let mut servers: Vec<Server> = (1..=3).map(|id| found(&directory, &here, id, &[])).collect();
    write(&here, "here");

    let own = [1, 2].map(free_replica).join(",");
    let there = format!("{own},{three}");
    let _others: Vec<Server> = (1..=2).map(|id| found(&other_directory, &there, id, &[])).collect();
    write(&own, "there");
    write(&here, "later");

    // Both report what is wrong.
    let of = |state: &Value, id: u64| {
        state["replicas"].as_array().unwrap().iter().find(|one| one["id"] == id).unwrap().clone()
    };
    let (ours, theirs) = (status(&here), status(&there));
    assert_ne!(ours["cluster"], theirs["cluster"]);
    assert_eq!((&of(&theirs, 3)["role"], &of(&theirs, 3)["cluster"]), (&"foreign".into(), &ours["cluster"]));
    let noticed = of(&ours, 3)["foreign"].as_array().unwrap().clone();
    assert!(!noticed.is_empty() && noticed.iter().all(|foreign| foreign["cluster"] == theirs["cluster"]), "{ours}");
    let (code, out, err) = ask(&["status", "--at", &there]);
    assert!(code == 2 && out.contains("foreign") && err.contains("correct the list of replicas"), "{code} {out} {err}");

    // Both lead, neither counts the replica of the other, and all replicas of this one have the same state.
    let leader = until("all have the same leader", || {
        let state = status(&here);
        let leader = state["leader"].as_u64()?;
        state["replicas"].as_array()?.iter().all(|replica| replica["leader"] == leader).then_some(leader)
    });
    let victim = if leader == 3 { 1 } else { leader };
    servers[victim as usize - 1].kill();
    for name in ["here", "later"] {
        read_back(&here, name);
    }
    read_back(&own, "there");
}

/// The same for cluster managers: the nodes of one have the address of a node of the other.
#[test]
fn two_cluster_managers_that_share_an_address_lose_nothing() {
    let [one, two, three] = [1, 2, 3].map(free_replica);
    let [other_one, other_two] = [1, 2].map(free_replica);
    let here = [one, two, three.clone()].join(",");
    let there = [other_one.clone(), other_two.clone(), three].join(",");
    let start = |peers: &str, id: u64| {
        Server::start(dunlin(&["coord", "serve", "--id", &id.to_string(), "--volatile", "--new", "--peers", peers]))
    };
    let coord = |arguments: &[&str], peers: &str| {
        let command = [&["coord"], arguments, &["--at", peers, "--timeout", "20s"]].concat();
        let output = dunlin(&command).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let mut nodes: Vec<Server> = (1..=3).map(|id| start(&here, id)).collect();
    let own = format!("{other_one},{other_two}");
    let _others: Vec<Server> = (1..=2).map(|id| start(&there, id)).collect();
    for (peers, value) in [(&here, "here"), (&own, "there")] {
        let (code, out, err) = coord(&["set", "/a", value], peers);
        assert!(code == 0, "{out}{err}");
    }
    // As many of one as of the other: nothing is done, and the reason is reported.
    let mixed = format!("{other_one},{}", here.split(',').nth(1).unwrap());
    let (code, _, err) = coord(&["set", "/a", "mixed"], &mixed);
    assert!(code == 2 && err.contains("the list of replicas mixes clusters"), "{code} {err}");
    nodes.remove(0).kill();
    for (peers, value) in [(&here, "here"), (&own, "there")] {
        assert_eq!(coord(&["get", "/a"], peers), (0, value.into(), String::new()));
    }
}
