//! Counters of an endpoint and its sessions: plain numbers, read by snapshot.

use std::fmt;
use std::time::Duration;

use dunlin_net::TransportCounters;

use crate::congestion::Allowance;
use crate::handler_stats::HandlerStats;
use crate::observe::{DropReason, Observed};

/// Declares a struct of `u64` counters with a list of their names for printing.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $name {
            /// Names and values, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Counts of one endpoint since it was created.
    Counters {
        /// Calls issued by this endpoint.
        calls_started,
        /// Calls that ended with a response.
        calls_completed,
        /// Calls that ended with an error.
        calls_failed,
        /// Calls dropped by their caller before they ended.
        calls_cancelled,
        /// Requests given to handlers of this endpoint.
        requests_handled,
        /// Responses whose callers no longer waited.
        responses_orphaned,
        /// Multi-packet requests that began to arrive and stopped.
        requests_abandoned,
        /// Requests pushed back before their handlers started: there was no room for them, or the endpoint was shutting
        /// down.
        requests_pushed_back,
        /// Requests whose callers had given up before their handlers started: by a deadline or, for requests that
        /// waited for a worker, in any way.
        requests_expired,
        /// Requests that handlers could not keep for later.
        requests_overloaded,
        /// Requests answered as busy because their host's share of [`crate::EndpointConfig::held_bytes_max`] was used
        /// up.
        requests_over_memory_share,
        /// Responses that were not kept for the same reason; their calls fail with
        /// [`crate::CallError::ResponseTooLarge`].
        responses_over_memory_share,
        /// Responses dropped because nobody had asked for them in a long time.
        responses_expired,
        /// Requests pushed back because handlers held [`crate::PeerLimits::deferred_requests_max`] of their host, or
        /// its share of memory was used up.
        requests_over_deferred_share,
        /// Panics of handlers and tasks on this endpoint's thread.
        panics_caught,
        /// Iterations of the event loop with packets whose handlers, tasks and continuations took 10 ms or longer.
        loop_stalls,
        /// Packets sent, including control packets.
        tx_packets,
        /// Packets received, including dropped ones.
        rx_packets,
        /// Timeouts of calls, after which something was retransmitted.
        retransmissions,
        /// Retransmissions of the last packet in flight because an answer was late, before a timeout.
        tail_probes,
        /// Packets found lost because packets sent after them were answered.
        packets_lost,
        /// Packets sent more than once, for any reason.
        tx_packets_again,
        /// Retransmitted packets that had arrived, as answers to both copies show.
        retransmissions_spurious,
        /// Requests and responses that continued in shorter packets because theirs were too long for the path.
        messages_recut,
        /// Padded pings sent, to find out which packet lengths get through.
        mtu_probes_sent,
        /// Times a session that was not limited by congestion control became so.
        congestion_onsets,
        /// Times a session that was limited waited for its pacing.
        sends_paced,
        /// Dropped: not of this protocol.
        dropped_malformed,
        /// Dropped: the session is unknown, or the tag or the sender wrong.
        dropped_unknown_session,
        /// Packets among those that named an open session, with a wrong tag or from a wrong sender.
        dropped_wrong_tag,
        /// Times a session received nothing for up to a tenth of a second, because an attacker guessed its tag with its
        /// peer's address.
        sessions_guessed_at,
        /// Dropped: belongs to an earlier request of the slot, or to a session that is closing.
        dropped_stale,
        /// Dropped: was received already.
        dropped_duplicate,
        /// Dropped: a later packet of a message than the one expected.
        dropped_out_of_order,
        /// Dropped: no memory for the message.
        dropped_no_memory,
        /// Dropped: a handshake or control packet that does not fit the session's state.
        dropped_control,
        /// Sessions opened by this endpoint.
        sessions_opened,
        /// Sessions accepted from peers.
        sessions_accepted,
        /// Handshakes refused.
        sessions_refused,
        /// Sessions that failed because the peer died, was silent or restarted.
        sessions_failed,
        /// Sessions closed normally.
        sessions_closed,
        /// Pings sent.
        pings_sent,
        /// Credits borrowed for this endpoint's calls, beyond those that sessions began with.
        credits_borrowed,
        /// Credits given back: from here to where they were borrowed, or from other ends that had borrowed them here.
        credits_recalled,
        /// Places for the only credit of a direction that were withdrawn while it was idle, because others had none.
        places_withdrawn,
    }
}

