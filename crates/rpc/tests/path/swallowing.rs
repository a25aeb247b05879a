//! A path that never carried packets as long as the two ends accept.

use std::time::Duration;

use crate::pair::Lab;
use crate::stage::{AGREED, Stage, data};

/// Lengths of messages around those of packets.
const LENGTHS: [usize; 9] = [4, 1000, 1168, 1169, 1400, 1440, 1441, 20_000, 300_000];

#[test]
fn calls_of_all_sizes_get_through_in_both_directions() {
    for (requests, responses) in [(1400, 1400), (1200, 1200), (1300, 9000), (9000, 1300), (1200, 1471), (9000, 9000)] {
        let stage = Stage::new();
        stage.carries(requests, responses);
        let session = stage.lab.connect();
        for request_len in LENGTHS {
            for response_len in LENGTHS {
                stage.call(&session, request_len, response_len);
            }
        }
        let used = session.stats().unwrap().packet_data_bytes;
        let carried = data(requests.min(AGREED));
        assert!(used <= carried && carried - used < 64, "{used} of {carried} bytes");
        assert!(stage.lab.client().stats().counters.mtu_probes_sent <= 20);
    }
}

#[test]
fn full_packets_are_in_use_after_a_round_trip() {
    let stage = Stage::new();
    let session = stage.lab.connect();
    assert_eq!(session.stats().unwrap().packet_data_bytes, data(1200));
    stage.call(&session, 20_000, 20_000);
    assert_eq!(session.stats().unwrap().packet_data_bytes, data(AGREED));
    // Further sessions begin with the known MTU, without a probe.
    let probes = || stage.lab.client().stats().counters.mtu_probes_sent;
    let before = probes();
    assert_eq!((before, stage.lab.connect().stats().unwrap().packet_data_bytes), (6, data(AGREED)));
    stage.wait(Duration::from_secs(2));
    assert_eq!(probes(), before);
}

#[test]
fn a_path_that_is_certain_is_not_probed() {
    let lab = Lab::pair();
    let session = lab.connect();
    assert_eq!(session.stats().unwrap().packet_data_bytes, data(AGREED));
    lab.run_for(Duration::from_secs(1));
    assert_eq!(lab.client().stats().counters.mtu_probes_sent, 0);
}

#[test]
fn ten_thousand_sessions_with_a_peer_share_a_search() {
    let stage = Stage::with(dunlin_rpc::EndpointConfig { credits: 1, reverse_credits: 0, ..crate::pair::config() });
    stage.carries(1400, 1400);
    let sessions: Vec<_> = (0..2000).map(|_| stage.lab.connect()).collect();
    stage.wait(Duration::from_secs(3));
    let probes = stage.lab.endpoints.iter().map(|endpoint| endpoint.stats().counters.mtu_probes_sent).max();
    assert!(probes <= Some(40), "{probes:?}");
    let used: std::collections::BTreeSet<_> = sessions.iter().map(|s| s.stats().unwrap().packet_data_bytes).collect();
    assert_eq!(used.len(), 1, "{used:?}");
    assert!(used.first() > Some(&data(1350)), "{used:?}");
}
