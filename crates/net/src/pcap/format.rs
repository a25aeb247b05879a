//! The bytes of a capture file: pcap records of IP packets that hold one UDP datagram each.
//!
//! The file format is that of <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-04.html>.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::addr::Addr;

/// The UDP port of endpoints that have none of their own. The dissector recognises it.
pub(super) const PORT: u16 = 31850;

/// Longest packet that fits, with its length and the headers, into an IPv4 packet.
pub(super) const PACKET_BYTES_MAX: usize = u16::MAX as usize - IPV4_HEADER - UDP_HEADER - FRAME_HEADER;

const RECORD_HEADER: usize = 16;
const IPV4_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const FRAME_HEADER: usize = 2;
const PROTOCOL_UDP: u8 = 17;
const HOP_LIMIT: u8 = 64;

/// What a capture file begins with: little-endian, nanoseconds, records that begin with an IP header.
pub(super) fn file_header() -> [u8; 24] {
    const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
    const VERSION: [u16; 2] = [2, 4];
    const SNAP_LEN: u32 = 1 << 18;
    const LINKTYPE_RAW: u32 = 101;
    let mut header = [0; 24];
    header[..4].copy_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
    header[4..6].copy_from_slice(&VERSION[0].to_le_bytes());
    header[6..8].copy_from_slice(&VERSION[1].to_le_bytes());
    header[16..20].copy_from_slice(&SNAP_LEN.to_le_bytes());
    header[20..].copy_from_slice(&LINKTYPE_RAW.to_le_bytes());
    header
}

/// Replaces the contents of `record` with the record of one packet of at most [`PACKET_BYTES_MAX`] bytes.
pub(super) fn write_record(record: &mut Vec<u8>, time: u64, from: SocketAddr, to: SocketAddr, packet: &[u8]) {
    let frame_len = FRAME_HEADER + packet.len();
    let udp_len = UDP_HEADER + frame_len;
    record.clear();
    record.extend_from_slice(&[0; RECORD_HEADER]);
    let pseudo_header_sum = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => push_ipv4(record, from, to, udp_len),
        (from, to) => push_ipv6(record, as_ipv6(from), as_ipv6(to), udp_len),
    };
    let udp_start = record.len();
    for field in [from.port(), to.port(), udp_len as u16, 0] {
        record.extend_from_slice(&field.to_be_bytes());
    }
    record.extend_from_slice(&(packet.len() as u16).to_le_bytes());
    record.extend_from_slice(packet);
    let checksum = match finish_sum(pseudo_header_sum + sum(&record[udp_start..])) {
        0 => 0xffff, // Zero would mean that there is no checksum.
        sum => sum,
    };
    record[udp_start + 6..udp_start + 8].copy_from_slice(&checksum.to_be_bytes());

    let len = (record.len() - RECORD_HEADER) as u32;
    let header = [(time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32, len, len];
    for (field, value) in record.chunks_exact_mut(4).zip(header) {
        field.copy_from_slice(&value.to_le_bytes());
    }
}

/// Appends an IPv4 header; returns the sum of the fields that the UDP checksum covers too.
fn push_ipv4(record: &mut Vec<u8>, from: Ipv4Addr, to: Ipv4Addr, udp_len: usize) -> u64 {
    const VERSION_AND_LENGTH: u8 = 0x45;
    const DO_NOT_FRAGMENT: [u8; 2] = [0x40, 0];
    let start = record.len();
    record.extend_from_slice(&[VERSION_AND_LENGTH, 0]);
    record.extend_from_slice(&((IPV4_HEADER + udp_len) as u16).to_be_bytes());
    record.extend_from_slice(&[0, 0, DO_NOT_FRAGMENT[0], DO_NOT_FRAGMENT[1], HOP_LIMIT, PROTOCOL_UDP, 0, 0]);
    record.extend_from_slice(&from.octets());
    record.extend_from_slice(&to.octets());
    let checksum = finish_sum(sum(&record[start..]));
    record[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
    sum(&from.octets()) + sum(&to.octets()) + u64::from(PROTOCOL_UDP) + udp_len as u64
}

/// As [`push_ipv4`].
fn push_ipv6(record: &mut Vec<u8>, from: Ipv6Addr, to: Ipv6Addr, udp_len: usize) -> u64 {
    record.extend_from_slice(&[0x60, 0, 0, 0]);
    record.extend_from_slice(&(udp_len as u16).to_be_bytes());
    record.extend_from_slice(&[PROTOCOL_UDP, HOP_LIMIT]);
    record.extend_from_slice(&from.octets());
    record.extend_from_slice(&to.octets());
    sum(&from.octets()) + sum(&to.octets()) + u64::from(PROTOCOL_UDP) + udp_len as u64
}

fn as_ipv6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The sum of big-endian 16-bit words of the Internet checksum, RFC 1071, not yet folded.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0)));
    words.sum()
}

fn finish_sum(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The Internet address that stands for an endpoint: its own if it has one, otherwise one of `10.0.0.0/8`, always the
/// same. The lower half is for nodes, by number (simulated hosts too, with a port for each thread); the upper half is
/// for shared-memory names, by hash.
pub fn socket_addr(addr: &Addr) -> SocketAddr {
    const HALF: u32 = 1 << 23;
    let synthesized = |low: u32| {
        let [_, b, c, d] = low.to_be_bytes();
        SocketAddr::from(([10, b, c, d], PORT))
    };
    match addr {
        Addr::Udp(addr) => *addr,
        Addr::Node(number) => synthesized(number % HALF),
        Addr::Sim { host, thread } => {
            let mut synthesized = synthesized(host % HALF);
            synthesized.set_port(PORT.wrapping_add(*thread));
            synthesized
        }
        Addr::Shm(name) => synthesized(HALF + fnv1a(name.as_str().as_bytes()) % HALF),
    }
}

/// FNV-1a: written out here because the hash must never change, so that captures can be compared.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
