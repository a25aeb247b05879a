//! Sleeping by descriptor, as foreign event loops do: edge-triggered like tokio and mio, or level-triggered; between
//! processes, threads and transports.
//!
//! Children are this test binary again; environment variables tell them where to answer.

mod regions;

use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dunlin_net::shm::ShmTransport;
use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Arm, Composite, NetError, Route, Transport, TxPacket};
use regions::{DIRECTORY, Dir, PATIENCE, addr, endpoint, resolve};
use rustix::event::{Timespec, epoll};

const ROUNDS: u64 = 200;

/// A foreign event loop that waits for one transport.
struct Loop {
    epoll: OwnedFd,
    fd: OwnedFd,
}

impl Loop {
    fn new(transport: &mut impl Transport, trigger: epoll::EventFlags) -> Self {
        let (epoll, fd) = (epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(), transport.wake_fd().unwrap());
        epoll::add(&epoll, &fd, epoll::EventData::new_u64(1), epoll::EventFlags::IN | trigger).unwrap();
        Loop { epoll, fd }
    }

    /// Sleeps if there is nothing. Returns whether it slept until its timeout: then a wake-up was lost.
    fn sleep<T: Transport>(&self, transport: &mut T) -> bool {
        let mut timed_out = false;
        if let Arm::Sleep(_) = transport.arm(PATIENCE) {
            let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
            let time = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            timed_out = epoll::wait(&self.epoll, &mut events[..], Some(&time)) == Ok(0);
            transport.disarm();
        }
        timed_out
    }
}

/// Files of a directory that are bells.
fn bells_in(dir: &Dir) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(&dir.0).unwrap().map(|entry| entry.unwrap());
    entries.filter(|entry| entry.file_type().unwrap().is_fifo()).map(|entry| entry.path()).collect()
}

/// Echoes each packet, and sleeps in between.
fn echo(transport: &mut impl Transport, route: Route, sleeper: &Loop, rounds: u64) {
    let mut answered = 0;
    while answered < rounds {
        for i in 0..transport.rx_burst() {
            let bytes = transport.rx_packet(i).head().to_vec();
            transport.tx_burst(&[TxPacket { route, header: &bytes, payload: &[] }]);
            answered += 1;
        }
        transport.tx_flush();
        assert!(!sleeper.sleep(transport) || answered == rounds, "a wake-up was lost at {answered}");
    }
}

/// Sends a packet and sleeps until its answer comes, repeatedly.
fn call(transport: &mut impl Transport, route: Route, sleeper: &Loop, rounds: u64) {
    for number in 0..rounds {
        let sent = number.to_le_bytes();
        transport.tx_burst(&[TxPacket { route, header: &sent, payload: &[] }]);
        transport.tx_flush();
        while transport.rx_burst() == 0 {
            assert!(!sleeper.sleep(transport), "a wake-up was lost at {number}");
        }
        assert_eq!(transport.rx_packet(0).bytes(), Some(&sent[..]));
    }
}

#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let mut endpoint = endpoint(Path::new(&directory), "peer");
    let sleeper = Loop::new(&mut endpoint, epoll::EventFlags::ET);
    let route = resolve(&mut endpoint, "server");
    echo(&mut endpoint, route, &sleeper, u64::MAX);
}

#[test]
fn sleepers_in_two_processes_wake_each_other() {
    for (name, trigger) in [("edge", epoll::EventFlags::ET), ("level", epoll::EventFlags::empty())] {
        let dir = Dir::new(name);
        let mut server = dir.endpoint("server");
        let sleeper = Loop::new(&mut server, trigger);
        let _child = dir.child(&[]);
        let route = resolve(&mut server, "peer");
        call(&mut server, route, &sleeper, ROUNDS);
        assert!(server.counters().waits > 0);
    }
}

/// Two threads, each of which sleeps for two transports at once; the packets go over one of them.
#[test]
fn composites_wake_each_other_over_either_transport() {
    let dir = Dir::new("composite");
    for (over, trigger) in [
        (0, epoll::EventFlags::ET),
        (1, epoll::EventFlags::ET),
        (0, epoll::EventFlags::empty()),
        (1, epoll::EventFlags::empty()),
    ] {
        let open = |name: &str| {
            let udp = UdpTransport::bind(UdpConfig::new("127.0.0.1:0".parse().unwrap())).unwrap();
            Composite::new(dir.endpoint(name), udp).unwrap()
        };
        let (mut a, mut b) = (open("a"), open("b"));
        let (to_a, to_b) = (b.resolve(&a.local_addrs()[over]).unwrap(), a.resolve(&b.local_addrs()[over]).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let sleeper = Loop::new(&mut b, trigger);
                echo(&mut b, to_a, &sleeper, ROUNDS);
            });
            let sleeper = Loop::new(&mut a, trigger);
            call(&mut a, to_b, &sleeper, ROUNDS);
        });
        assert!(a.counters().waits > 0);
    }
}

