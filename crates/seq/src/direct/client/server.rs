//! A server as its client knows it.

use dunlin_net::{Addr, PeerHealth, Route, Transport};

/// Maximum number of doublings of an attempt's timeout.
pub(super) const DOUBLINGS_MAX: u8 = 6;

pub(super) struct Server {
    pub(super) addr: Addr,
    /// `None` if nobody is there, which shows over shared memory.
    pub(super) route: Option<Route>,
    /// 0 until the first hello, and if the server has epochs: then requests name the client's.
    pub(super) incarnation: u32,
    /// When its route was last checked.
    pub(super) checked: u64,
    /// Mean time to an answer, and its mean deviation; 0 before the first.
    pub(super) answers_in: u64,
    pub(super) deviation: u64,
}

impl Server {
    /// Timeout of a first attempt: at least `least`.
    pub(super) fn timeout(&self, least: u64) -> u64 {
        (self.answers_in + 4 * self.deviation).clamp(least, least.saturating_mul(1 << DOUBLINGS_MAX))
    }

    /// Notes the time from the first attempt of a call to its answer, in the way of RFC 6298. That of a call with more
    /// attempts is rather too long, and so ends repetitions that are not needed.
    pub(super) fn answered_in(&mut self, time: u64) {
        if self.answers_in == 0 {
            (self.answers_in, self.deviation) = (time, time / 2);
            return;
        }
        self.deviation = self.deviation - self.deviation / 4 + self.answers_in.abs_diff(time) / 4;
        self.answers_in = self.answers_in - self.answers_in / 8 + time / 8;
    }

    /// Finds a server that is there only now, or that was started again: its region of shared memory is another one.
    pub(super) fn find<T: Transport>(&mut self, transport: &mut T) {
        if let Some(route) = self.route.take_if(|route| transport.peer_health(*route) == PeerHealth::Dead) {
            transport.release(route);
        }
        if self.route.is_none() {
            self.route = transport.resolve(&self.addr).ok();
        }
    }
}
