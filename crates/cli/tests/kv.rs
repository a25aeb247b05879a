//! `dunlin kv` as processes: servers and clients, and the effects of killing either.

mod program;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dunlin_kv::KvClient;
use dunlin_kv::client::{ClientConfig, KvError, Outcome};
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_store::{Condition, Put, Refused};
use program::{Server, dunlin};

/// `dunlin kv` with these arguments.
fn kv(arguments: &[&str]) -> Command {
    dunlin(&[&["kv"], arguments].concat())
}

fn serve(arguments: &[&str]) -> Server {
    Server::start(kv(&[&["serve", "--memory", "192MiB"], arguments].concat()))
}

/// A name that no other test and no other run uses.
fn shm(name: &str) -> String {
    format!("shm:test-kv-{name}-{}", std::process::id())
}

fn run(arguments: &[&str]) -> Output {
    kv(arguments).output().unwrap()
}

fn code(arguments: &[&str]) -> i32 {
    run(arguments).status.code().unwrap()
}

fn endpoint(address: &str) -> (Rc<Endpoint<AnyTransport>>, Addr) {
    let address: Addr = address.parse().unwrap();
    let endpoint = Endpoint::new(AnyTransport::for_peer(&address).unwrap(), EndpointConfig::default()).unwrap();
    (Rc::new(endpoint), address)
}

/// A client with long timeouts, for busy machines.
fn patient(endpoint: &Rc<Endpoint<AnyTransport>>, address: &Addr) -> KvClient<AnyTransport> {
    KvClient::new(endpoint, address, ClientConfig::default()).with_deadline(None)
}

