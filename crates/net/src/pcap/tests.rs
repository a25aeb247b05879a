use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use std::io;
use std::net::IpAddr;

use super::format::{PACKET_BYTES_MAX, write_record};
use super::*;
use crate::addr::ShmName;
use crate::loopback::{LoopbackConfig, LoopbackNetwork};

/// One record of a capture, read back.
#[derive(Debug, PartialEq)]
struct Record {
    time: u64,
    from: SocketAddr,
    to: SocketAddr,
    payload: Vec<u8>,
}

/// Reads a capture and checks its lengths and checksums.
fn read_capture(file: &[u8]) -> Vec<Record> {
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!((u32_at(0), u32_at(4), u32_at(20)), (0xa1b2_3c4d, 0x0004_0002, 101));
    let mut records = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let time = u64::from(u32_at(at)) * 1_000_000_000 + u64::from(u32_at(at + 4));
        let len = u32_at(at + 8);
        assert_eq!(len, u32_at(at + 12));
        at += 16 + len as usize;
        records.push(read_record(time, &file[at - len as usize..at]));
    }
    records
}

fn read_record(time: u64, bytes: &[u8]) -> Record {
    let packet = SlicedPacket::from_ip(bytes).unwrap();
    let Some(TransportSlice::Udp(udp)) = packet.transport else { panic!("not UDP: {packet:?}") };
    let header = udp.to_header();
    let (from, to, checksum): (IpAddr, IpAddr, _) = match packet.net.unwrap() {
        NetSlice::Ipv4(ip) => {
            let ip = ip.header().to_header();
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            assert_eq!(usize::from(ip.total_len), bytes.len());
            (ip.source.into(), ip.destination.into(), header.calc_checksum_ipv4(&ip, udp.payload()).unwrap())
        }
        NetSlice::Ipv6(ip) => {
            let ip = ip.header().to_header();
            assert_eq!(usize::from(ip.payload_length) + 40, bytes.len());
            (ip.source.into(), ip.destination.into(), header.calc_checksum_ipv6(&ip, udp.payload()).unwrap())
        }
        other => panic!("not IP: {other:?}"),
    };
    assert_eq!(header.checksum, checksum);
    assert_eq!(usize::from(header.length), 8 + udp.payload().len());
    Record {
        time,
        from: SocketAddr::new(from, header.source_port),
        to: SocketAddr::new(to, header.destination_port),
        payload: udp.payload().to_vec(),
    }
}

fn frame(packet: &[u8]) -> Vec<u8> {
    [&(packet.len() as u16).to_le_bytes(), packet].concat()
}

#[test]
fn packets_sent_and_received_are_read_back() {
    let net = LoopbackNetwork::new(LoopbackConfig { mtu: 100, queue_len: 8, delay: Duration::from_nanos(7) });
    net.advance_to(50);
    let start = Duration::new(1_700_000_000, 999_999_990);
    let mut a = PcapWriter::starting_at(net.endpoint(1).unwrap(), Vec::new(), start);
    let mut b = net.endpoint(0x0102_0304).unwrap();
    let route = a.resolve(&b.local_addr()).unwrap();
    a.tx_burst(&[TxPacket { route, header: b"one ", payload: b"two" }, TxPacket { route, header: b"", payload: b"" }]);
    net.advance_to(57);
    assert_eq!(b.rx_burst(), 2);
    b.tx_to(&Addr::Node(1), b"answer").unwrap();
    net.advance_to(64);
    assert_eq!(a.rx_burst(), 1);
    assert_eq!(a.rx_packet(0).bytes(), Some(&b"answer"[..]));
    a.tx_to(&Addr::Node(9), b"stranger").unwrap();
    a.tx_burst(&[TxPacket { route: Route(99), header: b"?", payload: b"" }]);

    let (_, file) = a.finish();
    let addr = |text: &str| text.parse().unwrap();
    let (a, b) = (addr("10.0.0.1:31850"), addr("10.2.3.4:31850"));
    let start = start.as_nanos() as u64;
    let expected = [
        Record { time: start, from: a, to: b, payload: frame(b"one two") },
        Record { time: start, from: a, to: b, payload: frame(b"") },
        Record { time: start + 14, from: b, to: a, payload: frame(b"answer") },
        Record { time: start + 14, from: a, to: addr("10.0.0.9:31850"), payload: frame(b"stranger") },
        Record { time: start + 14, from: a, to: addr("0.0.0.0:0"), payload: frame(b"?") },
    ];
    assert_eq!(read_capture(&file.unwrap()), expected);
}

#[test]
fn both_internet_protocols_and_every_length_are_well_formed() {
    let packet: Vec<u8> = (0..70_000u32).map(|i| (i * 7) as u8).collect();
    let (v4, v6) = ("192.0.2.1:5".parse().unwrap(), "[2001:db8::1]:6".parse().unwrap());
    let mapped: SocketAddr = "[::ffff:192.0.2.1]:5".parse().unwrap();
    let mut record = Vec::new();
    for len in [0, 1, 2, 3, 64, 1471, 1472, 65_504, PACKET_BYTES_MAX] {
        for (from, to, from_read) in [(v4, v4, v4), (v6, v6, v6), (v4, v6, mapped)] {
            write_record(&mut record, 0, from, to, &packet[..len]);
            let expected = Record { time: 0, from: from_read, to, payload: frame(&packet[..len]) };
            assert_eq!(read_record(0, &record[16..]), expected);
        }
    }
}

#[test]
fn a_packet_longer_than_an_internet_packet_is_cut() {
    let config = LoopbackConfig { mtu: 100_000, ..LoopbackConfig::default() };
    let net = LoopbackNetwork::new(config);
    let mut a = PcapWriter::new(net.endpoint(1).unwrap(), Vec::new());
    a.tx_to(&Addr::Node(2), &vec![7; 100_000]).unwrap();
    let records = read_capture(&a.finish().1.unwrap());
    assert_eq!(records[0].payload, frame(&[7; PACKET_BYTES_MAX]));
}

#[test]
fn an_endpoint_has_always_the_same_address() {
    let shm = |name| socket_addr(&Addr::Shm(ShmName::new(name).unwrap())).to_string();
    assert_eq!(shm("echo"), "10.157.212.132:31850");
    assert_ne!(shm("echo"), shm("echo2"));
    assert_eq!(socket_addr(&"udp://[::1]:9".parse().unwrap()), "[::1]:9".parse().unwrap());
    assert_eq!(socket_addr(&Addr::Node(u32::MAX)).to_string(), "10.127.255.255:31850");
}

/// A file on a disk that is full after some bytes.
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = bytes.len().min(self.0);
        self.0 -= written;
        if written == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(written) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::Error::other("not the first error"))
    }
}

#[test]
fn packets_flow_on_when_the_file_cannot_be_written() {
    let net = LoopbackNetwork::new(LoopbackConfig { delay: Duration::ZERO, ..LoopbackConfig::default() });
    let mut a = PcapWriter::new(net.endpoint(1).unwrap(), FullDisk(60));
    let mut b = net.endpoint(2).unwrap();
    assert!(a.error().is_none());
    for _ in 0..3 {
        a.tx_to(&Addr::Node(2), b"packet").unwrap();
    }
    assert_eq!(b.rx_burst(), 3);
    assert!(a.error().is_some());
    let (_, file) = a.finish();
    let NetError::Io { cause, .. } = file.err().unwrap() else { panic!("another error") };
    assert_eq!(cause.kind(), io::ErrorKind::StorageFull);
}
