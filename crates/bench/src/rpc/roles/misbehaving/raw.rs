//! A UDP socket that speaks the wire protocol by hand, and sends what no honest endpoint sends.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use dunlin_net::Addr;
use dunlin_rpc::wire::control::{Accept, Body, Connect, Cookie};
use dunlin_rpc::wire::header::VERSION;
use dunlin_rpc::wire::{HEADER_BYTES_MAX, Header, Kind, MASK_24};

use crate::BenchError;

/// The address of these clients: another host than that of honest ones, which use 127.0.0.1.
pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Maximum size of a datagram.
const DATAGRAM_BYTES: usize = 65_535;
/// Bytes before each packet of a datagram, which contain its length.
const LENGTH_BYTES: usize = 2;
/// How long the server may be silent.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time without an answer after which a packet is sent again.
const REPEAT: Duration = Duration::from_millis(100);

/// A socket, and its server.
pub(super) struct RawPeer {
    socket: UdpSocket,
    incarnation: u64,
    received: Vec<u8>,
}

/// A session as known to its client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opened {
    accept: Accept,
}

impl Opened {
    /// The header of a packet to the server on this session.
    pub fn header(&self, kind: Kind, aux: u32, request: u64) -> Header {
        Header::new(kind, aux, self.accept.session, request, self.accept.tag)
    }
}

impl RawPeer {
    pub fn open(server: &Addr) -> Result<Self, BenchError> {
        let doing = || BenchError::io(format!("open a socket to {server}"));
        let Addr::Udp(address) = server else {
            return Err(doing()(ErrorKind::Unsupported.into()));
        };
        let socket = UdpSocket::bind(SocketAddr::from((HOST, 0))).map_err(doing())?;
        socket.connect(address).map_err(doing())?;
        socket.set_read_timeout(Some(REPEAT)).map_err(doing())?;
        let incarnation = u64::from(std::process::id()) << 32 | 1;
        Ok(RawPeer { socket, incarnation, received: vec![0; DATAGRAM_BYTES] })
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// A CONNECT like an honest client's first, for the session with this number.
    pub fn connect(&self, session: u32) -> Connect {
        Connect {
            versions: (VERSION, VERSION),
            slots: 8,
            credits: 8,
            reverse_credits: 8,
            mtu: 1_470,
            message_bytes_max: 8 << 20,
            session,
            tag: 77,
            incarnation: self.incarnation,
            nonce: u64::from(session) + 1,
            cookie: [0; 16],
            credits_start: 8,
            reverse_start: 8,
        }
    }

    /// Sends packets as one datagram. If the system has no room for it, it is lost, as packets are.
    pub fn send(&self, packets: &[Vec<u8>]) -> Result<(), BenchError> {
        match self.socket.send(&datagram(packets)) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(BenchError::io("send a datagram")(error)),
        }
    }

    /// Passes on the packets of the next datagram, if one arrives soon.
    pub fn receive(&mut self, mut each: impl FnMut(&Header, &[u8])) -> Result<bool, BenchError> {
        let len = match self.socket.recv(&mut self.received) {
            Ok(len) => len,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(BenchError::io("receive a datagram")(error)),
        };
        let mut rest = &self.received[..len];
        while let Some((length, behind)) = rest.split_first_chunk::<LENGTH_BYTES>() {
            let length = usize::from(u16::from_le_bytes(*length));
            let Some((packet, behind)) = behind.split_at_checked(length).filter(|_| length > 0) else { break };
            if let Ok(header) = Header::parse(packet, packet.len()) {
                each(&header, &packet[header.wire_len()..]);
            }
            rest = behind;
        }
        Ok(true)
    }

    /// Drops everything that has arrived.
    pub fn drain(&mut self) -> Result<(), BenchError> {
        let nonblocking = |on| self.socket.set_nonblocking(on).map_err(BenchError::io("set a socket to wait or not"));
        nonblocking(true)?;
        while self.socket.recv(&mut self.received).is_ok() {}
        self.socket.set_nonblocking(false).map_err(BenchError::io("set a socket to wait or not"))
    }

    /// Returns this CONNECT with the cookie that the server requires.
    pub fn cookie(&mut self, connect: &Connect) -> Result<Connect, BenchError> {
        let cookie: Cookie = self.ask(connect, Kind::Cookie, |cookie: &Cookie| cookie.nonce)?;
        Ok(Connect { cookie: cookie.cookie, ..*connect })
    }

    /// Opens a session like an honest client.
    pub fn open_session(&mut self, session: u32) -> Result<Opened, BenchError> {
        let connect = self.cookie(&self.connect(session))?;
        let accept = self.ask(&connect, Kind::Accept, |accept: &Accept| accept.nonce)?;
        Ok(Opened { accept })
    }

    /// Sends a CONNECT until it is answered with a packet of this kind.
    fn ask<B: Body>(&mut self, connect: &Connect, kind: Kind, nonce: impl Fn(&B) -> u64) -> Result<B, BenchError> {
        let packet = connect_packet(connect);
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            self.send(std::slice::from_ref(&packet))?;
            let mut answer = None;
            while answer.is_none()
                && self.receive(|header, body| {
                    let body = (header.kind == kind).then(|| B::parse(body).ok()).flatten();
                    answer = answer.take().or(body.filter(|body| nonce(body) == connect.nonce));
                })?
            {}
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        Err(BenchError::NoAnswer { time: PATIENCE, why: format!("a CONNECT was not answered with {kind:?}") })
    }
}

/// The payload of a datagram of these packets.
pub(super) fn datagram(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(packets.iter().map(|packet| LENGTH_BYTES + packet.len()).sum());
    for packet in packets {
        datagram.extend((packet.len() as u16).to_le_bytes());
        datagram.extend(packet);
    }
    datagram
}

/// The packet of a CONNECT.
pub(super) fn connect_packet(connect: &Connect) -> Vec<u8> {
    control(&Header::new(Kind::Connect, 0, MASK_24, 0, 0), connect)
}

/// A header followed by a body.
pub(super) fn packet(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let len = header.write(&mut bytes);
    [&bytes[..len], body].concat()
}

/// A control packet.
pub(super) fn control<B: Body>(header: &Header, body: &B) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(B::BYTES);
    body.write(&mut bytes);
    packet(header, &bytes)
}
