//! Counters of single sessions, if the application asked for them: see [`crate::observe`].

use super::Core;
use super::session::SessionRef;
use crate::observe::{DropReason, Observed};

/// A finished round trip, one in several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundTrip {
    pub session: u32,
    /// When it began, in nanoseconds.
    pub since: u64,
}

impl Core {
    /// Counts round trips and drops of a session from now on.
    pub fn observe(&mut self, session: SessionRef) {
        if self.session(session).is_some() {
            self.observes_sessions = true;
            self.cold[session.index as usize].observed.get_or_insert_with(|| Box::new(Observed::new()));
        }
    }

    /// Counts a packet of a session as dropped.
    #[cold]
    pub fn drop_on(&mut self, session: u32, reason: DropReason) {
        let counters = &mut self.counters;
        *match reason {
            DropReason::Malformed => &mut counters.dropped_malformed,
            DropReason::Stale => &mut counters.dropped_stale,
            DropReason::Duplicate => &mut counters.dropped_duplicate,
            DropReason::OutOfOrder => &mut counters.dropped_out_of_order,
            DropReason::NoMemory => &mut counters.dropped_no_memory,
            DropReason::Control => &mut counters.dropped_control,
        } += 1;
        if let Some(observed) = &mut self.cold[session as usize].observed {
            observed.record_drop(reason);
        }
    }

    /// Records the sampled round trips that ended with the burst just processed in the histograms of the endpoint and,
    /// if they are observed, of their sessions. `now` is read for them: the protocol's time may be older than the
    /// burst, by as long as this process waited for a processor.
    #[inline(never)]
    pub fn record_round_trips(&mut self, now: u64) {
        for RoundTrip { session, since } in self.sampled.drain(..) {
            let nanos = now.saturating_sub(since);
            self.rtt.record(nanos);
            if !self.observes_sessions {
                // With many sessions, their cold halves are not in the cache.
                continue;
            }
            let observed = &mut self.cold[session as usize].observed;
            if observed.is_none() && self.config.observe_sessions.is_on() {
                *observed = Some(Box::new(Observed::new()));
            }
            if let Some(observed) = observed {
                observed.record_rtt(nanos);
            }
        }
    }
}
