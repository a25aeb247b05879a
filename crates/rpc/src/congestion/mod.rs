//! Congestion control: how much a session may send, from the round trips and marks of its packets. Pure arithmetic
//! without packets, sessions or timers; `core/congestion.rs` connects it with [`crate::Endpoint`].
//!
//! Congestion control runs at the client: in a client-driven protocol every packet of a server answers one of the
//! client, so limiting what the client sends limits both directions, and servers pay nothing (paper, section 5.2.1).
//! There are two signals: the round-trip time of each packet, and the congestion marks of switches (ECN), which servers
//! echo.
//!
//! | File | Algorithm | Signal | Limits |
//! |---|---|---|---|
//! | [`timely`] | Timely as eRPC runs it; patched variant included | round-trip time | rate |
//! | [`dcqcn`] | DCQCN | ECN | rate |
//! | [`swift`] | ours, after Swift | round-trip time, and ECN if there is any | window, paced below one packet |
//!
//! `rate` is the common part of the algorithms that limit a rate, and `pacing` spaces packets in time.
//!
//! Every algorithm begins *unlimited* and receives a packet only when that matters; see `Algorithm::is_unlimited`.

pub mod dcqcn;
#[cfg(test)]
mod incast_tests;
#[cfg(test)]
mod model;
pub(crate) mod pacing;
mod rate;
pub mod swift;
pub mod timely;

pub use dcqcn::DcqcnConfig;
pub use swift::SwiftConfig;
pub use timely::{Gradient, TimelyConfig};

use crate::config::ConfigError;
use dcqcn::Dcqcn;
use dunlin_net::clock::nanos;
use swift::Swift;
use timely::Timely;

/// Which algorithm limits the sessions of an endpoint, in the direction of their requests.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum CongestionControl {
    /// The default: [`CongestionControl::Swift`] if packets cross a network, and [`CongestionControl::None`] if they
    /// stay on this host (shared memory, and UDP bound to a loopback address). There a late answer means that a process
    /// waited for a processor, and sending less would only make it wait more.
    #[default]
    Auto,
    /// Credits alone limit a session.
    None,
    /// Timely (SIGCOMM 2015) as eRPC runs it.
    Timely(TimelyConfig),
    /// DCQCN (SIGCOMM 2015). Needs switches that mark packets, and a transport that reports the marks.
    Dcqcn(DcqcnConfig),
    /// After Swift (SIGCOMM 2020). Needs no knowledge of the network.
    Swift(SwiftConfig),
}

impl CongestionControl {
    /// The usual name of the algorithm.
    pub fn name(&self) -> &'static str {
        match self {
            CongestionControl::Auto => "auto",
            CongestionControl::None => "none",
            CongestionControl::Timely(_) => "timely",
            CongestionControl::Dcqcn(_) => "dcqcn",
            CongestionControl::Swift(_) => "swift",
        }
    }

    /// The algorithm that [`CongestionControl::Auto`] chooses; any other is returned unchanged.
    pub(crate) fn chosen(self, is_local: bool) -> CongestionControl {
        match self {
            CongestionControl::Auto if is_local => CongestionControl::None,
            CongestionControl::Auto => CongestionControl::Swift(SwiftConfig::default()),
            chosen => chosen,
        }
    }

    /// Checks every parameter.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match self {
            CongestionControl::Auto | CongestionControl::None => Ok(()),
            CongestionControl::Timely(config) => config.check(),
            CongestionControl::Dcqcn(config) => config.check(),
            CongestionControl::Swift(config) => config.check(),
        }
    }

    /// Unlimited sessions need no update for unmarked packets whose round trip is shorter than this, in nanoseconds: it
    /// would leave them unlimited (the paper's Timely bypass, section 5.2.2).
    pub(crate) fn bypass_nanos(&self) -> u64 {
        match self {
            CongestionControl::Auto | CongestionControl::None => u64::MAX,
            CongestionControl::Timely(config) => nanos(config.t_low),
            // DCQCN ignores round trips.
            CongestionControl::Dcqcn(_) => u64::MAX,
            CongestionControl::Swift(config) => nanos(config.target),
        }
    }

    /// State for a session with `credits` credits, whose path once had a round trip of `rtt_min` nanoseconds; `None` if
    /// it needs none.
    pub(crate) fn controller(&self, credits: u16, rtt_min: Option<u64>, now: u64) -> Option<Controller> {
        match self {
            CongestionControl::Auto | CongestionControl::None => None,
            CongestionControl::Timely(config) => Some(Controller::Timely(Timely::new(config, now))),
            CongestionControl::Dcqcn(config) => Some(Controller::Dcqcn(Dcqcn::new(config, now))),
            CongestionControl::Swift(config) => Some(Controller::Swift(Swift::new(config, credits, rtt_min))),
        }
    }
}

