//! Properties of the transports inside one process, over any packets.

use std::time::Duration;

use dunlin_net::fault::{FaultInjector, Faults};
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_net::{Addr, Transport, TxPacket};
use proptest::collection::vec;
use proptest::prelude::*;

const MTU: usize = 300;
const PACKETS_MAX: usize = 150;

/// A packet to one of two receivers, in two parts.
type Packet = (usize, Vec<u8>, Vec<u8>);

fn packets() -> impl Strategy<Value = Vec<Packet>> {
    vec((0..2usize, vec(any::<u8>(), 0..=MTU / 3), vec(any::<u8>(), 0..=MTU - MTU / 3)), 0..PACKETS_MAX)
}

fn network() -> LoopbackNetwork {
    LoopbackNetwork::new(LoopbackConfig { mtu: MTU, queue_len: 2 * PACKETS_MAX, delay: Duration::from_nanos(10) })
}

/// Sends packets in bursts of `burst`, and returns what nodes 1 and 2 must receive.
fn send<T: Transport>(from: &mut T, packets: &[Packet], burst: usize) -> [Vec<Vec<u8>>; 2] {
    let routes = [1, 2].map(|node| from.resolve(&Addr::Node(node)).unwrap());
    for burst in packets.chunks(burst) {
        let burst: Vec<_> =
            burst.iter().map(|(to, header, payload)| TxPacket { route: routes[*to], header, payload }).collect();
        from.tx_burst(&burst);
    }
    from.tx_flush();
    [0, 1].map(|node| packets.iter().filter(|p| p.0 == node).map(|p| [&p.1[..], &p.2].concat()).collect())
}

fn receive(at: &mut LoopbackTransport) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    loop {
        let count = at.rx_burst();
        received.extend((0..count).map(|i| at.rx_packet(i).bytes().unwrap().to_vec()));
        if count == 0 {
            return received;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn loopback_delivers_every_packet_in_order(packets in packets(), burst in 1..70usize) {
        let net = network();
        let mut from = net.endpoint(0).unwrap();
        let mut to = [1, 2].map(|node| net.endpoint(node).unwrap());
        let expected = send(&mut from, &packets, burst);
        net.advance(Duration::from_nanos(10));
        prop_assert_eq!(to.each_mut().map(receive), expected);
    }

    #[test]
    fn a_fault_injector_that_only_holds_packets_loses_none(
        packets in packets(),
        burst in 1..70usize,
        seed: u64,
        delay in 0.0..1.0,
        reorder in 0.0..1.0,
    ) {
        let net = network();
        let faults = Faults { delay, reorder, ..Faults::default() };
        let mut from = FaultInjector::new(net.endpoint(0).unwrap(), seed, faults).unwrap();
        let mut to = [1, 2].map(|node| net.endpoint(node).unwrap());
        let mut expected = send(&mut from, &packets, burst);
        while let Some(time) = from.next_release() {
            net.advance_to(time);
            from.tx_flush();
        }
        net.advance(Duration::from_nanos(10));
        let mut received = to.each_mut().map(receive);
        expected.iter_mut().chain(&mut received).for_each(|packets| packets.sort_unstable());
        prop_assert_eq!(received, expected);
    }

    #[test]
    fn a_fault_injector_survives_any_faults(
        packets in packets(),
        seed: u64,
        p in vec(0.0..=1.0f64, 5),
    ) {
        let net = network();
        let faults = Faults { drop: p[0], duplicate: p[1], reorder: p[2], delay: p[3], corrupt: p[4], ..Faults::default() };
        let mut from = FaultInjector::new(net.endpoint(0).unwrap(), seed, faults).unwrap();
        let mut to = [1, 2].map(|node| net.endpoint(node).unwrap());
        send(&mut from, &packets, 16);
        from.heal();
        net.advance(Duration::from_nanos(10));
        let received: usize = to.iter_mut().map(|to| receive(to).len()).sum();
        let counted = from.fault_counters();
        prop_assert_eq!(received as u64 + counted.dropped, packets.len() as u64 + counted.duplicated);
    }
}
