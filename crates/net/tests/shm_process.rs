//! Shared memory between real processes: some are killed at random instants, some sleep and must be woken.
//!
//! Children are this test binary again; environment variables tell them which role to play.

mod regions;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_net::shm::{INLINE_BYTES_MAX, ShmTransport};
use dunlin_net::{AnyTransport, NetError, PeerHealth, Transport, TxPacket};
use regions::{DIRECTORY, Dir, Killed, PATIENCE, addr, resolve};

const ROLE: &str = "DUNLIN_TEST_ROLE";
const NAME: &str = "DUNLIN_TEST_NAME";
/// No child lives longer than this, whatever happens to its parent.
const CHILD_LIFE_MAX: Duration = Duration::from_secs(60);

/// A child that plays `role` under the name `name`.
fn child_of(dir: &Dir, role: &str, name: &str) -> Killed {
    dir.child(&[(ROLE, role), (NAME, name)])
}

/// A packet that shows whether it is intact: its sender, a number, contents that follow from both, and their checksum.
fn packet(sender: u64, number: u64) -> Vec<u8> {
    let len = [24, 48, 112, 113, 900, 8000][number as usize % 6];
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(sender.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend((16..len - 8).map(|i| (number as usize * 31 + i) as u8));
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, b| (sum ^ *b as u64).wrapping_mul(0x0100_0000_01b3))
}

/// The sender and number of a packet, whose checksum must be right.
fn open(endpoint: &ShmTransport, i: usize) -> (u64, u64) {
    let lent = endpoint.rx_packet(i);
    let mut bytes = vec![0; lent.len()];
    lent.copy_to(0, &mut bytes);
    let (body, sum) = bytes.split_at(bytes.len() - 8);
    assert_eq!(checksum(body).to_le_bytes(), sum, "a packet arrived garbled");
    (u64::from_le_bytes(body[..8].try_into().unwrap()), u64::from_le_bytes(body[8..16].try_into().unwrap()))
}

/// What a child does, by the variable `ROLE`.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let directory = PathBuf::from(std::env::var(DIRECTORY).unwrap());
    let name = std::env::var(NAME).unwrap();
    let mut endpoint = regions::endpoint(&directory, &name);
    let end = Instant::now() + CHILD_LIFE_MAX;
    let alive =
        |endpoint: &mut ShmTransport, route| Instant::now() < end && endpoint.peer_health(route) == PeerHealth::Alive;
    match role.as_str() {
        "flood" => {
            let route = resolve(&mut endpoint, "server");
            let packets: Vec<_> = (0..66).map(|n| packet(2, n)).collect();
            let burst: Vec<_> = packets.iter().map(|p| TxPacket { route, header: p, payload: &[] }).collect();
            // Long bursts of short packets: most of its time it has places taken that are not published yet.
            let (short, long): (Vec<_>, Vec<_>) = burst.into_iter().partition(|p| p.len() <= INLINE_BYTES_MAX);
            let short = short.repeat(64 / short.len() + 1);
            while alive(&mut endpoint, route) {
                for _ in 0..100 {
                    endpoint.tx_burst(&short);
                    endpoint.tx_burst(&long[..3]);
                }
            }
        }
        "echo" => {
            let route = resolve(&mut endpoint, "server");
            while alive(&mut endpoint, route) {
                for i in 0..endpoint.rx_burst() {
                    let bytes = endpoint.rx_packet(i).head().to_vec();
                    endpoint.tx_burst(&[TxPacket { route, header: &bytes, payload: &[] }]);
                }
                endpoint.wait(PATIENCE);
            }
        }
        other => panic!("no such role: {other}"),
    }
}

