//! Each fault has its documented effect, for its documented time.

mod lab;

use dunlin_net::Transport;
use dunlin_sim::fault::{PacketFaults, Place, RandomFaults};
use dunlin_sim::topology::{Layout, TwoTier};
use dunlin_sim::{CostModel, Datacenter, Fault, FaultPlan, Next, Port, SimError, Topology};
use lab::{Log, Received, echo, listen, ping, send};

const PACKETS: usize = 10_000;

fn datacenter() -> Datacenter {
    Datacenter::new(&Topology::one_switch(4, 25), CostModel::free(), 7).unwrap()
}

/// The numbered packets from host 0 that host 1 receives while a fault is in force.
fn received_under(place: Place, faults: PacketFaults) -> Vec<Received> {
    let mut datacenter = datacenter();
    let log = listen(&mut datacenter, 1, 0);
    datacenter.inject(Fault::Packets { place, faults }).unwrap();
    let mut from = datacenter.bind(0, 0).unwrap();
    for number in 0..PACKETS as u32 {
        send(&mut from, 1, &number.to_le_bytes());
    }
    datacenter.run_until(100_000_000);
    let counters = datacenter.counters();
    let (sent, received) = (counters.sent, counters.received);
    assert_eq!(sent, received + counters.lost, "{counters:?}");
    log.take()
}

fn number(packet: &Received) -> u32 {
    u32::from_le_bytes(packet.bytes[..].try_into().unwrap())
}

fn is_about(count: usize, probability: f64) {
    let expected = PACKETS as f64 * probability;
    assert!((count as f64 - expected).abs() < 5.0 * expected.sqrt(), "{count} of {PACKETS} at {probability}");
}

const UP: Place = Place::Port(Port::HostUp { host: 0 });

#[test]
fn loss() {
    is_about(PACKETS - received_under(UP, PacketFaults::loss(0.1)).len(), 0.1);
    // Two links.
    is_about(PACKETS - received_under(Place::Everywhere, PacketFaults::loss(0.1)).len(), 0.19);
    is_about(PACKETS - received_under(Place::Host(1), PacketFaults::loss(0.1)).len(), 0.1);
    assert_eq!(received_under(Place::Host(2), PacketFaults::loss(1.0)).len(), PACKETS);
}

#[test]
fn packets_that_are_too_long() {
    assert_eq!(received_under(UP, PacketFaults::longest(4)).len(), PACKETS);
    assert_eq!(received_under(UP, PacketFaults::longest(3)).len(), 0);
    let mut datacenter = datacenter();
    let mut from = datacenter.bind(0, 0).unwrap();
    let route = from.resolve(&Datacenter::addr(1, 0)).unwrap();
    assert!(from.is_mtu_certain(route));
    datacenter.make_mtu_uncertain();
    assert!(!from.is_mtu_certain(route));
}

#[test]
fn duplication() {
    let received = received_under(UP, PacketFaults { duplicate: 0.2, ..PacketFaults::default() });
    is_about(received.len() - PACKETS, 0.2);
    assert!(received.windows(2).all(|pair| number(&pair[1]) <= number(&pair[0]) + 1), "copies follow at once");
}

#[test]
fn reordering() {
    let received = received_under(UP, PacketFaults { reorder: 0.1, reorder_max_ns: 1000, ..PacketFaults::default() });
    assert_eq!(received.len(), PACKETS);
    let late = received.windows(2).filter(|pair| number(&pair[1]) < number(&pair[0])).count();
    assert!((PACKETS / 20..PACKETS / 8).contains(&late), "{late} were overtaken");
}

#[test]
fn delay() {
    let received = received_under(UP, PacketFaults { delay: 0.01, delay_max_ns: 50_000, ..PacketFaults::default() });
    assert!(received.iter().map(number).eq(0..PACKETS as u32), "the order stays");
    let gaps = received.windows(2).map(|pair| pair[1].time - pair[0].time);
    assert!(gaps.clone().max() > Some(30_000) && gaps.max() < Some(51_000));
}