/// Round-trip times, in nanoseconds.
#[derive(Debug, Clone)]
pub struct RttHistogram(pub(crate) hdrhistogram::Histogram<u64>);

impl Default for RttHistogram {
    fn default() -> Self {
        RttHistogram::new()
    }
}

impl RttHistogram {
    /// Longest time that is resolved: one minute.
    const NANOS_MAX: u64 = 60_000_000_000;

    pub(crate) fn new() -> Self {
        // The bounds are constants that the library accepts: low >= 1, high >= 2 * low, at most 5 digits.
        RttHistogram(
            hdrhistogram::Histogram::new_with_bounds(1, Self::NANOS_MAX, 2).expect("constant bounds are valid"),
        )
    }

    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos.max(1));
    }

    /// Adds the samples of another.
    pub fn add(&mut self, other: &RttHistogram) {
        // This fails only for times beyond the histogram's bounds, and all have the same bounds.
        self.0.add(&other.0).expect("all histograms of round trips have the same bounds");
    }

    /// The samples taken since `earlier`, an earlier clone of this histogram.
    pub fn since(&self, earlier: &RttHistogram) -> RttHistogram {
        let mut since = RttHistogram::new();
        for at in self.0.iter_recorded() {
            let value = at.value_iterated_to();
            let count = at.count_at_value().saturating_sub(earlier.0.count_at(value));
            since.0.saturating_record_n(value, count);
        }
        since
    }

    /// Samples taken.
    pub fn samples(&self) -> u64 {
        self.0.len()
    }

    /// The time that `percent` of the samples do not exceed; zero without samples.
    pub fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(if self.0.is_empty() { 0 } else { self.0.value_at_percentile(percent) })
    }
}

/// Everything an endpoint counts, at one moment.
#[derive(Debug, Clone)]
pub struct EndpointStats {
    /// Counts of the protocol.
    pub counters: Counters,
    /// Counts of the transport.
    pub transport: TransportCounters,
    /// Round-trip times of this endpoint's calls: for each slot of a session, its first call and then every eighth.
    pub rtt: RttHistogram,
    /// Round-trip times of all packets of this endpoint's calls that were answered at once, if they are counted
    /// ([`crate::EndpointConfig::observe_packets`]).
    pub packet_rtt: Option<RttHistogram>,
    /// The counts of each handler that had requests, by request type.
    pub handlers: Vec<HandlerStats>,
    /// Present number of sessions.
    pub sessions: u32,
    /// Calls in progress or queued now.
    pub calls_pending: u32,
    /// Requests that handlers have in progress, or whose responses are kept for retransmission.
    pub requests_held: u32,
    /// Bytes that peers make this endpoint hold: requests that are arriving or that handlers have, and responses that
    /// are kept.
    pub held_bytes: u64,
    /// Receive-queue places reserved for credits now.
    pub credits_reserved: usize,
    /// Directions of sessions that have a credit and no place for it now: see
    /// [`crate::EndpointConfig::credit_sharing`].
    pub credits_unplaced: usize,
    /// Live tasks on this endpoint's executor.
    pub tasks: usize,
}

