//! What the `Transport` trait promises, checked against each transport.

mod suite;

use std::net::UdpSocket;
use std::time::Duration;

use dunlin_net::fault::{FaultInjector, Faults};
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
use dunlin_net::pcap::PcapWriter;
use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::udp::{Coalesce, Offload, UdpConfig, UdpTransport};
use dunlin_net::{Composite, ShmName, Transport, TxPacket};
use suite::{it_keeps_its_promises_at, transport_keeps_its_promises};

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
    // The longest packets over loopback, over Ethernet, and of all; in bursts and alone, in either direction.
    let cases = [
        (9352, Offload::Auto, Offload::Auto, Coalesce::Fill),
        (9352, Offload::Off, Offload::Off, Coalesce::Off),
        (1470, Offload::Auto, Offload::Off, Coalesce::Fill),
        (1450, Offload::Off, Offload::Auto, Coalesce::Fill),
        (65_484, Offload::Auto, Offload::Auto, Coalesce::Fill),
    ];
    for (mtu, gso, gro, coalesce) in cases {
        // A host without IPv6 has no `::1`.
        let locals = ["127.0.0.1:0", "[::1]:0"].into_iter().filter(|local| UdpSocket::bind(local).is_ok());
        for local in locals {
            let bind = || {
                let mut config = UdpConfig::new(local.parse().unwrap());
                (config.gso, config.gro, config.coalesce) = (gso, gro, coalesce);
                // Some hundred packets are enough.
                (config.mtu, config.recv_buffer_bytes) = (Some(mtu), 4 << 20);
                UdpTransport::bind(config).unwrap()
            };
            transport_keeps_its_promises(bind(), bind(), || {});
        }
    }
}

/// The composite is tested over either of its parts; one of them never sleeps.
#[test]
fn composite() {
    let directory = std::env::temp_dir().join(format!("dunlin-composite-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let shm = |name: String| {
        let mut config = ShmConfig::named(ShmName::new(&name).unwrap());
        config.directory.clone_from(&directory);
        (config.queue_len, config.bulk_buffers) = (256, 256);
        ShmTransport::new(&config).unwrap()
    };
    for address in [0, 1] {
        let open = |name: &str| {
            let mut config = UdpConfig::new("127.0.0.1:0".parse().unwrap());
            (config.mtu, config.recv_buffer_bytes) = (Some(1470), 4 << 20);
            Composite::new(shm(format!("{name}{address}")), UdpTransport::bind(config).unwrap()).unwrap()
        };
        it_keeps_its_promises_at(address, open("a"), open("b"), || {});
        let net = network(Duration::from_nanos(300));
        let open =
            |name: &str, node| Composite::new(net.endpoint(node).unwrap(), shm(format!("{name}{address}"))).unwrap();
        it_keeps_its_promises_at(address, open("c", 1), open("d", 2), || net.advance(Duration::from_nanos(300)));
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A full queue holds as many packets of the configured length as it claims, each in a datagram of its own.
#[test]
fn udp_holds_packets_of_a_chosen_length() {
    for bytes in [1, 64, 500, 1000, 3000, 8000] {
        let bind = || {
            let mut config = UdpConfig::new("127.0.0.1:0".parse().unwrap());
            (config.gso, config.gro, config.coalesce) = (Offload::Off, Offload::Off, Coalesce::Off);
            (config.mtu, config.queued_packet_bytes, config.recv_buffer_bytes) = (Some(9352), Some(bytes), 1 << 20);
            UdpTransport::bind(config).unwrap()
        };
        let (mut a, mut b) = (bind(), bind());
        let route = a.resolve(&b.local_addr()).unwrap();
        let payload = vec![4; bytes];
        for _ in 0..b.rx_queue_len() {
            a.tx_burst(&[TxPacket { route, header: b"", payload: &payload }]);
            a.tx_flush();
        }
        let mut received = 0;
        while received < b.rx_queue_len() {
            match b.rx_burst() {
                0 => panic!("{received} of {} packets of {bytes} bytes were held", b.rx_queue_len()),
                more => received += more,
            }
        }
    }
}
