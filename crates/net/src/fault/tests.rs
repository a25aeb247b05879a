use super::*;
use crate::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};

const DELAY: u64 = 100;

struct Pair {
    net: LoopbackNetwork,
    a: FaultInjector<LoopbackTransport>,
    b: LoopbackTransport,
    route: Route,
}

fn pair(seed: u64, faults: Faults) -> Pair {
    let config = LoopbackConfig { mtu: 256, queue_len: 1 << 20, delay: Duration::from_nanos(DELAY) };
    let net = LoopbackNetwork::new(config);
    let mut a = FaultInjector::new(net.endpoint(1).unwrap(), seed, faults).unwrap();
    let b = net.endpoint(2).unwrap();
    let route = a.resolve(&Addr::Node(2)).unwrap();
    Pair { net, a, b, route }
}

impl Pair {
    /// Sends packets holding the numbers `from .. to`, in bursts of up to 10.
    fn send(&mut self, from: u32, to: u32) {
        let bytes: Vec<[u8; 4]> = (from..to).map(u32::to_le_bytes).collect();
        let packets: Vec<TxPacket<'_>> =
            bytes.iter().map(|b| TxPacket { route: self.route, header: &b[..1], payload: &b[1..] }).collect();
        packets.chunks(10).for_each(|burst| self.a.tx_burst(burst));
        self.a.tx_flush();
    }

    /// Advances the network's clock step by step until the network is empty, and returns what arrived.
    fn drain(&mut self) -> Vec<Vec<u8>> {
        let mut received = Vec::new();
        loop {
            let next = [self.net.next_arrival(), self.a.next_release()].into_iter().flatten().min();
            let Some(next) = next else { return received };
            self.net.advance_to(next);
            self.a.tx_flush();
            for i in 0..self.b.rx_burst() {
                received.push(self.b.rx_packet(i).bytes().unwrap().to_vec());
            }
        }
    }

    fn drain_numbers(&mut self) -> Vec<u32> {
        self.drain().iter().map(|bytes| u32::from_le_bytes(bytes[..].try_into().unwrap())).collect()
    }
}

/// Whether a count of `n` trials is within five standard deviations of its expectation.
fn is_plausible(count: u64, n: u64, p: f64) -> bool {
    let n = n as f64;
    (count as f64 - n * p).abs() <= 5.0 * (n * p * (1.0 - p)).sqrt() + 1.0
}

fn all_faults() -> Faults {
    Faults { drop: 0.1, duplicate: 0.1, reorder: 0.1, delay: 0.1, corrupt: 0.1, ..Faults::default() }
}

#[test]
fn without_faults_nothing_is_touched() {
    let mut pair = pair(1, Faults::default());
    pair.send(0, 10_000);
    assert_eq!(pair.drain_numbers(), (0..10_000).collect::<Vec<_>>());
    assert_eq!(pair.a.fault_counters(), FaultCounters::default());
    assert_eq!(pair.a.counters().tx_batches, 1_000, "bursts stay whole");
}

#[test]
fn each_fault_happens_as_often_as_it_should() {
    const N: u64 = 20_000;
    for seed in 0..3 {
        for p in [0.001, 0.2, 1.0] {
            let only = |faults: Faults| {
                let mut pair = pair(seed, Faults { delay_max: Duration::from_nanos(1), ..faults });
                (0..N as u32 / 500).for_each(|i| pair.send(i * 500, (i + 1) * 500));
                let arrived = pair.drain().len() as u64;
                (pair.a.fault_counters(), arrived)
            };
            let none = Faults::default();
            let (c, arrived) = only(Faults { drop: p, ..none });
            assert!(is_plausible(c.dropped, N, p) && arrived == N - c.dropped, "{c:?}");
            let (c, arrived) = only(Faults { duplicate: p, ..none });
            assert!(is_plausible(c.duplicated, N, p) && arrived == N + c.duplicated, "{c:?}");
            let (c, arrived) = only(Faults { reorder: p, ..none });
            assert!(is_plausible(c.reordered, N, p) && arrived == N, "{c:?}");
            let (c, arrived) = only(Faults { delay: p, ..none });
            assert!(is_plausible(c.delayed, N, p) && arrived == N, "{c:?}");
            let (c, arrived) = only(Faults { corrupt: p, ..none });
            assert!(is_plausible(c.corrupted, N, p) && arrived == N, "{c:?}");
        }
    }
}