#[test]
fn corruption() {
    let received = received_under(UP, PacketFaults { corrupt: 0.1, ..PacketFaults::default() });
    let corrupt: Vec<_> = received.iter().zip(0..).filter(|(packet, sent)| number(packet) != *sent).collect();
    is_about(corrupt.len(), 0.1);
    assert!(corrupt.iter().all(|(packet, sent)| (number(packet) ^ sent).count_ones() == 1), "one bit");
}

/// When echoes came back to host 0, which sends one packet every microsecond.
fn echoes(datacenter: &mut Datacenter, to: u32) -> Log<Received> {
    echo(datacenter, to, 0);
    let (log, mut transport) = (Log::default(), datacenter.bind(0, 0).unwrap());
    let logged: Log<Received> = log.clone();
    let mut next = 0;
    datacenter
        .spawn(0, 0, move || {
            lab::receive(&mut transport, &logged);
            if transport.now() >= next {
                next += 1000;
                let now = transport.now();
                send(&mut transport, to, &now.to_le_bytes());
            }
            Next::OnPacket { or_at: Some(next) }
        })
        .unwrap();
    log
}

/// Counts echoes of packets sent within an interval, in microseconds.
fn echoed(log: &Log<Received>, from: u64, until: u64) -> usize {
    let sent_at = |packet: &Received| u64::from_le_bytes(packet.bytes[..].try_into().unwrap()) / 1000;
    log.borrow().iter().filter(|packet| (from..until).contains(&sent_at(packet))).count()
}

fn scheduled(from_us: u64, until_us: u64, fault: Fault) -> FaultPlan {
    let mut plan = FaultPlan::default();
    plan.add(from_us * 1000, Some(until_us * 1000), fault);
    plan
}

#[test]
fn a_link_that_is_down_carries_nothing() {
    for port in [Port::HostUp { host: 0 }, Port::HostDown { host: 1 }, Port::HostUp { host: 1 }] {
        let mut datacenter = datacenter();
        let log = echoes(&mut datacenter, 1);
        datacenter.schedule(&scheduled(100, 200, Fault::LinkDown { port })).unwrap();
        datacenter.run_until(300_000);
        assert_eq!((echoed(&log, 0, 95), echoed(&log, 101, 195), echoed(&log, 201, 290)), (95, 0, 89), "{port}");
        assert!(datacenter.counters().lost >= 94);
    }
}

#[test]
fn flows_go_around_a_dead_uplink() {
    let layout = TwoTier { tors: 2, hosts_per_tor: 2, spines: 3, ..TwoTier::default() };
    let topology = Topology { layout: Layout::TwoTier(layout), ..Topology::default() };
    let mut datacenter = Datacenter::new(&topology, CostModel::free(), 1).unwrap();
    let log = echoes(&mut datacenter, 2);
    for uplink in 0..2 {
        datacenter.inject(Fault::LinkDown { port: Port::Uplink { tor: 0, uplink } }).unwrap();
    }
    datacenter.run_until(100_000);
    assert_eq!(echoed(&log, 0, 90), 90);
    assert_eq!(datacenter.port(Port::Uplink { tor: 0, uplink: 2 }).unwrap().packets, 100);
}

#[test]
fn a_partition_separates_both_sides_only() {
    for hosts in [vec![0, 2], vec![1], vec![0]] {
        let mut datacenter = datacenter();
        let log = echoes(&mut datacenter, 1);
        echo(&mut datacenter, 2, 0);
        let others = ping(&mut datacenter, 3, 0, if hosts == [1] { 2 } else { 1 }, 8);
        datacenter.schedule(&scheduled(100, 200, Fault::Partition { hosts })).unwrap();
        datacenter.run_until(300_000);
        assert_eq!((echoed(&log, 0, 95), echoed(&log, 101, 195), echoed(&log, 201, 290)), (95, 0, 89));
        assert!(others.borrow().len() > 80, "the others are on one side");
    }
}

