//! Handlers and tasks that hold the event loop are counted, and nothing else is.

use std::time::Duration;

use dunlin_rpc::OwnedRequest;

use crate::pair::Lab;

const DISPATCH: u8 = 1;
const ASYNC: u8 = 2;

const LONG: Duration = Duration::from_millis(10);
const SHORT: Duration = Duration::from_millis(9);

/// Handlers that take as many milliseconds as the request says.
fn register(lab: &Lab) {
    let network = lab.network.clone();
    let dispatch = move |request: dunlin_rpc::Request<'_>| {
        network.advance(Duration::from_millis(u64::from(request.payload()[0])));
        request.respond(b"ok");
    };
    lab.server().register(DISPATCH, dispatch).unwrap();
    let network = lab.network.clone();
    let at_once = move |request: OwnedRequest| {
        let network = network.clone();
        async move {
            network.advance(Duration::from_millis(u64::from(request.payload()[0])));
            b"ok".to_vec()
        }
    };
    lab.server().register_async(ASYNC, at_once).unwrap();
}

fn stalls(lab: &Lab) -> [u64; 2] {
    [lab.server(), lab.client()].map(|endpoint| endpoint.stats().counters.loop_stalls)
}

#[test]
fn a_handler_that_holds_the_loop_is_counted() {
    let lab = Lab::pair();
    register(&lab);
    let session = lab.connect();
    for (times, req_type) in [DISPATCH, ASYNC].into_iter().enumerate() {
        lab.drive(1, session.call(req_type, vec![SHORT.as_millis() as u8])).unwrap();
        assert_eq!(stalls(&lab), [times as u64, 0], "type {req_type}");
        lab.drive(1, session.call(req_type, vec![LONG.as_millis() as u8])).unwrap();
        assert_eq!(stalls(&lab), [times as u64 + 1, 0], "type {req_type}");
    }
}

/// What the application does between two iterations does not count, and neither does the time that a packet waits
/// meanwhile.
#[test]
fn an_application_that_is_away_is_no_handler() {
    let lab = Lab::pair();
    register(&lab);
    let session = lab.connect();
    for _ in 0..3 {
        let call = session.call(DISPATCH, vec![0]);
        lab.client().run_once();
        lab.network.advance(2 * LONG);
        lab.server().run_once();
        lab.network.advance(2 * LONG);
        lab.drive(1, call).unwrap();
        lab.network.advance(2 * LONG);
        lab.server().spawn(async {});
        lab.server().run_once();
    }
    assert_eq!(stalls(&lab), [0, 0]);
}
