//! A path whose MTU shrinks at some moment.

use std::time::Duration;

use dunlin_rpc::Recovery;

use crate::pair::config;
use crate::stage::{AGREED, Stage, data};

fn recovers(recovery: Recovery) -> Stage {
    Stage::with(dunlin_rpc::EndpointConfig { recovery, ..config() })
}

#[test]
fn a_transfer_goes_on_when_the_path_shrinks_under_it() {
    for recovery in [Recovery::Selective, Recovery::GoBackN] {
        for (request_len, response_len) in [(2_000_000, 4), (4, 2_000_000), (500_000, 500_000), (1440, 4), (4, 1440)] {
            // At the start, while the request is in flight, and while the response is.
            for after in [0, 5, 100, 1_000, 3_000, 6_000] {
                let stage = recovers(recovery);
                let session = stage.lab.connect();
                stage.call(&session, 3000, 3000);
                assert_eq!(session.stats().unwrap().packet_data_bytes, data(AGREED));
                let runs = stage.runs.get();
                let call = stage.begin(&session, request_len, response_len);
                for _ in 0..after {
                    stage.lab.turn();
                }
                stage.carries(1300, 1250);
                let response = stage.lab.drive(1, call).unwrap().response;
                assert_eq!((response.len(), stage.runs.get()), (response_len, runs + 1));
                let stats = session.stats().unwrap();
                assert_eq!(stats.credits, stats.credits_max);
                // And so do all later calls.
                stage.call(&session, 20_000, 20_000);
            }
        }
    }
}

#[test]
fn a_path_that_grows_again_is_used_again() {
    let stage = Stage::new();
    let session = stage.lab.connect();
    stage.call(&session, 20_000, 4);
    stage.carries(1250, 1250);
    stage.call(&session, 20_000, 20_000);
    stage.wait(Duration::from_secs(2));
    let used = session.stats().unwrap().packet_data_bytes;
    assert!((data(1200)..=data(1250)).contains(&used), "{used}");
    stage.carries(AGREED, AGREED);
    stage.wait(Duration::from_secs(620));
    assert_eq!(session.stats().unwrap().packet_data_bytes, data(AGREED));
}

/// A handler has the request, and takes long.
#[test]
fn a_request_that_the_server_has_is_not_sent_again() {
    const KEEP: u8 = 2;
    for recovery in [Recovery::Selective, Recovery::GoBackN] {
        let stage = recovers(recovery);
        let kept = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let at = kept.clone();
        stage.lab.server().register(KEEP, move |request| at.borrow_mut().extend(request.defer())).unwrap();
        let session = stage.lab.connect();
        stage.call(&session, 3000, 3000);
        let waiting = session.call(KEEP, dunlin_rpc::MsgBuf::with_len(4_000_000).unwrap());
        stage.lab.run_until(|| kept.borrow().len() == 1);
        // The server confirms that it has the request.
        stage.wait(Duration::from_secs(2));
        stage.carries(1300, 1300);
        let before = stage.lab.client().stats().counters.tx_packets;
        // The other call finds out the MTU of the path.
        let other = stage.lab.drive(1, stage.begin(&session, 20_000, 20_000)).unwrap();
        assert_eq!(other.response.len(), 20_000);
        stage.wait(Duration::from_secs(2));
        assert!(session.stats().unwrap().packet_data_bytes < data(AGREED));
        let sent = stage.lab.client().stats().counters.tx_packets - before;
        assert!(sent < 400, "{sent} packets");
        for request in kept.borrow_mut().drain(..) {
            request.enqueue_response(b"done".to_vec()).unwrap();
        }
        assert_eq!(&stage.lab.drive(1, waiting).unwrap().response[..], b"done");
        let stats = session.stats().unwrap();
        assert_eq!(stats.credits, stats.credits_max);
    }
}
