//! Marks of switches (ECN).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use dunlin_net::Transport;
use dunlin_net::udp::{Ecn, UdpConfig};

use crate::{bind, receive, socket_addr, until};

/// A datagram with one packet of four bytes.
const DATAGRAM: &[u8] = &[4, 0, 1, 2, 3, 4];
const CAPABLE: libc::c_int = 2;
const MARKED: libc::c_int = 3;

fn set_field(socket: &UdpSocket, field: libc::c_int) {
    let (level, name) = match socket.local_addr().unwrap() {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    };
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to a number of that length.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const field).cast(), len) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn packets_of_marked_datagrams_say_so() {
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        for (ecn, field, expected) in
            [(Ecn::On, MARKED, true), (Ecn::On, CAPABLE, false), (Ecn::On, 0, false), (Ecn::Off, MARKED, false)]
        {
            let mut config = UdpConfig::new(SocketAddr::new(ip, 0));
            config.ecn = ecn;
            let mut transport = bind(config);
            let sender = UdpSocket::bind(SocketAddr::new(ip, 0)).unwrap();
            set_field(&sender, field);
            // One alone, and two that one system call may take.
            for count in [1, 2] {
                for _ in 0..count {
                    sender.send_to(DATAGRAM, socket_addr(&transport)).unwrap();
                }
                let mut left = count;
                until("packets", || {
                    let packets = transport.rx_burst();
                    for i in 0..packets {
                        assert_eq!(transport.rx_packet(i).ecn_marked(), expected, "{ip} {ecn:?} {field}");
                    }
                    left -= packets;
                    left == 0
                });
            }
        }
    }
}

#[test]
fn every_way_to_receive_sees_unmarked_packets_as_such() {
    let mut config = UdpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.ecn = Ecn::On;
    let (mut server, mut client) = (bind(config.clone()), bind(config));
    let route = client.resolve(&server.local_addr()).unwrap();
    // Enough to get the connected socket.
    for i in 0..2_000u32 {
        let bytes = i.to_le_bytes();
        client.tx_burst(&[dunlin_net::transport::TxPacket { route, header: &bytes, payload: &[] }]);
        client.tx_flush();
        let received = receive(&mut server, 1);
        assert_eq!(received[0].bytes, bytes);
        assert!(!server.rx_packet(0).ecn_marked());
    }
}
