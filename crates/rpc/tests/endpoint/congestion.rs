//! Congestion control and pacing, on a clock that the tests move.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::congestion::{Allowance, CongestionControl, DcqcnConfig, SwiftConfig, TimelyConfig};
use dunlin_rpc::{Endpoint, EndpointConfig, Optimizations, Recovery, Session, Switch};

use crate::marking::Marking;
use crate::pair::{Lab, address, config};
use crate::{ECHO, echo};

const DEFER: u8 = 9;

/// Paces everything at `rate` bits per second, whatever is measured.
fn paced(rate: u64) -> EndpointConfig {
    let timely = TimelyConfig { link_rate: rate, rate_min: rate, ..TimelyConfig::default() };
    let optimizations = Optimizations { rate_limiter_bypass: Switch::Off, ..Optimizations::default() };
    EndpointConfig { congestion: CongestionControl::Timely(timely), optimizations, seed: Some(8), ..config() }
}

fn allowance(session: &Session) -> Allowance {
    session.stats().unwrap().allowance
}

#[test]
fn pacing_keeps_a_rate() {
    for rate in [20_000_000u64, 200_000_000, 1_000_000_000] {
        let lab = Lab::over(LoopbackConfig { mtu: 1_024, ..LoopbackConfig::default() }, &[config(), paced(rate)]);
        echo(lab.server());
        let session = lab.connect();
        let start = lab.network.now();
        let len = rate as usize / 8 / 100;
        let reply = lab.drive(1, session.call(ECHO, vec![3; len])).unwrap();
        assert_eq!(reply.response.len(), len);
        let time = (lab.network.now() - start) as f64;
        // Request and response each take 10 ms, and headers a little.
        assert!((19.5e6..22.0e6).contains(&time), "{rate} bit/s: {time} ns");
        assert!(session.stats().unwrap().sends_paced > 10);
    }
}

#[test]
fn sessions_of_several_calls_share_the_pace() {
    let lab = Lab::over(LoopbackConfig { mtu: 1_024, ..LoopbackConfig::default() }, &[config(), paced(100_000_000)]);
    echo(lab.server());
    let session = lab.connect();
    let done: Rc<RefCell<Vec<u64>>> = Rc::default();
    let start = lab.network.now();
    for _ in 0..4 {
        let (session, done, network) = (session.clone(), done.clone(), lab.network.clone());
        lab.client().spawn(async move {
            session.call(ECHO, vec![3; 50_000]).await.unwrap();
            done.borrow_mut().push(network.now());
        });
    }
    lab.run_until(|| done.borrow().len() == 4);
    // Four times 100,000 bytes at 100 Mbit/s take 32 ms; none ends long before the others.
    let first = done.borrow()[0] - start;
    let last = done.borrow()[3] - start;
    assert!((31_500_000..36_000_000).contains(&last), "{last}");
    assert!(first > last * 8 / 10, "{first} of {last}");
}

#[test]
fn go_back_n_measures_round_trips_all_along_a_message() {
    let going_back = EndpointConfig { recovery: Recovery::GoBackN, ..config() };
    let observing = EndpointConfig { observe_packets: Switch::On, ..going_back.clone() };
    let network = LoopbackConfig { mtu: 1_024, delay: Duration::from_micros(10), ..LoopbackConfig::default() };
    let lab = Lab::over(network, &[going_back, observing]);
    echo(lab.server());
    let session = lab.connect();
    lab.drive(1, session.call(ECHO, vec![3; 100_000])).unwrap();
    let seen = lab.client().stats().packet_rtt.unwrap();
    // A hundred packets each way, eight in flight at a time.
    let round_trips = 2 * 100 / 8;
    assert!((round_trips - 4..=2 * round_trips).contains(&seen.samples()), "{} samples", seen.samples());
    let median = seen.percentile(50.0);
    assert!((20..60).contains(&median.as_micros()), "{median:?}");
}

