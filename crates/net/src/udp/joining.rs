//! Decides whether the kernel may join datagrams of the peer that has the connected socket.
//!
//! Joined datagrams save system calls if many come together. But only a control message says where they were joined,
//! and a receive with room for one takes about 50 ns longer, whether it finds a datagram or not. A peer that waits for
//! each answer pays that many times per round trip and gains nothing. So the socket begins without joining: the kernel
//! then delivers datagrams as they were sent, however it got them, and [`Socket::receive_connected`] is enough. Once
//! datagrams come together, the kernel may join them; once they have come alone for long, it may not any more.

use super::config::{Ecn, Offload, UdpConfig};
use super::open::set;
use super::socket::{Arrival, Socket};

/// Datagrams that came together, minus those that came alone meanwhile, at which the kernel begins to join.
const TOGETHER: u16 = 64;
/// The highest count: this many datagrams must come alone before the kernel stops joining.
const TOGETHER_MAX: u16 = 1024;
/// Datagrams that must come to an empty queue before joining is certain to have ended: the kernel may have read the
/// option of the socket before it changed, and puts what it joined into the queue some hundred nanoseconds later.
const ALONE_UNTIL_CERTAIN: u16 = 1024;

/// What is known about one connected socket.
pub(super) struct Joining {
    may_change: bool,
    is_on: bool,
    together: u16,
    /// After joining was turned off: datagrams until it is certain that none is joined.
    uncertain: u16,
}

impl Joining {
    /// For a socket with this configuration that is not bound yet.
    pub(super) fn of(socket: &socket2::Socket, config: &UdpConfig) -> Self {
        // Marks of switches come in control messages, too, so there is nothing to save.
        let may_change = config.gro == Offload::Auto && config.ecn == Ecn::Off;
        let is_on = config.ecn == Ecn::On || may_change && set(socket, libc::SOL_UDP, libc::UDP_GRO, 0).is_err();
        Joining { may_change, is_on, together: 0, uncertain: 0 }
    }

    /// Whether a datagram in the socket's queue may have been joined, or may carry another control message.
    #[inline]
    pub(super) fn is_possible(&self) -> bool {
        self.is_on || self.uncertain > 0
    }

    /// Notes what one system call received, and whether the queue was empty before.
    #[inline]
    pub(super) fn on_arrivals(&mut self, socket: &Socket, arrivals: &[Arrival], was_empty: bool) {
        match arrivals {
            [lone] if lone.len <= lone.segment => {
                self.together = self.together.saturating_sub(1);
                if self.is_possible() && self.together == 0 {
                    self.on_lone(socket, was_empty);
                }
            }
            several => self.on_several(socket, several),
        }
    }

    #[cold]
    fn on_lone(&mut self, socket: &Socket, was_empty: bool) {
        if !self.is_on {
            self.uncertain -= u16::from(was_empty);
        } else if self.may_change && set(socket.inner(), libc::SOL_UDP, libc::UDP_GRO, 0).is_ok() {
            (self.is_on, self.uncertain) = (false, ALONE_UNTIL_CERTAIN);
        }
    }

    fn on_several(&mut self, socket: &Socket, arrivals: &[Arrival]) {
        let datagrams: usize = arrivals.iter().map(|arrival| arrival.len.div_ceil(arrival.segment)).sum();
        self.together = self.together.saturating_add(datagrams as u16).min(TOGETHER_MAX);
        if !self.is_on && self.may_change && self.together >= TOGETHER {
            // A kernel that rejects this joins nothing, and receiving as if it did is still correct.
            let _ = set(socket.inner(), libc::SOL_UDP, libc::UDP_GRO, 1);
            self.is_on = true;
        }
    }
}