#[test]
fn a_paused_host_answers_late() {
    let mut datacenter = datacenter();
    let log = echoes(&mut datacenter, 1);
    datacenter.schedule(&scheduled(100, 200, Fault::Pause { host: 1 })).unwrap();
    datacenter.run_until(300_000);
    assert_eq!(echoed(&log, 0, 290), 290, "nothing is lost");
    let late = log.borrow().iter().filter(|packet| (150_000..199_000).contains(&packet.time)).count();
    assert_eq!(late, 0);
}

#[test]
fn a_paused_program_misses_its_time_and_runs_at_the_end() {
    let mut datacenter = datacenter();
    let log: Log<u64> = Log::default();
    let (clock, logged) = (datacenter.clock(0, 0).unwrap(), log.clone());
    datacenter
        .spawn(0, 0, move || {
            logged.borrow_mut().push(clock.now());
            Next::At(clock.now() + 40_000)
        })
        .unwrap();
    datacenter.schedule(&scheduled(100, 205, Fault::Pause { host: 0 })).unwrap();
    datacenter.run_until(300_000);
    assert_eq!(*log.borrow(), [0, 40_000, 80_000, 205_000, 245_000, 285_000]);
}

#[test]
fn a_crashed_host_forgets_and_restarts() {
    let mut datacenter = datacenter();
    let log = echoes(&mut datacenter, 1);
    let mut outside = datacenter.bind(1, 1).unwrap();
    datacenter.spawn(1, 2, || Next::Soon).unwrap();
    let crash = datacenter.inject(Fault::Crash { host: 2 }).unwrap();
    datacenter.schedule(&scheduled(100, 200, Fault::Crash { host: 1 })).unwrap();
    datacenter.schedule(&scheduled(150, 210, Fault::Crash { host: 1 })).unwrap();
    datacenter.run_until(105_000);
    assert!(matches!(datacenter.bind(1, 3), Err(SimError::HostDown { host: 1 })));
    send(&mut outside, 0, b"from the dead");
    assert_eq!((outside.counters().tx_packets, outside.counters().tx_dropped_error, outside.rx_burst()), (0, 1, 0));
    datacenter.run_until(300_000);
    assert_eq!((echoed(&log, 0, 95), echoed(&log, 101, 205), echoed(&log, 211, 290)), (95, 0, 79));
    assert!(datacenter.counters().dropped_nobody >= 109);
    // The thread's number is free, and its old transport is still dead.
    let _new = datacenter.bind(1, 1).unwrap();
    send(&mut outside, 0, b"from the dead");
    assert_eq!(outside.counters().tx_dropped_error, 2);
    datacenter.spawn(1, 2, || Next::Done).unwrap();
    datacenter.lift(crash);
    datacenter.bind(2, 0).unwrap();
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut datacenter = datacenter();
    for fault in [
        Fault::Crash { host: 4 },
        Fault::Partition { hosts: vec![0, 9] },
        Fault::LinkDown { port: Port::Uplink { tor: 0, uplink: 0 } },
        Fault::Packets { place: Place::Everywhere, faults: PacketFaults::loss(1.5) },
    ] {
        assert!(datacenter.inject(fault.clone()).is_err());
        assert!(datacenter.schedule(&scheduled(1, 2, fault)).is_err());
    }
    assert!(datacenter.schedule(&scheduled(2, 1, Fault::Pause { host: 0 })).is_err());
}