#[test]
fn the_commands_work_over_both_transports_and_several_cores() {
    let server = serve(&["--at", &shm("both"), "--at", "udp://127.0.0.1:0", "--cores", "3"]);
    assert!(server.ready.contains("; 3 cores, 192 MiB, cache; ctrl-C ends it"), "{}", server.ready);
    let [near, far] = &server.addresses[..] else { panic!("{:?}", server.addresses) };
    let keys: Vec<String> = (0..20).map(|i| format!("key-{i}")).collect();
    for key in &keys {
        assert_eq!(code(&["set", "--at", near, key, &format!("value of {key}")]), 0);
    }
    let got = run(&["get", "--at", far, "key-7"]);
    assert_eq!((got.status.code(), &got.stdout[..]), (Some(0), &b"value of key-7"[..]));
    let facts = run(&["get", "--at", near, "key-7", "--facts"]);
    assert!(String::from_utf8_lossy(&facts.stdout).contains("\nlength   14 B\nflags    0\nexpires "), "{facts:?}");
    assert_eq!(code(&["get", "--at", far, "none"]), 1);
    let mut many = vec!["mget", "--at", far];
    many.extend(keys.iter().map(String::as_str));
    let got = run(&many);
    let expected: String = keys.iter().map(|key| format!("{key}\tvalue of {key}\n")).collect();
    assert_eq!((got.status.code(), String::from_utf8_lossy(&got.stdout)), (Some(0), expected.into()));
    assert_eq!(code(&["mget", "--at", near, "key-1", "none"]), 1);
    assert_eq!(code(&["set", "--at", near, "key-1", "again", "--if", "absent"]), 3);
    assert_eq!(code(&["set", "--at", near, "none", "x", "--if", "present"]), 1);
    assert_eq!(code(&["del", "--at", near, "key-1", "key-2"]), 0);
    assert_eq!(code(&["del", "--at", near, "key-1"]), 1);
    let mut set = kv(&["set", "--at", far, "from-stdin", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    set.stdin.take().unwrap().write_all(&[0, 255, 10]).unwrap();
    assert!(set.wait().unwrap().success());
    assert_eq!(run(&["get", "--at", near, "from-stdin"]).stdout, [0, 255, 10]);
    let longest = vec![b'x'; dunlin_store::VALUE_BYTES_MAX];
    let (endpoint, address) = endpoint(far);
    endpoint.block_on(async {
        let client = KvClient::connect(&endpoint, &address, ClientConfig::default()).await.unwrap();
        client.set(b"longest", &longest).await.unwrap();
        assert!(client.get(b"longest").await.unwrap().unwrap()[..] == longest[..]);
        // Each key is on one core only: together the cores have all stored items.
        let stats = client.stats().await.unwrap();
        assert_eq!((stats.cores.len(), stats.store().items), (3, 20));
        assert!(stats.cores.iter().all(|core| core.store.items < 20));
    });
    assert!(server.stop("-TERM").ends_with("ended\n"));
}

#[test]
fn a_snapshot_survives_the_server() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kv-{}.snapshot", std::process::id()));
    let path = file.to_str().unwrap();
    let start =
        |cores: &str| serve(&["--at", &shm("snapshot"), "--mode", "store", "--snapshot", path, "--cores", cores]);
    let server = start("2");
    let address = server.addresses[0].clone();
    for i in 0..10 {
        assert_eq!(code(&["set", "--at", &address, &format!("k{i}"), &format!("v{i}")]), 0);
    }
    assert_eq!(code(&["snapshot", "--at", &address]), 0);
    assert_eq!(code(&["set", "--at", &address, "k10", "v10"]), 0);
    let words = server.stop("-INT");
    assert!(words.starts_with("snapshot saved: 11 items in "), "{words}");
    // To a different number of cores, and killed: nothing is saved then.
    let mut server = start("3");
    let mut all = vec!["mget".to_owned(), "--at".to_owned(), address.clone()];
    all.extend((0..11).map(|i| format!("k{i}")));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let expected: String = (0..11).map(|i| format!("k{i}\tv{i}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&run(&all).stdout), expected);
    assert_eq!(code(&["set", "--at", &address, "lost", "x"]), 0);
    server.kill();
    let server = start("1");
    assert_eq!(String::from_utf8_lossy(&run(&all).stdout), expected);
    assert_eq!(code(&["get", "--at", &address, "lost"]), 1);
    drop(server);
    // A damaged file is refused, with the position of the damage, and left unchanged.
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let refused = run(&["serve", "--at", &shm("snapshot"), "--snapshot", path]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && message.contains("cannot load the snapshot"), "{message}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_snapshot_is_of_one_server_at_a_time() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kv-{}.one", std::process::id()));
    let (path, lock) = (file.to_str().unwrap(), PathBuf::from(format!("{}.lock", file.display())));
    let mut first = serve(&["--at", &shm("one"), "--snapshot", path]);
    let second = shm("one-more");
    let why =
        format!("another server uses the snapshot {path}: end that one first, or give this one a file of its own");
    refused(&["--at", &second, "--snapshot", path], &why);
    // A snapshot has another file behind the name than before: the lock is not on it.
    assert_eq!(code(&["snapshot", "--at", &first.addresses[0]]), 0);
    refused(&["--at", &second, "--snapshot", path], &why);
    assert_eq!(code(&["get", "--at", &first.addresses[0], "k"]), 1, "the first one serves on");
    first.kill();
    assert!(lock.exists());
    let server = serve(&["--at", &second, "--snapshot", path]);
    assert!(server.stop("-TERM").ends_with("ended\n"));
    assert!(!lock.exists(), "a server that ends in order leaves nothing but the snapshot");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_snapshot_that_cannot_be_looked_at_is_not_taken_for_none() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kv-{}.loop", std::process::id()));
    let _ = std::fs::remove_file(&file);
    std::os::unix::fs::symlink(&file, &file).unwrap();
    let refused = run(&["serve", "--at", &shm("loop"), "--snapshot", file.to_str().unwrap()]);
    let message = String::from_utf8_lossy(&refused.stderr);
    std::fs::remove_file(&file).unwrap();
    assert!(!refused.status.success(), "{message}");
    assert!(message.contains("cannot open the snapshot") && message.contains("symbolic links"), "{message}");
}

/// Limits the files of a server started here to 64 KiB: simulates a full disk on any machine.
#[test]
fn a_full_disk_costs_a_snapshot_and_nothing_else() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kv-{}.full", std::process::id()));
    let path = file.to_str().unwrap();
    let limited = "trap '' XFSZ; ulimit -f 128; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, "sh", env!("CARGO_BIN_EXE_dunlin"), "kv", "serve", "--memory", "64MiB"]);
    command.args(["--at", "udp://127.0.0.1:0", "--snapshot", path]);
    let mut server = Server::start(command);
    let address = server.addresses[0].clone();
    assert_eq!(code(&["set", "--at", &address, "small", "v"]), 0);
    assert_eq!(code(&["snapshot", "--at", &address]), 0);
    let saved = std::fs::read(&file).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600, "others may read the items");
    for i in 0..4 {
        let mut set = kv(&["set", "--at", &address, &format!("large-{i}"), "-"]).stdin(Stdio::piped()).spawn().unwrap();
        set.stdin.take().unwrap().write_all(&[b'x'; 40_000]).unwrap();
        assert!(set.wait().unwrap().success());
    }
    let failed = run(&["snapshot", "--at", &address]);
    assert_eq!(failed.status.code(), Some(4), "{failed:?}");
    assert_eq!(std::fs::read(&file).unwrap(), saved, "the file before is there still");
    assert!(!file.with_extension("full.tmp").exists());
    assert_eq!(code(&["get", "--at", &address, "small"]), 0);
    server.signal("-TERM");
    let mut errors = String::new();
    server.process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(!server.process.wait().unwrap().success(), "what was not saved is said by the exit code too");
    assert_eq!(
        errors.matches("cannot save the snapshot").count(),
        2,
        "once when it was asked for, once at the end: {errors}"
    );
    assert!(errors.contains("File too large"), "{errors}");
    assert_eq!(std::fs::read(&file).unwrap(), saved);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_client_that_is_killed_disturbs_nobody() {
    for address in [shm("client-killed"), "udp://127.0.0.1:0".to_owned()] {
        let server = serve(&["--at", &address]);
        let address = &server.addresses[0];
        // This one never ends by itself.
        let mut client =
            kv(&["set", "--at", address, "never", "-", "--timeout", "60s"]).stdin(Stdio::piped()).spawn().unwrap();
        assert_eq!(code(&["set", "--at", address, "k", "v"]), 0);
        client.kill().unwrap();
        client.wait().unwrap();
        assert_eq!(code(&["get", "--at", address, "k"]), 0);
        assert_eq!(code(&["get", "--at", address, "never"]), 1);
    }
}

#[test]
fn a_client_finds_a_server_that_was_killed_and_started_again() {
    // A port that no other socket takes while the server is down.
    let udp = program::raft::free_replica(1).split_once('=').unwrap().1.to_owned();
    for address in [shm("server-killed"), udp] {
        let mut server = serve(&["--at", &address]);
        let (endpoint, addr) = endpoint(&address);
        let mut second = None;
        endpoint.block_on(async {
            let client = KvClient::connect(&endpoint, &addr, ClientConfig::default()).await.unwrap();
            client.set(b"k", b"v").await.unwrap();
            server.kill();
            let error = client.set(b"k", b"w").await.unwrap_err();
            // The server may have taken so long to end that the sessions failed first: then nothing was sent.
            let (is_sent, outcome) = (matches!(error, KvError::Call { .. }), error.outcome());
            assert!(is_sent || matches!(error, KvError::Connect(_)), "{error}");
            assert_eq!(outcome, if is_sent { Outcome::MaybeExecuted } else { Outcome::NotExecuted });
            second = Some(serve(&["--at", &address]));
            assert_eq!(client.get(b"k").await.unwrap(), None);
            client.set(b"k", b"w").await.unwrap();
            assert_eq!(client.get(b"k").await.unwrap().as_deref(), Some(&b"w"[..]));
        });
        drop(second);
    }
}

/// The client's endpoint does not run between two calls of `block_on`, so the server gives the client up after a
/// second.
#[test]
fn a_client_is_served_after_a_pause() {
    for address in [shm("pause"), "udp://127.0.0.1:0".to_owned()] {
        let server = serve(&["--at", &address, "--cores", "2"]);
        let (paused, address) = endpoint(&server.addresses[0]);
        let client = patient(&paused, &address);
        paused.block_on(client.set(b"count", b"0")).unwrap();
        // Another client, whose endpoint runs, asks the server once it has given up the first.
        let (watching, _) = endpoint(&server.addresses[0]);
        let watcher = patient(&watching, &address);
        let sessions = || watching.block_on(watcher.stats()).unwrap().sessions();
        let both = sessions();
        // On a busy machine it may have been given up before they were counted.
        let begun = Instant::now();
        while sessions() == both && begun.elapsed() < Duration::from_secs(10) {
            watching.run_for(Duration::from_millis(20));
        }
        // This operation is not retried once it was sent.
        assert_eq!(paused.block_on(client.incr(b"count", 1)).unwrap().value, 1);
    }
}

#[test]
fn metrics_are_served_over_http() {
    let server = serve(
        &[
            &["--at", &shm("metrics"), "--cores", "2", "--metrics", "127.0.0.1:0"][..],
            &["--memcached", "tcp://127.0.0.1:0"],
        ]
        .concat(),
    );
    assert_eq!(code(&["get", "--at", &server.addresses[0], "none"]), 1);
    let place =
        |before: &str| server.ready.split(before).nth(1).unwrap().split([',', ';', '/']).next().unwrap().to_owned();
    let mut client = TcpStream::connect(place("memcached at tcp://")).unwrap();
    client.write_all(b"set a 0 0 1\r\nx\r\nappend a 0 0 1\r\ny\r\ngat 100 a b\r\nmg a v\r\nquit\r\n").unwrap();
    let mut answers = String::new();
    client.read_to_string(&mut answers).unwrap();
    assert_eq!(answers, "STORED\r\nSTORED\r\nVALUE a 0 2\r\nxy\r\nEND\r\nVA 2\r\nxy\r\n");
    let mut stream = TcpStream::connect(place("metrics at http://")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    // Summed over all cores.
    let sum = |metric: &str, labels: &[&str]| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with(&format!("dunlin_kv_{metric}{{")));
        let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    for (operation, outcome) in
        [("get", "hit"), ("get", "miss"), ("set", "hit"), ("append", "hit"), ("gat", "hit"), ("gat", "miss")]
    {
        let labels = [format!("operation=\"{operation}\""), format!("outcome=\"{outcome}\"")];
        let labels = labels.each_ref().map(String::as_str);
        assert_eq!(sum("operations_total", &labels), 1.0, "{labels:?} in {text}");
        assert!(sum("operation_duration_seconds_count", &labels[..1]) >= 1.0, "{labels:?} in {text}");
    }
    assert_eq!(sum("connection_events_total", &["event=\"accepted\""]), 1.0, "{text}");
    assert!(sum("connections_read_bytes_total", &[]) > 60.0 && sum("memory_bytes", &[]) > 0.0, "{text}");
    assert!(server.stop("-INT").ends_with("ended\n"));
}

/// The client is killed while it sends: each of its requests has hundreds of packets.
#[test]
fn a_client_that_is_killed_in_the_middle_of_a_request_leaves_nothing_half() {
    const VALUE_BYTES: usize = 500_000;
    for address in [shm("half"), "udp://127.0.0.1:0".to_owned()] {
        let server = serve(&["--at", &address]);
        let (endpoint, address) = endpoint(&server.addresses[0]);
        let client = patient(&endpoint, &address);
        let stats = || endpoint.block_on(client.stats()).unwrap();
        let alone = stats().sessions();
        let mut loader = kv(&["load", "-", "--at", &server.addresses[0], "--format", "tsv"]);
        let mut loader = loader.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut input = loader.stdin.take().unwrap();
        let value = |number: usize| vec![b'a' + (number % 26) as u8; VALUE_BYTES];
        // It always has more to send.
        let record = move |number: usize| [format!("k{number}\t").as_bytes(), &value(number), b"\n"].concat();
        let feeding =
            std::thread::spawn(move || (0..).take_while(|&number| input.write_all(&record(number)).is_ok()).count());
        while stats().store().items < 5 {}
        loader.kill().unwrap();
        loader.wait().unwrap();
        let fed = feeding.join().unwrap();
        let mut found = 0;
        for number in 0..fed {
            if let Some(item) = endpoint.block_on(client.get(format!("k{number}").as_bytes())).unwrap() {
                assert!(item[..] == value(number)[..], "item {number} is not whole");
                found += 1;
            }
        }
        println!("{found} of {fed} were stored");
        assert!(found >= 5);
        while stats().sessions() != alone {
            endpoint.run_for(Duration::from_millis(20));
        }
        let held: u64 = stats().cores.iter().map(|core| core.endpoint.requests_held).sum();
        assert!(held <= alone, "{held} requests are held");
    }
}

/// A server with a snapshot file, its client, and helpers of such tests.
struct Saved {
    file: PathBuf,
    name: String,
    server: Server,
}

impl Saved {
    fn start(name: &str) -> Saved {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kv-{}.{name}", std::process::id()));
        let _ = std::fs::remove_file(&file);
        let name = shm(name);
        let server = Saved::serve(&name, &file);
        Saved { file, name, server }
    }

    fn serve(name: &str, file: &Path) -> Server {
        serve(&["--at", name, "--mode", "store", "--snapshot", file.to_str().unwrap()])
    }

    /// Kills the server and restarts it.
    fn restart(&mut self) {
        self.server.kill();
        self.server = Saved::serve(&self.name, &self.file);
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        self.server.kill();
        let _ = std::fs::remove_file(&self.file);
        let _ = std::fs::remove_file(format!("{}.tmp", self.file.display()));
    }
}

#[test]
fn a_signal_saves_a_snapshot_and_no_token_of_before_is_valid_after() {
    let mut saved = Saved::start("signal");
    let (endpoint, address) = endpoint(&saved.name);
    let client = patient(&endpoint, &address);
    let tokens = endpoint.block_on(async {
        let first = client.set(b"k", b"1").await.unwrap().cas;
        [first, client.set(b"k", b"2").await.unwrap().cas]
    });
    saved.server.signal("-USR1");
    let mut errors = BufReader::new(saved.server.process.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.starts_with("dunlin: snapshot saved: 1 items in "), "{line}");
    saved.restart();
    endpoint.block_on(async {
        // The first read finds the new server.
        assert_eq!(client.get(b"k").await.unwrap().as_deref(), Some(&b"2"[..]));
        for token in tokens {
            let put = Put { condition: Condition::Unchanged(token), ..Put::default() };
            let error = client.put(b"k", b"wrong", put).await.unwrap_err();
            assert!(matches!(error, KvError::Refused(Refused::Changed)), "{error}");
        }
        assert_eq!(client.get(b"k").await.unwrap().as_deref(), Some(&b"2"[..]));
    });
}

#[test]
fn a_server_that_is_killed_in_the_middle_of_a_snapshot_has_the_one_before() {
    const ITEMS: usize = 4000;
    let mut saved = Saved::start("middle");
    let records = |letter: char| -> String {
        let value = letter.to_string().repeat(4000);
        (0..ITEMS).map(|number| format!("k{number}\t{value}\n")).collect()
    };
    let load = |letter: char| {
        let mut load = kv(&["load", "-", "--at", &saved.name, "--format", "tsv"]);
        let mut load = load.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        load.stdin.take().unwrap().write_all(records(letter).as_bytes()).unwrap();
        assert!(load.wait().unwrap().success());
    };
    load('a');
    assert_eq!(code(&["snapshot", "--at", &saved.name]), 0);
    load('b');
    let unfinished = PathBuf::from(format!("{}.tmp", saved.file.display()));
    assert!(!unfinished.exists());
    let inode = || std::fs::metadata(&saved.file).unwrap().ino();
    let before = inode();
    saved.server.signal("-USR1");
    // On a busy machine it may be over before this thread looks.
    while !unfinished.exists() && inode() == before {
        std::thread::yield_now();
    }
    saved.server.kill();
    // On a busy machine it may have finished: then it has all of the new snapshot.
    let expected = if unfinished.exists() { b'a' } else { b'b' };
    println!("all values must be {:?}", char::from(expected));
    saved.server = Saved::serve(&saved.name, &saved.file);
    let keys: Vec<String> = (0..ITEMS).map(|number| format!("k{number}")).collect();
    let (endpoint, address) = endpoint(&saved.name);
    let client = patient(&endpoint, &address);
    let values = endpoint.block_on(client.multi_get(&keys)).unwrap();
    assert!(values.iter().all(|value| value.as_ref().is_some_and(|value| value[..] == [expected; 4000])));
    // The unfinished file is in nobody's way.
    assert_eq!(code(&["snapshot", "--at", &saved.name]), 0);
    assert!(!unfinished.exists());
}

/// Asserts that a server refuses to start, in one line that contains `why`.
fn refused(arguments: &[&str], why: &str) {
    let output = run(&[&["serve"], arguments].concat());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments:?} was accepted");
    assert!(message.contains(why), "{arguments:?}: {message}");
    let errors = message.trim_end().lines().filter(|line| !line.contains("warning")).count();
    assert_eq!(errors, 1, "{arguments:?}: {message}");
    assert!(output.stdout.is_empty());
}