#[test]
fn a_response_overtakes_a_retransmission_that_waits_for_its_pace() {
    // 1,400 bytes take 11 ms at this rate. The timeout comes after 5 ms, the response after 7 ms.
    let network = LoopbackConfig { delay: Duration::from_micros(3_500), ..LoopbackConfig::default() };
    let lab =
        Lab::over(network, &[config(), EndpointConfig { rto_initial: Duration::from_millis(5), ..paced(1_000_000) }]);
    let handled = Rc::new(Cell::new(0));
    let counted = handled.clone();
    lab.server()
        .register(ECHO, move |request| {
            counted.set(counted.get() + 1);
            request.respond(b"done");
        })
        .unwrap();
    let session = lab.connect();
    let ended = Rc::new(Cell::new(0));
    let counted = ended.clone();
    let continuation = lab.client().register_continuation(move |completion| {
        assert_eq!(&completion.result.unwrap()[..], b"done");
        counted.set(counted.get() + 1);
    });
    session.enqueue_request(ECHO, vec![7; 1_400], continuation, 0).map_err(|failure| failure.error).unwrap();
    lab.run_until(|| ended.get() == 1);
    let counters = lab.client().stats().counters;
    assert_eq!((counters.retransmissions, counters.dropped_malformed), (1, 0), "{counters:?}");
    let sent = session.stats().unwrap().tx_bytes;
    // The time of the waiting copy passes; its buffer was returned, and nothing is sent from it.
    lab.run_for(Duration::from_millis(15));
    assert!(session.stats().unwrap().tx_bytes < sent + 100, "no more than a RELEASE");
    assert_eq!((handled.get(), ended.get()), (1, 1));
    assert_eq!(lab.server().stats().counters.dropped_duplicate, 0, "only one copy of the request ever arrived");
    // The session still works.
    lab.drive(1, session.call(ECHO, b"again".to_vec())).unwrap();
}

#[test]
fn sessions_end_while_they_wait_for_their_pace() {
    let lab = Lab::over(LoopbackConfig { mtu: 1_024, ..LoopbackConfig::default() }, &[config(), paced(1_000_000)]);
    echo(lab.server());
    let session = lab.connect();
    let call = session.call(ECHO, vec![1; 20_000]);
    let other = session.call(ECHO, vec![1; 20_000]);
    lab.run_for(Duration::from_millis(10));
    drop(call);
    lab.run_for(Duration::from_millis(20));
    lab.drive(1, session.close());
    assert!(lab.drive(1, other).is_err());
    // Its number is reused by a session that the old timer must not affect.
    let session = lab.connect();
    let reply = lab.drive(1, session.call(ECHO, vec![1; 3_000])).unwrap();
    assert_eq!(reply.response.len(), 3_000);
    assert_eq!(lab.client().stats().calls_pending, 0);
}

#[test]
fn slow_handlers_are_not_congestion() {
    let lab = Lab::pair();
    echo(lab.server());
    let held = Rc::new(RefCell::new(Vec::new()));
    let hold = held.clone();
    lab.server().register(DEFER, move |request| hold.borrow_mut().push(request.defer().unwrap())).unwrap();
    let session = lab.connect();
    for _ in 0..10 {
        let mut call = pin!(session.call(DEFER, vec![1; 100]));
        lab.run_for(Duration::from_millis(3));
        assert!(lab.client().poll_once(call.as_mut()).is_none());
        for request in held.borrow_mut().drain(..) {
            request.enqueue_response(vec![2]).unwrap();
        }
        lab.drive(1, call).unwrap();
        assert_eq!(allowance(&session), Allowance::Unlimited);
    }
    assert_eq!(lab.client().stats().counters.congestion_onsets, 0);
}

#[test]
fn requests_in_the_hands_of_handlers_do_not_fill_the_window() {
    // A target that no network meets: the window stays at its minimum.
    let swift =
        SwiftConfig { target: Duration::from_nanos(1), scaling_range: Duration::ZERO, ..SwiftConfig::default() };
    let client = EndpointConfig { congestion: CongestionControl::Swift(swift), seed: Some(8), ..config() };
    let network = LoopbackConfig { delay: Duration::from_micros(5), ..LoopbackConfig::default() };
    let lab = Lab::over(network, &[config(), client]);
    echo(lab.server());
    let held = Rc::new(RefCell::new(Vec::new()));
    let hold = held.clone();
    lab.server().register(DEFER, move |request| hold.borrow_mut().push(request.defer().unwrap())).unwrap();
    let session = lab.connect();
    let waiting: Vec<_> = (0..7).map(|_| session.call(DEFER, vec![1; 100])).collect();
    for _ in 0..50 {
        lab.drive(1, session.call(ECHO, vec![5; 10_000])).unwrap();
    }
    assert_eq!(held.borrow().len(), waiting.len());
}

#[test]
fn a_server_that_did_not_run_is_forgiven_soon() {
    let lab = Lab::pair();
    echo(lab.server());
    let session = lab.connect();
    let call = |len| lab.drive(1, session.call(ECHO, vec![1; len])).unwrap();
    for _ in 0..20 {
        call(100);
    }
    let stopped = session.call(ECHO, vec![1; 100_000]);
    for _ in 0..20_000 {
        lab.client().run_once();
        lab.network.advance(Duration::from_micros(1));
    }
    lab.drive(1, stopped).unwrap();
    let back = lab.network.now();
    while allowance(&session) != Allowance::Unlimited {
        call(100);
        assert!(lab.network.now() - back < 2_000_000, "{:?}", session.stats());
    }
}

type MarkedEp = Endpoint<Marking<LoopbackTransport>>;

