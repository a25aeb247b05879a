//! Clusters as processes that reach each other by mistake.

mod program;

use program::Server;
use program::raft::{Directory, ask, done, found, free_replica, status};
use serde_json::Value;

/// Writes keys of a name, and reads them back.
const KEYS: u32 = 10;

fn write(replicas: &str, name: &str) {
    for number in 0..KEYS {
        done(&["put", replicas, &format!("{name} {number}"), name, "--timeout", "20"]);
    }
}

fn read_back(replicas: &str, name: &str) {
    for number in 0..KEYS {
        assert_eq!(done(&["get", replicas, &format!("{name} {number}"), "--timeout", "20"]), name, "{number}");
    }
}

/// The list of another cluster has the address of the third replica of this one, which has the same id there.
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

    // Both say what is wrong.
    let of =
        |state: &Value, id: u64| state["replicas"].as_array().unwrap().iter().find(|one| one["id"] == id).unwrap().clone();
    let (ours, theirs) = (status(&here), status(&there));
    assert_ne!(ours["cluster"], theirs["cluster"]);
    assert_eq!((&of(&theirs, 3)["role"], &of(&theirs, 3)["cluster"]), (&"foreign".into(), &ours["cluster"]));
    let noticed = of(&ours, 3)["foreign"].as_array().unwrap().clone();
    assert!(!noticed.is_empty() && noticed.iter().all(|foreign| foreign["cluster"] == theirs["cluster"]), "{ours}");
    let (code, out, err) = ask(&["status", &there]);
    assert!(code == 2 && out.contains("foreign") && err.contains("correct the list of replicas"), "{code} {out} {err}");

    // Both lead, neither counts the replica of the other, and all of this one have the same.
    let state = status(&here);
    let replicas = state["replicas"].as_array().unwrap();
    let leader = state["leader"].as_u64().unwrap();
    assert!(replicas.iter().all(|replica| replica["leader"] == leader), "{state}");
    let victim = if leader == 3 { 1 } else { leader };
    servers[victim as usize - 1].kill();
    for name in ["here", "later"] {
        read_back(&here, name);
    }
    read_back(&own, "there");
}
