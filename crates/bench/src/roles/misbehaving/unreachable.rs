//! Forged news that nobody listens where a client is.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use dunlin_net::Addr;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::peer::{Control, Role};

/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(10);
/// UDP sockets of this host, one a line.
const UDP_SOCKETS: &str = "/proc/net/udp";
const ICMP_HEADER_BYTES: usize = 8;
const IP_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;

/// Tells a server over and over that each of its clients is unreachable: ICMP messages that quote a datagram of the server to every UDP port of
/// 127.0.0.1 that is open. The system hands them to no other socket than the server's.
#[derive(Debug, Serialize, Deserialize)]
pub struct ForgedUnreachables {
    /// Address of the server, over UDP.
    pub server: String,
}

impl ForgedUnreachables {
    /// Opens the socket that this takes, to see whether this process may.
    ///
    /// # Errors
    /// [`BenchError::Io`] if it may not.
    pub fn check_allowed() -> Result<(), BenchError> {
        raw_socket().map(drop)
    }
}

fn raw_socket() -> Result<OwnedFd, BenchError> {
    let opened = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP));
    opened.map_err(|error| BenchError::io("open a raw socket; run this as root, or with CAP_NET_RAW")(error.into()))
}

impl Role for ForgedUnreachables {
    const NAME: &'static str = "forged ICMP messages";
    type Ready = ();
    /// How many were sent.
    type Output = u64;

    fn run(self, control: &Control<Self>) -> Result<u64, BenchError> {
        let Addr::Udp(SocketAddr::V4(server)) = self.server.parse()? else {
            return Err(BenchError::io("forge ICMP messages")(std::io::ErrorKind::Unsupported.into()));
        };
        let socket = raw_socket()?;
        let mut sent = 0;
        control.ready(());
        while !control.stopping() {
            let list = fs::read_to_string(UDP_SOCKETS).map_err(BenchError::io(format!("read {UDP_SOCKETS}")))?;
            for client in list.lines().filter_map(local_address).filter(|client| *client != server) {
                let message = unreachable(server, client);
                let to = SocketAddrV4::new(*server.ip(), 0);
                // One that the system has no room for is lost, as packets are.
                sent += u64::from(sendto(&socket, &message, SendFlags::DONTWAIT, &to).is_ok());
            }
            thread::sleep(PAUSE);
        }
        Ok(sent)
    }
}

/// The local address of a line of [`UDP_SOCKETS`], if it is on the loopback interface.
fn local_address(line: &str) -> Option<SocketAddrV4> {
    let (ip, port) = line.split_whitespace().nth(1)?.split_once(':')?;
    // The address stands there as the processor reads its bytes, the port as a number.
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    let port = u16::from_str_radix(port, 16).ok()?;
    ip.is_loopback().then_some(SocketAddrV4::new(ip, port))
}

/// Port unreachable (RFC 792), quoting the headers of a datagram.
fn unreachable(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    const DESTINATION_UNREACHABLE: u8 = 3;
    const PORT: u8 = 3;
    let mut message = Vec::with_capacity(ICMP_HEADER_BYTES + IP_HEADER_BYTES + UDP_HEADER_BYTES);
    message.extend([DESTINATION_UNREACHABLE, PORT, 0, 0, 0, 0, 0, 0]);
    // Version 4, five words; their sum is not looked at in a quotation.
    let total = ((IP_HEADER_BYTES + UDP_HEADER_BYTES) as u16).to_be_bytes();
    message.extend([0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, ipproto::UDP.as_raw().get() as u8, 0, 0]);
    message.extend(from.ip().octets());
    message.extend(to.ip().octets());
    message.extend(from.port().to_be_bytes());
    message.extend(to.port().to_be_bytes());
    message.extend((UDP_HEADER_BYTES as u16).to_be_bytes());
    message.extend([0, 0]);
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    message
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_loopback_are_found() {
        let line = "  7: 0100007F:1E14 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 0";
        let expected = if cfg!(target_endian = "little") { Some("127.0.0.1:7700".parse().unwrap()) } else { None };
        assert_eq!(local_address(line), expected);
        for other in ["   sl  local_address rem_address", "  7: 00000000:1E14 00000000:0000 07", ""] {
            assert_eq!(local_address(other), None);
        }
    }

    #[test]
    fn a_message_is_whole() {
        let message = unreachable("127.0.0.1:7700".parse().unwrap(), "127.0.0.1:9".parse().unwrap());
        assert_eq!(message.len(), ICMP_HEADER_BYTES + IP_HEADER_BYTES + UDP_HEADER_BYTES);
        assert_eq!(checksum(&message), 0, "a sum that is right adds up to nothing");
        assert_eq!(message[28..32], [0x1e, 0x14, 0, 9]);
    }
}
