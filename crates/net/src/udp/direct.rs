//! A second socket, connected to the peer to which all packets go.
//!
//! A send on an unconnected socket looks its route up in the kernel, which costs about 0.3 us; a send on a connected
//! socket does not. A connected socket receives only from its peer. So when a transport has sent only to one peer for a
//! while, it opens another socket at its own address, connected to that peer; the kernel delivers that peer's datagrams
//! to this socket and all others to the main one, and the transport polls both.

use std::io;
use std::net::SocketAddr;

use crate::transport::Route;

use super::config::{Connect, UdpConfig};
use super::joining::Joining;
use super::open::{configure, set};
use super::socket::{Queue, Socket};

/// Sends in a row to one peer after which it gets the socket: opening it costs about as much as ten sends. After each
/// failure the number doubles: the address may be in use for a moment, by a socket closed here that a child process
/// holds until it executes its program.
const SENDS_IN_A_ROW: u32 = 512;

/// The connected socket, if there is one, and the peer that will get it.
pub(super) struct Direct {
    config: UdpConfig,
    local: SocketAddr,
    open: Option<Connected>,
    last: Route,
    in_a_row: u32,
    /// Sends in a row until the next socket is due.
    wanted: u32,
}

/// A socket and the peer it is connected to.
pub(super) struct Connected {
    pub(super) socket: Socket,
    pub(super) peer: SocketAddr,
    pub(super) joining: Joining,
    route: Route,
}

impl Direct {
    pub(super) fn new(config: UdpConfig, local: SocketAddr) -> Self {
        Direct { config, local, open: None, last: Route(u32::MAX), in_a_row: 0, wanted: SENDS_IN_A_ROW }
    }

    /// The socket, whatever peer it is connected to.
    #[inline]
    pub(super) fn socket(&self) -> Option<&Socket> {
        self.open.as_ref().map(|open| &open.socket)
    }

    #[inline]
    pub(super) fn connected(&mut self) -> Option<&mut Connected> {
        self.open.as_mut()
    }

    /// The socket, if it is connected to the peer at `route`.
    #[inline]
    pub(super) fn socket_to(&self, route: Route) -> Option<&Socket> {
        self.open.as_ref().filter(|open| open.route == route).map(|open| &open.socket)
    }

    /// Notes a send.
    #[inline]
    pub(super) fn on_send(&mut self, route: Route) {
        if route == self.last {
            self.in_a_row = self.in_a_row.saturating_add(1);
        } else {
            (self.last, self.in_a_row) = (route, 0);
        }
    }

    /// The route whose peer should get the socket and does not have it.
    #[inline]
    pub(super) fn due(&self) -> Option<Route> {
        let due = self.in_a_row >= self.wanted && self.config.connect == Connect::Auto;
        (due && self.socket_to(self.last).is_none()).then_some(self.last)
    }

    /// Connects a new socket to `peer`, in place of the old one, whose queue should be empty. After a failure
    /// everything works without it, and a later call tries again.
    #[cold]
    pub(super) fn connect(&mut self, main: &Socket, route: Route, peer: SocketAddr) {
        self.open = None;
        match connect(main, &self.config, self.local, peer) {
            Ok((socket, joining)) => {
                self.open = Some(Connected { socket, peer, joining, route });
                self.wanted = SENDS_IN_A_ROW;
            }
            Err(_) => {
                self.in_a_row = 0;
                self.wanted = self.wanted.saturating_mul(2);
            }
        }
    }

    /// Forgets a route that was released.
    pub(super) fn on_release(&mut self, route: Route) {
        if self.socket_to(route).is_some() {
            self.open = None;
        }
        (self.last, self.in_a_row) = (Route(u32::MAX), 0);
    }
}

/// Opens a socket at the address of `main`, connected to `peer`.
fn connect(main: &Socket, config: &UdpConfig, local: SocketAddr, peer: SocketAddr) -> io::Result<(Socket, Joining)> {
    let socket = configure(config)?;
    let joining = Joining::of(&socket, config);
    // The kernel lets sockets of one user share an address while each of them allows it. No other socket may join, so
    // both stop allowing it at once.
    let share = |on| {
        set(main.inner(), libc::SOL_SOCKET, libc::SO_REUSEPORT, on)
            .and_then(|()| set(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, on))
    };
    let bound = share(1).and_then(|()| socket.bind(&local.into()));
    share(0)?;
    bound?;
    socket.connect(&peer.into())?;
    // Datagrams of other senders that came since the bind may lie in this socket's queue. So it does not count as
    // empty, and until it does, every datagram is received with its source.
    let mut socket = Socket::new(socket);
    socket.queue = Queue::Busy;
    Ok((socket, joining))
}
