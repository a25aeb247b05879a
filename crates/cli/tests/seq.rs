//! Sequencers as processes.

mod program;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dunlin_net::poll::sleep_time;
use dunlin_net::{Addr, AnyTransport, Transport as _, TxPacket};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_seq::direct::packet::{Bytes, Kind, Packet};
use dunlin_seq::direct::{DirectClient, DirectConfig};
use dunlin_seq::{Client, ClientConfig};
use program::raft::{Directory, free_replica, until};
use program::{Server, dunlin};

/// Kills of a normal test run; `DUNLIN_KILLS` gives more.
const KILLS: u64 = 5;

fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = dunlin(&[&["seq"], arguments].concat()).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Draws so many numbers, one by one.
fn next(at: &str, count: &str) -> Vec<u64> {
    let (code, out, err) = run(&["next", "--at", at, "--count", count, "--timeout", "30s"]);
    assert_eq!(code, 0, "{out}{err}");
    out.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn numbers_are_drawn_one_by_one_and_in_runs_and_can_be_watched() {
    let name = format!("shm:test-seq-{}", std::process::id());
    let server = Server::start(dunlin(&[
        "seq",
        "serve",
        "--at",
        &name,
        "--at",
        "udp://127.0.0.1:0",
        "--cores",
        "2",
        "--start",
        "4294967290",
        "--metrics",
        "127.0.0.1:0",
    ]));
    let [near, far] = &server.addresses[..] else { panic!("{:?}", server.addresses) };
    assert_eq!(next(near, "3"), [4_294_967_290, 4_294_967_291, 4_294_967_292]);
    assert_eq!(next(far, "1"), [4_294_967_293]);
    let (code, out, err) = run(&["next", "--at", near, "--run", "65536"]);
    assert_eq!((code, out.as_str()), (0, "4294967294 4295032829\n"), "{err}");
    let (_, out, _) = run(&["next", "--at", near, "--json"]);
    assert_eq!(out, "{\"first\":4295032830,\"last\":4295032830}\n");
    // Askers share requests, and print in order.
    let (_, out, _) = run(&["next", "--at", near, "-n", "1000"]);
    let numbers: Vec<u64> = out.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers, (4_295_032_831..4_295_033_831).collect::<Vec<_>>());
    let (code, out, err) = run(&["watch", "--at", near, "--interval", "50ms", "--count", "2", "--json"]);
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(code == 0 && lines.len() == 2 && lines[1]["next"] == 4_295_033_831_u64, "{out}{err}");
    let (code, out, _) = run(&["watch", "--at", far, "--interval", "50ms", "--count", "1"]);
    assert!(code == 0 && out.contains("4295033831") && out.contains("requests/s"), "{out}");
    let said = server.stop("-TERM");
    assert_eq!(said, "66541 numbers handed out; go on with --start 4295033831\n");
}

