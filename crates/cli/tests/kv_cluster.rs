//! `dunlin kv cluster` and `dunlin kv proxy` as processes.

mod program;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use program::{Server, dunlin};

fn kv(arguments: &[&str]) -> Command {
    dunlin(&[&["kv"], arguments].concat())
}

fn run(arguments: &[&str]) -> Output {
    kv(arguments).output().unwrap()
}

fn code(arguments: &[&str]) -> i32 {
    run(arguments).status.code().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A file that describes a cluster in shared memory, of a name that no other test and no other run uses.
struct Described {
    path: PathBuf,
    place: String,
}

impl Described {
    fn new(name: &str, servers: &[&str], replicas: usize) -> Described {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.toml", std::process::id()));
        std::fs::write(&path, Described::text(name, servers, replicas)).unwrap();
        let place = format!("file:{}", path.display());
        Described { path, place }
    }

    fn text(name: &str, servers: &[&str], replicas: usize) -> String {
        let mut text =
            format!("name = \"{name}\"\nid = \"{:016x}\"\nreplicas = {replicas}\n[servers]\n", std::process::id());
        for server in servers {
            text += &format!("{server} = \"shm:kc-{name}-{server}-{}\"\n", std::process::id());
        }
        text
    }

    fn serve(&self, server: &str, more: &[&str]) -> Server {
        let arguments = ["cluster", "serve", server, "--servers", &self.place, "--memory", "32MiB"];
        Server::start(kv(&[&arguments[..], more].concat()))
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Sends commands to the proxy, and returns the lines of the answers.
fn say(address: &str, commands: &str, lines: usize) -> Vec<String> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(commands.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    (0..lines)
        .map(|_| {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        })
        .collect()
}

#[test]
fn a_server_that_was_killed_is_filled_before_it_is_read_and_memcached_clients_go_on() {
    let cluster = Described::new("shop", &["a", "b", "c"], 2);
    let at = cluster.place.as_str();
    let tier = cluster.path.with_extension("tier").display().to_string();
    let a = cluster.serve("a", &["--new", "--cores", "2", "--tier", &tier, "--tier-size", "16MiB"]);
    assert!(a.ready.contains(&format!(", 32 MiB with a tier of 16 MiB in {tier}; ctrl-C")), "{}", a.ready);
    let mut b = cluster.serve("b", &["--new"]);
    let c = cluster.serve("c", &["--new"]);
    assert!(b.ready.contains("; b of cluster shop, 1 core, 32 MiB; ctrl-C ends it"), "{}", b.ready);
    let keys: Vec<String> = (0..12).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        assert_eq!(code(&["cluster", "set", key, key, "--at", at]), 0);
    }
    let all = |more: &[&str]| {
        let mut arguments = vec!["cluster", "mget", "--at", at];
        arguments.extend(keys.iter().map(String::as_str));
        arguments.extend(more);
        run(&arguments)
    };
    let expected: String = keys.iter().map(|key| format!("{key}\t{key}\n")).collect();
    assert_eq!(text(&all(&[])), expected);
    let trace: serde_json::Value = serde_json::from_str(&text(&all(&["--timeline", "--json"]))).unwrap();
    let parts = trace["parts"].as_array().unwrap();
    assert_eq!(parts.iter().filter_map(|part| part["keys"].as_u64()).sum::<u64>(), 12);
    assert!(text(&all(&["--timeline"])).lines().next().unwrap().starts_with("server"));
    let proxy = Server::start(kv(&["proxy", "--servers", at, "--memcached", "tcp://127.0.0.1:0"]));
    let address = proxy.ready.split("tcp://").nth(1).and_then(|rest| rest.split(';').next()).unwrap().to_owned();
    b.kill();
    assert_eq!(text(&all(&[])), expected, "the others have everything");
    assert_eq!(say(&address, "get key-1 none key-2\r\n", 5)[4], "END");
    // It returns empty, and nobody reads from it.
    let b = cluster.serve("b", &[]);
    assert_eq!(text(&all(&[])), expected);
    let status = run(&["cluster", "status", "--at", at, "--json"]);
    assert_eq!(status.status.code(), Some(1));
    let status: serde_json::Value = serde_json::from_str(&text(&status)).unwrap();
    let states: Vec<&str> =
        status["servers"].as_array().unwrap().iter().filter_map(|server| server["state"].as_str()).collect();
    assert_eq!(states, ["open", "closed", "open"]);
    // What it misses is reported: to commands, and to memcached clients.
    let codes: Vec<i32> = keys.iter().map(|key| code(&["cluster", "set", key, "new", "--at", at])).collect();
    assert!(codes.contains(&4) && codes.contains(&0), "{codes:?}");
    let answers: Vec<String> =
        keys.iter().map(|key| say(&address, &format!("set {key} 5 0 3\r\nnew\r\n"), 1).remove(0)).collect();
    assert!(answers.iter().any(|answer| answer == "STORED"), "{answers:?}");
    assert!(
        answers.iter().any(|answer| answer.starts_with("SERVER_ERROR 1 of 2 replicas have it; b: ")),
        "{answers:?}"
    );
    let refilled = run(&["cluster", "refill", "b", "--at", at]);
    assert!(text(&refilled).starts_with("b is open: "), "{refilled:?}");
    assert_eq!(code(&["cluster", "status", "--at", at]), 0);
    let refused = run(&["cluster", "refill", "nobody", "--at", at]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    drop((a, c));
    std::fs::remove_file(tier).unwrap();
    // Its partitions are read from it alone now; the others have no replica.
    let (mut here, mut gone) = (0, 0);
    for key in &keys {
        let got = run(&["cluster", "get", key, "--at", at, "--timeout", "1s"]);
        match got.status.code() {
            Some(0) => {
                assert_eq!(got.stdout, b"new");
                here += 1;
            }
            Some(2) => gone += 1,
            code => panic!("{code:?}: {got:?}"),
        }
    }
    assert!(here > 0 && here + gone == 12, "{here} of 12");
    assert!(b.stop("-TERM").ends_with("ended\n"));
    assert!(proxy.stop("-TERM").ends_with("ended\n"));
}

#[test]
fn the_proxy_forwards_what_is_sound_and_refuses_the_rest() {
    let cluster = Described::new("proxied", &["a", "b"], 2);
    let _servers = [cluster.serve("a", &["--new"]), cluster.serve("b", &["--new"])];
    let proxy = Server::start(kv(&["proxy", "--servers", &cluster.place, "--memcached", "tcp://127.0.0.1:0"]));
    let address = proxy.ready.split("tcp://").nth(1).and_then(|rest| rest.split(';').next()).unwrap().to_owned();
    let answers = say(
        &address,
        "set k 7 0 5\r\nvalue\r\nget k none\r\nadd k 0 0 1\r\nx\r\nadd n 0 0 1\r\nx\r\nreplace no 0 0 1\r\nx\r\n\
         delete n\r\ndelete n\r\nset q 0 0 1 noreply\r\ny\r\nget q\r\nversion\r\n",
        13,
    );
    let expected = [
        "STORED",
        "VALUE k 7 5",
        "value",
        "END",
        "NOT_STORED",
        "STORED",
        "NOT_STORED",
        "DELETED",
        "NOT_FOUND",
        "VALUE q 0 1",
        "y",
        "END",
    ];
    assert_eq!(answers[..12], expected);
    assert!(answers[12].starts_with("VERSION 1.6.45-dunlin-"), "{answers:?}");
    let got = say(&address, "gets k\r\n", 3);
    let token = got[0].rsplit(' ').next().unwrap();
    let cas =
        say(&address, &format!("cas k 0 0 2 {token}\r\nab\r\ncas k 0 0 2 {token}\r\ncd\r\ncas z 0 0 1 1\r\nx\r\n"), 3);
    assert_eq!(cas, ["STORED", "EXISTS", "NOT_FOUND"]);
    for (command, what) in [
        ("append k 0 0 1\r\nx\r\n", "append and prepend"),
        ("incr k 1\r\n", "incr and decr"),
        ("touch k 10\r\n", "touch"),
        ("gat 10 k n\r\n", "gat"),
        ("flush_all\r\n", "flush_all"),
        ("mg k v\r\n", "a meta command"),
        ("ms k 1\r\nx\r\n", "a meta command"),
    ] {
        let answers = say(&address, &format!("{command}get k\r\n"), 4);
        assert_eq!(answers[0], format!("SERVER_ERROR {what} is not forwarded to a cluster: replicas could differ"));
        assert_eq!(answers[1..], ["VALUE k 0 2", "ab", "END"], "{command:?}");
    }
    assert_eq!(say(&address, "bogus\r\n", 1), ["ERROR"]);
    let longest = "v".repeat(1 << 20);
    let mut answer = say(&address, &format!("set long 0 0 {}\r\n{longest}\r\nget long\r\n", 1 << 20), 4);
    assert_eq!(answer.remove(2), longest);
    assert_eq!(answer, ["STORED", &format!("VALUE long 0 {}", 1 << 20), "END"]);
    let longer = format!("set long 0 0 {}\r\n{longest}v\r\nget long\r\n", (1 << 20) + 1);
    assert_eq!(say(&address, &longer, 2), ["SERVER_ERROR object too large for cache", "END"]);
    let many: String = (0..3000).map(|number| format!(" key-{number}")).collect();
    assert_eq!(say(&address, &format!("get{many} k\r\n"), 3), ["VALUE k 0 2", "ab", "END"]);
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"get k\r\nquit\r\n").unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert_eq!(all, "VALUE k 0 2\r\nab\r\nEND\r\n");
    let stats = say(&address, "stats\r\n", 20);
    assert!(stats.iter().any(|line| line == "STAT forward_refused 7"), "{stats:?}");
    assert!(stats.iter().any(|line| line == "STAT replicas 2") && stats[19] == "END", "{stats:?}");
}

#[test]
fn ids_of_clusters_are_drawn() {
    let [one, two] = [(); 2].map(|()| text(&run(&["cluster", "new-id"])));
    assert!(one.len() == 17 && one.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit()), "{one}");
    assert_ne!(one, two);
}

#[test]
fn a_description_that_contradicts_itself_is_refused_with_its_file() {
    let cluster = Described::new("wrong", &["a"], 2);
    for arguments in [
        &["cluster", "serve", "a", "--servers", &cluster.place][..],
        &["cluster", "status", "--at", &cluster.place],
        &["proxy", "--servers", &cluster.place],
    ] {
        let refused = run(arguments);
        assert_eq!(refused.status.code(), Some(2));
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(why.contains("wrong-") && why.contains("replicas = 2 with 1 servers: give 1 to 1"), "{why}");
    }
    let cluster = Described::new("alone", &["a"], 1);
    let refused = run(&["cluster", "serve", "b", "--servers", &cluster.place]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("has no server b: its servers are a"), "{refused:?}");
    let refused = run(&["cluster", "status", "--at", "shm:x"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("file:PATH"), "{refused:?}");
}

/// With a cluster manager no operator is needed while a replica is open.
#[test]
fn a_member_that_was_killed_joins_again_and_fills_itself() {
    let peers = format!("1=shm:kc-coord-{}", std::process::id());
    let manager = dunlin(&[
        "coord",
        "serve",
        "--id",
        "1",
        "--volatile",
        "--peers",
        &peers,
        "--new",
        "--failure-timeout",
        "1500ms",
    ]);
    let manager = Server::start(manager);
    let described = Described::text("members", &["a", "b"], 2);
    let stored = dunlin(&["coord", "set", "/kv/members", &described, "--at", &peers]).output().unwrap();
    assert!(stored.status.success(), "{stored:?}");
    let start = |server: &str, member: &str, more: &[&str]| {
        let arguments = ["cluster", "serve", server, "--servers", &peers, "--entry", "/kv/members", "--member", member];
        Server::start(kv(&[&arguments[..], &["--memory", "32MiB"], more].concat()))
    };
    let ask = |arguments: &[&str]| {
        run(&[&["cluster"], arguments, &["--at", &peers, "--entry", "/kv/members", "--timeout", "9s"]].concat())
    };
    let wait_until_open = || {
        let begun = Instant::now();
        while ask(&["status"]).status.code() != Some(0) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", text(&ask(&["status"])));
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let a = start("a", "101", &["--new"]);
    let mut b = start("b", "102", &["--new"]);
    wait_until_open();
    for number in 0..8 {
        let stored = ask(&["set", &format!("k{number}"), "before"]);
        assert_eq!(stored.status.code(), Some(0), "{stored:?}");
    }
    b.kill();
    // When it has failed, writes go on without it, and are no error.
    let begun = Instant::now();
    loop {
        let stored = ask(&["set", "k0", "after"]);
        if stored.status.code() == Some(0) {
            assert!(String::from_utf8_lossy(&stored.stderr).contains("1 replicas are not live"), "{stored:?}");
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{stored:?}");
    }
    assert_eq!(ask(&["del", "k1"]).status.code(), Some(0));
    let b = start("b", "102", &[]);
    wait_until_open();
    assert!(a.stop("-TERM").ends_with("ended\n"));
    // It left, so the epoch has risen; all there is comes from b.
    let got = ask(&["mget", "--policy", "rein", "k0", "k1", "k2", "k7"]);
    assert_eq!((got.status.code(), text(&got)), (Some(1), "k0\tafter\nk2\tbefore\nk7\tbefore\n".into()));
    let mut refused = kv(&["cluster", "serve", "a", "--servers", &peers, "--entry", "/kv/members", "--member", "101"]);
    let refused = refused.args(["--memory", "32MiB", "--new"]).output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && why.contains("a was started before"), "{why}");
    assert!(b.stop("-TERM").ends_with("ended\n"));
    drop(manager);
}