/// A server and a client whose networks can mark packets, and the switches for that.
fn marked_pair(congestion: CongestionControl) -> (LoopbackNetwork, [MarkedEp; 2], [Rc<Cell<bool>>; 2]) {
    let network = LoopbackNetwork::new(LoopbackConfig { mtu: 1_024, ..LoopbackConfig::default() });
    network.advance_to(1_000_000_000);
    let marks: [Rc<Cell<bool>>; 2] = Default::default();
    let endpoints = [0, 1].map(|i| {
        let transport =
            Marking { inner: network.endpoint(i as u32 + 1).unwrap(), marks: marks[i].clone(), is_near: Rc::default() };
        Endpoint::new(transport, EndpointConfig { congestion, seed: Some(i as u64), ..config() }).unwrap()
    });
    echo(&endpoints[0]);
    (network, endpoints, marks)
}

#[test]
fn marks_reach_the_client_from_either_direction() {
    for (who, len) in [(0, 100), (0, 10_000), (1, 100), (1, 10_000)] {
        let (network, endpoints, marks) = marked_pair(CongestionControl::Dcqcn(DcqcnConfig::default()));
        let [server, client] = &endpoints;
        let drive = |session: Option<&Session>| {
            let mut work = pin!(async {
                match session {
                    None => Some(client.connect(&address(0)).await.unwrap()),
                    Some(session) => session.call(ECHO, vec![1; len]).await.map(|_| None).unwrap(),
                }
            });
            for _ in 0..1_000 {
                server.run_once();
                network.advance(Duration::from_micros(1));
                if let Some(done) = client.poll_once(work.as_mut()) {
                    return done;
                }
            }
            panic!("the work is not done after 1 ms");
        };
        let session = drive(None).unwrap();
        drive(Some(&session));
        assert_eq!(allowance(&session), Allowance::Unlimited);
        marks[who].set(true);
        drive(Some(&session));
        assert!(
            matches!(allowance(&session), Allowance::Rate(rate) if rate < 13e9),
            "{who} {len}: {:?}",
            allowance(&session)
        );
        assert_eq!(server.stats().counters.congestion_onsets, 0, "the server pays nothing");
        assert_eq!(client.stats().counters.congestion_onsets, 1);
    }
}

/// One endpoint may have sessions on its host and across the network.
#[test]
fn by_default_only_sessions_that_leave_the_host_are_limited() {
    let (network, [server, client], marks) = marked_pair(CongestionControl::Auto);
    let is_near = client.with_transport(|transport| transport.is_near.clone());
    let drive = |mut work: std::pin::Pin<&mut dyn Future<Output = Session>>| {
        for _ in 0..2_000 {
            server.run_once();
            network.advance(Duration::from_micros(1));
            if let Some(session) = client.poll_once(work.as_mut()) {
                return session;
            }
        }
        panic!("the work is not done after 2 ms");
    };
    let connect_and_call = |near: bool| {
        is_near.set(near);
        marks[0].set(false);
        let session = drive(pin!(async { client.connect(&address(0)).await.unwrap() }));
        marks[0].set(true);
        drive(pin!(async {
            session.call(ECHO, vec![1; 10_000]).await.unwrap();
            session
        }))
    };
    let (near, far) = (connect_and_call(true), connect_and_call(false));
    assert_eq!(allowance(&near), Allowance::Unlimited);
    assert!(matches!(allowance(&far), Allowance::Window(_)), "{:?}", allowance(&far));
    assert_eq!(client.stats().counters.congestion_onsets, 1);
}

/// A server that is descheduled answers late, and retransmissions to it would wait for the processor too.
#[test]
fn a_server_on_the_same_host_is_given_time_slices_before_anything_is_sent_again() {
    for is_near in [true, false] {
        let (network, [server, client], _) = marked_pair(CongestionControl::None);
        client.with_transport(|transport| transport.is_near.set(is_near));
        let mut opening = pin!(async {
            let session = client.connect(&address(0)).await.unwrap();
            // The server is measured, and known to be fast.
            session.call(ECHO, b"soon".to_vec()).await.unwrap();
            session
        });
        let session = loop {
            server.run_once();
            network.advance(Duration::from_micros(1));
            if let Some(session) = client.poll_once(opening.as_mut()) {
                break session;
            }
        };
        let mut call = pin!(session.call(ECHO, b"late".to_vec()));
        let mut turn = |turns: u32, server_runs: bool| {
            (0..turns).any(|_| {
                if server_runs {
                    server.run_once();
                }
                network.advance(Duration::from_micros(100));
                client.poll_once(call.as_mut()).is_some()
            })
        };
        assert!(!turn(190, false));
        assert!(turn(5, true), "it answers once it runs");
        assert_eq!(client.stats().counters.retransmissions == 0, is_near, "{:?}", client.stats().counters);
    }
}
