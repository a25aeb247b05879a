//! A transaction service as processes: a cluster manager, nodes that it keeps together, and clients.

mod program;

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::process::Stdio;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dunlin_net::AnyTransport;
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_txn::node::{Remote, RemoteConfig};
use dunlin_txn::{Outcome, TxnError};
use program::raft::free_replica;
use program::{Server, dunlin};
use serde_json::Value;

/// Kills of a normal test run; `DUNLIN_KILLS` gives more.
const KILLS: u64 = 2;
/// Long enough for a busy machine, and short enough to wait for.
const FAILURE_TIMEOUT: &str = "2s";
/// Limit of all waiting.
const PATIENCE: Duration = Duration::from_secs(90);
const ACCOUNTS: u64 = 40;
const BALANCE: u64 = 1000;

/// One bank at a time: their processes need the machine.
static BANKS: Mutex<()> = Mutex::new(());

/// A cluster manager of one node, and the nodes of a service.
struct Service {
    manager: String,
    _manager: Server,
    nodes: Vec<Option<Server>>,
    /// Where each node is.
    at: Vec<String>,
    /// How long nodes that failed together are waited for.
    grace: &'static str,
}

impl Service {
    fn start(nodes: usize) -> Service {
        Service::start_with(nodes, "10s")
    }

    fn start_with(nodes: usize, grace: &'static str) -> Service {
        let manager = free_replica(1);
        let serve = ["coord", "serve", "--id", "1", "--new", "--volatile", "--peers", &manager];
        let patience = ["--failure-timeout", FAILURE_TIMEOUT, "--check-every", "50ms"];
        let process = Server::start(dunlin(&[&serve[..], &patience].concat()));
        let at = (0..nodes).map(|_| free_replica(1).split_once('=').unwrap().1.to_owned()).collect();
        let none = (0..nodes).map(|_| None).collect();
        let mut service = Service { manager, _manager: process, nodes: none, at, grace };
        (0..nodes).for_each(|node| service.start_node(node));
        service.until("all nodes are members", |status| status["members"].as_array().map(Vec::len) == Some(nodes));
        service
    }

    fn start_node(&mut self, node: usize) {
        let (member, at) = ((node + 1).to_string(), &self.at[node]);
        let serve = ["txn", "serve", "--member", &member, "--at", at, "--coord", &self.manager];
        let times = ["--ttl", "1s", "--grace", self.grace];
        self.nodes[node] = Some(Server::start(dunlin(&[&serve[..], &times].concat())));
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node].take().unwrap().kill();
    }

    /// All addresses, in the form of replicas.
    fn all(&self) -> String {
        let named: Vec<String> = self.at.iter().enumerate().map(|(node, at)| format!("{}={at}", node + 1)).collect();
        named.join(",")
    }

    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        self.run_at(&self.all(), arguments, "")
    }

    fn run_at(&self, at: &str, arguments: &[&str], input: &str) -> (i32, String, String) {
        let mut command = dunlin(&[&["txn"], arguments].concat());
        command.env("DUNLIN_AT", at).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = process.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }

    fn done(&self, arguments: &[&str]) -> String {
        let (code, out, err) = self.run(&[arguments, &["--timeout", "60s"]].concat());
        assert_eq!(code, 0, "{arguments:?}: {out}{err}");
        out
    }

    fn status(&self) -> Option<Value> {
        let (_, out, _) = self.run(&["status", "--json", "--timeout", "5s"]);
        serde_json::from_str(&out).ok()
    }

    /// Waits until the status is as it should be.
    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if let Some(status) = status.as_ref().filter(|status| is_so(status)) {
                return status.clone();
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {status:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until every partition has all of its copies.
    fn until_whole(&self) {
        let members = self.nodes.iter().flatten().count();
        self.until("all copies are complete", |status| {
            let serves = |member: &Value| member["serving"] == member["cores"];
            let all = status["members"].as_array().unwrap();
            status["incomplete"] == 0 && status["repaired"] == 0 && all.len() == members && all.iter().all(serves)
        });
    }
}

/// Transfers between accounts, each with a line in a journal, on a thread of its own.
struct Bank {
    stop: Arc<AtomicBool>,
    transfers: Arc<AtomicU64>,
    thread: JoinHandle<Counted>,
}

/// What the bank knows at its end.
#[derive(Debug, Default)]
struct Counted {
    acknowledged: u64,
    in_doubt: u64,
    lost: u64,
    /// Transfers that were not committed, and are in the journal.
    ghosts: u64,
    sum: u64,
}

type Client = Remote<AnyTransport>;

fn account(number: u64) -> Vec<u8> {
    format!("account-{number}").into_bytes()
}

fn balance(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| std::str::from_utf8(value).unwrap().parse().unwrap())
}