#[test]
fn wrong_use_is_refused_in_one_line() {
    let name = shm("refused");
    refused(&["--at", "kv"], "bad address \"kv\"");
    refused(&["--at", &name, "--memory", "1GB"], "give bytes, or a number of KiB, MiB");
    refused(&["--at", &name, "--memory", "1KiB"], "too small");
    refused(&["--at", &name, "--cores", "0"], "--cores");
    refused(&["--at", &name, "--cores", "2", "--pin", "0"], "2 cores and 1 processors");
    refused(&["--at", &name, "--pin", "1023"], "cannot pin a thread to processor 1023");
    refused(&["--at", &name, "--connections", "0"], "nobody could connect: give 1 or more");
    refused(&["--at", &name, "--snapshot", "/nowhere/kv.snapshot"], "there is no directory for /nowhere/kv.snapshot");
    refused(
        &["--at", &name, "--snapshot", "/proc/kv.snapshot"],
        "no snapshot can be saved at /proc/kv.snapshot: No such file",
    );
    let directory = env!("CARGO_TARGET_TMPDIR");
    refused(
        &["--at", &name, "--snapshot", directory],
        &format!(
            "dunlin: cannot load the snapshot {directory}: at byte 0: cannot read the snapshot: Is a directory (os error 21)"
        ),
    );
    let file = PathBuf::from(directory).join(format!("kv-{}.precious", std::process::id()));
    std::fs::write(&file, b"precious").unwrap();
    let unix = format!("unix:{}", file.display());
    refused(&["--at", &name, "--memcached", &unix], &format!("cannot listen at {unix}: Address already in use"));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious", "a file that is no socket is left alone");
    std::fs::remove_file(&file).unwrap();
    refused(&["--at", &name, "--memcached", "tcp://example"], "no address for memcached clients");
    refused(&["--at", &name, "--at", &shm("other")], "at most one shm: and one udp: address");
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp = format!("udp://{}", taken.local_addr().unwrap());
    refused(&["--at", &udp], &format!("cannot listen at {udp}"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = format!("tcp://{}", taken.local_addr().unwrap());
    refused(&["--at", &name, "--memcached", &tcp], &format!("cannot listen at {tcp}"));
    refused(&["--at", &name, "--memcached", "unix:/nowhere/kv.sock"], "cannot listen at unix:/nowhere/kv.sock");
    refused(&["--at", &name, "--metrics", &taken.local_addr().unwrap().to_string()], "cannot serve metrics at");
    let server = serve(&["--at", &name]);
    refused(&["--at", &name], &format!("cannot listen at {name}"));
    assert_eq!(code(&["get", "--at", "shm:test-kv-nobody-is-here", "k"]), 2);
    drop(server);
}

#[test]
fn an_item_may_live_for_ten_years() {
    let server = serve(&["--at", &shm("years")]);
    let address = &server.addresses[0];
    assert_eq!(code(&["set", "--at", address, "k", "v", "--expires", "3650d"]), 0);
    assert_eq!(run(&["get", "--at", address, "k"]).stdout, b"v");
    assert_eq!(code(&["set", "--at", address, "k", "w", "--expires", "86401s"]), 0);
    assert_eq!(run(&["get", "--at", address, "k"]).stdout, b"w");
}

#[test]
fn an_exposed_address_is_warned_of() {
    let mut server = serve(&["--at", "udp://0.0.0.0:0"]);
    server.kill();
    let mut warning = String::new();
    server.process.stderr.take().unwrap().read_to_string(&mut warning).unwrap();
    assert!(warning.contains("udp://0.0.0.0:0 is neither encrypted nor authenticated"), "{warning}");
    // Clients reach it at the address that they know.
    let server = serve(&["--at", "udp://0.0.0.0:0", "--cores", "2"]);
    let address = server.addresses[0].replace("0.0.0.0", "127.0.0.1");
    for key in ["a", "b", "c", "d"] {
        assert_eq!(code(&["set", "--at", &address, key, "v"]), 0);
    }
}

#[test]
fn help_shows_examples() {
    for command in ["serve", "get", "set", "del", "mget", "snapshot"] {
        let output = run(&[command, "--help"]);
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("Examples:\n  dunlin kv "), "{command}");
    }
}

/// Nothing answers at this address.
#[test]
fn a_command_without_an_answer_says_so_and_fails() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp://{}", silent.local_addr().unwrap());
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kv-{}.silent.tsv", std::process::id()));
    std::fs::write(&file, "k\tv\n").unwrap();
    let path = file.to_str().unwrap();
    let nobody = shm("nobody");
    let mut running = Vec::new();
    for address in [&address, &nobody] {
        for arguments in [
            &["get", "--at", address, "k", "--timeout", "500ms"][..],
            &["set", "--at", address, "k", "v", "--timeout", "500ms"],
            &["del", "--at", address, "k", "--timeout", "500ms"],
            &["mget", "--at", address, "k", "l", "--timeout", "500ms"],
            &["snapshot", "--at", address, "--timeout", "500ms"],
            &["stats", "--at", address],
            &["dump", "--at", address, "-"],
            &["load", path, "--at", address],
        ] {
            let process =
                kv(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
            running.push((arguments.join(" "), process));
        }
    }
    for (arguments, process) in running {
        let output = process.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && output.status.code().is_some(),
            "kv {arguments}: {:?}: {told}",
            output.status
        );
        assert!(told.starts_with("dunlin: ") && output.stdout.is_empty(), "kv {arguments}: {told}");
    }
    std::fs::remove_file(&file).unwrap();
}
