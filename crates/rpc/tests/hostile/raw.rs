//! A hand-written endpoint: it sends whatever a test wants.

use dunlin_net::loopback::LoopbackTransport;
use dunlin_net::{Route, Transport, TxPacket};
use dunlin_rpc::wire::control::{Accept, Body, Connect, Cookie};
use dunlin_rpc::wire::header::VERSION;
use dunlin_rpc::wire::{HEADER_BYTES_MAX, Header, Kind, MASK_24};

use crate::pair::{Lab, address};

/// Random numbers from a seed, so that a failure can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A transport, and the way to the endpoint that it talks to.
pub struct Raw {
    pub transport: LoopbackTransport,
    pub peer: Route,
}

/// A session with the server, as its client knows it.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    pub accept: Accept,
}

/// A header followed by a body.
pub fn packet(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let len = header.write(&mut bytes);
    let mut packet = bytes[..len].to_vec();
    packet.extend(body);
    packet
}

/// A control packet.
pub fn control<B: Body>(header: &Header, body: &B) -> Vec<u8> {
    let mut bytes = Vec::new();
    body.write(&mut bytes);
    packet(header, &bytes)
}

/// A CONNECT like a well-behaved client's first.
pub fn connect() -> Connect {
    Connect {
        versions: (VERSION, VERSION),
        slots: 8,
        credits: 8,
        reverse_credits: 8,
        mtu: 1472,
        message_bytes_max: 8 << 20,
        session: 5,
        tag: 77,
        incarnation: 1234,
        nonce: 4321,
        cookie: [0; 16],
        credits_start: 8,
        reverse_start: 8,
    }
}

impl Raw {
    pub fn new(lab: &Lab, node: u32) -> Raw {
        Raw::facing(lab, node, 0)
    }

    /// The same, which talks to endpoint `i` of the lab.
    pub fn facing(lab: &Lab, node: u32, i: usize) -> Raw {
        let mut transport = lab.network.endpoint(node).unwrap();
        let peer = transport.resolve(&address(i)).unwrap();
        Raw { transport, peer }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.transport.tx_burst(&[TxPacket { route: self.peer, header: bytes, payload: &[] }]);
    }

    pub fn send_connect(&mut self, connect: &Connect) {
        self.send(&control(&Header::new(Kind::Connect, 0, MASK_24, 0, 0), connect));
    }

    /// Everything that has arrived.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        loop {
            let count = self.transport.rx_burst();
            if count == 0 {
                return packets;
            }
            packets.extend((0..count).map(|i| self.transport.rx_packet(i).bytes().unwrap().to_vec()));
        }
    }

    /// Lets the endpoints work, and gives what they sent here.
    pub fn answers(&mut self, lab: &Lab) -> Vec<(Header, Vec<u8>)> {
        for _ in 0..5 {
            lab.turn();
        }
        let parse = |packet: Vec<u8>| {
            let header = Header::parse(&packet, packet.len()).expect("the library sends what it can parse");
            (header, packet[header.wire_len()..].to_vec())
        };
        self.receive().into_iter().map(parse).collect()
    }

    /// The cookie that the server asks for.
    pub fn cookie(&mut self, lab: &Lab, connect: &Connect) -> Cookie {
        self.send_connect(connect);
        let answers = self.answers(lab);
        let (header, body) = &answers[0];
        assert_eq!((header.kind, header.session, header.tag), (Kind::Cookie, connect.session, connect.tag));
        Cookie::parse(body).unwrap()
    }

    /// Opens a session like a well-behaved client.
    pub fn open(&mut self, lab: &Lab, mut connect: Connect) -> Opened {
        connect.cookie = self.cookie(lab, &connect).cookie;
        self.send_connect(&connect);
        let answers = self.answers(lab);
        let (header, body) = &answers[0];
        assert_eq!(header.kind, Kind::Accept);
        Opened { accept: Accept::parse(body).unwrap() }
    }

    /// Sends a COOKIE, as a server does that keeps nothing of a client.
    pub fn send_cookie(&mut self, connect: &Connect) {
        let header = Header::new(Kind::Cookie, 0, connect.session, 0, connect.tag);
        self.send(&control(&header, &Cookie { nonce: connect.nonce, cookie: [9; 16] }));
    }
}

impl Opened {
    /// A header of a packet to the server on this session.
    pub fn header(&self, kind: Kind, aux: u32, request: u64) -> Header {
        Header::new(kind, aux, self.accept.session, request, self.accept.tag)
    }
}