/// Kills 60 senders, or `DUNLIN_TEST_KILLS` of them.
#[test]
fn senders_killed_at_any_instant_harm_no_one_else() {
    let kills = std::env::var("DUNLIN_TEST_KILLS").map_or(60, |text| text.parse().unwrap());
    const SURVIVOR: u64 = 1;
    let dir = Dir::new("kill");
    let mut server_config = dir.config("server");
    (server_config.queue_len, server_config.bulk_buffers) = (1024, 64);
    let mut server = ShmTransport::new(&server_config).unwrap();
    let mut survivor = dir.endpoint("survivor");
    let to_server = survivor.resolve(&addr("server")).unwrap();
    let mut expected = 0;
    let mut next_sent = 0;
    // The survivor keeps a few packets in flight; they come in order unless one overtakes a hole, and only a full queue
    // may cost one. So every number comes at most once.
    let mut seen = std::collections::HashSet::new();
    let mut from_victims = 0u64;
    let mut turn = |server: &mut ShmTransport, from_victims: &mut u64| {
        if next_sent < expected + 8 {
            let bytes = packet(SURVIVOR, next_sent);
            let sent = survivor.counters().tx_packets;
            survivor.tx_burst(&[TxPacket { route: to_server, header: &bytes, payload: &[] }]);
            next_sent += survivor.counters().tx_packets - sent;
        }
        for i in 0..server.rx_burst() {
            let (sender, number) = open(server, i);
            if sender == SURVIVOR {
                assert!(seen.insert(number) && number < next_sent, "packet {number} came twice or was never sent");
                expected += 1;
            } else {
                *from_victims += 1;
            }
        }
        expected
    };
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut children = [child_of(&dir, "flood", "victim0"), child_of(&dir, "flood", "victim1")];
    for kill in 0..kills {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let before = from_victims;
        let end = Instant::now() + PATIENCE;
        while from_victims < before + 100 {
            turn(&mut server, &mut from_victims);
            assert!(Instant::now() < end, "no packet of the victims after {kill} kills");
        }
        let moment = Instant::now() + Duration::from_nanos((seed >> 33) % 2_000_000);
        while Instant::now() < moment {
            turn(&mut server, &mut from_victims);
        }
        // Replacing the child kills it.
        children[kill % 2] = child_of(&dir, "flood", &format!("victim{}", kill + 2));
        let before = turn(&mut server, &mut from_victims);
        while turn(&mut server, &mut from_victims) < before + 50 {
            assert!(Instant::now() < end, "the survivor is not heard after {kill} kills");
        }
    }
    drop(children);
    // Everything that the dead held must come back: the whole queue and every bulk buffer are usable.
    let end = Instant::now() + PATIENCE;
    for i in 0..10_000 {
        server.rx_burst();
        if i % 100 == 0 {
            server.wait(Duration::from_micros(1));
        }
    }
    let bulk = packet(SURVIVOR, 5);
    let mut largest = 0;
    while largest < 64 {
        assert!(Instant::now() < end, "only {largest} bulk buffers are usable");
        let before = survivor.counters().tx_packets;
        survivor.tx_burst(&[TxPacket { route: to_server, header: &bulk, payload: &[] }; 64]);
        largest = largest.max(survivor.counters().tx_packets - before);
        while server.rx_burst() > 0 {}
        server.wait(Duration::from_micros(1));
    }
    let counters = server.counters();
    assert_eq!(counters.rx_dropped_malformed, 0);
    println!("{from_victims} packets of {kills} victims, {} places reclaimed", counters.rx_reclaimed);
}

