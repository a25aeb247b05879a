//! `dunlin raft` as processes: replicas and their clients, and what they refuse.

mod program;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use dunlin_smr::kv::group_of;
use program::raft::{Directory, ask, done, found, free_replica, serve, status, until};
use program::{Server, dunlin};

fn three() -> String {
    [1, 2, 3].map(free_replica).join(",")
}

#[test]
fn three_replicas_serve_and_leave_in_order() {
    let directory = Directory::new("three");
    let replicas = three();
    let mut servers: Vec<Option<Server>> = (1..=3).map(|id| Some(found(&directory, &replicas, id, &[]))).collect();
    let out = done(&["put", "--at", &replicas, "bird", "dunlin", "--timeout", "20s"]);
    assert!(out.starts_with("version "), "{out}");
    assert_eq!(done(&["get", "--at", &replicas, "bird"]), "dunlin");
    let facts = done(&["get", "--at", &replicas, "bird", "--facts"]);
    assert_eq!(facts, out.replace("version ", "version  ") + "length   6 B\n");

    // One may be late to answer, or elect another leader just then.
    let before = until("all three answer and one leads", || {
        let status = status(&replicas);
        let votes = status["replicas"].as_array()?.iter().filter(|replica| replica["vote"] == "yes").count();
        (votes == 3 && status["leader"].is_u64()).then_some(status)
    });
    let leader = before["leader"].as_u64().unwrap();
    assert_eq!(before["members"], serde_json::json!([1, 2, 3]));
    // It transfers leadership before it ends, and then its directory is free.
    let said = servers[leader as usize - 1].take().unwrap().stop("-TERM");
    assert_eq!(said, "ended\n");
    done(&["put", "--at", &replicas, "bird", "knot", "--timeout", "20s"]);
    let after = status(&replicas);
    assert_ne!(after["leader"], before["leader"]);
    assert_eq!(after["replicas"][leader as usize - 1]["role"], "unreachable");
    servers[leader as usize - 1] = Some(serve(&directory, &replicas, leader, &[]));
    assert_eq!(done(&["get", "--at", &replicas, "bird", "--timeout", "20s"]), "knot");

    // A killed replica has everything that it acknowledged.
    for server in &mut servers {
        server.as_mut().unwrap().kill();
    }
    let (code, _, err) = ask(&["get", "--at", &replicas, "bird", "--timeout", "200ms"]);
    assert!(code == 2 && err.contains("no leader answered in time"), "{code} {err}");
    let _servers: Vec<Server> = (1..=3).map(|id| serve(&directory, &replicas, id, &[])).collect();
    assert_eq!(done(&["get", "--at", &replicas, "bird", "--timeout", "20s"]), "knot");
}

#[test]
fn keys_are_spread_over_groups() {
    let directory = Directory::new("groups");
    let replicas = three();
    let groups: &[&str] = &["--groups", "8"];
    let mut servers: Vec<Option<Server>> = (1..=3).map(|id| Some(found(&directory, &replicas, id, groups))).collect();
    let keys: Vec<String> = (0..20).map(|number| format!("bird {number}")).collect();
    for key in &keys {
        let out = done(&["put", "--at", &replicas, key, key, "--timeout", "20s"]);
        assert!(out.starts_with("version "), "{out}");
    }
    let seen = status(&replicas);
    assert_eq!((&seen["group"], &seen["groups"]), (&serde_json::json!(0), &serde_json::json!(8)));
    let shown = done(&["status", "--at", &replicas, "--group", "7"]);
    assert!(shown.contains("the above is group 7 of 8; replica "), "{shown}");
    let (code, _, err) = ask(&["status", "--at", &replicas, "--group", "8"]);
    assert!(code == 2 && err.contains("there is no group 8"), "{code} {err}");

    // The groups that one led are led by others.
    let id = seen["groups_led"].as_object().unwrap().keys().next().unwrap().parse::<u64>().unwrap();
    servers[id as usize - 1].as_mut().unwrap().kill();
    keys.iter().for_each(|key| assert_eq!(done(&["get", "--at", &replicas, key, "--timeout", "20s"]), *key));
    servers[id as usize - 1] = Some(serve(&directory, &replicas, id, groups));
    done(&["transfer", "--at", &replicas, &id.to_string(), "--timeout", "20s"]);
    let led = serde_json::json!({ id.to_string(): 8 });
    until("it leads all groups", || (status(&replicas)["groups_led"] == led).then_some(()));
    done(&["del", "--at", &replicas, &keys[0]]);
    assert_eq!(ask(&["get", "--at", &replicas, &keys[0]]).0, 1);

    let said = servers[id as usize - 1].take().unwrap().stop("-TERM");
    assert_eq!(said, "ended\n");
    let replica = id.to_string();
    let data = directory.of(id);
    let (code, _, err) = ask(&["serve", "--id", &replica, "--peers", &replicas, "--data", &data]);
    assert!(code != 0 && err.contains("was begun with --groups 8"), "{code} {err}");
}

