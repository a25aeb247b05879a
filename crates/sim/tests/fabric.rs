//! Links and switches: times to the nanosecond, buffers, marks, paths.

mod lab;

use dunlin_sim::topology::{Buffer, Ecn, Forwarding, Layout, OneSwitch, Switch, TwoTier};
use dunlin_sim::{CostModel, Datacenter, Port, Topology};
use lab::{flood, listen, send};

fn one_switch(hosts: u32, switch: Switch) -> Topology {
    Topology { layout: Layout::OneSwitch(OneSwitch { hosts, switch }), ..Topology::default() }
}

fn two_tier(layout: TwoTier) -> Topology {
    Topology { layout: Layout::TwoTier(layout), ..Topology::default() }
}

fn datacenter(topology: &Topology) -> Datacenter {
    Datacenter::new(topology, CostModel::free(), 1).unwrap()
}

/// When another host receives a packet of `bytes` (with overhead) from host 0.
fn one_way(topology: &Topology, to: u32, bytes: usize) -> u64 {
    let mut datacenter = datacenter(topology);
    let log = listen(&mut datacenter, to, 0);
    let mut from = datacenter.bind(0, 1).unwrap();
    send(&mut from, to, &vec![1; bytes - 66]);
    datacenter.run_until(1_000_000);
    let log = log.borrow();
    assert_eq!(log.len(), 1);
    log[0].time
}

#[test]
fn a_packet_takes_the_sum_of_its_parts() {
    // NIC 500, wire, cable 10, switch 500, cable 10, NIC 500. Of 100 B at 25 Gbit/s the wire is 32 ns; cut-through pays
    // it once.
    let cut_through = one_switch(2, Switch::default());
    assert_eq!(one_way(&cut_through, 1, 100), 500 + 32 + 10 + 500 + 10 + 500);
    assert_eq!(one_way(&cut_through, 1, 1500), 500 + 480 + 10 + 500 + 10 + 500);
    let stored = one_switch(2, Switch { forwarding: Forwarding::StoreAndForward, ..Switch::default() });
    assert_eq!(one_way(&stored, 1, 1500), 500 + 480 + 10 + 500 + 480 + 10 + 500);
    // A host's packets to itself go through the switch too.
    assert_eq!(one_way(&cut_through, 0, 100), 1552);
}

#[test]
fn across_racks_the_slowest_link_counts_once() {
    let topology = two_tier(TwoTier::default());
    let inside = 500 + 480 + 10 + 500 + 10 + 500;
    assert_eq!(one_way(&topology, 7, 1500), inside, "the same rack");
    // Two more switches and cables of 50 ns. On the faster links the packet takes 120 ns, and its tail must wait for
    // the slow one; down to the host it takes 360 ns longer to leave than to arrive.
    assert_eq!(one_way(&topology, 8, 1500), inside + 2 * (500 + 50) + 360);
}

#[test]
fn a_round_trip_in_the_papers_cluster_is_as_the_paper_says() {
    let round_trip = |topology: &Topology, to: u32| {
        let mut datacenter = Datacenter::new(topology, CostModel::default(), 1).unwrap();
        lab::echo(&mut datacenter, to, 0);
        let log = lab::ping(&mut datacenter, 0, 1, to, 48);
        datacenter.run_until(100_000);
        log.take()[0]
    };
    let cx4 = Topology::cx4();
    assert_eq!((cx4.hosts(), cx4.oversubscription()), (200, 2.0));
    for (name, measured, expected) in [
        ("CX5", round_trip(&Topology::cx5(), 1), 2300),
        ("CX4 inside a rack", round_trip(&cx4, 1), 3700),
        ("CX4 across racks", round_trip(&cx4, 40), 6000),
    ] {
        assert!(measured.abs_diff(expected) <= expected / 50, "{name}: {measured} ns, not {expected}");
    }
}