/// What the answer to a packet showed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// When it came, in nanoseconds.
    pub now: u64,
    /// Nanoseconds since the packet was sent.
    pub rtt: u64,
    /// Whether a switch marked the packet or its answer.
    pub is_marked: bool,
    /// Credits of the session now: they may be borrowed and given back.
    pub credits: u16,
    /// Bytes of the packet or of its answer, whichever is longer.
    pub bytes: u32,
}

/// The inputs and outputs of an algorithm. One instance serves one direction of one session, all slots together.
pub(crate) trait Algorithm {
    /// A packet was answered.
    fn on_answer(&mut self, sample: &Sample);

    /// A packet was lost while later ones arrived.
    fn on_loss(&mut self, _now: u64) {}

    /// The first of several retransmission timeouts in a row, for a request of which nothing was answered.
    fn on_timeout(&mut self, _now: u64) {}

    /// Packets that may be in flight at the same time, at least one.
    fn window(&self) -> u32 {
        u32::MAX
    }

    /// Nanoseconds from sending a packet of `bytes` to sending the next.
    fn spacing(&self, bytes: u32) -> u64;

    /// Whether this limits nothing: the rate is that of the link, or the window covers all credits. The paper calls
    /// such a session uncongested.
    fn is_unlimited(&self) -> bool;

    /// What it allows now, in a form for humans.
    fn allowance(&self) -> Allowance;
}

/// What congestion control allows a session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Allowance {
    /// As much as its credits.
    Unlimited,
    /// Bits per second.
    Rate(f64),
    /// Packets in flight; below one, the number of packets per round trip.
    Window(f64),
}

/// The state of one session, with static dispatch.
#[derive(Debug)]
pub(crate) enum Controller {
    Timely(Timely),
    Dcqcn(Dcqcn),
    Swift(Swift),
}

macro_rules! each {
    ($controller:expr, $algorithm:ident => $call:expr) => {
        match $controller {
            Controller::Timely($algorithm) => $call,
            Controller::Dcqcn($algorithm) => $call,
            Controller::Swift($algorithm) => $call,
        }
    };
}

impl Algorithm for Controller {
    fn on_answer(&mut self, sample: &Sample) {
        each!(self, algorithm => algorithm.on_answer(sample))
    }

    fn on_loss(&mut self, now: u64) {
        each!(self, algorithm => algorithm.on_loss(now))
    }

    fn on_timeout(&mut self, now: u64) {
        each!(self, algorithm => algorithm.on_timeout(now))
    }

    fn window(&self) -> u32 {
        each!(self, algorithm => algorithm.window())
    }

    fn spacing(&self, bytes: u32) -> u64 {
        each!(self, algorithm => algorithm.spacing(bytes))
    }

    fn is_unlimited(&self) -> bool {
        each!(self, algorithm => algorithm.is_unlimited())
    }

    fn allowance(&self) -> Allowance {
        each!(self, algorithm => algorithm.allowance())
    }
}

/// Rejects a parameter.
fn refuse(name: &'static str, value: impl std::fmt::Debug, allowed: &'static str) -> Result<(), ConfigError> {
    Err(ConfigError { name, value: format!("{value:?}"), allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_controlled_by_default_where_packets_stay_on_one_host() {
        let by_default = crate::EndpointConfig::default().congestion;
        assert_eq!(by_default.chosen(true), CongestionControl::None);
        assert_eq!(by_default.chosen(false), CongestionControl::Swift(SwiftConfig::default()));
        let asked_for = CongestionControl::Timely(TimelyConfig::default());
        assert_eq!(asked_for.chosen(true), asked_for, "what was asked for is done");
    }
}