#[test]
fn values_have_versions_and_conditions() {
    let directory = Directory::new("values");
    let replica = free_replica(1);
    let server = found(&directory, &replica, 1, &["--reads", "lease"]);
    let version = |out: String| out.trim().strip_prefix("version ").unwrap().to_owned();
    let first = version(done(&["put", "--at", &replica, "bird", "dunlin", "--if", "absent", "--timeout", "20s"]));
    let second = version(done(&["put", "--at", &replica, "bird", "knot", "--if", &format!("version={first}")]));
    assert!(second.parse::<u64>().unwrap() > first.parse().unwrap());
    let refused = |arguments: &[&str], code: i32, why: &str| {
        let (found, out, err) = ask(arguments);
        assert!(found == code && out.is_empty() && err.contains(why), "{arguments:?}: {found} {out} {err}");
    };
    let unchanged = format!("version={first}");
    refused(&["put", "--at", &replica, "bird", "plover", "--if", &unchanged], 3, "has another version");
    refused(&["put", "--at", &replica, "fish", "cod", "--if", &unchanged], 1, "there is no item \"fish\"");
    refused(&["put", "--at", &replica, "bird", "plover", "--if", "absent"], 3, "there is an item \"bird\"");
    refused(&["put", "--at", &replica, "fish", "cod", "--if", "present"], 1, "there is no item \"fish\"");
    refused(&["get", "--at", &replica, "fish"], 1, "");
    refused(&["put", "--at", &replica, "", "x"], 2, "a key has 1 to 250 bytes");
    refused(&["put", "--at", &replica, &"k".repeat(251), "x"], 2, "a key has 1 to 250 bytes");
    assert_eq!(done(&["get", "--at", &replica, "bird"]), "knot");
    assert!(done(&["del", "--at", &replica, "bird"]).starts_with("version "));
    refused(&["del", "--at", &replica, "bird"], 1, "there is no item \"bird\"");
    done(&["put", "--at", &replica, "--", "-k", "-v"]);
    assert_eq!(done(&["get", "--at", &replica, "--", "-k"]), "-v");

    // From standard input, as long as values may be and no longer.
    let put = |length: usize| {
        let mut put = dunlin(&["raft", "put", "--at", &replica, "long", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        put.stdin.take().unwrap().write_all(&vec![b'x'; length]).unwrap();
        put.wait_with_output().unwrap().status.code()
    };
    assert_eq!(put((1 << 20) + 1), Some(2));
    assert_eq!(put(1 << 20), Some(0));
    assert!(done(&["get", "--at", &replica, "long", "--facts"]).contains("length   1048576 B"));
    server.stop("-INT");
}

/// A page that a replica serves over HTTP.
fn page(server: &Server, path: &str) -> String {
    let place = server.ready.split("metrics at http://").nth(1).unwrap().split('/').next().unwrap();
    let mut stream = TcpStream::connect(place).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_those_of_all_groups() {
    const WRITES: u64 = 5;
    let directory = Directory::new("metrics-groups");
    let replica = free_replica(1);
    let server = found(&directory, &replica, 1, &["--groups", "2", "--metrics", "127.0.0.1:0"]);
    let value = |name: &str| {
        let text = page(&server, "/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("dunlin_replica_{name} ")));
        line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse::<u64>().unwrap()
    };
    let key = (0..).map(|number| format!("bird {number}")).find(|key| group_of(key.as_bytes(), 2) == 1).unwrap();
    let put = || done(&["put", "--at", &replica, &key, "dunlin", "--timeout", "20s"]);
    put();
    let names = ["events_total{event=\"applied\"}", "events_total{event=\"proposed\"}", "applied_entry"];
    let before = names.map(value);
    (0..WRITES).for_each(|_| drop(put()));
    let after = names.map(value);
    assert!(before.iter().zip(after).all(|(before, after)| after >= before + WRITES), "{before:?} {after:?}");
    // The other group elects its leader by itself.
    until("each group has a leader", || (value("groups_led") == 2).then_some(()));
    assert_eq!(["groups", "groups_led", "is_leader", "voters", "disk_hangs_now"].map(value), [2, 2, 1, 1, 0]);
    // Each counter of a group is there, and shared ones are summed.
    let event = |name: &str| value(&format!("events_total{{event=\"{name}\"}}"));
    assert_eq!((event("elected"), event("kept_swept"), event("disk_hangs")), (2, 0, 0));
    server.stop("-TERM");
}

#[test]
fn metrics_and_health_are_served_over_http() {
    let directory = Directory::new("metrics");
    let replica = free_replica(1);
    let server = found(&directory, &replica, 1, &["--metrics", "127.0.0.1:0"]);
    assert_eq!(ask(&["put", "--at", &replica, "bird", "dunlin"]).0, 0);
    let get = |path: &str| page(&server, path);
    let metrics = get("/metrics");
    for line in
        ["dunlin_replica_is_leader 1", "dunlin_replica_voters 1", "dunlin_replica_events_total{event=\"elected\"} 1"]
    {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    assert!(metrics.contains("dunlin_replica_endpoint_events_total{event=\"rx_packets\"}"), "{metrics}");
    assert!(get("/healthz").ends_with("\r\n\r\nok\n"));
    assert!(server.stop("-TERM").ends_with("ended\n"));
}

#[test]
fn a_directory_is_of_one_replica() {
    let directory = Directory::new("owner");
    let replica = free_replica(1);
    let data = directory.of(1);
    let server = found(&directory, &replica, 1, &[]);
    let refused = |arguments: &[&str], why: &str| {
        let output = dunlin(&[&["raft", "serve", "--data", &data], arguments].concat()).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && err.contains(why), "{arguments:?}: {err}");
    };
    refused(&["--id", "1", "--peers", &replica], "is in use by another node");
    server.stop("-TERM");
    let other = free_replica(2);
    refused(&["--id", "2", "--peers", &other], "is the directory of replica 1, not of replica 2");
    refused(
        &["--id", "1", "--peers", &replica, "--cluster", "0000000000000007"],
        ", not of cluster 0000000000000007: start it",
    );
    refused(&["--id", "1", "--peers", &replica, "--limit", "64MiB"], "--limit 268435456");
    refused(&["--id", "1", "--peers", &free_replica(1)], "the cluster knows replica 1 at ");
    refused(&["--id", "1", "--peers", &replica, "--at", "udp://192.0.2.1:1"], "192.0.2.1:1");
}

#[test]
fn a_replica_without_its_log_does_not_begin_anew() {
    let directory = Directory::new("new");
    let (replica, data) = (free_replica(1), directory.of(1));
    let refused = |more: &[&str], why: &str| {
        let (code, out, err) = ask(&[&["serve", "--id", "1", "--peers", &replica, "--data", &data], more].concat());
        assert!(code == 2 && out.is_empty() && err.contains(why), "{more:?}: {code} {out} {err}");
        err
    };
    // As if its mount were missing.
    let err = refused(&[], "replica 1 cannot start: there is no log in ");
    for part in
        [&data, "with --new, to found a cluster", "(is it mounted?)", "dunlin raft remove", "dunlin raft serve --join"]
    {
        assert!(err.contains(part), "{err}");
    }
    assert!(!std::fs::exists(&data).unwrap());
    let server = found(&directory, &replica, 1, &[]);
    done(&["put", "--at", &replica, "bird", "dunlin", "--timeout", "20s"]);
    server.stop("-TERM");
    let server = serve(&directory, &replica, 1, &[]);
    assert_eq!(done(&["get", "--at", &replica, "bird", "--timeout", "20s"]), "dunlin");
    server.stop("-TERM");
    // Even with the first command line, which a service may have kept.
    refused(&["--new"], "so this is not its first start: leave out --new");
    refused(&["--join"], "so this is not its first start: leave out --join");
    std::fs::remove_dir_all(&data).unwrap();
    refused(&[], "there is no log in ");
    std::fs::create_dir(&data).unwrap();
    refused(&[], "never start it again under this id");
}

#[test]
fn a_client_of_another_cluster_is_refused() {
    let directory = Directory::new("cluster");
    let replica = free_replica(1);
    let server = found(&directory, &replica, 1, &[]);
    done(&["put", "--at", &replica, "bird", "dunlin", "--timeout", "20s"]);
    let number = status(&replica)["cluster"].as_str().unwrap().to_owned();
    assert!(server.ready.contains(&format!("replica 1 of cluster {number} at ")), "{}", server.ready);
    let other = "0000000000000007";
    let (code, _, err) = ask(&["put", "--at", &replica, "bird", "knot", "--timeout", "20s", "--cluster", other]);
    assert!(code == 2 && err.contains(&format!("a replica of cluster {number} has answered")), "{code} {err}");
    let (code, out, err) = ask(&["status", "--at", &replica, "--cluster", other]);
    assert!(code == 2 && err.contains(&format!("is of cluster {number}, and not of cluster {other}")), "{code} {err}");
    assert!(out.contains("foreign"), "{out}");
    assert_eq!(done(&["get", "--at", &replica, "bird", "--cluster", &number]), "dunlin");
    server.stop("-TERM");
    // Its log keeps the number.
    let server = serve(&directory, &replica, 1, &["--cluster", &number]);
    assert_eq!(done(&["get", "--at", &replica, "bird", "--cluster", &number, "--timeout", "20s"]), "dunlin");
    server.stop("-TERM");
}

#[test]
fn a_damaged_log_is_not_served() {
    let directory = Directory::new("damaged");
    let replica = free_replica(1);
    let server = found(&directory, &replica, 1, &[]);
    for number in 0..10 {
        done(&["put", "--at", &replica, &format!("key {number}"), &"value".repeat(100), "--timeout", "20s"]);
    }
    server.stop("-TERM");
    let segment = format!("{}/log-0000000000000001", directory.of(1));
    let mut bytes = std::fs::read(&segment).unwrap();
    // In the middle of the written part, so that it cannot be mistaken for a torn write.
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end / 2] ^= 0x40;
    std::fs::write(&segment, bytes).unwrap();
    let (code, out, err) = ask(&["serve", "--id", "1", "--peers", &replica, "--data", &directory.of(1)]);
    assert!(code == 2 && out.is_empty(), "{code} {out}");
    for part in
        [&format!("{segment}, at byte "), "remove this member from the group", "restore the directory from a copy"]
    {
        assert!(err.contains(part), "{err}");
    }
}

/// The last bytes of a cleanly closed log cannot be a torn write, so damage there is reported as damage.
#[test]
fn the_end_of_a_log_that_was_closed_is_not_cut_off() {
    let directory = Directory::new("closed");
    let replica = free_replica(1);
    let server = found(&directory, &replica, 1, &[]);
    done(&["put", "--at", &replica, "bird", "dunlin", "--timeout", "20s"]);
    let again = ["serve", "--id", "1", "--peers", &replica, "--data", &directory.of(1)];
    server.stop("-TERM");
    let segment = format!("{}/log-0000000000000001", directory.of(1));
    let whole = std::fs::read(&segment).unwrap();
    // Frames begin like this; the last is the mark.
    let frames: Vec<usize> = (0..whole.len()).step_by(8).filter(|at| whole[*at..].starts_with(b"FRAM")).collect();
    let [.., last, mark] = frames[..] else { panic!("{frames:?}") };
    assert_eq!(&whole[mark + 4..mark + 8], [0; 4], "the mark has no records");
    let mut damaged = whole.clone();
    damaged[last + 40] ^= 0x10;
    std::fs::write(&segment, damaged).unwrap();
    let (code, out, err) = ask(&again);
    assert!(code == 2 && out.is_empty(), "{code} {out}");
    for part in [
        &format!("{segment}, at byte {last}: "),
        "remove this member from the group",
        "restore the directory from a copy",
    ] {
        assert!(err.contains(part), "{err}");
    }
    std::fs::write(&segment, whole).unwrap();
    let server = serve(&directory, &replica, 1, &[]);
    assert_eq!(done(&["get", "--at", &replica, "bird", "--timeout", "20s"]), "dunlin");
    server.stop("-INT");
}

/// Limits the files of a replica to 1 MiB from some time on: simulates a full disk on any machine.
#[test]
fn a_full_disk_stops_a_replica_that_loses_nothing() {
    const LIMIT: &str = "1048576";
    let directory = Directory::new("full");
    let replica = free_replica(1);
    let mut server = found(&directory, &replica, 1, &[]);
    done(&["put", "--at", &replica, "key", "v", "--timeout", "20s"]);
    let limit =
        Command::new("prlimit").args([&format!("--fsize={LIMIT}"), "--pid", &server.process.id().to_string()]).status();
    assert!(limit.unwrap().success());
    let value = |number: u32| format!("{number} ").repeat(100_000 / 3);
    // Of the last write nobody knows how it went.
    let put = |number: &u32| {
        ask(&["put", "--at", &replica, &format!("key {number}"), &value(*number), "--timeout", "5s"]).0 == 0
    };
    let acknowledged = (10..100).take_while(put).count() as u32;
    assert!((5..=16).contains(&acknowledged), "{acknowledged} values of 100 kB in 1 MiB");

    assert_eq!(server.process.wait().unwrap().code(), Some(2));
    let mut said = String::new();
    server.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let place = format!("cannot write {}/log-0000000000000001: the log takes nothing more", directory.of(1));
    for part in
        ["replica 1 has stopped", &place, "raise the limit that was reached, and start it again", "File too large"]
    {
        assert!(said.contains(part), "{said}");
    }
    let server = serve(&directory, &replica, 1, &[]);
    for number in 10..10 + acknowledged {
        let found = done(&["get", "--at", &replica, &format!("key {number}"), "--timeout", "20s"]);
        assert!(found == value(number), "{number} is not as it was acknowledged: {} bytes", found.len());
    }
    server.stop("-TERM");
}

#[test]
fn wrong_command_lines_are_refused() {
    let refused = |arguments: &[&str], why: &str| {
        let (code, out, err) = ask(arguments);
        assert!(code == 2 && out.is_empty() && err.contains(why), "{arguments:?}: {code} {out} {err}");
    };
    let serve = |more: &[&str], why: &str| {
        let (code, out, err) = ask(&[&["serve"], more].concat());
        assert!(out.is_empty() && err.contains(why), "{more:?}: {code} {out} {err}");
        assert_eq!(code, 2, "{more:?}");
    };
    let peers = ["--id", "1", "--new", "--volatile", "--peers", "1=shm:one,2=shm:two"];
    serve(&["--id", "1", "--peers", "1=shm:one"], "--data <DIR>");
    serve(&[&peers[..], &["--join"]].concat(), "cannot be used with");
    serve(
        &["--id", "1", "--volatile", "--peers", "1=shm:one"],
        "a replica with --volatile has no log when it starts: say --new",
    );
    serve(&[&peers[..], &["--data", "there"]].concat(), "cannot be used with");
    serve(&["--id", "0", "--volatile", "--peers", "1=shm:one"], "0 is not in 1..");
    serve(&["--id", "3", "--volatile", "--peers", "1=shm:one,2=shm:two"], "replica 3 is not among --peers");
    serve(&["--id", "1", "--volatile", "--peers", "1=shm:one,1=shm:two"], "an id stands twice");
    serve(&["--id", "1", "--volatile", "--peers", "1=shm:one,2=udp://127.0.0.1:7802"], "addresses of one kind");
    serve(&["--id", "1", "--volatile", "--peers", "1=udp://0.0.0.0:7801"], "others must reach it there");
    serve(&["--id", "1", "--volatile", "--peers", "shm:one"], "write ID=ADDRESS");
    serve(&[&peers[..], &["--election", "100ms"]].concat(), "--election 100ms is too short for --heartbeat 50ms");
    serve(&[&peers[..], &["--tick", "100ms"]].concat(), "--heartbeat 50ms is shorter than --tick 100ms");
    serve(&[&peers[..], &["--tick", "0"]].concat(), "give 1ms to 1s");
    serve(&[&peers[..], &["--limit", "1KiB"]].concat(), "give between 2MiB and 2GiB");
    serve(&[&peers[..], &["--reads", "maybe"]].concat(), "possible values: index, lease");
    serve(&["--id", "1", "--data", "/nowhere/to/be/found", "--peers", "1=shm:one"], "/nowhere/to/be/found");
    refused(&["put", "--at", "shm:one", "key", "value"], "write --at ID=ADDRESS");
    refused(&["put", "--at", "1=shm:nobody", "key"], "<VALUE>");
    refused(&["get", "--at", "1=shm:nobody", "key", "--timeout", "0s"], "give 10ms to 1d");
    refused(&["get", "--at", "1=shm:nobody", "key", "--timeout", "100ms"], "no leader answered in time");
    refused(&["put", "--at", "1=shm:nobody", "key", "value", "--if", "version=one"], "one is no version");
    refused(
        &["put", "--at", "1=shm:nobody", "key", "value", "--if", "maybe"],
        "give absent, present or version=NUMBER",
    );
    refused(&["add", "--at", "1=shm:nobody", "udp://127.0.0.1:1", "--timeout", "100ms"], "write ID=ADDRESS");
    refused(
        &["add", "--at", "1=shm:nobody", "2=shm:two", "--timeout", "100ms"],
        "none of them answers: are they started",
    );
    refused(&["get", "--at", "1=shm:nobody", "key", "--cluster", "7"], "16 hexadecimal digits");
    serve(&[&peers[..], &["--cluster", "0000000000000007"]].concat(), "cannot be used with");
    refused(&["remove", "--at", "1=shm:nobody", "two"], "invalid digit");
    refused(&["remove", "--at", "1=shm:nobody", "1", "--timeout", "100ms"], "no leader answered in time");
    refused(&["transfer", "--at", "1=shm:nobody", "1", "--timeout", "100ms"], "no leader answered in time");
    let (code, out, err) = ask(&["status", "--at", "1=shm:nobody", "--timeout", "100ms"]);
    assert!(code == 2 && out.contains("unreachable") && err.contains("none of them answers"), "{code} {out} {err}");
}
