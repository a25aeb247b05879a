//! Forged reports that a client's address is unreachable.

use std::net::SocketAddrV4;
use std::thread;
use std::time::Duration;

use dunlin_lab::peer::{Control, Role};
use rustix::net::ipproto;
use serde::{Deserialize, Serialize};

use super::forged::{Forger, raw_socket};
use crate::BenchError;

/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(20);
const ICMP_HEADER_BYTES: usize = 8;
const IP_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;

/// Tells a server repeatedly that each of its clients is unreachable: ICMP messages that quote a datagram of the server
/// to every open UDP port of 127.0.0.1. The system delivers them only to the server's socket.
#[derive(Debug, Serialize, Deserialize)]
pub struct ForgedUnreachables {
    /// Address of the server, over UDP.
    pub server: String,
}

impl ForgedUnreachables {
    /// Opens the required socket, to check whether this process may.
    ///
    /// # Errors
    /// [`dunlin_lab::LabError::Io`] if it may not.
    pub fn check_allowed() -> Result<(), BenchError> {
        raw_socket(ipproto::ICMP).map(drop)
    }
}

impl Role for ForgedUnreachables {
    const NAME: &'static str = "forged ICMP messages";
    type Ready = ();
    /// Number of messages sent.
    type Output = u64;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<u64, BenchError> {
        let forger = Forger::open(ipproto::ICMP, &self.server)?;
        let mut sent = 0;
        control.ready(());
        while !control.stopping() {
            for client in forger.clients()? {
                sent += u64::from(forger.send(&unreachable(forger.server, client)));
            }
            thread::sleep(PAUSE);
        }
        Ok(sent)
    }
}

/// Port unreachable (RFC 792), quoting the headers of a datagram.
fn unreachable(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    const DESTINATION_UNREACHABLE: u8 = 3;
    const PORT: u8 = 3;
    let mut message = Vec::with_capacity(ICMP_HEADER_BYTES + IP_HEADER_BYTES + UDP_HEADER_BYTES);
    message.extend([DESTINATION_UNREACHABLE, PORT, 0, 0, 0, 0, 0, 0]);
    // Version 4, five words; the checksum of a quoted header is not verified.
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
    fn a_message_is_whole() {
        let message = unreachable("127.0.0.1:7700".parse().unwrap(), "127.0.0.1:9".parse().unwrap());
        assert_eq!(message.len(), ICMP_HEADER_BYTES + IP_HEADER_BYTES + UDP_HEADER_BYTES);
        assert_eq!(checksum(&message), 0, "a sum that is right adds up to nothing");
        assert_eq!(message[28..32], [0x1e, 0x14, 0, 9]);
    }
}
