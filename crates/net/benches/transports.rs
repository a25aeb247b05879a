//! A burst of 32-byte packets through each transport, sent and received by one thread: the cost of the code, without
//! another core.

use std::time::Duration;

use divan::Bencher;
use divan::counter::ItemsCount;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Transport, TxPacket};

const BURSTS: [usize; 3] = [1, 8, 32];

fn main() {
    divan::main();
}

/// Sends a burst and receives all of it.
fn bench<T: Transport>(bencher: Bencher<'_, '_>, mut from: T, mut to: T, burst: usize, after_send: impl Fn()) {
    let route = from.resolve(&to.local_addr()).unwrap();
    let packets = vec![TxPacket { route, header: &[1; 16], payload: &[2; 32] }; burst];
    bencher.counter(ItemsCount::new(burst)).bench_local(|| {
        from.tx_burst(&packets);
        from.tx_flush();
        after_send();
        let mut received = 0;
        while received < burst {
            received += to.rx_burst();
        }
    });
}

#[divan::bench(args = BURSTS)]
fn loopback(bencher: Bencher<'_, '_>, burst: usize) {
    let network = LoopbackNetwork::new(LoopbackConfig { delay: Duration::ZERO, ..LoopbackConfig::default() });
    let [from, to] = [1, 2].map(|node| network.endpoint(node).unwrap());
    bench(bencher, from, to, burst, || network.advance(Duration::from_nanos(1)));
}

#[divan::bench(args = BURSTS)]
fn shm(bencher: Bencher<'_, '_>, burst: usize) {
    let [from, to] = [(); 2].map(|()| ShmTransport::new(&ShmConfig::anonymous()).unwrap());
    bench(bencher, from, to, burst, || ());
}

#[divan::bench(args = BURSTS)]
fn udp(bencher: Bencher<'_, '_>, burst: usize) {
    let [from, to] = [(); 2].map(|()| UdpTransport::bind(UdpConfig::new(([127, 0, 0, 1], 0).into())).unwrap());
    bench(bencher, from, to, burst, || ());
}