async fn transfer(client: &Client, name: &str, from: u64, to: u64) -> Result<(), TxnError> {
    client
        .run(async |tx| {
            let (accounts, journal) = (client.client().table("accounts")?, client.client().table("journal")?);
            let (from, to) = (account(from), account(to));
            let values = tx.execute(&[(accounts, &from), (accounts, &to)], dunlin_txn::Mode::Update).await?;
            let [has, gets] = [0, 1].map(|at: usize| balance(values[at].as_deref()));
            if has > 0 {
                tx.put(accounts, &from, (has - 1).to_string())?;
                tx.put(accounts, &to, (gets + 1).to_string())?;
            }
            tx.insert(journal, name.as_bytes(), "done")
        })
        .await
}

impl Bank {
    fn open(service: &Service) -> Bank {
        let at: Vec<dunlin_net::Addr> = service.at.iter().map(|at| at.parse().unwrap()).collect();
        let (stop, transfers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), transfers.clone());
        let thread = thread::spawn(move || {
            let any = AnyTransport::bind(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
            let endpoint = Rc::new(Endpoint::new(any, EndpointConfig::default()).unwrap());
            let config = RemoteConfig { timeout: PATIENCE, ..RemoteConfig::default() };
            let client = endpoint.block_on(Remote::connect(&endpoint, at, config)).unwrap();
            endpoint
                .block_on(client.run(async |tx| {
                    let accounts = client.client().table("accounts")?;
                    (0..ACCOUNTS).try_for_each(|number| tx.put(accounts, &account(number), BALANCE.to_string()))
                }))
                .unwrap();
            let (all, working) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
            for worker in 0..8_u64 {
                let (client, stopped, counted) = (client.clone(), stopped.clone(), counted.clone());
                let (all, working) = (all.clone(), working.clone());
                working.set(working.get() + 1);
                let timers = endpoint.timers();
                endpoint.spawn(async move {
                    for number in 0.. {
                        if stopped.load(Ordering::Relaxed) {
                            break;
                        }
                        let (name, seed) = (format!("{worker}/{number}"), worker * 7 + number * 13);
                        let done = transfer(&client, &name, seed % ACCOUNTS, (seed + 1 + number % 7) % ACCOUNTS).await;
                        counted.fetch_add(u64::from(done.is_ok()), Ordering::Relaxed);
                        all.borrow_mut().push((name, done));
                        timers.sleep(Duration::from_millis(2)).await;
                    }
                    working.set(working.get() - 1);
                });
            }
            endpoint.run_until(|| working.get() == 0);
            endpoint.block_on(count(&client, &all.take()))
        });
        Bank { stop, transfers, thread }
    }

