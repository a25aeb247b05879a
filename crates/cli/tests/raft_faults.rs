//! Replicas as processes under load: killed and restarted, added and removed. Acknowledged writes are there afterwards.

mod program;

use program::Server;
use program::raft::{Directory, Load, ask, done, found, free_replica, leader, read_back, serve, status, until};

/// Short elections, and snapshots so frequent that some replicas recover from one.
const QUICK: [&str; 8] =
    ["--election", "300ms", "--heartbeat", "30ms", "--snapshot-entries", "300", "--keep-entries", "50"];
/// Times that a replica is killed.
const KILLS: u64 = 6;

/// Whether a replica has executed everything that was committed at the first call.
fn has_caught_up(replicas: &str, id: u64, goal: &mut Option<u64>) -> Option<()> {
    let status = status(replicas);
    let of = |id: u64| status["replicas"].as_array()?.iter().find(|replica| replica["id"] == id).cloned();
    if goal.is_none() {
        *goal = of(status["leader"].as_u64()?)?["committed"].as_u64();
    }
    (of(id)?["applied"].as_u64()? >= (*goal)?).then_some(())
}

#[test]
fn what_was_acknowledged_outlives_kills() {
    let directory = Directory::new("kills");
    let replicas = [1, 2, 3].map(free_replica).join(",");
    let mut servers: Vec<Server> = (1..=3).map(|id| found(&directory, &replicas, id, &QUICK)).collect();
    let load = Load::start(&replicas);
    load.go_on(100);
    for kill in 0..KILLS {
        // The leader, alternating with each replica in turn, which may be the leader too.
        let victim = if kill % 2 == 0 { leader(&replicas) } else { kill / 2 % 3 + 1 };
        servers[victim as usize - 1].kill();
        load.go_on(50);
        servers[victim as usize - 1] = serve(&directory, &replicas, victim, &QUICK);
        let mut goal = None;
        until("the replica has caught up", || has_caught_up(&replicas, victim, &mut goal));
    }
    let written = load.stop();
    read_back(&replicas, &written);
    // All at once.
    servers.iter_mut().for_each(Server::kill);
    let _servers: Vec<Server> = (1..=3).map(|id| serve(&directory, &replicas, id, &QUICK)).collect();
    read_back(&replicas, &written);
}

#[test]
fn what_was_acknowledged_outlives_changes_of_members() {
    let directory = Directory::new("members");
    let first = [1, 2, 3].map(free_replica).join(",");
    let mut servers: Vec<Option<Server>> = (1..=3).map(|id| Some(found(&directory, &first, id, &QUICK))).collect();
    let load = Load::start(&first);
    load.go_on(100);
    let mut all = first;
    let mut join = |id: u64| {
        let replica = free_replica(id);
        let server = serve(&directory, &replica, id, &[&QUICK[..], &["--join"]].concat());
        let out = done(&["add", "--at", &all, &replica, "--timeout", "30s"]);
        assert_eq!(out, format!("replica {id} is a member with a vote\n"));
        all = format!("{all},{replica}");
        (server, all.clone())
    };
    // A fourth.
    let (fourth, all) = join(4);
    servers.push(Some(fourth));
    load.go_on(100);
    // The fourth leads, and the first goes.
    done(&["transfer", "--at", &all, "4", "--timeout", "30s"]);
    load.go_on(50);
    let mut remove = |all: &str, id: u64| {
        if leader(all) == id {
            done(&["transfer", "--at", all, "4", "--timeout", "30s"]);
        }
        done(&["remove", "--at", all, &id.to_string(), "--timeout", "30s"]);
        let removed: Server = servers[id as usize - 1].take().unwrap();
        removed.stop("-TERM");
    };
    remove(&all, 1);
    load.go_on(100);
    // One that is not there stays a learner, and can be removed.
    let (code, _, err) = ask(&["add", "--at", &all, &free_replica(9), "--catch-up", "200ms", "--timeout", "30s"]);
    assert!(
        code == 2 && err.contains("replica 9 does not answer, and is without anything after 200ms"),
        "{code} {err}"
    );
    done(&["remove", "--at", &all, "9", "--timeout", "30s"]);
    // The second is replaced.
    let (_fifth, all) = join(5);
    remove(&all, 2);
    load.go_on(100);
    let members = until("somebody leads", || {
        let status = status(&all);
        status["leader"].is_u64().then(|| status["members"].clone())
    });
    assert_eq!(members, serde_json::json!([3, 4, 5]));
    let written = load.stop();
    read_back(&all, &written);
}
