//! NICs and threads: queues, CPU time, when programs run.

mod lab;

use std::cell::Cell;
use std::rc::Rc;

use dunlin_net::transport::RX_BURST;
use dunlin_net::{NetError, Transport};
use dunlin_sim::{CostModel, Datacenter, Next, SimError, Topology};
use lab::{Log, flood, listen, receive, send};

fn datacenter(cost: CostModel) -> Datacenter {
    Datacenter::new(&Topology::one_switch(4, 25), cost, 1).unwrap()
}

#[test]
fn a_full_transmit_queue_lets_the_thread_wait() {
    let mut datacenter = datacenter(CostModel::free());
    let log = listen(&mut datacenter, 1, 0);
    let mut from = datacenter.bind(0, 0).unwrap();
    for number in 0..200 {
        send(&mut from, 1, &[7; 1434]);
        // The first is on the wire after 500 ns, and each takes 480.
        let departed = number + 1_u64;
        let expected = departed.checked_sub(64).filter(|n| *n > 0).map_or(0, |n| 500 + 480 * n);
        assert_eq!(from.now(), expected, "packet {number}");
    }
    assert_eq!(datacenter.now(), 0, "the datacenter waits for nobody");
    datacenter.run_until(1_000_000);
    let times: Vec<u64> = log.borrow().iter().map(|packet| packet.time).collect();
    assert_eq!(times.len(), 200);
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 480), "the line is never idle: {times:?}");
}

#[test]
fn threads_of_a_host_take_turns_on_its_line() {
    let mut datacenter = datacenter(CostModel::default());
    let log = listen(&mut datacenter, 1, 0);
    for thread in 0..3 {
        let mut transport = datacenter.bind(0, thread).unwrap();
        // One of them sends in large bursts.
        let burst = if thread == 0 { 40 } else { 1 };
        datacenter
            .spawn(0, thread, move || {
                (0..burst).for_each(|_| send(&mut transport, 1, &[7; 1434]));
                Next::Soon
            })
            .unwrap();
    }
    datacenter.run_until(2_000_000);
    let log = log.borrow();
    assert!((4100..=4170).contains(&log.len()), "{} packets, of 480 ns each", log.len());
    for thread in 0..3 {
        let count = log.iter().filter(|packet| packet.from == Datacenter::addr(0, thread)).count();
        assert!(count.abs_diff(log.len() / 3) < log.len() / 20, "thread {thread} sent {count} of {}", log.len());
    }
}

#[test]
fn packets_beyond_the_descriptors_are_dropped_and_counted() {
    let mut topology = Topology::one_switch(2, 25);
    topology.nic.rx_descriptors = 70;
    let mut datacenter = Datacenter::new(&topology, CostModel::default(), 1).unwrap();
    let (mut from, mut to) = (datacenter.bind(0, 0).unwrap(), datacenter.bind(1, 0).unwrap());
    (0..100).for_each(|_| send(&mut from, 1, b"packet"));
    datacenter.run_until(1_000_000);
    assert_eq!((to.rx_burst(), to.rx_burst(), to.rx_burst()), (RX_BURST, 6, 0));
    assert_eq!(to.counters().rx_dropped_kernel, 30);
    let counters = datacenter.counters();
    assert_eq!((counters.sent, counters.received, counters.dropped_descriptors, counters.in_flight), (100, 70, 30, 0));
}

#[test]
fn every_packet_costs_cpu_time() {
    let cost = CostModel {
        poll_ns: 1,
        rx_burst_ns: 20,
        rx_packet_ns: 300,
        rx_byte_ps: 100,
        tx_burst_ns: 4000,
        tx_packet_ns: 50_000,
        tx_byte_ps: 1000,
    };
    let mut datacenter = datacenter(cost);
    let (mut from, mut to) = (datacenter.bind(0, 0).unwrap(), datacenter.bind(1, 0).unwrap());
    let route = from.resolve(&to.local_addr()).unwrap();
    let packet = dunlin_net::TxPacket { route, header: &[0; 10], payload: &[0; 90] };
    from.tx_burst(&[packet; 3]);
    assert_eq!(from.now(), 4000 + 3 * (50_000 + 100));
    datacenter.run_until(1_000_000);
    assert_eq!((to.rx_burst(), to.now()), (3, 1_000_000 + 20 + 3 * (300 + 10)));
    assert_eq!((to.rx_burst(), to.now()), (0, 1_000_951));
    to.clock().charge(9);
    assert_eq!((to.now(), from.now()), (1_000_960, 1_000_000), "each CPU has its own time");
}