/// Draws so many numbers by datagrams; they are sorted, since calls that are in progress together may be answered in
/// any order.
fn next_by_datagrams(at: &str, count: &str) -> Vec<u64> {
    let (code, out, err) = run(&["next", "--direct", "--at", at, "--count", count, "--timeout", "30s"]);
    assert_eq!(code, 0, "{out}{err}");
    let mut numbers: Vec<u64> = out.lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

/// The metrics of a server.
fn metrics(server: &Server) -> String {
    let port = server.ready.split("metrics at http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    let (mut stream, mut page) = (TcpStream::connect(port).unwrap(), String::new());
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    stream.read_to_string(&mut page).unwrap();
    page
}

/// A server by RPC and by datagrams is killed, and started again at the same places. Numbers may be missing: on a busy
/// machine answers come too late.
#[test]
fn datagrams_and_requests_draw_from_one_counter() {
    const WRAP: u64 = 1 << 32;
    let (name, direct) = (format!("shm:sq-rpc-{}", std::process::id()), format!("shm:sq-s0-{}", std::process::id()));
    let start = |first: u64| {
        let places =
            ["--at", &name, "--direct-at", &direct, "--direct-at", "udp://127.0.0.1:0", "--metrics", "127.0.0.1:0"];
        Server::start(dunlin(&[&["seq", "serve", "--start", &first.to_string()], &places[..]].concat()))
    };
    let far = |server: &Server| {
        let place = server.ready.split("datagrams at ").find(|place| place.starts_with("udp://")).unwrap();
        place.split([',', ';']).next().unwrap().to_owned()
    };
    let last = Cell::new(WRAP - 301);
    let rise = |numbers: Vec<u64>, count: usize| {
        assert_eq!(numbers.len(), count);
        for number in numbers {
            assert!(number > last.get(), "{number} after {}", last.get());
            last.set(number);
        }
    };
    let mut server = start(WRAP - 300);
    rise(next_by_datagrams(&direct, "1000"), 1000);
    assert!(last.get() >= WRAP + 699);
    rise(next(&name, "2"), 2);
    rise(next_by_datagrams(&far(&server), "3"), 3);
    rise(next(&name, "2"), 2);
    server.kill();
    let (code, out, err) = run(&["next", "--direct", "--at", &direct, "--timeout", "200ms"]);
    assert!(code == 2 && out.is_empty() && err.contains("did not answer"), "{out}{err}");
    let server = start(2 * WRAP);
    rise(next_by_datagrams(&direct, "70"), 70);
    assert!(last.get() > 2 * WRAP);
    rise(next(&name, "1"), 1);
    rise(next_by_datagrams(&far(&server), "1"), 1);
    let count = |page: &str, name: &str| {
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok()).unwrap()
    };
    let counted = |page: &str| {
        (count(page, "dunlin_seq_direct_numbers_total") >= 71, count(page, "dunlin_seq_numbers_total{core=\"0\"}"))
    };
    // Its counters are as of some time ago.
    let (mut page, patience) = (metrics(&server), Instant::now() + Duration::from_secs(10));
    while counted(&page) != (true, 1) && Instant::now() < patience {
        thread::sleep(Duration::from_millis(20));
        page = metrics(&server);
    }
    assert_eq!(counted(&page), (true, 1), "{page}");
    assert!(count(&page, "dunlin_seq_direct_peers") >= 1 && page.contains("dunlin_seq_direct_to_strangers_total"));
    let said = server.stop("-TERM");
    let next: u64 = said.trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(said.contains("numbers handed out; go on with --start") && next > last.get(), "{said}");
}

/// The addresses of a server by datagrams.
fn queues(server: &Server) -> Vec<Addr> {
    let places = server.ready.split("datagrams at ").skip(1);
    places.map(|place| place.split([',', ';']).next().unwrap().parse().unwrap()).collect()
}

/// Each queue has an address of its own, at which clients may ask, and answers come from all of them in turn.
#[test]
fn answers_by_datagrams_leave_by_several_queues() {
    let name = format!("sq-queues-{}", std::process::id());
    let (at, direct) = (format!("shm:{name}"), format!("shm:{name}-s0"));
    let places = ["--at", &at, "--direct-at", &direct, "--direct-at", "udp://127.0.0.1:0", "--queues", "3"];
    let server = Server::start(dunlin(&[&["seq", "serve"], &places[..]].concat()));
    let (near, far): (Vec<Addr>, Vec<Addr>) =
        queues(&server).into_iter().partition(|queue| matches!(queue, Addr::Shm(_)));
    let expected = ["", ".1", ".2"].map(|queue| format!("{direct}{queue}").parse().unwrap());
    assert_eq!((&near[..], far.len()), (&expected[..], 3));
    let mut last = None;
    for queue in near.iter().chain(&far) {
        for number in next_by_datagrams(&queue.to_string(), "100") {
            assert!(Some(number) > last, "{number} after {last:?}");
            last = Some(number);
        }
    }
    for (queues, from) in [(near, &*format!("shm:{name}-asks")), (far, "udp://127.0.0.1:0")] {
        assert_eq!(senders(&queues[1], from), queues.iter().map(Addr::to_string).collect());
    }
}

/// Asks a queue until nine numbers have come; returns where from.
fn senders(queue: &Addr, from: &str) -> BTreeSet<String> {
    let mut transport = AnyTransport::bind(&from.parse().unwrap()).unwrap();
    let route = transport.resolve(queue).unwrap();
    let mut ask = Packet { kind: Kind::Ask, incarnation: 0, tag: 1, data: 0 };
    let (mut senders, begun) = (BTreeSet::new(), Instant::now());
    while ask.tag <= 9 {
        assert!(begun.elapsed() < PATIENCE, "{queue} does not answer");
        let mut bytes = Bytes::default();
        let header = ask.write(&mut bytes);
        transport.tx_burst(&[TxPacket { route, header: &bytes[..header], payload: &[] }]);
        transport.tx_flush();
        transport.wait(Duration::from_millis(100));
        for at in 0..transport.rx_burst() {
            let Some(answer) = Packet::parse(transport.rx_packet(at).head()) else { continue };
            ask.incarnation = answer.incarnation;
            if matches!(answer.kind, Kind::Low | Kind::Full) && answer.tag == ask.tag {
                senders.insert(transport.rx_source(at).unwrap().to_string());
                ask.tag += 1;
            }
        }
    }
    senders
}

/// A sequencer that has handed out its last number advises no start that it would refuse.
#[test]
fn the_end_of_the_numbers_is_said() {
    let name = format!("shm:sq-last-{}", std::process::id());
    let server = Server::start(dunlin(&["seq", "serve", "--at", &name, "--start", "18446462598732840959"]));
    assert_eq!(next(&name, "1"), [18_446_462_598_732_840_959]);
    let (code, out, err) = run(&["next", "--at", &name]);
    assert!(code == 2 && out.is_empty() && err.contains("exhausted"), "{code} {out} {err}");
    let said = server.stop("-TERM");
    assert_eq!(said, "1 numbers handed out; there are no more: the last one is handed out\n");
}

#[test]
fn wrong_use_and_silence_are_said() {
    let refused = |arguments: &[&str], why: &str| {
        let (code, out, err) = run(arguments);
        assert!(code == 2 && out.is_empty() && err.contains(why), "{arguments:?}: {code} {out} {err}");
    };
    refused(&["next"], "--at <WHERE>");
    refused(&["next", "--at", "shm:nobody", "--run", "65537"], "65537 is not in 1..=65536");
    refused(&["next", "--at", "shm:nobody", "--timeout", "200ms"], "no sequencer gave a number in time");
    refused(&["watch", "--at", "shm:nobody", "--timeout", "200ms"], "no sequencer gave a number in time");
    refused(&["serve", "--at", "shm:x", "--start", "18446744073709551615"], "choose a number below");
    refused(&["next", "--at", "shm:nobody", "--direct", "--run", "5"], "--run");
    refused(&["next", "--at", "shm:nobody", "--direct", "--timeout", "200ms"], "no sequencer gave a number in time");
    let replica = ["serve", "--replicated", "--id", "1", "--peers", "1=shm:one", "--volatile", "--new", "--range"];
    for range in ["5", "1099511627777"] {
        refused(&[&replica[..], &[range]].concat(), "--range");
    }
    refused(&["serve", "--at", "shm:x", "--coord", "1=shm:one"], "--member");
    refused(&["serve", "--at", "shm:x", "--ttl", "2s"], "--coord");
    refused(&["serve", "--replicated"], "--peers <REPLICAS>");
    refused(&["serve", "--at", "shm:x", "--replicated", "--id", "1", "--peers", "1=shm:one"], "cannot be used with");
    refused(&["serve", "--at", "shm:x", "--queues", "2"], "--direct-at");
    refused(&["serve", "--at", "shm:x", "--direct-at", "shm:y", "--queues", "17"], "17 is not in 1..=16");
    refused(&["serve", "--at", "shm:x", "--direct-at", "shm:y", "--direct-at", "shm:z"], "--direct-at");
    refused(&["serve", "--at", "shm:x", "--coord", "shm:one", "--member", "7"], "give the nodes of a cluster manager");
    let short = ["serve", "--at", "shm:x", "--coord", "1=shm:one", "--member", "7", "--ttl"];
    refused(&[&short[..], &["5ms"]].concat(), "10ms");
}

/// How long a number may take to come while replicas are killed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Threads that draw numbers one after the other, so that a call is in progress whenever a replica is killed.
struct Askers {
    stop: Arc<AtomicBool>,
    drawn: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<Vec<u64>>>,
}

impl Askers {
    /// Two that ask by requests, and one by datagrams.
    fn start(by_requests: &str, by_datagrams: &str) -> Askers {
        type Draw = fn(Vec<Addr>, &mut dyn FnMut(u64) -> bool);
        let mut askers = Askers { stop: Arc::default(), drawn: Vec::new(), threads: Vec::new() };
        let kinds: [(&str, Draw); 3] =
            [(by_requests, draw_by_requests), (by_requests, draw_by_requests), (by_datagrams, draw_by_datagrams)];
        for (places, draw) in kinds {
            let places = places.split(',').map(|place| place.split_once('=').unwrap().1.parse().unwrap()).collect();
            let (stop, drawn) = (askers.stop.clone(), Arc::<AtomicU64>::default());
            askers.drawn.push(drawn.clone());
            askers.threads.push(thread::spawn(move || {
                let mut numbers = Vec::new();
                draw(places, &mut |number| {
                    numbers.push(number);
                    drawn.fetch_add(1, Ordering::Relaxed);
                    !stop.load(Ordering::Relaxed)
                });
                numbers
            }));
        }
        askers
    }

    /// Waits until each of them has drawn more.
    fn draw_more(&self) {
        let begun = Instant::now();
        for drawn in &self.drawn {
            let before = drawn.load(Ordering::Relaxed);
            while drawn.load(Ordering::Relaxed) < before + 20 {
                assert!(begun.elapsed() < PATIENCE, "an asker gets no numbers");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// What each has drawn, in order.
    fn stop(self) -> Vec<Vec<u64>> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

fn draw_by_requests(servers: Vec<Addr>, take: &mut dyn FnMut(u64) -> bool) {
    let transport = AnyTransport::bind(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = Rc::new(Endpoint::new(transport, EndpointConfig::default()).unwrap());
    let client = Client::new(&endpoint, servers, ClientConfig { timeout: PATIENCE, ..ClientConfig::default() });
    endpoint.block_on(async { while take(client.next().await.unwrap()) {} });
}

fn draw_by_datagrams(servers: Vec<Addr>, take: &mut dyn FnMut(u64) -> bool) {
    let transport = AnyTransport::bind(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
    let config = DirectConfig { timeout: PATIENCE, calls_max: 1, ..DirectConfig::default() };
    let (mut client, mut number) = (DirectClient::new(transport, servers, config).unwrap(), None);
    loop {
        if client.in_progress() == 0 {
            client.ask(0).unwrap();
        }
        if client.poll(|_, drawn| number = Some(drawn.unwrap())) == 0 && number.is_none() {
            let (now, due) = (client.transport().now(), client.next_due());
            client.transport().wait(sleep_time(now, due));
        }
        if number.take().is_some_and(|number| !take(number)) {
            return;
        }
    }
}

/// Each kill hits the next replica, whether or not it hands out numbers, while numbers are drawn by requests and by
/// datagrams. None comes twice.
#[test]
fn numbers_rise_through_kills_of_replicas() {
    let kills = std::env::var("DUNLIN_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let directory = Directory::new("seq");
    let all = [1, 2, 3].map(free_replica).join(",");
    let by_datagrams = [1, 2, 3].map(free_replica);
    let start = |id: u64, more: &[&str]| {
        let (id_text, data) = (id.to_string(), directory.of(id));
        let direct = by_datagrams[id as usize - 1].split_once('=').unwrap().1;
        let replica = ["seq", "serve", "--replicated", "--id", &id_text, "--data", &data, "--peers", &all];
        let numbers = ["--start", "1000", "--direct-at", direct];
        Server::start(dunlin(&[&replica[..], &numbers, more].concat()))
    };
    let by_datagrams = by_datagrams.join(",");
    let mut replicas: Vec<Server> = (1..=3).map(|id| start(id, &["--new"])).collect();
    let (mut last, mut taken) = (999, Vec::new());
    let mut rise = |numbers: Vec<u64>| {
        for number in numbers {
            assert!(number > last, "{number} after {last}");
            last = number;
            taken.push(number);
        }
    };
    rise(next(&all, "50"));
    let askers = Askers::start(&all, &by_datagrams);
    for kill in 0..kills {
        let victim = (kill % 3) as usize;
        askers.draw_more();
        replicas[victim].kill();
        rise(next(&all, "50"));
        rise(next_by_datagrams(&by_datagrams, "50"));
        replicas[victim] = start(victim as u64 + 1, &[]);
        rise(next_by_datagrams(&by_datagrams, "50"));
        rise(next(&all, "50"));
    }
    askers.draw_more();
    let mut drawn = askers.stop();
    drawn
        .iter()
        .for_each(|drawn| assert!(drawn.is_sorted_by(|a, b| a < b), "each number is higher than the one before"));
    drawn.push(taken);
    let mut drawn = drawn.concat();
    drawn.sort_unstable();
    assert_eq!(drawn.windows(2).find(|two| two[0] == two[1]), None, "a number came twice");
    // A directory of reservations is nothing else.
    let (data, id) = (directory.of(1), ["--id", "1", "--peers", &all, "--data"]);
    replicas.remove(0).kill();
    let other = dunlin(&[&["raft", "serve"], &id[..], &[&data]].concat()).output().unwrap();
    assert!(String::from_utf8_lossy(&other.stderr).contains("of a sequencer replica"), "{other:?}");
}

/// A holder that is stopped in order gives up its office: nobody waits for the end of its term. A busy machine may make
/// an election or a flush long, but not each of them.
#[test]
fn numbers_go_on_when_replicas_are_stopped_in_order() {
    /// Less than what is left of a lease of 2 s when its holder, which renews it every half a second, has ended.
    const QUICK: Duration = Duration::from_millis(1200);
    let directory = Directory::new("seq-orderly");
    let all = [1, 2, 3].map(free_replica).join(",");
    let start = |id: u64, more: &[&str]| {
        let (id_text, data) = (id.to_string(), directory.of(id));
        let arguments = ["seq", "serve", "--replicated", "--id", &id_text, "--data", &data, "--peers", &all];
        let arguments = [&arguments[..], &["--metrics", "127.0.0.1:0"]].concat();
        Server::start(dunlin(&[&arguments[..], more].concat()))
    };
    let mut replicas: Vec<(u64, Server)> = (1..=3).map(|id| (id, start(id, &["--new"]))).collect();
    let (mut last, mut times) = (None, Vec::new());
    while times.len() < 3 || times.len() < 9 && times.iter().all(|time| *time >= QUICK) {
        let drawn = next(&all, "5");
        assert!(last.is_none_or(|last| last < drawn[0]), "{drawn:?} after {last:?}");
        last = drawn.last().copied();
        let serves = |server: &Server| metrics(server).lines().any(|line| line == "dunlin_replica_serving 1");
        let holder = until("one has the office", || {
            let holders: Vec<usize> = (0..3).filter(|place| serves(&replicas[*place].1)).collect();
            if let [holder] = holders[..] { Some(holder) } else { None }
        });
        let (id, server) = replicas.remove(holder);
        server.stop("-TERM");
        let begun = Instant::now();
        next(&all, "1");
        times.push(begun.elapsed());
        replicas.push((id, start(id, &[])));
    }
    assert!(times.iter().any(|time| *time < QUICK), "each waited for the end of a term: {times:?}");
}

/// Two sequencers compete for a lease of the cluster manager. The one that hands out numbers is killed, or stopped.
#[test]
fn numbers_rise_whichever_sequencer_holds_the_lease() {
    let manager = free_replica(1);
    let node = ["coord", "serve", "--id", "1", "--new", "--volatile", "--peers", &manager];
    let patience = ["--failure-timeout", "1500ms", "--check-every", "100ms"];
    let _manager = Server::start(dunlin(&[&node[..], &patience].concat()));
    let places: Vec<String> = [1, 2].map(free_replica).into();
    let all = places.join(",");
    let start = |id: usize| {
        let (member, at) = ((id + 7).to_string(), places[id].split_once('=').unwrap().1);
        let office = ["--coord", &manager, "--member", &member, "--ttl", "1s", "--office", "/numbers"];
        let serve = ["seq", "serve", "--at", at, "--start", "1000", "--metrics", "127.0.0.1:0"];
        Server::start(dunlin(&[&serve[..], &office].concat()))
    };
    let mut servers = [start(0), start(1)];
    let last = Cell::new(999);
    let rise = || {
        for number in next(&all, "50") {
            let before = last.replace(number);
            assert!(number > before, "{number} after {before}");
        }
    };
    rise();
    for turn in 0..4 {
        let victim = turn % 2;
        servers[victim].kill();
        rise();
        servers[victim] = start(victim);
        rise();
    }
    // The epoch has risen with each term of office, and all of them have reserved numbers under it.
    let office = dunlin(&["coord", "get", "/numbers", "--at", &manager]).output().unwrap().stdout;
    let (epoch, reserved) = std::str::from_utf8(&office).unwrap().trim().split_once(' ').unwrap();
    assert!(epoch.parse::<u64>().unwrap() >= 3, "{epoch} {reserved}");
    assert!(reserved.parse::<u64>().unwrap() > last.get());
    assert!(servers.iter().all(|server| metrics(server).contains("dunlin_seq_office_total")));
    let [first, second] = servers;
    assert!(first.stop("-TERM").contains("numbers handed out"));
    rise();
    assert!(second.stop("-TERM").contains("numbers handed out"));
    let (_, out, err) = run(&["next", "--at", &all, "--timeout", "300ms"]);
    assert!(out.is_empty() && err.contains("no sequencer gave a number in time"), "{out}{err}");
}