/// The longest queue seen at each of the ports, of two senders each.
fn longest_queues(switch: Switch, receivers: u32) -> Vec<u64> {
    let mut datacenter = datacenter(&one_switch(3 * receivers, switch));
    for to in 0..receivers {
        listen(&mut datacenter, to, 0);
        for i in 0..2 {
            flood(&mut datacenter, receivers + 2 * to + i, to);
        }
    }
    let ports: Vec<_> = (0..receivers).map(|host| Port::HostDown { host }).collect();
    datacenter.watch(500, ports.clone()).unwrap();
    datacenter.run_until(300_000);
    let series = datacenter.take_series();
    for port in &ports {
        let counters = datacenter.port(*port).unwrap();
        assert!(counters.dropped > 100 && counters.lost == 0, "{port}: {counters:?}");
    }
    let rates: Vec<f64> = series.samples.iter().skip(20 * ports.len()).map(|sample| sample.gbit_per_s).collect();
    assert!(rates.iter().all(|rate| (24.9..25.1).contains(rate)), "a congested port sends at its rate: {rates:?}");
    let longest = |place| series.samples.iter().filter(|s| s.port as usize == place).map(|s| s.queued_bytes).max();
    (0..ports.len()).map(|place| longest(place).unwrap()).collect()
}

#[test]
fn the_dynamic_threshold_shares_the_buffer() {
    let shared = |alpha| Switch { buffer: Buffer::Shared { bytes: 120_000, alpha }, ..Switch::default() };
    // With n congested ports each has alpha / (1 + n alpha) of it, to within a packet.
    for (alpha, receivers, expected) in
        [(1.0, 1, 60_000), (1.0, 2, 40_000), (1.0, 3, 30_000), (0.5, 1, 40_000), (8.0, 1, 106_666)]
    {
        for longest in longest_queues(shared(alpha), receivers) {
            assert!(
                (expected - 3000..=expected + 1500).contains(&longest),
                "alpha {alpha}, {receivers} ports: {longest}"
            );
        }
    }
}

#[test]
fn static_buffers_are_each_ports_own() {
    for receivers in [1, 3] {
        let queues =
            longest_queues(Switch { buffer: Buffer::PerPort { bytes: 50_000 }, ..Switch::default() }, receivers);
        assert!(queues.iter().all(|longest| (47_000..=50_000).contains(longest)), "{queues:?}");
    }
}

#[test]
fn marks_reach_the_receiver() {
    let ecn = Some(Ecn { kmin_bytes: 15_000, kmax_bytes: 30_000, pmax: 0.5 });
    let buffer = Buffer::PerPort { bytes: 1_000_000 };
    let mut datacenter = datacenter(&one_switch(3, Switch { ecn, buffer, ..Switch::default() }));
    let log = listen(&mut datacenter, 0, 0);
    flood(&mut datacenter, 1, 0);
    datacenter.run_until(50_000);
    assert_eq!(datacenter.counters().marked, 0, "one sender makes no queue");
    flood(&mut datacenter, 2, 0);
    datacenter.run_until(300_000);
    let received = log.borrow();
    let marked = received.iter().filter(|packet| packet.marked).count();
    assert!(marked > received.len() / 3 && marked < received.len(), "{marked} of {}", received.len());
    assert!(received.last().unwrap().marked, "the queue is beyond its maximum");
}

#[test]
fn flows_spread_over_equal_links_and_keep_their_order() {
    let layout = TwoTier { tors: 2, hosts_per_tor: 16, spines: 2, links_per_spine: 2, ..TwoTier::default() };
    let mut datacenter = datacenter(&two_tier(layout));
    let logs: Vec<_> =
        (16..32).flat_map(|host| (0..8).map(move |t| (host, t))).map(|(h, t)| listen(&mut datacenter, h, t)).collect();
    for from in 0..16 {
        let mut transport = datacenter.bind(from, 0).unwrap();
        for number in 0..10_u32 {
            for to in 16..32 {
                for thread in 0..8 {
                    lab::send_to(&mut transport, to, thread, &number.to_le_bytes());
                }
            }
        }
    }
    datacenter.run_until(10_000_000);
    for log in &logs {
        let log = log.borrow();
        assert_eq!(log.len(), 160);
        for from in 0..16 {
            let numbers: Vec<_> =
                log.iter().filter(|p| p.from == Datacenter::addr(from, 0)).map(|p| p.bytes[0]).collect();
            assert_eq!(numbers, (0..10).collect::<Vec<u8>>());
        }
    }
    let total = 16 * 16 * 8 * 10;
    for uplink in 0..4 {
        let up = datacenter.port(Port::Uplink { tor: 0, uplink }).unwrap().packets;
        let down = datacenter.port(Port::Downlink { tor: 1, uplink }).unwrap().packets;
        for packets in [up, down] {
            assert!(packets.abs_diff(total / 4) < total / 25, "uplink {uplink} carried {packets} of {total}");
        }
    }
}
