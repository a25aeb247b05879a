//! What the `Transport` trait promises, checked against each transport.

mod suite;

use std::net::UdpSocket;
use std::time::Duration;

use dunlin_net::ShmName;
use dunlin_net::fault::{FaultInjector, Faults};
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
use dunlin_net::pcap::PcapWriter;
use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::udp::{Coalesce, Offload, UdpConfig, UdpTransport};
use suite::transport_keeps_its_promises;

fn network(delay: Duration) -> LoopbackNetwork {
    LoopbackNetwork::new(LoopbackConfig { mtu: 1472, queue_len: 1000, delay })
}

#[test]
fn loopback() {
    for delay in [Duration::ZERO, Duration::from_nanos(300)] {
        let net = network(delay);
        let (a, b) = (net.endpoint(1).unwrap(), net.endpoint(2).unwrap());
        transport_keeps_its_promises(a, b, || net.advance(Duration::from_nanos(300)));
    }
}

#[test]
fn fault_injector_without_faults() {
    let net = network(Duration::from_nanos(300));
    let wrap = |node| FaultInjector::new(net.endpoint(node).unwrap(), node.into(), Faults::default()).unwrap();
    transport_keeps_its_promises(wrap(1), wrap(2), || net.advance(Duration::from_nanos(300)));
}

#[test]
fn pcap_writer() {
    let net = network(Duration::from_nanos(300));
    let wrap = |node| PcapWriter::new(net.endpoint(node).unwrap(), std::io::sink());
    transport_keeps_its_promises(wrap(1), wrap(2), || net.advance(Duration::from_nanos(300)));
}

#[test]
fn shared_memory() {
    let directory = std::env::temp_dir().join(format!("dunlin-contract-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let open = |name| {
        let mut config = ShmConfig::named(ShmName::new(name).unwrap());
        config.directory.clone_from(&directory);
        (config.queue_len, config.bulk_buffers) = (256, 256);
        ShmTransport::new(&config).unwrap()
    };
    transport_keeps_its_promises(open("a"), open("b"), || {});
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn udp() {
    for (gso, coalesce) in [(Offload::Auto, Coalesce::Fill), (Offload::Off, Coalesce::Off)] {
        // A host without IPv6 has no `::1`.
        let locals = ["127.0.0.1:0", "[::1]:0"].into_iter().filter(|local| UdpSocket::bind(local).is_ok());
        for local in locals {
            let config = UdpConfig::new(local.parse().unwrap());
            let bind = || {
                let mut config = config.clone();
                (config.gso, config.gro, config.coalesce) = (gso, gso, coalesce);
                UdpTransport::bind(config).unwrap()
            };
            transport_keeps_its_promises(bind(), bind(), || {});
        }
    }
}
