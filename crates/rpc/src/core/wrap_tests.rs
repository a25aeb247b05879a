//! Sequence numbers of slots wrap around after 32 bits.

use std::pin::pin;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};

use crate::{Endpoint, EndpointConfig};

fn start(network: &LoopbackNetwork, node: u32) -> Endpoint<LoopbackTransport> {
    let config = EndpointConfig { slots: 2, seed: Some(node as u64), ..EndpointConfig::default() };
    Endpoint::new(network.endpoint(node).unwrap(), config).unwrap()
}

#[test]
fn calls_go_on_past_the_last_sequence_number() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let (server, client) = (start(&network, 1), start(&network, 2));
    let mut runs = 0u32;
    let count = move |request: crate::Request<'_>| {
        runs += 1;
        request.respond(&runs.to_le_bytes());
    };
    server.register(1, count).unwrap();
    let turn = || {
        server.run_once();
        network.advance(Duration::from_micros(1));
    };
    let mut connecting = pin!(client.connect(&Addr::Node(1)));
    let session = loop {
        turn();
        if let Some(session) = client.poll_once(connecting.as_mut()) {
            break session.unwrap();
        }
    };
    for slot in client.shared.core.borrow_mut().sessions[0].client.iter_mut() {
        slot.sequence = u32::MAX - 3;
    }
    for slot in server.shared.core.borrow_mut().sessions[0].server.iter_mut() {
        slot.sequence = u32::MAX - 3;
    }
    // One after the other, so all in slot 0; every second one has several packets.
    for i in 0..10u32 {
        let mut call = Box::pin(session.call(1, vec![0; 2000 * (i as usize % 2)]));
        let reply = loop {
            turn();
            if let Some(reply) = client.poll_once(call.as_mut()) {
                break reply.unwrap();
            }
        };
        assert_eq!(reply.response[..], (i + 1).to_le_bytes());
    }
    let sequence = client.shared.core.borrow().sessions[0].client[0].sequence;
    assert_eq!(sequence, (u32::MAX - 3).wrapping_add(10));
    assert_eq!(server.shared.core.borrow().sessions[0].server[0].sequence, sequence);
    // A release of requests beyond the wrap-around works too.
    for _ in 0..100_000 {
        turn();
        client.run_once();
    }
    assert_eq!(server.stats().requests_held, 0);
    assert_eq!(client.stats().counters.retransmissions, 0);
}