/// Stops senders at random instants, 100 times and until some stop fell between taking places and publishing them.
/// While they are stopped, another sender sends six times what the queue holds.
#[test]
fn senders_stopped_at_any_instant_cost_no_one_else_a_packet() {
    const SURVIVOR: u64 = 1;
    let dir = Dir::new("stop");
    let mut server_config = dir.config("server");
    server_config.queue_len = 512;
    let mut server = ShmTransport::new(&server_config).unwrap();
    let mut survivor = dir.endpoint("survivor");
    let to_server = survivor.resolve(&addr("server")).unwrap();
    let children = [child_of(&dir, "flood", "a"), child_of(&dir, "flood", "b")];
    let pids = children.each_ref().map(|child| child.0.id() as libc::pid_t);
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut sent = 0;
    let (begun, mut stops_within) = (Instant::now(), 0);
    for round in 0.. {
        if round >= 100 && stops_within > 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "no stop of {round} fell into a reservation");
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let end = Instant::now() + PATIENCE;
        let mut from_children = 0;
        while from_children < 1000 + (seed >> 33) % 1000 {
            from_children += server.rx_burst() as u64;
            assert!(Instant::now() < end, "the children are not heard in round {round}");
        }
        pids.iter().for_each(|&pid| signal(pid, libc::SIGSTOP));
        let aside = server.counters().rx_set_aside;
        // What they had published; behind a hole it may take some polls.
        let mut empty_polls = 0;
        while empty_polls < 1000 {
            empty_polls = if server.rx_burst() == 0 { empty_polls + 1 } else { 0 };
        }
        let dropped = survivor.counters().tx_dropped_full;
        for _ in 0..6 * 512 {
            survivor.tx_burst(&[TxPacket { route: to_server, header: &packet(SURVIVOR, 6 * sent), payload: &[] }]);
            let polls = (1..1000).find(|_| server.rx_burst() > 0);
            assert_eq!(survivor.counters().tx_dropped_full, dropped, "no place for the survivor in round {round}");
            assert!(polls.is_some(), "a packet of the survivor was lost in round {round}");
            assert_eq!(open(&server, 0), (SURVIVOR, 6 * sent), "round {round}");
            sent += 1;
        }
        stops_within += u64::from(server.counters().rx_set_aside > aside);
        pids.iter().for_each(|&pid| signal(pid, libc::SIGCONT));
    }
    assert_eq!((server.counters().rx_reclaimed, server.counters().rx_dropped_malformed), (0, 0));
}

/// Sends a signal to a child; after a stop signal, returns once the child has stopped.
fn signal(pid: libc::pid_t, signal: libc::c_int) {
    let mut status = 0;
    // SAFETY: the calls take integers and a pointer to one that lives through them; the child is not reaped, because it
    // only stops.
    let done = unsafe {
        libc::kill(pid, signal) == 0
            && (signal != libc::SIGSTOP || libc::waitpid(pid, &mut status, libc::WUNTRACED) == pid)
    };
    assert!(done, "{}", std::io::Error::last_os_error());
    assert!(signal != libc::SIGSTOP || libc::WIFSTOPPED(status), "the child has ended");
}

#[test]
fn the_death_of_a_receiver_is_noticed_and_its_name_can_be_taken_over() {
    let dir = Dir::new("receiver");
    let mut server = dir.endpoint("server");
    let child = child_of(&dir, "echo", "peer");
    let route = resolve(&mut server, "peer");
    assert_eq!(server.peer_health(route), PeerHealth::Alive);
    assert!(matches!(ShmTransport::new(&dir.config("peer")), Err(NetError::InUse { .. })));
    drop(child);
    assert_eq!(server.peer_health(route), PeerHealth::Dead);
    assert!(matches!(server.resolve(&addr("peer")), Err(NetError::NotFound { .. })));

    let winners = AtomicBool::new(false);
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                let made = ShmTransport::new(&dir.config("peer"));
                start.wait();
                match made {
                    Ok(_) => assert!(!winners.swap(true, Ordering::SeqCst), "two endpoints took one name"),
                    Err(e) => assert!(matches!(e, NetError::InUse { .. }), "{e}"),
                }
            });
        }
    });
    assert!(winners.load(Ordering::SeqCst));
}

