//! Settings of an endpoint, each with its default and its limits.

use std::time::Duration;

use dunlin_net::PollPolicy;

use crate::congestion::CongestionControl;
use crate::core::memory::process_budget;
use crate::msgbuf::{self, MESSAGE_BYTES_MAX};
use crate::wire::control::SLOTS_MAX;

/// The share of one host must have room for the buffers of this many longest messages: a handler may keep a request
/// until it has the response.
const MESSAGES_OF_HOST: u64 = 2;
/// The share of all hosts must have room for this many. A host that is alone may hold half of that, for a request, a
/// response and what its slots keep.
const MESSAGES_OF_ALL: u64 = 5;

/// Something that can be switched off, so that its worth is measured and not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Switch {
    /// In use.
    #[default]
    On,
    /// Not in use.
    Off,
}

impl Switch {
    #[inline]
    pub(crate) fn is_on(self) -> bool {
        self == Switch::On
    }
}

/// The optimizations of the common case (paper, Table 3, and our own). All on by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Optimizations {
    /// Read the clock once per burst instead of once per packet (section 5.2.2).
    pub batched_timestamps: Switch,
    /// Keep response buffers with the server's slots, instead of allocating one per response (section 4.3).
    pub preallocated_responses: Switch,
    /// Hand single-packet requests to dispatch handlers where they were received (section 4.2.3).
    pub zero_copy_requests: Switch,
    /// Hand the packets of one event-loop iteration to the transport together.
    pub transmit_batching: Switch,
    /// Prefetch the sessions of the packets in a received burst.
    pub prefetch: Switch,
    /// Put the first packet's header right in front of its data (section 4.2.1).
    pub adjacent_header: Switch,
    /// Answer the request packets of one event-loop iteration with one credit return.
    pub cumulative_credit_returns: Switch,
    /// Request several response packets in a row at once. With [`Recovery::Selective`] only.
    pub cumulative_requests: Switch,
    /// Skip the update of congestion control for short round trips while it limits nothing (section 5.2.2).
    pub rate_update_bypass: Switch,
    /// Send without asking congestion control while it limits nothing (section 5.2.2).
    pub rate_limiter_bypass: Switch,
}

/// How lost packets of multi-packet messages are recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// Packets out of order are kept, holes are reported, and only holes are retransmitted. Reordering does not count
    /// as loss.
    #[default]
    Selective,
    /// Packets out of order are dropped; after a timeout everything unanswered is retransmitted (the paper's, section
    /// 5.3).
    GoBackN,
}

/// What the peers at one host together may take from an endpoint, so that something is left for others. A host is an IP
/// address, whatever the port. Over shared memory each name has limits of its own: a process that can access a user's
/// regions can end the user's processes anyway.
///
/// ```
/// use dunlin_rpc::{EndpointConfig, PeerLimits};
///
/// let peer_limits = PeerLimits { sessions_max: 16, ..PeerLimits::default() };
/// let config = EndpointConfig { peer_limits, ..EndpointConfig::default() };
/// # config.check()?;
/// # Ok::<(), dunlin_rpc::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLimits {
    /// Sessions that the host opened with this endpoint. Further ones are refused ([`RefuseReason::PeerSessions`]).
    /// Default 32,768.
    ///
    /// [`RefuseReason::PeerSessions`]: crate::wire::control::RefuseReason::PeerSessions
    pub sessions_max: u32,
    /// Places of the receive queue for all sessions with the host, including those that its sessions wait for. At the
    /// limit it gets no more loans, and then no more sessions ([`RefuseReason::PeerCredits`]). Default all; lower it if
    /// peers do not trust each other.
    ///
    /// [`RefuseReason::PeerCredits`]: crate::wire::control::RefuseReason::PeerCredits
    pub places_max: u32,
    /// Bytes that the host makes this endpoint hold, in requests that are arriving or that handlers have, and in
    /// responses that are kept. A host never holds more than it leaves free of [`EndpointConfig::held_bytes_max`]; this
    /// is a further limit. Beyond it, its requests are answered with [`crate::CallError::Busy`], and those that already
    /// run with [`crate::CallError::ResponseTooLarge`] for their responses. At least twice the buffer of the longest
    /// message. Default none.
    pub held_bytes_max: u64,
    /// The host's requests that asynchronous and worker handlers have in progress. Further ones get
    /// [`crate::CallError::Busy`]. Default 8,192.
    pub deferred_requests_max: u32,
}

impl Default for PeerLimits {
    fn default() -> Self {
        PeerLimits {
            sessions_max: 32_768,
            places_max: u32::MAX,
            held_bytes_max: u64::MAX,
            deferred_requests_max: 8_192,
        }
    }
}

