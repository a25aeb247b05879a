//! What the `Transport` trait promises, as a test suite for any transport. Transports of other crates include this
//! file.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use dunlin_net::transport::{HEAD_BYTES, RX_BURST};
use dunlin_net::wake::wait_readable;
use dunlin_net::{Addr, Arm, NetError, PeerHealth, Route, ShmName, Transport, TxPacket};

/// Longest wait for a packet. Reached only when something is broken.
const PATIENCE: Duration = Duration::from_secs(10);

/// Checks the promises of two fresh transports that can reach each other. `drive` makes time pass for them; it is
/// called repeatedly while a packet is awaited.
pub fn transport_keeps_its_promises<T: Transport>(a: T, b: T, drive: impl FnMut()) {
    it_keeps_its_promises_at(0, a, b, drive);
}

/// The same, over the address of the transports that has the number `address`.
pub fn it_keeps_its_promises_at<T: Transport>(address: usize, a: T, b: T, drive: impl FnMut()) {
    let mut link = Link { a, b, drive, address, handed_over: 0, received: 0, received_bytes: 0 };
    link.has_sensible_limits();
    link.shows_strangers_by_their_source();
    link.counts_the_users_of_a_route();
    link.refuses_what_it_cannot_reach();
    link.carries_every_size();
    link.drops_what_is_too_long_and_nothing_else();
    link.drops_what_has_no_route_and_nothing_else();
    link.takes_the_release_of_no_route();
    link.hands_out_bursts_up_to_the_limit();
    link.ends_a_wait();
    link.wakes_foreign_event_loops();
    link.holds_as_many_packets_as_it_says_and_never_blocks();
    link.counters_add_up();
}

struct Link<T, D> {
    a: T,
    b: T,
    drive: D,
    address: usize,
    /// Packets that `a` was given to send.
    handed_over: u64,
    /// What `b` handed out.
    received: u64,
    received_bytes: u64,
}

/// A received packet, copied out.
#[derive(Debug)]
struct Received {
    bytes: Vec<u8>,
    route: Option<Route>,
    source: Option<Addr>,
}

impl<T: Transport, D: FnMut()> Link<T, D> {
    fn addr_a(&self) -> Addr {
        self.a.local_addrs()[self.address].clone()
    }

    fn addr_b(&self) -> Addr {
        self.b.local_addrs()[self.address].clone()
    }