#[test]
fn regions_of_killed_endpoints_are_swept() {
    let dir = Dir::new("sweep");
    let files = || std::fs::read_dir(&dir.0).unwrap().count();
    let mut server = dir.endpoint("server");
    let uid = std::fs::metadata(&dir.0).unwrap().uid();
    std::fs::write(dir.0.join(format!("dunlin-{uid}-notes")), b"no region, and not ours to remove").unwrap();
    let children = [child_of(&dir, "echo", "anon-0123456789abcdef"), child_of(&dir, "echo", "killed")];
    resolve(&mut server, "anon-0123456789abcdef");
    let route = resolve(&mut server, "killed");
    drop(dir.endpoint("other"));
    assert_eq!(files(), 4, "the living are left alone");
    drop(children);
    assert_eq!(files(), 4);
    drop(dir.endpoint("other"));
    assert_eq!(files(), 2, "the dead are removed, what is no region stays");
    assert_eq!(server.peer_health(route), PeerHealth::Dead, "whoever has it mapped still sees that it is dead");
    assert!(matches!(server.resolve(&addr("killed")), Err(NetError::NotFound { .. })));
}

/// The successor of a killed server may have no shared memory at all.
#[test]
fn a_socket_clears_the_regions_of_killed_endpoints() {
    let dir = Dir::new("socket");
    let uid = std::fs::metadata(&dir.0).unwrap().uid();
    let name = format!("test-socket-{}", std::process::id());
    let region = PathBuf::from(format!("/dev/shm/dunlin-{uid}-{name}"));
    let child = dir.child(&[(ROLE, "echo"), (NAME, &name), (DIRECTORY, "/dev/shm")]);
    let start = Instant::now();
    while !region.exists() {
        assert!(start.elapsed() < PATIENCE, "the child makes no region");
        thread::yield_now();
    }
    let socket = || AnyTransport::bind(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
    drop(socket());
    assert!(region.exists(), "the living are left alone");
    drop(child);
    drop(socket());
    // An endpoint of another test's process may be about to remove it, and then this one leaves that to it.
    let start = Instant::now();
    while region.exists() {
        assert!(start.elapsed() < PATIENCE, "the region stays");
        thread::yield_now();
    }
}

#[test]
fn a_dead_name_can_be_had_while_others_sweep_it() {
    let dir = Dir::new("sweepers");
    for round in 0..10 {
        let mut server = dir.endpoint("server");
        let child = child_of(&dir, "echo", "killed");
        resolve(&mut server, "killed");
        drop(child);
        let start = Barrier::new(4);
        thread::scope(|scope| {
            for sweeper in 0..3 {
                let (dir, start) = (&dir, &start);
                scope.spawn(move || {
                    start.wait();
                    dir.endpoint(&format!("sweeper-{sweeper}"));
                });
            }
            start.wait();
            let taken = ShmTransport::new(&dir.config("killed"));
            assert!(taken.is_ok(), "round {round}: {:?}", taken.err());
        });
    }
}

#[test]
fn sleepers_in_two_processes_wake_each_other() {
    let dir = Dir::new("wake");
    let mut server = dir.endpoint("server");
    let _child = child_of(&dir, "echo", "peer");
    let route = resolve(&mut server, "peer");
    for number in 0..500u64 {
        let sent = number.to_le_bytes();
        server.tx_burst(&[TxPacket { route, header: &sent, payload: &[] }]);
        let before = Instant::now();
        while server.rx_burst() == 0 {
            server.wait(PATIENCE);
            assert!(before.elapsed() < PATIENCE, "a wake-up was lost at round {number}");
        }
        assert_eq!(server.rx_packet(0).bytes(), Some(&sent[..]));
    }
    assert!(server.counters().waits > 0);
}

#[test]
fn a_waker_ends_this_wait_or_the_next_and_outlives_its_endpoint() {
    let dir = Dir::new("waker");
    let mut a = dir.endpoint("a");
    let waker = a.waker();
    let before = Instant::now();
    waker.wake();
    a.wait(PATIENCE);
    thread::scope(|scope| {
        for _ in 0..200 {
            let woken = scope.spawn(|| waker.wake());
            a.wait(PATIENCE);
            woken.join().unwrap();
        }
    });
    assert!(before.elapsed() < PATIENCE, "a wake-up was lost");
    let before = Instant::now();
    a.wait(Duration::from_millis(5));
    assert!(before.elapsed() >= Duration::from_millis(4), "nobody woke it");
    drop(a);
    waker.wake();
}
