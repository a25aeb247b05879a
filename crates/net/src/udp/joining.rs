//! Whether the kernel may join datagrams of the peer that has the connected socket.
//!
//! Joined datagrams save system calls where many come together. But where they were joined, only a control message tells, and a receive that
//! has room for one takes about 50 ns longer, found something or not. A peer that awaits each answer pays that many times in a round trip and
//! gains nothing. So the socket begins without joining: then the kernel delivers datagrams as they were sent, however it got them, and
//! [`Socket::receive_connected`] does. Once datagrams come together the kernel is allowed to join, and once they come alone for long, it
//! no longer is.

use super::config::{Ecn, Offload, UdpConfig};
use super::open::set;
use super::socket::{Arrival, Socket};

/// Datagrams that came together, less those that came alone meanwhile, from which on the kernel joins them.
const TOGETHER: u16 = 64;
/// The most that are counted: so many come alone before the kernel no longer joins.
const TOGETHER_MAX: u16 = 1024;
/// Datagrams that come to an empty queue before none is joined for certain: the kernel may have looked at the option of the socket before it
/// changed, and puts what it joined into the queue some hundred nanoseconds later.
const ALONE_UNTIL_CERTAIN: u16 = 1024;

/// What is known of one connected socket.
pub(super) struct Joining {
    may_change: bool,
    is_on: bool,
    together: u16,
    /// After joining was turned off: datagrams until none is joined for certain.
    uncertain: u16,
}

impl Joining {
    /// Of a socket of this configuration, which is not bound yet.
    pub(super) fn of(socket: &socket2::Socket, config: &UdpConfig) -> Self {
        // Marks of switches are told by control messages, too, so there is nothing to save.
        let may_change = config.gro == Offload::Auto && config.ecn == Ecn::Off;
        let is_on = config.ecn == Ecn::On || may_change && set(socket, libc::SOL_UDP, libc::UDP_GRO, 0).is_err();
        Joining { may_change, is_on, together: 0, uncertain: 0 }
    }

    /// Whether a datagram in the socket's queue may have been joined, or has anything else to tell by a control message.
    #[inline]
    pub(super) fn is_possible(&self) -> bool {
        self.is_on || self.uncertain > 0
    }

    /// Takes note of what one system call received, and whether the queue had been empty before.
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
            // A kernel that refuses joins nothing, and to ask where is right all the same.
            let _ = set(socket.inner(), libc::SOL_UDP, libc::UDP_GRO, 1);
            self.is_on = true;
        }
    }
}