#[test]
fn a_busy_thread_receives_when_it_is_free() {
    let mut datacenter = datacenter(CostModel::free());
    let log: Log<_> = Log::default();
    let (mut transport, logged) = (datacenter.bind(1, 0).unwrap(), log.clone());
    let clock = transport.clock();
    datacenter
        .spawn(1, 0, move || {
            receive(&mut transport, &logged);
            clock.charge(10_000);
            Next::OnPacket { or_at: None }
        })
        .unwrap();
    let mut from = datacenter.bind(0, 0).unwrap();
    for time in [0, 100, 12_000] {
        datacenter.run_until(time);
        send(&mut from, 1, &[0; 34]);
    }
    datacenter.run_until(100_000);
    // A packet takes 1,552 ns. The program began at 0, so it is busy until 10,000, then until 20,000.
    let times: Vec<_> = log.borrow().iter().map(|packet| packet.time).collect();
    assert_eq!(times, [10_000, 10_000, 20_000]);
}

#[test]
fn programs_run_when_they_asked_to() {
    let mut datacenter = datacenter(CostModel::free());
    let log: Log<u64> = Log::default();
    let (transport, logged) = (datacenter.bind(0, 0).unwrap(), log.clone());
    let waker = transport.waker();
    let mut steps = [
        Next::At(700),
        Next::Soon,
        Next::OnPacket { or_at: Some(900) },
        Next::OnPacket { or_at: None },
        Next::At(100),
        Next::Done,
    ]
    .into_iter();
    datacenter
        .spawn(0, 0, move || {
            logged.borrow_mut().push(transport.now());
            steps.next().unwrap()
        })
        .unwrap();
    datacenter.run_until(2000);
    assert_eq!(*log.borrow(), [0, 700, 701, 900]);
    waker.wake();
    assert!(!datacenter.run_while(|| true), "nothing is left to happen");
    assert_eq!(*log.borrow(), [0, 700, 701, 900, 2000, 2001]);
    datacenter.spawn(0, 0, || Next::Done).unwrap();
}

#[test]
fn a_timer_that_stays_the_same_is_one_event() {
    const TIMER: u64 = 1_000_000;
    let mut datacenter = datacenter(CostModel::free());
    let transport = datacenter.bind(0, 0).unwrap();
    let (waker, runs) = (transport.waker(), Rc::new(Cell::new(0)));
    let counted = runs.clone();
    datacenter
        .spawn(0, 0, move || {
            counted.set(counted.get() + 1);
            if transport.now() < TIMER { Next::OnPacket { or_at: Some(TIMER) } } else { Next::Done }
        })
        .unwrap();
    for round in 1..=100 {
        datacenter.run_until(round * 10);
        waker.wake();
    }
    datacenter.run_until(2 * TIMER);
    assert_eq!((runs.get(), datacenter.counters().events), (102, 102));
}

#[test]
fn a_condition_ends_a_run() {
    let mut datacenter = datacenter(CostModel::default());
    flood(&mut datacenter, 0, 1);
    let runs = Rc::new(Cell::new(0));
    let counted = runs.clone();
    assert!(datacenter.run_while(|| counted.replace(counted.get() + 1) < 100));
    assert!(!datacenter.run_while_until(datacenter.now() + 1000, || true));
    assert!(datacenter.now() > 1000);
}

#[test]
fn mistakes_are_told() {
    let mut datacenter = datacenter(CostModel::default());
    let mut transport = datacenter.bind(0, 0).unwrap();
    assert_eq!(
        datacenter.bind(9, 0).unwrap_err().to_string(),
        "there is no host 9: the topology has 4, numbered from 0"
    );
    assert!(matches!(datacenter.bind(0, 5000), Err(SimError::NoThread { thread: 5000, .. })));
    assert!(matches!(datacenter.bind(0, 0), Err(SimError::InUse { what: "a transport", .. })));
    assert!(matches!(transport.resolve(&Datacenter::addr(4, 0)), Err(NetError::NotFound { .. })));
    datacenter.spawn(1, 0, || Next::Soon).unwrap();
    assert!(matches!(datacenter.spawn(1, 0, || Next::Soon), Err(SimError::InUse { what: "a program", .. })));
    // Host 2 has no transport: the packet is lost there. A thread may be bound again.
    send(&mut transport, 2, b"x");
    drop(transport);
    datacenter.run_until(10_000);
    assert_eq!(datacenter.counters().dropped_nobody, 1);
    datacenter.bind(0, 0).unwrap();
}