#[test]
fn a_seed_repeats_exactly_and_another_differs() {
    let run = |seed| {
        let mut pair = pair(seed, all_faults());
        pair.send(0, 2_000);
        (pair.drain(), pair.a.fault_counters())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn a_delayed_packet_leaves_in_its_range_and_not_before() {
    let range =
        Faults { delay_min: Duration::from_nanos(1_000), delay_max: Duration::from_nanos(2_000), ..Faults::default() };
    let mut pair = pair(3, Faults { delay: 1.0, ..range });
    pair.send(0, 1);
    let release = pair.a.next_release().unwrap();
    assert!((1_000..=2_000).contains(&release));
    pair.net.advance_to(release - 1);
    pair.a.tx_flush();
    assert_eq!(pair.net.next_arrival(), None);
    pair.net.advance_to(release);
    pair.a.rx_burst();
    assert_eq!(pair.net.next_arrival(), Some(release + DELAY));
    assert_eq!(pair.a.next_release(), None);
}

#[test]
fn a_reordered_packet_is_overtaken_by_a_few_others() {
    let faults = Faults { reorder: 1.0, reorder_window: 3, ..Faults::default() };
    for seed in 0..50 {
        let mut pair = pair(seed, faults);
        pair.send(0, 1);
        pair.a.set_faults(Faults::default()).unwrap();
        pair.send(1, 10);
        let place = pair.drain_numbers().iter().position(|n| *n == 0).unwrap();
        assert!((1..=3).contains(&place), "{place}");
    }
}

#[test]
fn a_reordered_packet_that_nobody_overtakes_leaves_by_time() {
    let mut pair = pair(1, Faults { reorder: 1.0, ..Faults::default() });
    pair.send(0, 1);
    assert_eq!(pair.a.next_release(), Some(1_000_000));
    assert_eq!(pair.drain_numbers(), [0]);
}

#[test]
fn a_corrupt_packet_differs_and_never_grows() {
    let mut pair = pair(1, Faults { corrupt: 1.0, ..Faults::default() });
    let sent: Vec<u8> = (0..100).collect();
    for _ in 0..2_000 {
        pair.a.tx_burst(&[TxPacket { route: pair.route, header: &sent[..16], payload: &sent[16..] }]);
    }
    let received = pair.drain();
    assert!(received.iter().all(|bytes| *bytes != sent && bytes.len() <= sent.len()));
    assert!(received.iter().any(|bytes| bytes.len() < sent.len()));
    pair.a.tx_burst(&[TxPacket { route: pair.route, header: &[], payload: &[] }]);
    assert_eq!(pair.drain(), [[0u8; 0]]);
}

#[test]
fn heal_ends_the_faults_and_sends_all_that_is_held() {
    let mut pair = pair(5, Faults { delay: 0.5, reorder: 0.5, ..Faults::default() });
    pair.send(0, 1_000);
    assert!(pair.a.next_release().is_some());
    pair.a.heal();
    assert_eq!(pair.a.next_release(), None);
    pair.send(1_000, 1_010);
    let received = pair.drain_numbers();
    assert_eq!(received[1_000..], (1_000..1_010).collect::<Vec<_>>());
    let mut sorted = received;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..1_010).collect::<Vec<_>>());
}

#[test]
fn no_more_than_the_limit_is_held() {
    let mut pair = pair(1, Faults { delay: 1.0, delay_min: Duration::from_millis(1), ..Faults::default() });
    let n = HELD_PACKETS_MAX as u32 + 5;
    pair.send(0, n);
    assert_eq!(pair.a.fault_counters().hold_full, 5);
    assert_eq!(pair.drain().len(), n as usize);
}

#[test]
fn a_route_given_up_keeps_its_meaning_for_packets_that_are_held() {
    let mut pair = pair(1, Faults { delay: 1.0, ..Faults::default() });
    let _other = pair.net.endpoint(3).unwrap();
    pair.send(7, 8);
    pair.a.release(pair.route);
    let other = pair.a.resolve(&Addr::Node(3)).unwrap();
    assert_ne!(other, pair.route);
    assert_eq!(pair.drain_numbers(), [7]);
    let next = pair.a.resolve(&Addr::Node(4)).unwrap();
    assert_eq!(next, pair.route, "once they have left, the number is free");
}

#[test]
fn a_wait_ends_when_a_held_packet_is_due() {
    let mut pair = pair(1, Faults { reorder: 1.0, ..Faults::default() });
    let long = Duration::from_secs(1);
    assert_eq!(pair.a.limit_wait(long), long);
    pair.send(0, 1);
    pair.net.advance_to(400_000);
    assert_eq!(pair.a.limit_wait(long), Duration::from_micros(600));
    assert_eq!(pair.a.limit_wait(Duration::from_micros(1)), Duration::from_micros(1));
    pair.net.advance_to(2_000_000);
    pair.a.wait(long);
    assert_eq!(pair.a.next_release(), None, "what is due leaves before the sleep");
}

#[test]
fn packets_without_a_route_are_injured_too() {
    let mut pair = pair(1, Faults { drop: 1.0, ..Faults::default() });
    let to = Addr::Node(2);
    pair.a.tx_to(&to, b"lost").unwrap();
    pair.a.set_faults(Faults { delay: 1.0, duplicate: 1.0, ..Faults::default() }).unwrap();
    pair.a.tx_to(&to, b"late").unwrap();
    assert_eq!(pair.drain(), [b"late", b"late"]);
    let wrong = "udp://127.0.0.1:9".parse().unwrap();
    pair.a.tx_to(&wrong, b"late").unwrap();
    pair.a.heal();
    assert_eq!(pair.a.fault_counters().undeliverable, 2);
    assert!(pair.a.tx_to(&wrong, b"now").is_err());
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name() {
    let mut pair = pair(1, Faults::default());
    let none = Faults::default();
    let mut refusal = |faults| pair.a.set_faults(faults).unwrap_err().to_string();
    assert!(refusal(Faults { drop: 1.5, ..none }).contains("drop"));
    assert!(refusal(Faults { corrupt: f64::NAN, ..none }).contains("corrupt"));
    assert!(refusal(Faults { delay_min: Duration::from_secs(1), ..none }).contains("delay_min"));
    assert!(refusal(Faults { reorder_window: 0, ..none }).contains("reorder_window"));
    assert_eq!(pair.a.faults(), none);
}
