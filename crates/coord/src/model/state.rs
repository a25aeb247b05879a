//! The replicated state, and its history.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::PAGE_BYTES_MAX;
use crate::error::CoordError;
use crate::limits::{ITEM_BYTES, Limits};
use crate::mutation::{Mutation, is_planted};
use crate::types::{Changes, EpochChange, Event, Happening, Health, Incarnation, MemberId, Revision, Scope, Token};
use crate::wire::wire_struct;

/// Bytes that an event counts, beyond its names and values.
const EVENT_BYTES: u64 = ITEM_BYTES as u64;

/// The stored state of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub incarnation: Incarnation,
    pub health: Health,
    /// The epoch in which it joined, or failed.
    pub epoch: u64,
    /// The timeout that the member was told; 0 before the first watchman.
    pub failure_timeout_ms: u64,
    pub about: Vec<u8>,
}

/// A lease that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub member: MemberId,
    pub incarnation: Incarnation,
    pub token: Token,
    pub ttl_ms: u64,
}

/// An entry of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaf {
    pub version: Revision,
    pub value: Vec<u8>,
}

/// Everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The revision of the last event. It only rises.
    pub revision: Revision,
    /// It only rises.
    pub epoch: u64,
    /// Number of the current reign. It only rises.
    pub reign: u64,
    /// The failure timeout of the current reign, in milliseconds; 0 before the first.
    pub failure_timeout_ms: u64,
    /// The last epochs, without a gap.
    pub epochs: VecDeque<EpochChange>,
    pub members: BTreeMap<MemberId, Record>,
    pub leases: BTreeMap<String, Held>,
    pub tree: BTreeMap<String, Leaf>,
    /// Bytes of all paths and values.
    pub tree_bytes: u64,
    /// The last events, all of each revision, without gaps up to `revision`.
    history: VecDeque<Arc<Event>>,
    history_bytes: u64,
}

wire_struct!(Record { incarnation, health, epoch, failure_timeout_ms, about });
wire_struct!(Held { member, incarnation, token, ttl_ms });
wire_struct!(Leaf { version, value });
fn cost(event: &Event) -> u64 {
    EVENT_BYTES
        + match &event.happening {
            Happening::Set { path, value } => (path.len() + value.len()) as u64,
            Happening::Deleted { path } => path.len() as u64,
            Happening::Granted { name, .. } | Happening::Ended { name, .. } => name.len() as u64,
            _ => 0,
        }
}

impl State {
    /// The revision of all events of this step.
    pub fn next(&self) -> Revision {
        self.revision + 1
    }

    /// Records an event; returns its revision.
    pub fn happen(&mut self, happening: Happening) -> Revision {
        self.note_epoch(self.next(), &happening);
        let event = Event { revision: self.next(), happening };
        self.history_bytes += cost(&event);
        self.history.push_back(Arc::new(event));
        self.next()
    }

    /// The events of this step.
    pub fn happened(&self) -> impl Iterator<Item = &Happening> {
        let of_step = self.history.iter().rev().take_while(|event| event.revision > self.revision);
        of_step.map(|event| &event.happening)
    }

    /// The last revision whose events were discarded.
    fn compacted(&self) -> Revision {
        self.history.front().map_or(self.revision, |first| first.revision - 1)
    }

    /// The revision in the middle of the history.
    pub fn middle(&self) -> Revision {
        self.compacted().midpoint(self.revision)
    }

    /// Ends a step: if it had any events, its revision becomes that of the state. Discards the oldest events beyond the
    /// limits.
    pub fn end_step(&mut self, limits: &Limits) {
        if self.history.back().is_some_and(|last| last.revision > self.revision) {
            self.revision += 1;
        }
        self.trim_epochs(limits);
        while self.history.len() > limits.history_events_max || self.history_bytes > limits.history_bytes_max as u64 {
            self.forget_first();
        }
    }

    /// Discards the oldest revision, with all its events: a watcher would take half of a step for all of it.
    fn forget_first(&mut self) {
        let first = self.history.front().map(|event| event.revision);
        while self.history.front().map(|event| event.revision) == first {
            let Some(event) = self.history.pop_front() else { return };
            self.history_bytes -= cost(&event);
        }
    }

    pub fn check_reign(&self, reign: u64) -> Result<(), CoordError> {
        if reign == self.reign { Ok(()) } else { Err(CoordError::ReignOver { reign }) }
    }

    /// A page of the events after a revision.
    pub fn changes(&self, scope: &Scope, after: Revision) -> Result<Changes, CoordError> {
        let compacted = self.compacted();
        if after < compacted {
            return Err(CoordError::Compacted { compacted });
        }
        let (mut events, mut bytes) = (Vec::new(), 0);
        let mut up_to = self.revision.max(after);
        let older = self.history.partition_point(|event| event.revision <= after);
        for event in self.history.iter().skip(older) {
            if !scope.holds(&event.happening) {
                continue;
            }
            bytes += cost(event) as usize;
            // Events of one step stay together.
            if bytes > PAGE_BYTES_MAX && events.last().is_some_and(|last: &Event| last.revision < event.revision) {
                up_to = event.revision - u64::from(!is_planted(Mutation::EventLostBetweenPages));
                break;
            }
            events.push(Event::clone(event));
        }
        Ok(Changes { events, up_to })
    }

    /// Takes an event of a snapshot; returns whether it follows the one before.
    pub fn restore_event(&mut self, event: Event) -> bool {
        let follows = self.history.back().is_none_or(|before| {
            before.revision == event.revision || before.revision.checked_add(1) == Some(event.revision)
        });
        self.history_bytes += cost(&event);
        self.history.push_back(Arc::new(event));
        follows
    }

    /// Whether the last event has the state's revision, and the first one is not older than the history.
    pub fn history_is_up_to_date(&self) -> bool {
        let ends = self.history.back().is_none_or(|last| last.revision == self.revision);
        ends && self.history.front().is_none_or(|first| first.revision > 0)
    }

    pub fn history(&self) -> &VecDeque<Arc<Event>> {
        &self.history
    }

    pub fn history_bytes(&self) -> u64 {
        self.history_bytes
    }
}
