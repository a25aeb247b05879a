//! Packets for the sessions of other clients, with guessed tags, from the addresses of those clients.

use std::net::SocketAddrV4;
use std::thread;
use std::time::Duration;

use dunlin_lab::peer::{Control, Role};
use rustix::net::ipproto;
use serde::{Deserialize, Serialize};

use super::forged::{Forger, raw_socket};
use super::guesses::{SESSIONS, guess};
use super::raw::datagram;
use crate::BenchError;

/// Pause between two datagrams from each client's address.
const PAUSE: Duration = Duration::from_millis(50);
/// Guesses for each session in a datagram: 240 a second. A session with more than 640 guesses a second rejects
/// everything for up to a tenth of a second, so that no guess can succeed (docs/wire-protocol.md, section 13); its
/// client's calls wait meanwhile, by design.
const GUESSES_PER_SESSION: u32 = 12;
const UDP_HEADER_BYTES: usize = 8;

/// Sends requests on sessions of other clients from their own addresses, through a raw socket. Only the tag
/// distinguishes them from the clients' own.
#[derive(Debug, Serialize, Deserialize)]
pub struct ForgedGuesses {
    /// Address of the server, over UDP.
    pub server: String,
}

impl ForgedGuesses {
    /// Opens the required socket, to check whether this process may.
    ///
    /// # Errors
    /// [`dunlin_lab::LabError::Io`] if it may not.
    pub fn check_allowed() -> Result<(), BenchError> {
        raw_socket(ipproto::UDP).map(drop)
    }
}

impl Role for ForgedGuesses {
    const NAME: &'static str = "guesses of tags in the name of others";
    type Ready = ();
    /// Number of packets sent.
    type Output = u64;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<u64, BenchError> {
        let forger = Forger::open(ipproto::UDP, &self.server)?;
        let mut sent = 0;
        control.ready(());
        while !control.stopping() {
            for client in forger.clients()? {
                let count = SESSIONS * GUESSES_PER_SESSION;
                let guesses: Vec<_> = (0..count).map(|number| guess(sent + u64::from(number))).collect();
                sent +=
                    u64::from(count) * u64::from(forger.send(&from_client(client, forger.server, &datagram(&guesses))));
            }
            thread::sleep(PAUSE);
        }
        Ok(sent)
    }
}

/// A datagram with its header (RFC 768), without a checksum, as IPv4 allows. The system adds the IP header with its
/// sending address: on the loopback interface that is the client's.
fn from_client(client: SocketAddrV4, server: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let len = UDP_HEADER_BYTES + payload.len();
    let mut bytes = Vec::with_capacity(len);
    for field in [client.port(), server.port(), len as u16, 0] {
        bytes.extend(field.to_be_bytes());
    }
    bytes.extend(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use super::*;

    /// If the test may not open a raw socket, it proves nothing.
    #[test]
    fn the_server_takes_a_datagram_for_the_clients() {
        if ForgedGuesses::check_allowed().is_err() {
            return;
        }
        let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (server, client) = (bind(), bind());
        let SocketAddr::V4(of_client) = client.local_addr().unwrap() else { unreachable!("bound to IPv4 above") };
        let forger = Forger::open(ipproto::UDP, &format!("udp://{}", server.local_addr().unwrap())).unwrap();
        assert!(forger.clients().unwrap().contains(&of_client));
        assert!(forger.send(&from_client(of_client, forger.server, b"guess")));
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(server.recv_from(&mut bytes).unwrap(), (5, SocketAddr::V4(of_client)));
        assert_eq!(&bytes[..5], b"guess");
    }

    #[test]
    fn a_datagram_says_from_where_to_where_and_how_long() {
        let bytes = from_client("127.0.0.1:9".parse().unwrap(), "127.0.0.1:7700".parse().unwrap(), b"abc");
        assert_eq!(bytes, [0, 9, 0x1e, 0x14, 0, 11, 0, 0, b'a', b'b', b'c']);
    }
}
