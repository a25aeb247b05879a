//! Sending packets in the name of others on this host: a raw socket, and the list of other sockets.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use dunlin_net::Addr;
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, sendto, socket};

use crate::BenchError;

/// UDP sockets of this host, one per line.
const UDP_SOCKETS: &str = "/proc/net/udp";

/// A raw socket, and the target server.
pub(super) struct Forger {
    socket: OwnedFd,
    pub server: SocketAddrV4,
}

impl Forger {
    /// Opens a socket for packets of this protocol to a server over UDP.
    pub fn open(protocol: Protocol, server: &str) -> Result<Self, BenchError> {
        let Addr::Udp(SocketAddr::V4(server)) = server.parse()? else {
            return Err(BenchError::io("forge packets to a server that is not at an IPv4 address")(
                ErrorKind::Unsupported.into(),
            ));
        };
        Ok(Forger { socket: raw_socket(protocol)?, server })
    }

    /// The addresses of UDP sockets on the loopback interface except the server's: its clients are among them. An
    /// endpoint may have two sockets at one address.
    pub fn clients(&self) -> Result<BTreeSet<SocketAddrV4>, BenchError> {
        let list = fs::read_to_string(UDP_SOCKETS).map_err(BenchError::io(format!("read {UDP_SOCKETS}")))?;
        Ok(list.lines().filter_map(local_address).filter(|client| *client != self.server).collect())
    }

    /// Sends the bytes after the IP header to the server's host, and returns whether they were sent: if the system has
    /// no room, the packet is lost, as packets are.
    pub fn send(&self, message: &[u8]) -> bool {
        sendto(&self.socket, message, SendFlags::DONTWAIT, &SocketAddrV4::new(*self.server.ip(), 0)).is_ok()
    }
}

/// Opens a raw socket for a protocol.
pub(super) fn raw_socket(protocol: Protocol) -> Result<OwnedFd, BenchError> {
    let opened = socket(AddressFamily::INET, SocketType::RAW, Some(protocol));
    opened.map_err(|error| BenchError::io("open a raw socket; run this as root, or with CAP_NET_RAW")(error.into()))
}

/// The local address in a line of [`UDP_SOCKETS`], if it is on the loopback interface.
fn local_address(line: &str) -> Option<SocketAddrV4> {
    let (ip, port) = line.split_whitespace().nth(1)?.split_once(':')?;
    // The file shows the address as the processor reads its bytes, and the port as a number.
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    let port = u16::from_str_radix(port, 16).ok()?;
    ip.is_loopback().then_some(SocketAddrV4::new(ip, port))
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
}
