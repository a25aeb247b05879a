//! Sessions open and close, within the limits of both sides.

use std::time::Duration;

use dunlin_net::loopback::LoopbackConfig;
use dunlin_net::{Addr, PeerHealth};
use dunlin_rpc::wire::control::RefuseReason;
use dunlin_rpc::{CallError, ConnectError, ConnectOptions, EndpointConfig, Switch};

use crate::pair::{Lab, address, config};
use crate::{ECHO, echo};

fn queue_of(packets: usize) -> LoopbackConfig {
    LoopbackConfig { queue_len: packets, ..LoopbackConfig::default() }
}

/// Every session keeps its credits.
fn unshared() -> EndpointConfig {
    EndpointConfig { credit_sharing: Switch::Off, ..config() }
}

#[test]
fn credits_beyond_the_receive_queue_are_refused_by_the_server() {
    // The server has sessions of two clients, and neither client is short of credits itself.
    let configs: Vec<_> = (0..3).map(|seed| EndpointConfig { credits: 20, seed: Some(seed), ..unshared() }).collect();
    let lab = Lab::over(queue_of(60), &configs);
    lab.connect();
    lab.drive(2, lab.endpoints[2].connect(&address(0))).unwrap();
    assert_eq!(lab.server().stats().credits_reserved, 56);
    let configs = EndpointConfig { seed: Some(9), ..unshared() };
    let mut lab = lab;
    lab.endpoints.push(lab.start(3, &configs));
    let error = lab.drive(3, lab.endpoints[3].connect(&address(0))).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { reason: RefuseReason::NoCredits, .. }), "{error}");
    assert_eq!(lab.server().stats().counters.sessions_refused, 1);
    let left = lab.endpoints[3].stats();
    assert_eq!((left.sessions, left.credits_reserved), (0, 0));
    // A session that closes makes room.
    drop(lab.endpoints.remove(1));
    lab.run_until(|| lab.server().stats().sessions == 1);
    lab.drive(2, lab.endpoints[2].connect(&address(0))).unwrap();
}

#[test]
fn credits_beyond_the_receive_queue_are_refused_by_the_client() {
    let lab = Lab::over(queue_of(40), &[unshared(), unshared()]);
    for _ in 0..2 {
        lab.connect();
    }
    let error = lab.drive(1, lab.client().connect(&address(0))).unwrap_err();
    assert!(matches!(error, ConnectError::NoCredits { queue: 40, reserved: 32, needed: 16 }), "{error:?}");
    assert_eq!(lab.server().stats().counters.sessions_refused, 0);
}

#[test]
fn the_number_of_sessions_is_limited_on_both_sides() {
    let lab =
        Lab::new(&[EndpointConfig { sessions_max: 2, ..config() }, EndpointConfig { sessions_max: 3, ..config() }]);
    let open = || lab.drive(1, lab.client().connect(&address(0)));
    let sessions = [open().unwrap(), open().unwrap()];
    let error = open().unwrap_err();
    assert!(matches!(error, ConnectError::Refused { reason: RefuseReason::TooManySessions, .. }), "{error}");
    // A session with itself takes two.
    let error = lab.drive(1, lab.client().connect(&address(1))).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { reason: RefuseReason::TooManySessions, .. }), "{error}");
    lab.drive(1, sessions[0].close());
    open().unwrap();
    assert_eq!((lab.server().stats().sessions, lab.client().stats().sessions), (2, 2));
}

#[test]
fn both_sides_take_the_lesser_setting() {
    let server = EndpointConfig { slots: 3, message_bytes_max: 70_000, ..config() };
    let lab = Lab::new(&[server, EndpointConfig { credits: 5, ..config() }]);
    let stats = lab.connect().stats().unwrap();
    assert_eq!((stats.credits_max, stats.message_bytes_max, stats.packet_data_bytes), (5, 70_000, 1440));
    let session = lab.connect();
    let _calls: Vec<_> = (0..8).map(|_| session.call(ECHO, Vec::new())).collect();
    let stats = session.stats().unwrap();
    assert_eq!((stats.calls_in_progress, stats.calls_queued), (3, 5));
}

#[test]
fn closing_ends_the_calls_of_both_ends_and_tells_everyone_who_waits() {
    let lab = Lab::pair();
    let held = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let at = held.clone();
    lab.server().register(2, move |request| at.borrow_mut().push(request.defer().unwrap())).unwrap();
    let session = lab.connect();
    let call = session.call(2, vec![1]);
    lab.run_until(|| held.borrow().len() == 1);
    let back = held.borrow()[0].request().session().clone();
    let call_back = back.call(77, vec![2]);
    let (first, second) = (session.close(), session.clone().close());
    assert_eq!(lab.drive(1, call).unwrap_err().error, CallError::Closed);
    // Two tasks await the same close.
    lab.client().spawn(first);
    lab.client().spawn(second);
    lab.run_until(|| lab.client().stats().tasks == 0);
    let error = lab.drive(0, call_back).unwrap_err().error;
    assert!(matches!(error, CallError::Closed | CallError::NoHandler), "{error}");
    assert_eq!((lab.server().stats().sessions, lab.client().stats().sessions), (0, 0));
    assert!(!held.borrow()[0].request().is_waited_for());
    assert_eq!(lab.drive(1, session.call(2, vec![1])).unwrap_err().error, CallError::Closed);
    lab.drive(1, session.close());
}