    /// Waits for more transfers.
    fn go_on(&self, more: u64) {
        let (before, begun) = (self.transfers.load(Ordering::Relaxed), Instant::now());
        while self.transfers.load(Ordering::Relaxed) < before + more {
            assert!(begun.elapsed() < PATIENCE, "no transfers");
            assert!(!self.thread.is_finished(), "the bank has failed");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn close(self) -> Counted {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

async fn count(client: &Client, all: &[(String, Result<(), TxnError>)]) -> Counted {
    let mut counted = Counted::default();
    for (name, done) in all {
        let is_there = client
            .run(async |tx| {
                let journal = client.client().table("journal")?;
                Ok(tx.get(journal, name.as_bytes()).await?.is_some())
            })
            .await
            .unwrap();
        match done {
            Ok(()) => {
                counted.acknowledged += 1;
                counted.lost += u64::from(!is_there);
            }
            Err(TxnError::InDoubt { transaction }) => {
                counted.in_doubt += 1;
                let outcome = client.settle(*transaction).await.unwrap();
                let expected = if is_there { Outcome::Committed } else { Outcome::Aborted };
                assert!(outcome == expected || outcome == Outcome::Forgotten, "{name}: {outcome:?}, {is_there}");
            }
            Err(_) => counted.ghosts += u64::from(is_there),
        }
    }
    let balances = client.run(async |tx| {
        let accounts = client.client().table("accounts")?;
        let keys: Vec<Vec<u8>> = (0..ACCOUNTS).map(account).collect();
        let keys: Vec<_> = keys.iter().map(|key| (accounts, &key[..])).collect();
        tx.execute(&keys, dunlin_txn::Mode::Read).await
    });
    counted.sum = balances.await.unwrap().iter().map(|value| balance(value.as_deref())).sum();
    counted
}

fn assert_kept(counted: &Counted) {
    eprintln!("{counted:?}");
    assert_eq!((counted.lost, counted.ghosts, counted.sum), (0, 0, ACCOUNTS * BALANCE), "{counted:?}");
}

/// The commands, and what they say to wrong ones.
#[test]
fn tables_are_made_written_read_and_shown() {
    let service = Service::start(3);
    let (code, _, err) = service.run(&["get", "accounts", "a", "--timeout", "20s"]);
    assert!(code == 1 && err.contains("there is no table \"accounts\""), "{code} {err}");
    let (code, _, err) = service.run(&["table", "create", "accounts", "--replicas", "4"]);
    assert!(code == 2 && err.contains("4 copies need 4 members, and 3 are there"), "{code} {err}");
    let made = service.done(&["table", "create", "accounts", "--replicas", "3", "--partitions", "12"]);
    assert_eq!(made, "accounts: 12 partitions, 3 copies of each\n");
    let (code, _, err) = service.run(&["table", "create", "accounts"]);
    assert!(code == 2 && err.contains("is there already"), "{code} {err}");
    let (code, _, err) = service.run(&["table", "create", "b d"]);
    assert!(code == 2 && err.contains("no name for a table"), "{code} {err}");
    let (code, _, err) = service.run(&["table", "create", "birds", "--replicas", "2"]);
    assert!(code == 2 && err.contains("share the partitions of the service, which has replicas 3"), "{code} {err}");
    service.done(&["table", "create", "birds", "--ordered", "--split", "h,q"]);
    assert_eq!(service.done(&["table", "list"]), "accounts\nbirds  ordered, split at h, q\n");

    // Any node is asked, and tells where the others are.
    service.done(&["put", "accounts", "alice", "100", "bob", "0"]);
    for at in &service.at {
        let (code, out, err) = service.run_at(at, &["get", "accounts", "alice"], "");
        assert_eq!((code, out.as_str()), (0, "100"), "{err}");
    }
    assert_eq!(service.done(&["get", "accounts", "alice", "bob"]), "alice\t100\nbob\t0\n");
    let (code, out, _) = service.run(&["get", "accounts", "alice", "carol"]);
    assert_eq!((code, out.as_str()), (1, "alice\t100\n"));
    service.done(&["delete", "accounts", "bob"]);
    assert_eq!(service.run(&["delete", "accounts", "bob"]).0, 1);
    service.done(&["put", "birds", "dunlin", "1", "knot", "2", "ruff", "3", "sanderling", "4"]);
    assert_eq!(service.done(&["scan-table", "birds", "--from", "e"]), "knot\t2\nruff\t3\nsanderling\t4\n");
    assert_eq!(service.done(&["scan-table", "birds", "--past", "knot", "--count", "1"]), "ruff\t3\n");
    let (code, _, err) = service.run(&["scan-table", "accounts"]);
    assert!(code == 2 && err.contains("is not ordered"), "{code} {err}");
    let (code, _, err) = service.run(&["put", "accounts", &"k".repeat(251), "v"]);
    assert!(code == 2 && err.contains("a key has 251 bytes: choose 1 to 250"), "{code} {err}");

    // By hand: the second shell changes what the first has read.
    let script = "begin\nget accounts alice\nput accounts alice 90\nput accounts carol 10\ncommit\n";
    let (code, out, err) = service.run_at(&service.at[1], &["shell"], script);
    assert_eq!((code, out.as_str()), (0, "100\ncommitted\n"), "{err}");
    let script =
        "commit\nbegin\nput accounts alice 0\nabort\nput accounts\nget accounts alice\nbegin\nlock accounts alice\n";
    let (code, out, _) = service.run_at(&service.at[2], &["shell"], script);
    assert_eq!(code, 2);
    let said = "no transaction is open: begin one\naborted\n\"put accounts\" is no command: try help\n90\n90\n\
                aborted: it was not committed\n";
    assert_eq!(out, said);
    two_shells_conflict(&service);

    service.until_whole();
    let status = service.status().unwrap();
    assert_eq!(
        (&status["tables"], &status["lost"]),
        (&serde_json::json!(["accounts", "birds"]), &serde_json::json!([]))
    );
    let (code, text, _) = service.run(&["status"]);
    assert!(code == 0 && text.contains("3 members, 2 tables, 12 partitions with 3 copies"), "{code} {text}");

    let watch = ["top", "--at", &service.at[0], "--count", "1", "--interval", "200ms", "--json"];
    let output = dunlin(&watch).output().unwrap();
    let line: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(line["primaries"].as_f64().unwrap() + line["backups"].as_f64().unwrap(), 12.0, "{line}");
    assert!(line["epoch"] == status["epoch"].as_f64().unwrap() && line["filling"] == 0.0, "{line}");

    // A node that knows another cluster, or nobody.
    let (code, _, err) = service.run_at(&service.manager, &["status", "--timeout", "500ms"], "");
    assert!(code == 2 && err.contains("no node of the service answers"), "{code} {err}");
    let other = Service::start(1);
    other.done(&["table", "create", "accounts"]);
    let both = format!("1={},2={}", service.at[0], other.at[0]);
    let (code, _, err) = service.run_at(&both, &["status"], "");
    assert!(code == 2 && err.contains("and others are of cluster"), "{code} {err}");
}

fn two_shells_conflict(service: &Service) {
    let start = |at: &str| {
        let mut command = dunlin(&["txn", "shell"]);
        command.env("DUNLIN_AT", at).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut first = start(&service.at[0]);
    let mut output = std::io::BufReader::new(first.stdout.take().unwrap());
    let mut input = first.stdin.take().unwrap();
    let mut line = String::new();
    input.write_all(b"begin\nget accounts alice\n").unwrap();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "90\n");
    let (code, out, err) = service.run_at(&service.at[1], &["shell"], "put accounts alice 50\n");
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    input.write_all(b"put accounts alice 80\ncommit\n").unwrap();
    line.clear();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert!(line.contains("not committed") && line.contains("\"alice\" was changed since it was read"), "{line}");
    // A locked key conflicts at once.
    input.write_all(b"begin\nlock accounts alice\n").unwrap();
    line.clear();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "50\n");
    let (code, _, err) = service.run(&["put", "accounts", "alice", "1", "--timeout", "1500ms"]);
    assert!(code == 3 && err.contains("\"alice\" is locked by another transaction"), "{code} {err}");
    drop(input);
    assert!(!first.wait().unwrap().success());
}

/// Each kill hits the next node. It comes back without data.
#[test]
fn a_bank_loses_nothing_while_its_nodes_are_killed() {
    let _alone = BANKS.lock().unwrap_or_else(PoisonError::into_inner);
    let kills = std::env::var("DUNLIN_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let mut service = Service::start(3);
    service.done(&["table", "create", "accounts", "--replicas", "3", "--partitions", "6"]);
    service.done(&["table", "create", "journal"]);
    let bank = Bank::open(&service);
    bank.go_on(50);
    for kill in 0..kills {
        let victim = (kill % 3) as usize;
        service.kill(victim);
        // The others go on without it.
        bank.go_on(100);
        let epoch = service.until("it is left out", |status| status["members"].as_array().unwrap().len() == 2);
        assert_eq!(epoch["lost"], serde_json::json!([]));
        service.start_node(victim);
        service.until_whole();
        bank.go_on(20);
    }
    assert_kept(&bank.close());
}

/// A node stands still for longer than the failure timeout. It must not answer when it goes on, and comes back as a new
/// member.
#[test]
fn a_bank_loses_nothing_when_a_node_stands_still() {
    let _alone = BANKS.lock().unwrap_or_else(PoisonError::into_inner);
    let service = Service::start(3);
    service.done(&["table", "create", "accounts", "--replicas", "2", "--partitions", "6"]);
    service.done(&["table", "create", "journal"]);
    service.until_whole();
    let bank = Bank::open(&service);
    bank.go_on(50);
    let before = service.status().unwrap();
    let former = before["members"].as_array().unwrap()[0]["incarnation"].clone();
    // Not their number: on a busy machine another one may be late as well.
    let has_former =
        |status: &Value| status["members"].as_array().unwrap().iter().any(|it| it["incarnation"] == former);
    service.nodes[0].as_ref().unwrap().signal("-STOP");
    bank.go_on(100);
    service.until("it is left out", |status| !has_former(status));
    service.nodes[0].as_ref().unwrap().signal("-CONT");
    service.until_whole();
    let after = service.status().unwrap();
    assert!(!has_former(&after), "{after}");
    bank.go_on(50);
    assert_kept(&bank.close());
}

/// With one copy there is none to go on with. The others are served.
#[test]
fn a_partition_without_copies_is_said_to_be_lost() {
    let mut service = Service::start_with(2, "1s");
    service.done(&["table", "create", "accounts", "--replicas", "1", "--partitions", "4"]);
    let keys: Vec<String> = (0..20).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        service.done(&["put", "accounts", key, "here"]);
    }
    service.kill(0);
    let status = service.until("half of it is lost", |status| status["lost"].as_array().unwrap().len() == 2);
    assert_eq!(status["members"].as_array().unwrap().len(), 1);
    let (code, text, _) = service.run(&["status"]);
    assert!(code == 1 && text.contains("LOST: all copies of partitions"), "{code} {text}");
    // A new process does not make it anything else.
    service.start_node(0);
    service.until("it is back", |status| status["members"].as_array().unwrap().len() == 2);
    let (mut lost, mut found) = (0, 0);
    for key in &keys {
        match service.run(&["get", "accounts", key]) {
            (0, out, _) if out == "here" => found += 1,
            (2, out, err) if out.is_empty() && err.contains("is lost: all of its copies failed together") => lost += 1,
            other => panic!("{key}: {other:?}"),
        }
    }
    assert!(lost > 0 && found > 0, "{lost} {found}");
    let (code, _, err) = service.run(&["put", "accounts", &keys[0], "x", &keys[1], "x", &keys[2], "x", &keys[3], "x"]);
    assert!(code == 2 && err.contains("is lost"), "{code} {err}");
}

#[test]
fn wrong_use_is_said() {
    let refused = |arguments: &[&str], why: &str| {
        let output = dunlin(&[&["txn"], arguments].concat()).stdin(Stdio::null()).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && err.contains(why), "{arguments:?}: {err}");
    };
    refused(&["get", "t", "k"], "--at <WHERE>");
    refused(&["get", "--at", "shm:nobody-txn", "t", "k", "--timeout", "200ms"], "no node of the service answers");
    refused(&["put", "--at", "shm:nobody-txn", "t", "k"], "2 values required");
    refused(&["put", "--at", "shm:nobody-txn", "t", "k", "v", "l"], "\"l\" has no value");
    refused(&["status", "--at", "http://127.0.0.1:1"], "and not the cluster manager");
    refused(&["serve", "--at", "shm:txn-x", "--member", "0", "--coord", "1=shm:one"], "0 is not in 1..");
    refused(&["serve", "--at", "shm:txn-x", "--coord", "1=shm:one"], "--member");
    refused(
        &["serve", "--at", "shm:txn-x", "--member", "1", "--coord", "shm:one"],
        "give the nodes of a cluster manager",
    );
    refused(&["table", "create", "--at", "shm:nobody-txn", "t", "--split", "a"], "--ordered");
}
