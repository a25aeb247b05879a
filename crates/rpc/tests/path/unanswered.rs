//! Calls that cannot get through end with an error.

use std::time::Duration;

use dunlin_rpc::{CallError, EndpointConfig, Recovery};

use crate::pair::config;
use crate::stage::Stage;

/// A deferred handler that does not answer during the test.
const NEVER: u8 = 9;

#[test]
fn a_call_that_no_packet_size_helps_fails_with_its_own_error() {
    for recovery in [Recovery::Selective, Recovery::GoBackN] {
        for (requests, responses) in [(600, 9000), (9000, 600), (600, 600)] {
            let stage = Stage::with(EndpointConfig { recovery, retransmissions_max: 12, ..config() });
            stage.carries(requests, responses);
            let session = stage.lab.connect();
            for len in [700, 5_000, 100_000] {
                let (there, back) = if requests == 600 { (len, 4) } else { (4, len) };
                let start = stage.lab.network.now();
                assert_eq!(stage.try_call(&session, there, back), Err(CallError::Unanswered));
                let took = Duration::from_nanos(stage.lab.network.now() - start);
                assert!(took < Duration::from_secs(10), "{took:?}");
                // The session still works.
                stage.call(&session, 100, 100);
            }
        }
    }
}

#[test]
fn a_handler_may_take_as_long_as_it_likes() {
    for recovery in [Recovery::Selective, Recovery::GoBackN] {
        for len in [4, 1000, 20_000] {
            let stage = Stage::with(EndpointConfig { recovery, retransmissions_max: 5, ..config() });
            stage.lab.server().register_async(NEVER, |_| std::future::pending::<dunlin_rpc::MsgBuf>()).unwrap();
            let session = stage.lab.connect();
            let mut call = std::pin::pin!(session.call(NEVER, dunlin_rpc::MsgBuf::with_len(len).unwrap()));
            stage.wait(Duration::from_secs(30));
            assert!(stage.lab.client().poll_once(call.as_mut()).is_none(), "{len} bytes");
            let counters = stage.lab.client().stats().counters;
            assert!(counters.retransmissions > 20, "{}", counters.retransmissions);
        }
    }
}
