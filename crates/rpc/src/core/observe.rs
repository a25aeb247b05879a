//! What is counted of single sessions, where somebody asked for it: see [`crate::observe`].

use super::Core;
use super::session::{SessionCold, SessionRef};
use crate::config::Switch;
use crate::observe::{DropReason, Observed};
use crate::stats::RttHistogram;

impl Core {
    /// Counts round trips and drops of a session from now on.
    pub fn observe(&mut self, session: SessionRef) {
        if self.session(session).is_some() {
            self.cold[session.index as usize].observed.get_or_insert_with(|| Box::new(Observed::new()));
        }
    }

    /// Counts a packet of a session that is dropped.
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
}

/// Takes the round trip of one call in several into the histograms of the endpoint and, if it is observed, of its session.
#[inline(never)]
pub(crate) fn record_rtt(all: &mut RttHistogram, session: &mut SessionCold, observe: Switch, nanos: u64) {
    all.record(nanos);
    if session.observed.is_none() && observe.is_on() {
        session.observed = Some(Box::new(Observed::new()));
    }
    if let Some(observed) = &mut session.observed {
        observed.record_rtt(nanos);
    }
}