    /// Sends packets from `a` in one burst.
    fn send(&mut self, packets: &[TxPacket<'_>]) {
        self.a.tx_burst(packets);
        self.a.tx_flush();
        self.handed_over += packets.len() as u64;
    }

    /// One receive burst at `b`, every packet of it read in every way.
    fn receive_burst(&mut self) -> Vec<Received> {
        (self.drive)();
        let count = self.b.rx_burst();
        assert!(count <= RX_BURST, "a burst of {count} packets");
        let burst: Vec<Received> = (0..count).map(|i| self.read(i)).collect();
        self.received += count as u64;
        self.received_bytes += burst.iter().map(|p| p.bytes.len() as u64).sum::<u64>();
        burst
    }

    fn read(&self, i: usize) -> Received {
        let packet = self.b.rx_packet(i);
        let mut bytes = vec![0; packet.len()];
        packet.copy_to(0, &mut bytes);
        assert!(packet.head().len() >= bytes.len().min(HEAD_BYTES));
        assert!(bytes.starts_with(packet.head()));
        assert!(packet.bytes().is_none_or(|whole| whole == bytes));
        for (from, to) in
            [(0, 1), (1, 65), (63, 65), (64, 80), (bytes.len() / 2, bytes.len()), (bytes.len(), bytes.len())]
        {
            if let Some(expected) = bytes.get(from..to) {
                let mut part = vec![0; to - from];
                packet.copy_to(from, &mut part);
                assert_eq!(part, expected, "bytes {from} to {to}");
            }
        }
        Received { bytes, route: packet.route(), source: self.b.rx_source(i) }
    }

    /// Receives exactly `count` packets.
    fn receive(&mut self, count: usize) -> Vec<Received> {
        let deadline = Instant::now() + PATIENCE;
        let mut received = Vec::new();
        while received.len() < count {
            received.extend(self.receive_burst());
            assert!(Instant::now() < deadline, "{} of {count} packets arrived", received.len());
        }
        assert_eq!(received.len(), count, "more packets arrived than were sent");
        received
    }

    fn receive_one(&mut self) -> Received {
        self.receive(1).remove(0)
    }

    fn has_sensible_limits(&mut self) {
        assert!(self.a.mtu() >= HEAD_BYTES && self.a.mtu() == self.b.mtu());
        assert!(self.a.rx_queue_len() >= RX_BURST);
        assert_ne!(self.addr_a(), self.addr_b());
        assert_eq!(self.b.rx_burst(), 0);
        let now = self.a.now();
        (self.drive)();
        assert!(self.a.now() >= now);
    }

    fn shows_strangers_by_their_source(&mut self) {
        let (addr_a, addr_b) = (self.addr_a(), self.addr_b());
        let say = |link: &mut Self, text: &[u8]| {
            link.a.tx_to(&addr_b, text).unwrap();
            link.a.tx_flush();
            link.handed_over += 1;
            link.receive_one()
        };
        let stranger = say(self, b"hello");
        assert_eq!((&stranger.bytes[..], stranger.route), (&b"hello"[..], None));
        assert_eq!(stranger.source.as_ref(), Some(&addr_a));

        let route = self.b.resolve(&addr_a).unwrap();
        assert_ne!(self.b.peer_health(route), PeerHealth::Dead);
        let friend = say(self, b"again");
        assert_eq!((friend.route, friend.source), (Some(route), Some(addr_a)));

        self.b.release(route);
        assert_eq!(say(self, b"stranger again").route, None);
    }

    fn counts_the_users_of_a_route(&mut self) {
        let addr = self.addr_b();
        let route = self.a.resolve(&addr).unwrap();
        for _ in 0..3 {
            assert_eq!(self.a.resolve(&addr).unwrap(), route);
            self.a.release(route);
        }
        self.send(&[TxPacket { route, header: b"one user", payload: b" is left" }]);
        assert_eq!(self.receive_one().bytes, b"one user is left");
        self.a.release(route);
        for _ in 0..100 {
            let route = self.a.resolve(&addr).unwrap();
            self.send(&[TxPacket { route, header: b"anew", payload: b"" }]);
            assert_eq!(self.receive_one().bytes, b"anew");
            self.a.release(route);
        }
    }

    fn refuses_what_it_cannot_reach(&mut self) {
        let others = [
            Addr::Shm(ShmName::new("contract-test-nobody").unwrap()),
            Addr::Udp(([127, 0, 0, 1], 9).into()),
            Addr::Node(u32::MAX),
            Addr::Sim { host: 0, thread: 0 },
        ];
        let kinds = self.a.local_addrs();
        let is_of = |addr: &Addr, kind: &Addr| std::mem::discriminant(addr) == std::mem::discriminant(kind);
        for addr in others.iter().filter(|addr| !kinds.iter().any(|kind| is_of(addr, kind))) {
            assert!(matches!(self.a.resolve(addr), Err(NetError::WrongKind { .. })), "{addr}");
            assert!(matches!(self.a.tx_to(addr, b"x"), Err(NetError::WrongKind { .. })), "{addr}");
        }
    }

    fn carries_every_size(&mut self) {
        let route = self.a.resolve(&self.addr_b()).unwrap();
        let mtu = self.a.route_mtu(route);
        assert!(mtu >= self.a.mtu());
        let bytes: Vec<u8> = (0..mtu).map(|i| (i * 31 + i / 256) as u8).collect();
        let near_head = HEAD_BYTES - 2..HEAD_BYTES + 3;
        let sizes = (1..35).chain(near_head).chain((100..mtu).step_by(1 + mtu / 64)).chain(mtu - 2..=mtu);
        for size in sizes.filter(|size| *size <= mtu) {
            for header_len in [0, 1, 16, 31, size].into_iter().filter(|len| *len <= size) {
                let (header, payload) = bytes[..size].split_at(header_len);
                self.send(&[TxPacket { route, header, payload }]);
                assert_eq!(self.receive_one().bytes, &bytes[..size], "size {size}, header {header_len}");
            }
        }
        self.tolerates_an_empty_packet(route);
        self.a.release(route);
    }

    /// An empty packet may get lost, since not every framing can represent one, but it affects no other packet.
    fn tolerates_an_empty_packet(&mut self, route: Route) {
        let packet = |header| TxPacket { route, header, payload: b"" };
        self.send(&[packet(b"before"), packet(b""), packet(b"after")]);
        let (mut others, deadline) = (BTreeSet::new(), Instant::now() + PATIENCE);
        while others.len() < 2 {
            others.extend(self.receive_burst().into_iter().map(|p| p.bytes).filter(|bytes| !bytes.is_empty()));
            assert!(Instant::now() < deadline, "only {others:?} arrived");
        }
        assert_eq!(others, BTreeSet::from([b"before".to_vec(), b"after".to_vec()]));
        self.send(&[packet(b"end")]);
        while !self.receive_burst().iter().any(|p| p.bytes == b"end") {
            assert!(Instant::now() < deadline, "nothing arrives any more");
        }
    }

    /// Sends `bad` packets among good ones: the good ones arrive, and the bad ones are counted as errors of the caller.
    fn drops_and_counts(&mut self, route: Route, bad: &[TxPacket<'_>]) {
        let before = self.a.counters().tx_dropped_error;
        let good = |header| TxPacket { route, header, payload: b"" };
        for bad in bad {
            self.send(&[good(b"before"), *bad, good(b"after")]);
            let arrived: BTreeSet<_> = self.receive(2).into_iter().map(|p| p.bytes).collect();
            assert_eq!(arrived, BTreeSet::from([b"before".to_vec(), b"after".to_vec()]));
        }
        assert_eq!(self.a.counters().tx_dropped_error - before, bad.len() as u64);
    }

    fn drops_what_is_too_long_and_nothing_else(&mut self) {
        let addr = self.addr_b();
        let route = self.a.resolve(&addr).unwrap();
        let mtu = self.a.route_mtu(route);
        let bytes = vec![5; 2 * mtu + 70_000];
        let too_long =
            |len: usize, header: usize| TxPacket { route, header: &bytes[..header], payload: &bytes[header..len] };
        self.drops_and_counts(route, &[too_long(mtu + 1, 0), too_long(mtu + 1, 16), too_long(bytes.len(), mtu)]);
        self.a.tx_to(&addr, &bytes[..mtu + 1]).unwrap();
        self.a.tx_flush();
        self.handed_over += 1;
        self.send(&[TxPacket { route, header: b"next", payload: b"" }]);
        assert_eq!(self.receive_one().bytes, b"next");
        self.a.release(route);
    }

    fn drops_what_has_no_route_and_nothing_else(&mut self) {
        let route = self.a.resolve(&self.addr_b()).unwrap();
        let never = [Route(route.0 + 1), Route(77), Route(u32::MAX)];
        let packets = never.map(|route| TxPacket { route, header: b"nowhere", payload: b"" });
        self.drops_and_counts(route, &packets);
        self.a.release(route);
        self.a.tx_burst(&[TxPacket { route, header: b"too late", payload: b"" }]);
        self.a.tx_flush();
        self.handed_over += 1;
        assert_eq!(self.receive_burst().len(), 0, "a route that was given up leads nowhere");
    }

    fn takes_the_release_of_no_route(&mut self) {
        let route = self.a.resolve(&self.addr_b()).unwrap();
        for never in [Route(route.0 + 1), Route(77), Route(u32::MAX)] {
            self.a.release(never);
            assert_ne!(self.a.peer_health(never), PeerHealth::Alive);
        }
        self.send(&[TxPacket { route, header: b"still", payload: b" known" }]);
        assert_eq!(self.receive_one().bytes, b"still known");
        self.a.release(route);
        self.a.release(route);
        let again = self.a.resolve(&self.addr_b()).unwrap();
        self.send(&[TxPacket { route: again, header: b"known", payload: b" again" }]);
        assert_eq!(self.receive_one().bytes, b"known again");
        self.a.release(again);
    }

    fn hands_out_bursts_up_to_the_limit(&mut self) {
        let route = self.a.resolve(&self.addr_b()).unwrap();
        let count = (3 * RX_BURST + 1).min(self.a.rx_queue_len());
        let numbers: Vec<[u8; 4]> = (0..count as u32).map(u32::to_le_bytes).collect();
        let packets: Vec<_> = numbers.iter().map(|n| TxPacket { route, header: n, payload: &[7; 12] }).collect();
        self.send(&packets);
        let received: BTreeSet<Vec<u8>> = self.receive(count).into_iter().map(|p| p.bytes).collect();
        let expected: BTreeSet<Vec<u8>> = numbers.iter().map(|n| [&n[..], &[7; 12]].concat()).collect();
        assert_eq!(received, expected);
        assert_eq!(self.receive_burst().len(), 0);
        let past_the_end = catch_unwind(AssertUnwindSafe(|| self.b.rx_packet(0).len()));
        assert!(past_the_end.is_err(), "packets of an earlier burst are no longer lent");
        self.a.release(route);
    }

    fn ends_a_wait(&mut self) {
        let start = Instant::now();
        self.b.wait(Duration::ZERO);
        let waker = self.b.waker();
        std::thread::scope(|scope| scope.spawn(|| waker.wake()).join()).unwrap();
        self.b.wait(PATIENCE);
        let addr = self.addr_b();
        self.a.tx_to(&addr, b"a packet").unwrap();
        self.a.tx_flush();
        self.handed_over += 1;
        (self.drive)();
        self.b.wait(PATIENCE);
        assert!(start.elapsed() < PATIENCE, "neither the waker nor a packet ends a wait");
        assert_eq!(self.receive_one().bytes, b"a packet");
    }

    /// [`Transport::wait`] in parts, the middle one of which a foreign event loop does.
    fn wakes_foreign_event_loops(&mut self) {
        assert_eq!(self.b.rx_burst(), 0);
        // A composite sleeps by descriptor anyway; other transports have no descriptor yet.
        self.b.arm(PATIENCE);
        self.b.disarm();
        let fds = [self.b.wake_fd().unwrap(), self.b.wake_fd().unwrap()];
        let Arm::Sleep(time) = self.b.arm(PATIENCE) else { panic!("there is no work") };
        assert!(time <= PATIENCE);
        // Transports that run in a test's time never sleep.
        let sleeps = !time.is_zero();
        assert!(!sleeps || !wait_readable(&fds[0], Duration::ZERO), "nothing has happened");
        self.b.disarm();

        let waker = self.b.waker();
        waker.wake();
        assert!(!sleeps || self.b.arm(PATIENCE) == Arm::Work, "it was woken before");
        assert!(self.b.arm(PATIENCE) != Arm::Work, "one wake-up is for one sleep");
        std::thread::scope(|scope| scope.spawn(|| waker.wake()).join()).unwrap();
        assert!(fds.iter().all(|fd| wait_readable(fd, PATIENCE)), "the waker wakes who is armed");
        self.b.disarm();
        assert!(self.b.arm(PATIENCE) != Arm::Work);
        assert!(!sleeps || !wait_readable(&fds[1], Duration::ZERO), "the wake-up is over");
        self.b.disarm();

        for is_armed in [false, true] {
            if is_armed {
                assert!(self.b.arm(PATIENCE) != Arm::Work);
            }
            let addr = self.addr_b();
            self.a.tx_to(&addr, b"a packet").unwrap();
            self.a.tx_flush();
            self.handed_over += 1;
            (self.drive)();
            if is_armed {
                assert!(wait_readable(&fds[0], PATIENCE), "a packet wakes who is armed");
            } else {
                assert!(!sleeps || self.b.arm(PATIENCE) == Arm::Work, "a packet is there");
            }
            self.b.disarm();
            assert_eq!(self.receive_one().bytes, b"a packet");
        }
        self.b.disarm();
    }

    fn holds_as_many_packets_as_it_says_and_never_blocks(&mut self) {
        let route = self.a.resolve(&self.addr_b()).unwrap();
        let (queue_len, payload) = (self.b.rx_queue_len(), vec![9; self.a.route_mtu(route)]);
        let packets = [TxPacket { route, header: b"", payload: &payload }; RX_BURST];
        let mut left = queue_len + queue_len / 4;
        while left > 0 {
            let burst = left.min(RX_BURST);
            self.send(&packets[..burst]);
            left -= burst;
        }
        let received = self.receive_at_least(queue_len);
        assert!(received.iter().all(|bytes| *bytes == payload));
        self.send(&[TxPacket { route, header: b"still", payload: b" there" }]);
        let after = self.receive_at_least(1);
        assert!(after.iter().any(|bytes| bytes == b"still there"), "nothing arrives after a full queue");
        self.a.release(route);
    }

    /// Receives until at least `count` packets have come and no more come.
    fn receive_at_least(&mut self, count: usize) -> Vec<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        let mut received = Vec::new();
        loop {
            let burst = self.receive_burst();
            if burst.is_empty() && received.len() >= count {
                return received;
            }
            received.extend(burst.into_iter().map(|p| p.bytes));
            assert!(Instant::now() < deadline, "{} of at least {count} packets arrived", received.len());
        }
    }

    fn counters_add_up(&mut self) {
        let (a, b) = (self.a.counters(), self.b.counters());
        assert_eq!(a.tx_packets + a.tx_dropped_full + a.tx_dropped_error, self.handed_over, "{a:?}");
        assert_eq!((b.rx_packets, b.rx_bytes), (self.received, self.received_bytes), "{b:?}");
        assert!(a.tx_packets >= b.rx_packets && a.tx_bytes >= b.rx_bytes, "{a:?} {b:?}");
        assert!(
            (1..=a.tx_packets).contains(&a.tx_batches) && (1..=b.rx_packets).contains(&b.rx_batches),
            "{a:?} {b:?}"
        );
        assert_eq!((b.tx_packets, a.rx_packets, b.rx_dropped_malformed), (0, 0, 0), "{a:?} {b:?}");
    }
}