impl fmt::Display for EndpointStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.counters.iter().filter(|(_, value)| *value != 0) {
            writeln!(f, "{name:>28} {value}")?;
        }
        let t = &self.transport;
        for (name, value) in [
            ("transport tx packets", t.tx_packets),
            ("transport tx batches", t.tx_batches),
            ("transport tx full", t.tx_dropped_full),
            ("transport tx no memory", t.tx_dropped_no_memory),
            ("transport tx errors", t.tx_dropped_error),
            ("said to be refused", t.tx_refused),
            ("transport rx packets", t.rx_packets),
            ("transport rx batches", t.rx_batches),
            ("transport rx malformed", t.rx_dropped_malformed),
            ("dropped by the kernel", t.rx_dropped_kernel),
            ("set aside unfinished", t.rx_set_aside),
            ("came there late", t.rx_late),
            ("reclaimed from the dead", t.rx_reclaimed),
            ("sleeps", t.waits),
        ] {
            if value != 0 {
                writeln!(f, "{name:>28} {value}")?;
            }
        }
        writeln!(f, "{:>28} {}", "sessions", self.sessions)?;
        writeln!(f, "{:>28} {}", "calls pending", self.calls_pending)?;
        if self.held_bytes != 0 {
            writeln!(f, "{:>28} {} B", "held for other ends", self.held_bytes)?;
        }
        write!(
            f,
            "{:>28} p50 {:?}, p99 {:?}, p99.9 {:?} ({} samples)",
            "round trip",
            self.rtt.percentile(50.0),
            self.rtt.percentile(99.0),
            self.rtt.percentile(99.9),
            self.rtt.samples()
        )
    }
}

/// The state of one session at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct SessionStats {
    /// Calls in progress in this direction.
    pub calls_in_progress: u32,
    /// Calls that wait for a slot.
    pub calls_queued: u32,
    /// Credits not in use.
    pub credits: u16,
    /// Present credits of the session: the agreed ones that are not lent elsewhere.
    pub credits_max: u16,
    /// Agreed credits: the session has this many when it needs them and the receive queues have room.
    pub credits_agreed: u16,
    /// Credits that the peer has now for its calls.
    pub credits_granted: u16,
    /// Data bytes per packet.
    pub packet_data_bytes: usize,
    /// Largest message, in bytes.
    pub message_bytes_max: usize,
    /// Smoothed round-trip time; zero before the first sample.
    pub rtt_smoothed: Duration,
    /// Retransmission timeout now.
    pub rto: Duration,
    /// What congestion control allows now.
    pub allowance: Allowance,
    /// Times it waited for its pacing.
    pub sends_paced: u64,
    /// Retransmissions so far.
    pub retransmissions: u32,
    /// Packets sent on it, including retransmissions and control packets.
    pub tx_packets: u64,
    /// Their bytes, including headers.
    pub tx_bytes: u64,
    /// Packets received on it.
    pub rx_packets: u64,
    /// Their bytes, including headers.
    pub rx_bytes: u64,
    /// Round-trip times and dropped packets, if it is observed: see [`crate::Session::observe`].
    pub observed: Option<Observed>,
}

impl fmt::Display for SessionStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>28} {} in progress, {} queued", "calls", self.calls_in_progress, self.calls_queued)?;
        let (max, agreed) = (self.credits_max, self.credits_agreed);
        writeln!(
            f,
            "{:>28} {} of {max} free, {agreed} agreed, {} granted",
            "credits", self.credits, self.credits_granted
        )?;
        writeln!(f, "{:>28} {} B", "data of a packet", self.packet_data_bytes)?;
        writeln!(f, "{:>28} {} B", "largest message", self.message_bytes_max)?;
        writeln!(f, "{:>28} {} packets, {} B", "sent", self.tx_packets, self.tx_bytes)?;
        writeln!(f, "{:>28} {} packets, {} B", "received", self.rx_packets, self.rx_bytes)?;
        writeln!(f, "{:>28} {}", "retransmissions", self.retransmissions)?;
        let Some(observed) = &self.observed else {
            return write!(f, "{:>28} {:?} smoothed, timeout {:?}", "round trip", self.rtt_smoothed, self.rto);
        };
        for reason in DropReason::ALL {
            writeln!(f, "{:>28} {}", format!("dropped: {reason}"), observed.dropped(reason))?;
        }
        write!(
            f,
            "{:>28} {:?} smoothed, timeout {:?}; p50 {:?}, p99 {:?}, p99.9 {:?} ({} samples)",
            "round trip",
            self.rtt_smoothed,
            self.rto,
            observed.percentile(50.0),
            observed.percentile(99.0),
            observed.percentile(99.9),
            observed.samples()
        )
    }
}