/// Settings of an endpoint. Start from `EndpointConfig::default()`.
///
/// ```
/// use std::time::Duration;
///
/// use dunlin_net::PollPolicy;
/// use dunlin_rpc::{EndpointConfig, Switch};
///
/// let mut config = EndpointConfig { credits: 32, peer_timeout: Duration::from_millis(200), ..EndpointConfig::default() };
/// config.poll = PollPolicy::Spin;
/// config.optimizations.prefetch = Switch::Off;
/// config.check()?;
/// config.credits = 0;
/// assert_eq!(config.check().unwrap_err().to_string(), "setting credits is 0: choose 1 to 1024");
/// # Ok::<(), dunlin_rpc::config::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
pub struct EndpointConfig {
    /// What to do when there is nothing to do.
    pub poll: PollPolicy,
    /// Credits for the requests of a session: packets that may be in flight to the server. 1 to 1024; default 8. The
    /// paper's evaluation uses 32; BDP / MTU gives line rate to a single session.
    pub credits: u16,
    /// Credits granted to the other end of a session that this endpoint opens, for calls in the other direction. 0
    /// forbids them; default 8.
    pub reverse_credits: u16,
    /// Requests of one session in progress at the same time: 1 to 8; default 8. Further calls queue.
    pub slots: u8,
    /// Calls that may queue on one session beyond its slots; further ones get [`crate::CallError::QueueFull`]. Default
    /// 1024.
    pub queued_calls_max: u16,
    /// Largest request or response, in bytes: at most 1 GiB, and its buffer at most 3/20 of
    /// [`crate::msgbuf::limit_bytes`]; default 8 MiB.
    pub message_bytes_max: usize,
    /// Sessions, opened by either side; at most 2^24 - 1; default 65,536. Without [`EndpointConfig::credit_sharing`]
    /// the receive queue limits them, too.
    pub sessions_max: u32,
    /// Whether sessions share the places of this endpoint's receive queue; the sum of all credits never exceeds its
    /// length. If on (the default), each direction of a session keeps one credit permanently and has the others on
    /// loan: from the start if they fit, otherwise while it uses them. If there are more sessions than places in the
    /// queue, those in use have a place for their one credit. An idle one costs only memory; its first packet may be
    /// dropped at a full queue, which is counted, and retransmitted. If off, a session keeps all its credits, and a
    /// session that finds too few places is refused.
    pub credit_sharing: Switch,
    /// Requests that asynchronous and worker handlers may have in progress; further ones are pushed back as busy.
    /// Default 16,384.
    pub deferred_requests_max: u32,
    /// Bytes that all peers together may make this endpoint hold: requests that are arriving or that asynchronous and
    /// worker handlers have, and responses until they are released, including those sent from the application's own
    /// memory. A message buffer counts with all its memory, `Bytes` only with what is sent. One host gets at most half
    /// of it, and less while others hold some. By the same rule hosts share three quarters of
    /// [`crate::msgbuf::limit_bytes`] for what all endpoints of the process hold together. Both must be at least five
    /// times the buffer of the longest message (`message_bytes_max`, rounded up to a power of two), so that a host that
    /// is alone can send and receive it. Default 4 GiB, of which 3 GiB count.
    pub held_bytes_max: u64,
    /// Limits for each host.
    pub peer_limits: PeerLimits,
    /// Retransmission timeout before the first measurement. Default 5 ms.
    pub rto_initial: Duration,
    /// Minimum retransmission timeout. Default 1 ms.
    pub rto_min: Duration,
    /// Minimum retransmission timeout, after the first measurement, for packets that stay on this host: over shared
    /// memory, and over UDP from a socket bound to a loopback address. A late packet there is hardly ever lost: its
    /// process waits for a processor, for some time slices of the scheduler, and retransmissions would wait too.
    /// `rto_max` caps it. Default 20 ms.
    pub rto_min_local: Duration,
    /// Maximum retransmission timeout, at which its exponential growth ends. Default 500 ms.
    pub rto_max: Duration,
    /// Timeouts in a row after which a call fails with [`crate::CallError::Unanswered`] although the peer lives.
    /// Progress of the call resets the count, and so does the server's confirmation that it has the whole request:
    /// handlers may take as long as they like. 1 to 255. Default 60, which is half a minute with the default `rto_max`.
    /// A call to a silent peer fails sooner, after `peer_timeout`.
    pub retransmissions_max: u8,
    /// How long opening a session may take. Default 3 s.
    pub connect_timeout: Duration,
    /// How long a peer may be silent, although probed, before its sessions fail; half of that if the network reports
    /// that nobody listens at its address. Default 1 s.
    pub peer_timeout: Duration,
    /// How lost packets are recovered. Default [`Recovery::Selective`]. Endpoints with different settings can talk to
    /// each other; holes are filled one by one only if both recover selectively.
    pub recovery: Recovery,
    /// What limits the requests of a session besides its credits. Default [`CongestionControl::Auto`]: a window after
    /// Swift if packets cross a network, nothing if they stay on this host.
    pub congestion: CongestionControl,
    /// Whether every session counts its own round-trip times and dropped packets from its first call on, which takes
    /// some 600 bytes each. Off by default; [`crate::Session::observe`] does it for one session.
    pub observe_sessions: Switch,
    /// Whether the round trip of every packet is counted ([`crate::EndpointStats::packet_rtt`]), which takes some
    /// nanoseconds each and a few KiB. Off by default.
    pub observe_packets: Switch,
    /// Whether handlers are timed ([`crate::HandlerStats`]). They are always counted. On by default: timing reads no
    /// clock of its own, except twice for a worker's job.
    pub time_handlers: Switch,
    /// Switches of optimizations.
    pub optimizations: Optimizations,
    /// Seed of nonces, tags and the cookie key. `None` takes it from the operating system; set one only in tests and
    /// simulations.
    pub seed: Option<u64>,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        EndpointConfig {
            poll: PollPolicy::default(),
            credits: 8,
            reverse_credits: 8,
            slots: SLOTS_MAX as u8,
            queued_calls_max: 1024,
            message_bytes_max: 8 << 20,
            sessions_max: 65_536,
            credit_sharing: Switch::On,
            deferred_requests_max: 16_384,
            held_bytes_max: 4 << 30,
            peer_limits: PeerLimits::default(),
            rto_initial: Duration::from_millis(5),
            rto_min: Duration::from_millis(1),
            rto_min_local: Duration::from_millis(20),
            rto_max: Duration::from_millis(500),
            retransmissions_max: 60,
            connect_timeout: Duration::from_secs(3),
            peer_timeout: Duration::from_secs(1),
            recovery: Recovery::default(),
            congestion: CongestionControl::default(),
            observe_sessions: Switch::Off,
            observe_packets: Switch::Off,
            time_handlers: Switch::On,
            optimizations: Optimizations::default(),
            seed: None,
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting {name} is {value}: {allowed}")]
pub struct ConfigError {
    /// The setting.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// The allowed values.
    pub allowed: &'static str,
}

impl EndpointConfig {
    /// Checks every setting, against the present limit of message buffers.
    ///
    /// # Errors
    /// The first one out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fail = |name, value: String, allowed| Err(ConfigError { name, value, allowed });
        if !(1..=1024).contains(&self.credits) {
            return fail("credits", self.credits.to_string(), "choose 1 to 1024");
        }
        if self.reverse_credits > 1024 {
            return fail("reverse_credits", self.reverse_credits.to_string(), "choose 0 to 1024");
        }
        if !(1..=SLOTS_MAX as u8).contains(&self.slots) {
            return fail(
                "slots",
                self.slots.to_string(),
                "choose 1 to 8, and open more sessions for more calls at once",
            );
        }
        if self.message_bytes_max > MESSAGE_BYTES_MAX {
            return fail("message_bytes_max", self.message_bytes_max.to_string(), "choose at most 1 GiB");
        }
        let longest = msgbuf::capacity_for(self.message_bytes_max) as u64;
        if process_budget() / MESSAGES_OF_ALL < longest {
            let allowed = "choose less, so that its buffer, the next power of two, is at most 3/20 of \
                           msgbuf::limit_bytes; or raise that with msgbuf::set_limit_bytes";
            return fail("message_bytes_max", self.message_bytes_max.to_string(), allowed);
        }
        if self.held_bytes_max / MESSAGES_OF_ALL < longest {
            let allowed = "choose at least five times message_bytes_max, rounded up to a power of two";
            return fail("held_bytes_max", self.held_bytes_max.to_string(), allowed);
        }
        let of_host = self.peer_limits.held_bytes_max;
        if of_host / MESSAGES_OF_HOST < longest {
            let allowed = "choose at least twice message_bytes_max, rounded up to a power of two";
            return fail("peer_limits.held_bytes_max", of_host.to_string(), allowed);
        }
        if self.sessions_max == 0 || self.sessions_max >= 1 << 24 {
            return fail("sessions_max", self.sessions_max.to_string(), "choose 1 to 16,777,215");
        }
        let rtos_ordered = self.rto_min <= self.rto_initial && self.rto_initial <= self.rto_max;
        if self.rto_min.is_zero() || !rtos_ordered || self.rto_max > Duration::from_secs(60) {
            let value = format!("{:?}, {:?}, {:?}", self.rto_min, self.rto_initial, self.rto_max);
            return fail("rto_min, rto_initial, rto_max", value, "choose 0 < min <= initial <= max <= 60 s");
        }
        if self.rto_min_local.is_zero() {
            return fail("rto_min_local", "0".to_owned(), "choose more than 0; what exceeds rto_max counts as that");
        }
        if self.retransmissions_max == 0 {
            return fail("retransmissions_max", "0".to_owned(), "choose 1 to 255");
        }
        if self.peer_timeout < Duration::from_millis(10) {
            return fail("peer_timeout", format!("{:?}", self.peer_timeout), "choose at least 10 ms");
        }
        self.congestion.check()
    }
}