#[test]
fn random_plans_follow_from_their_seed_and_end_in_time() {
    let topologies = [Topology::one_switch(4, 25), Topology::cx4()];
    for seed in 0..200 {
        let topology = &topologies[seed as usize % 2];
        let kind = RandomFaults { corrupt_max: 0.01, ..RandomFaults::default() };
        let plan = kind.plan(topology, seed);
        assert_eq!(plan, kind.plan(topology, seed));
        assert_ne!(plan, kind.plan(topology, seed + 1));
        assert!(plan.end_ns() <= Some(kind.until_ns) && plan.faults.len() == 8);
        assert_eq!(FaultPlan::from_toml(&plan.to_toml()).unwrap(), plan);
        Datacenter::new(topology, CostModel::default(), seed).unwrap().schedule(&plan).unwrap();
    }
}

#[test]
fn a_plan_shrinks_to_what_matters() {
    let plan = RandomFaults { count: 40, ..RandomFaults::default() }.plan(&Topology::cx4(), 3);
    let (first, second) = (plan.faults[7].clone(), plan.faults[31].clone());
    let shrunk = plan.shrink(1000, |plan| plan.faults.contains(&first) && plan.faults.contains(&second));
    assert_eq!(shrunk.faults, [first, second]);
}

/// Delayed packets stay ahead of later ones when the fault ends, or another one replaces it.
#[test]
fn a_delay_keeps_the_order_when_it_ends() {
    let others = [
        None,
        Some(Fault::Partition { hosts: vec![2, 3] }),
        Some(Fault::Packets { place: Place::Host(3), faults: PacketFaults::loss(1.0) }),
    ];
    for other in others {
        let mut datacenter = datacenter();
        let log = listen(&mut datacenter, 1, 0);
        let delay = PacketFaults { delay: 1.0, delay_max_ns: 1_000_000, ..PacketFaults::default() };
        datacenter.schedule(&scheduled(0, 50, Fault::Packets { place: UP, faults: delay })).unwrap();
        if let Some(other) = other {
            datacenter.schedule(&scheduled(40, 400, other)).unwrap();
        }
        let (mut transport, mut next) = (datacenter.bind(0, 0).unwrap(), 0_u32);
        datacenter
            .spawn(0, 0, move || {
                send(&mut transport, 1, &next.to_le_bytes());
                next += 1;
                if next < 2000 { Next::At(u64::from(next) * 1000) } else { Next::Done }
            })
            .unwrap();
        datacenter.run_until(3_000_000);
        assert!(log.borrow().iter().map(number).eq(0..2000), "the order stays");
        let late = log.borrow().iter().filter(|packet| packet.time > u64::from(number(packet)) * 1000 + 10_000).count();
        assert!((51..1100).contains(&late), "{late} are late: those that were delayed, and those behind them");
    }
}

#[test]
fn one_direction_is_cut() {
    // A packet from host 0 to host 1 is an echo that comes back, or does not, whichever direction is cut; host 1
    // receives packets in only one case.
    for (from, to, arrives) in [(vec![0, 3], vec![1], 0), (vec![1], vec![0, 2], 100), (vec![2, 3], vec![0, 1], 100)] {
        let mut datacenter = datacenter();
        let log = echoes(&mut datacenter, 1);
        let is_echoed = from[0] == 2;
        datacenter.schedule(&scheduled(100, 200, Fault::OneWay { from, to })).unwrap();
        datacenter.run_until(100_000);
        let before = datacenter.port(Port::HostDown { host: 1 }).unwrap().packets;
        datacenter.run_until(200_000);
        let during = datacenter.port(Port::HostDown { host: 1 }).unwrap().packets - before;
        assert!(during.abs_diff(arrives) <= 3, "{during} packets came to host 1");
        datacenter.run_until(300_000);
        let echoed = [echoed(&log, 0, 95), echoed(&log, 103, 195), echoed(&log, 203, 290)];
        assert_eq!(echoed, [95, if is_echoed { 92 } else { 0 }, 87]);
    }
}