#[test]
fn an_absent_server_is_an_error_on_time() {
    let lab = Lab::new(&[config(), EndpointConfig { connect_timeout: Duration::from_millis(300), ..config() }]);
    let start = lab.network.now();
    let error = lab.drive(1, lab.client().connect(&Addr::Node(50))).unwrap_err();
    let time = Duration::from_nanos(lab.network.now() - start);
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert!((300..320).contains(&time.as_millis()), "{time:?}");
    lab.network.set_health(50, PeerHealth::Dead);
    let error = lab.drive(1, lab.client().connect(&Addr::Node(50))).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let once = error.to_string().matches(&Addr::Node(50).to_string()).count();
    assert_eq!(once, 1, "the address is named once: {error}");
    assert_eq!((lab.client().stats().sessions, lab.client().stats().credits_reserved), (0, 0));
}

/// The deadline of one handshake replaces the endpoint's, whether it is shorter or longer.
#[test]
fn a_handshake_has_a_deadline_of_its_own() {
    let lab = Lab::new(&[config(), EndpointConfig { connect_timeout: Duration::from_millis(300), ..config() }]);
    for millis in [0, 1, 40, 700] {
        let start = lab.network.now();
        let options = ConnectOptions::timeout(Duration::from_millis(millis));
        let error = lab.drive(1, lab.client().connect_with(&Addr::Node(50), options)).unwrap_err();
        let time = Duration::from_nanos(lab.network.now() - start).as_millis() as u64;
        assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
        assert!((millis..millis + 20).contains(&time), "{time} ms instead of {millis}");
    }
    let forever = ConnectOptions::timeout(Duration::MAX);
    assert!(lab.drive(1, lab.client().connect_with(&address(0), forever)).unwrap().is_open());
    assert_eq!(lab.client().stats().sessions, 1);
}

#[test]
fn a_dead_peer_is_noticed_within_milliseconds() {
    let lab = Lab::pair();
    let held = std::cell::RefCell::new(Vec::new());
    lab.server().register(2, move |request| held.borrow_mut().push(request.defer().unwrap())).unwrap();
    let session = lab.connect();
    let mut call = Box::pin(session.call(2, vec![1]));
    for _ in 0..100 {
        lab.turn();
    }
    assert!(lab.client().poll_once(call.as_mut()).is_none());
    lab.network.set_health(1, PeerHealth::Dead);
    let start = lab.network.now();
    assert_eq!(lab.drive(1, call).unwrap_err().error, CallError::PeerDied);
    let time = Duration::from_nanos(lab.network.now() - start);
    assert!(time < Duration::from_millis(10), "{time:?}");
}

#[test]
fn a_restarted_server_is_told_apart_at_once() {
    let mut lab = Lab::pair();
    echo(lab.server());
    let (first, second) = (lab.connect(), lab.connect());
    let old = lab.endpoints.remove(0);
    // It dies silently: its last packets are dropped.
    drop(old);
    lab.network.advance(Duration::from_micros(5));
    lab.endpoints.insert(0, lab.start(0, &EndpointConfig { seed: Some(1), ..config() }));
    echo(lab.server());
    let start = lab.network.now();
    let error = lab.drive(1, first.call(ECHO, vec![0; 100])).unwrap_err().error;
    assert!(matches!(error, CallError::PeerReset | CallError::Closed), "{error}");
    assert!(!second.is_open(), "the other session went with it");
    assert!(lab.network.now() - start < 1_000_000);
    let session = lab.connect();
    lab.drive(1, session.call(ECHO, vec![0; 100])).unwrap();
}

#[test]
fn a_session_that_only_one_end_knows_is_found() {
    let lab = Lab::pair();
    let (_kept, lost) = (lab.connect(), lab.connect());
    // Every CLOSE is lost, and the peers keep talking on the other session.
    let mut closing = Box::pin(lost.close());
    while lab.client().poll_once(closing.as_mut()).is_none() {
        lab.network.advance(Duration::from_micros(100));
        lab.server().with_transport(|transport| {
            dunlin_net::Transport::rx_burst(transport);
        });
    }
    assert_eq!((lab.server().stats().sessions, lab.client().stats().sessions), (2, 1));
    lab.run_for(Duration::from_secs(25));
    assert_eq!((lab.server().stats().sessions, lab.client().stats().sessions), (1, 1));
}