/// What comes while nobody sleeps, or what ended an earlier sleep, does not end the next one.
#[test]
fn a_sleep_ends_for_what_came_during_it() {
    let dir = Dir::new("stale");
    let (mut a, mut b) = (dir.endpoint("a"), dir.endpoint("b"));
    let (fd, route) = (b.wake_fd().unwrap(), a.resolve(&addr("b")).unwrap());
    let send = |a: &mut ShmTransport| a.tx_burst(&[TxPacket { route, header: b"x", payload: &[] }]);
    let is_rung = || dunlin_net::wake::wait_readable(&fd, Duration::ZERO);
    for _ in 0..10 {
        send(&mut a);
        assert!(!is_rung(), "nobody sleeps");
        assert_eq!(b.rx_burst(), 1);
        assert!(matches!(b.arm(PATIENCE), Arm::Sleep(_)));
        assert!(!is_rung());
        send(&mut a);
        send(&mut a);
        assert!(is_rung());
        b.disarm();
        assert!(!is_rung(), "the next sleep is another");
        assert_eq!(b.rx_burst(), 2);
    }
}

#[test]
fn bells_are_private_and_go_with_their_endpoints() {
    let dir = Dir::new("bells");
    let mut server = dir.endpoint("server");
    assert!(bells_in(&dir).is_empty(), "who sleeps by futex needs none");
    let fds = [server.wake_fd().unwrap(), server.wake_fd().unwrap()];
    let bells = bells_in(&dir);
    assert_eq!(bells.len(), 1);
    assert_eq!(std::fs::metadata(&bells[0]).unwrap().permissions().mode() & 0o777, 0o600);

    // The bell of an endpoint that was killed is removed with its region when other endpoints come and go.
    let child = dir.child(&[]);
    let end = Instant::now() + PATIENCE;
    while bells_in(&dir).len() < 2 {
        assert!(Instant::now() < end, "the child does not start");
    }
    drop(dir.endpoint("other"));
    assert_eq!(bells_in(&dir).len(), 2, "the living are left alone");
    drop(child);
    drop(dir.endpoint("other"));
    assert_eq!(bells_in(&dir), bells);

    let waker = server.waker();
    drop(server);
    assert!(bells_in(&dir).is_empty());
    waker.wake();
    drop(fds);
}

/// A process that removes a bell, or puts something else in its place, can only make a sleep last until its timeout.
#[test]
fn a_bell_that_is_gone_or_false_harms_no_sender() {
    let dir = Dir::new("false");
    for replace in [
        |_: &PathBuf| {},
        |path: &PathBuf| std::fs::write(path, b"no FIFO").unwrap(),
        |path: &PathBuf| std::fs::create_dir(path).unwrap(),
    ] {
        let (mut a, mut b) = (dir.endpoint("a"), dir.endpoint("b"));
        let _fd = b.wake_fd().unwrap();
        let bell = bells_in(&dir).remove(0);
        std::fs::remove_file(&bell).unwrap();
        replace(&bell);
        let route = a.resolve(&addr("b")).unwrap();
        for _ in 0..100 {
            assert!(matches!(b.arm(PATIENCE), Arm::Sleep(_)));
            a.tx_burst(&[TxPacket { route, header: b"x", payload: &[] }]);
            b.disarm();
            assert_eq!(b.rx_burst(), 1);
        }
        let _ = std::fs::remove_file(&bell);
        let _ = std::fs::remove_dir(&bell);
    }
}

/// A bell that another process filled completely is readable, and wakes like any other.
#[test]
fn a_full_bell_wakes_all_the_same() {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    let dir = Dir::new("full");
    let (mut a, mut b) = (dir.endpoint("a"), dir.endpoint("b"));
    let sleeper = Loop::new(&mut b, epoll::EventFlags::ET);
    let route = a.resolve(&addr("b")).unwrap();
    let mut options = std::fs::OpenOptions::new();
    let nonblocking = options.read(true).write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let mut filler = nonblocking.open(&bells_in(&dir)[0]).unwrap();
    for _ in 0..10 {
        assert!(matches!(b.arm(PATIENCE), Arm::Sleep(_)));
        while filler.write(&[0; 512]).is_ok() {}
        a.tx_burst(&[TxPacket { route, header: b"x", payload: &[] }]);
        assert!(dunlin_net::wake::wait_readable(&sleeper.fd, PATIENCE));
        b.disarm();
        assert_eq!(b.rx_burst(), 1);
        assert!(!dunlin_net::wake::wait_readable(&sleeper.fd, Duration::ZERO), "it was emptied");
    }
}

#[test]
fn transports_that_reach_each_others_addresses_are_not_joined() {
    let dir = Dir::new("kinds");
    let udp = |addr: &str| UdpTransport::bind(UdpConfig::new(addr.parse().unwrap())).unwrap();
    let refused = |error: Option<NetError>| matches!(error, Some(NetError::BadSetting { .. }));
    assert!(refused(Composite::new(dir.endpoint("a"), dir.endpoint("b")).err()));
    assert!(refused(Composite::new(udp("127.0.0.1:0"), udp("127.0.0.1:0")).err()));
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        assert!(Composite::new(udp("127.0.0.1:0"), udp("[::1]:0")).is_ok());
    }
    // Composites cannot be joined with each other either: the numbers of their routes would clash.
    let both = Composite::new(dir.endpoint("c"), udp("127.0.0.1:0")).unwrap();
    let net = dunlin_net::loopback::LoopbackNetwork::new(Default::default());
    let mut three = Composite::new(net.endpoint(1).unwrap(), both).unwrap();
    let far = udp("127.0.0.1:0");
    assert!(matches!(three.resolve(&far.local_addr()), Err(NetError::Full { .. })));
    assert!(three.resolve(&addr("c")).is_ok());
}