/// Records the reading of a host's clock, and the time, each millisecond by that clock.
fn ticks(datacenter: &mut Datacenter, host: u32) -> Log<(u64, u64)> {
    let (log, clock) = (Log::default(), datacenter.clock(host, 0).unwrap());
    let (logged, other) = (log.clone(), datacenter.clock((host + 1) % 4, 0).unwrap());
    let mut next = 0;
    datacenter
        .spawn(host, 0, move || {
            assert!(clock.now() >= next, "no timer is early");
            logged.borrow_mut().push((clock.now(), other.now()));
            next += 1_000_000;
            Next::At(next)
        })
        .unwrap();
    log
}

#[test]
fn clocks_run_at_rates_of_their_own() {
    for (ppm, expected) in [(0, 100), (200, 100), (500_000, 125), (-500_000, 75), (1_000_000, 150), (-1_000_000, 50)] {
        let mut datacenter = datacenter();
        let log = ticks(&mut datacenter, 0);
        datacenter.schedule(&scheduled(0, 50_000, Fault::ClockRate { host: 0, ppm })).unwrap();
        datacenter.run_until(100_000_000);
        let log = log.borrow();
        assert!(log.len().abs_diff(expected) <= 2, "{} ticks at {ppm} ppm", log.len());
        assert!(log.windows(2).all(|pair| pair[0].0 < pair[1].0), "it never goes back");
        let shows = datacenter.clock(0, 0).unwrap().now();
        assert_eq!(shows, (100_000_000 + i64::from(ppm) * 50) as u64, "at {ppm} ppm for 50 ms");
        assert_eq!((datacenter.now(), datacenter.clock(1, 0).unwrap().now()), (100_000_000, 100_000_000));
    }
    let mut datacenter = datacenter();
    // Rates add up, but no clock goes back.
    for ppm in [1_000_000, 500_000, -1_000_000, -700_000] {
        datacenter.inject(Fault::ClockRate { host: 2, ppm }).unwrap();
    }
    datacenter.run_until(1_000_000);
    assert_eq!(datacenter.clock(2, 0).unwrap().now(), 800_000);
    assert!(datacenter.inject(Fault::ClockRate { host: 2, ppm: 1_000_001 }).is_err());
}

#[test]
fn the_clock_of_a_busy_thread_does_not_go_back_when_its_rate_changes() {
    for (before, after) in [(1_000_000, -1_000_000), (500_000, -900_000), (0, -1_000_000), (-1_000_000, 1_000_000)] {
        let mut datacenter = datacenter();
        let clock = datacenter.clock(0, 0).unwrap();
        let transport = datacenter.bind(0, 0).unwrap();
        let boot = transport.boot_clock();
        datacenter.inject(Fault::ClockRate { host: 0, ppm: before }).unwrap();
        clock.charge(1_000_000);
        let shown = (clock.now(), boot.now());
        datacenter.inject(Fault::ClockRate { host: 0, ppm: after }).unwrap();
        assert!(clock.now() >= shown.0 && boot.now() >= shown.1, "{before} then {after} ppm");
        clock.charge(5_000_000);
        assert!(clock.now() >= shown.0 && boot.now() > shown.1, "{before} then {after} ppm");
    }
}

/// Like a suspended guest: its processors and its clock stop, and then continue.
#[test]
fn a_host_is_suspended_and_comes_back() {
    let mut datacenter = datacenter();
    let log = ticks(&mut datacenter, 0);
    datacenter.schedule(&scheduled(10_500, 60_500, Fault::ClockRate { host: 0, ppm: -1_000_000 })).unwrap();
    datacenter.schedule(&scheduled(10_500, 60_500, Fault::Pause { host: 0 })).unwrap();
    datacenter.run_until(100_000_000);
    let log = log.borrow();
    let (before, after): (Vec<_>, Vec<_>) = log.iter().partition(|(_, time)| *time < 60_500_000);
    assert_eq!((before.len(), after.first().map(|(shown, _)| *shown)), (11, Some(11_000_000)), "{log:?}");
    assert!(after.iter().all(|(shown, time)| shown + 50_000_000 == *time), "{after:?}");
}
