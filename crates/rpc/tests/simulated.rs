//! Endpoints on the hosts of a simulated datacenter.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::PollPolicy;
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_sim::fault::{PacketFaults, Place};
use dunlin_sim::{CostModel, Datacenter, Fault, FaultPlan, Next, SimTransport, Topology};

type Ep = Endpoint<SimTransport>;

/// When each call began, and how long it took unless it failed.
type Log = Rc<RefCell<Vec<(u64, Option<u64>)>>>;

const ECHO: u8 = 7;

fn endpoint(transport: SimTransport, seed: u64) -> Ep {
    let config = EndpointConfig { poll: PollPolicy::Sleep, seed: Some(seed), ..EndpointConfig::default() };
    let endpoint = Endpoint::new(transport, config).unwrap();
    // A failed assertion in a task must fail the test.
    endpoint.propagate_panics();
    endpoint
}

/// One run of a thread that drives only its endpoint.
fn drive(endpoint: &Ep) -> Next {
    while endpoint.run_once() > 0 {}
    Next::OnPacket { or_at: endpoint.next_due() }
}

fn serve(datacenter: &mut Datacenter, host: u32) {
    let mut seed = 1000 * u64::from(host);
    datacenter
        .spawn_from(host, 0, move |transport| {
            seed += 1;
            let endpoint = endpoint(transport, seed);
            endpoint.register(ECHO, |request| request.respond(&[7; 32])).unwrap();
            move || drive(&endpoint)
        })
        .unwrap();
}

/// Calls host 1 from host 0 repeatedly, for ever.
fn call(datacenter: &mut Datacenter) -> Log {
    let log = Log::default();
    let endpoint = Rc::new(endpoint(datacenter.bind(0, 0).unwrap(), 1));
    let (logged, caller) = (log.clone(), endpoint.clone());
    endpoint.spawn(async move {
        loop {
            let Ok(session) = caller.connect(&Datacenter::addr(1, 0)).await else { continue };
            loop {
                let begun = caller.now();
                let ended = session.call(ECHO, vec![1; 32]).await.is_ok();
                logged.borrow_mut().push((begun, ended.then(|| caller.now() - begun)));
                if !ended {
                    break;
                }
            }
        }
    });
    datacenter.spawn(0, 0, move || drive(&endpoint)).unwrap();
    log
}

#[test]
fn a_small_call_on_the_papers_cluster_takes_what_it_says() {
    let mut datacenter = Datacenter::new(&Topology::cx5(), CostModel::default(), 1).unwrap();
    serve(&mut datacenter, 1);
    let log = call(&mut datacenter);
    datacenter.run_until(10_000_000);
    let mut times: Vec<u64> = log.borrow().iter().filter_map(|(_, time)| *time).collect();
    times.sort();
    let median = times[times.len() / 2];
    assert!((1955..=2645).contains(&median), "{median} ns, not within 15 % of 2,300");
    assert!(times.len() > 3000, "{} calls", times.len());
}

#[test]
fn calls_go_on_after_a_server_restarts() {
    let mut datacenter = Datacenter::new(&Topology::cx5(), CostModel::default(), 1).unwrap();
    serve(&mut datacenter, 1);
    let log = call(&mut datacenter);
    let mut plan = FaultPlan::default();
    plan.add(1_000_000, Some(2_000_000), Fault::Crash { host: 1 });
    datacenter.schedule(&plan).unwrap();
    let seen = Cell::new(0);
    let late = || log.borrow().iter().rev().take_while(|(begun, ended)| *begun > 2_000_000 && ended.is_some()).count();
    datacenter.run_while_until(60_000_000_000, || {
        seen.set(seen.get() + 1);
        seen.get() % 1000 != 0 || late() < 100
    });
    assert!(late() >= 100, "{:?}", log.borrow().last());
    let failed = log.borrow().iter().filter(|(_, ended)| ended.is_none()).count();
    assert_eq!(failed, 1, "the call that the crash interrupted");
}

/// An iteration that finds no packets may let a timer fire, which wakes a task, which may begin a call: a program that
/// asks when to come back must not sleep meanwhile.
#[test]
fn what_a_timer_wakes_runs_at_once() {
    const NAPS: u64 = 50;
    let mut datacenter = Datacenter::new(&Topology::cx5(), CostModel::default(), 1).unwrap();
    serve(&mut datacenter, 1);
    let late = Rc::new(Cell::new(0));
    let done = Rc::new(Cell::new(0));
    let endpoint = Rc::new(endpoint(datacenter.bind(0, 0).unwrap(), 1));
    let (caller, timers, latest, naps) = (endpoint.clone(), endpoint.timers(), late.clone(), done.clone());
    endpoint.spawn(async move {
        let session = caller.connect(&Datacenter::addr(1, 0)).await.unwrap();
        for nap in 1..=NAPS {
            let due = caller.now() + 37_000 * nap;
            timers.sleep_until(due).await;
            session.call(ECHO, vec![1; 32]).await.unwrap();
            // A round trip in between.
            latest.set(latest.get().max(caller.now() - due));
            naps.set(nap);
        }
    });
    datacenter.spawn(0, 0, move || drive(&endpoint)).unwrap();
    datacenter.run_until(100_000_000);
    assert_eq!(done.get(), NAPS);
    assert!(late.get() < 50_000, "{} ns late", late.get());
}

#[test]
fn messages_get_through_a_link_that_carries_less_and_less() {
    let mut datacenter = Datacenter::new(&Topology::cx5(), CostModel::default(), 1).unwrap();
    datacenter.make_mtu_uncertain();
    let server = endpoint(datacenter.bind(1, 0).unwrap(), 1001);
    server.register(ECHO, |request| request.respond_with(50_000, |out| out.fill(7))).unwrap();
    datacenter.spawn(1, 0, move || drive(&server)).unwrap();
    let client = Rc::new(endpoint(datacenter.bind(0, 0).unwrap(), 1));
    let caller = client.clone();
    // When each call ended, and how long its packets could be.
    let ended: Rc<RefCell<Vec<(u64, usize)>>> = Rc::default();
    let log = ended.clone();
    client.spawn(async move {
        let session = caller.connect(&Datacenter::addr(1, 0)).await.unwrap();
        loop {
            let reply = session.call(ECHO, vec![1; 50_000]).await.unwrap();
            assert_eq!(reply.response[..], [7; 50_000]);
            log.borrow_mut().push((caller.now(), session.stats().unwrap().packet_data_bytes));
            caller.timers().sleep(Duration::from_millis(2)).await;
        }
    });
    datacenter.spawn(0, 0, move || drive(&client)).unwrap();
    let mut plan = FaultPlan::default();
    let shrinks = |longest| Fault::Packets { place: Place::Host(1), faults: PacketFaults::longest(longest) };
    plan.add(20_000_000, None, shrinks(1400));
    plan.add(3_000_000_000, None, shrinks(1250));
    datacenter.schedule(&plan).unwrap();
    datacenter.run_until(6_000_000_000);
    let ended = ended.borrow();
    let longest_before = |time| ended.iter().rev().find(|(at, _)| *at < time).unwrap().1;
    let full = longest_before(20_000_000);
    assert!(full > 1400, "{full}");
    assert!((1320..=1368).contains(&longest_before(3_000_000_000)), "{}", longest_before(3_000_000_000));
    let (last, data) = *ended.last().unwrap();
    assert!((1168..=1216).contains(&data) && last > 5_900_000_000, "{data} at {last}");
}
