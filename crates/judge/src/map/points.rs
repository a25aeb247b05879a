//! Whether the observations of one key are linearizable: [`porcupine_rs`] searches for the order.
//!
//! An operation with an unknown outcome may have been executed at any time after it began, or never: for the search it
//! never ends, so that it can stand after all answered operations. The search is bounded in steps and memory, not in
//! time, so a history always has the same verdict.
//!
//! An operation with an unknown outcome can stand anywhere, and the search would try all sets of them. Two rules leave
//! out redundant orders: such an operation must change something, and its change must not be overwritten unseen.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use porcupine_rs::{Model, Operation as Timed, check_operations, check_operations_info};

use super::history::{Answer, End, Entry, Operation, Text};
use crate::micros::Micros;

/// Limit of steps of the search for one key.
const STEPS_MAX: u64 = 2_000_000;
/// Limit of its memory in bytes. A valid step stores the set of all events before it, one bit each.
const REMEMBERED_BYTES_MAX: u64 = 512 << 20;
/// Bytes of a stored step besides the bits.
const STEP_BYTES: u64 = 128;
/// Operations shown with a fault: those of the longest valid order, and those that cannot follow it.
const SHOWN_MAX: usize = 12;

/// An operation on a key, or an observation of it.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    entry: &'a Entry,
    effect: Effect<'a>,
    saw: Saw<'a>,
}

/// The effect of an event on a key.
#[derive(Clone, Copy)]
enum Effect<'a> {
    None,
    Store(&'a [u8]),
    Remove,
}

/// What an event reveals of the key before it.
#[derive(Clone, Copy)]
enum Saw<'a> {
    Nothing,
    Existence(bool),
    Value(Option<&'a [u8]>),
}

/// The verdict on a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order in which all observations are right.
    Linearizable,
    /// There is none; with the conflicting observations.
    Wrong(String),
    /// Not decided within the limits.
    Undecided,
}

impl<'a> Event<'a> {
    /// The effect and observation of an operation on one key; `None` if it has neither, for example if it was not
    /// executed.
    pub fn of(entry: &'a Entry) -> Option<Event<'a>> {
        let effect = match &entry.operation {
            Operation::Put { value, .. } => Effect::Store(value),
            Operation::Delete { .. } => Effect::Remove,
            Operation::Get { .. } => Effect::None,
            Operation::Scan(_) => return None,
        };
        let saw = match (&entry.end, effect) {
            (End::NotExecuted, _) | (End::Unknown, Effect::None) => return None,
            (End::Answered(_, Answer::Existed(existed)), _) => Saw::Existence(*existed),
            (End::Answered(_, Answer::Value(value)), _) => Saw::Value(value.as_deref()),
            (End::Answered(_, Answer::Done | Answer::Items(_)) | End::Unknown, _) => Saw::Nothing,
        };
        Some(Event { entry, effect, saw })
    }

    /// The observation of one key by a scan that covered it.
    pub fn of_scan(entry: &'a Entry, value: Option<&'a [u8]>) -> Event<'a> {
        Event { entry, effect: Effect::None, saw: Saw::Value(value) }
    }

    /// When its client began it.
    pub fn begun(&self) -> u64 {
        self.entry.begun
    }

    fn ended(&self) -> Option<u64> {
        if let End::Answered(at, _) = self.entry.end { Some(at) } else { None }
    }

    /// Whether the event hides if the one before it was executed.
    fn is_blind(&self) -> bool {
        matches!((self.effect, self.saw), (Effect::Store(_) | Effect::Remove, Saw::Nothing))
    }

    /// The value after it; `None` if it did not see this value.
    fn after(&self, value: Option<&'a [u8]>) -> Option<Option<&'a [u8]>> {
        let is_right = match self.saw {
            Saw::Nothing => true,
            Saw::Existence(existed) => existed == value.is_some(),
            Saw::Value(seen) => seen == value,
        };
        let after = match self.effect {
            Effect::None => value,
            Effect::Store(value) => Some(value),
            Effect::Remove => None,
        };
        is_right.then_some(after)
    }
}

/// One line; for a scan, only its observation of this key.
impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { entry, .. } = self;
        let (Some(at), Operation::Scan(scan), Saw::Value(value)) = (self.ended(), &entry.operation, self.saw) else {
            return write!(f, "{entry}");
        };
        write!(f, "client {} at {} to {}: {scan}: of this key, ", entry.client, Micros(entry.begun), Micros(at))?;
        match value {
            Some(value) => write!(f, "{}", Text(value)),
            None => write!(f, "nothing"),
        }
    }
}

/// A key, for the search.
#[derive(Clone)]
struct Key<'a>(PhantomData<&'a Entry>);

/// An event, for the search.
#[derive(Clone, Copy)]
struct Op<'a> {
    event: Event<'a>,
    search: &'a Search,
}

/// One search.
struct Search {
    steps_left: AtomicU64,
    /// Valid steps that it still has memory for.
    room_left: AtomicU64,
    /// Events that have ended.
    answered: u32,
}

/// The state after some events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct State<'a> {
    value: Option<&'a [u8]>,
    /// How many of them have ended.
    answered: u32,
    /// Whether the last of them has an unknown outcome and is not seen yet: the next event must see it.
    is_unseen: bool,
}

impl fmt::Debug for Op<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.event)
    }
}

impl<'a> Model for Key<'a> {
    type State = State<'a>;
    type Op = Op<'a>;
    type Metadata = ();

    fn init() -> State<'a> {
        State::default()
    }

    fn step(state: &State<'a>, op: &Op<'a>) -> (bool, State<'a>) {
        let after = if op.search.takes_step() { state.after(op) } else { None };
        let after = after.filter(|_| op.search.remembers());
        (after.is_some(), after.unwrap_or_default())
    }
}

impl Search {
    /// Takes one of the remaining steps; if none is left, no event can follow, and the search ends.
    fn takes_step(&self) -> bool {
        take_one(&self.steps_left)
    }

    /// Takes memory for a valid step; if none is left, the remaining steps are dropped.
    fn remembers(&self) -> bool {
        let has_room = take_one(&self.room_left);
        if !has_room {
            self.steps_left.store(0, Relaxed);
        }
        has_room
    }
}

fn take_one(left: &AtomicU64) -> bool {
    left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
}

impl<'a> State<'a> {
    /// The state after an event; `None` if it cannot be next.
    fn after(&self, op: &Op<'a>) -> Option<State<'a>> {
        let has_ended = op.event.ended().is_some();
        if !has_ended && self.answered == op.search.answered {
            // All others are placed: from here on, no event observes anything.
            return Some(*self);
        }
        if self.is_unseen && op.event.is_blind() {
            return None;
        }
        let value = op.event.after(self.value)?;
        if has_ended {
            return Some(State { value, answered: self.answered + 1, is_unseen: false });
        }
        (value != self.value).then_some(State { value, is_unseen: true, ..*self })
    }
}

/// Judges the events of one key.
pub fn judge(events: &[Event<'_>]) -> Verdict {
    judge_within(STEPS_MAX, REMEMBERED_BYTES_MAX, events)
}

fn judge_within(steps: u64, bytes: u64, events: &[Event<'_>]) -> Verdict {
    let answered = events.iter().filter(|event| event.ended().is_some()).count() as u32;
    let room = bytes / (events.len() as u64 / 8 + STEP_BYTES);
    let new_search = || Search { steps_left: AtomicU64::new(steps), room_left: AtomicU64::new(room), answered };
    let search = new_search();
    if check_operations(&timed(events, &search)) {
        return Verdict::Linearizable;
    }
    if search.steps_left.load(Relaxed) == 0 {
        return Verdict::Undecided;
    }
    Verdict::Wrong(explain(events, &new_search()))
}

fn timed<'a>(events: &[Event<'a>], search: &'a Search) -> Vec<Timed<Key<'a>>> {
    let timed = |event: &Event<'a>| Timed {
        client_id: Some(event.entry.client as u32),
        call_time: event.entry.begun as i64,
        return_time: event.ended().map_or(i64::MAX, |at| at as i64),
        op: Op { event: *event, search },
        metadata: None,
    };
    events.iter().map(timed).collect()
}

/// The longest valid order, the state after it, and the events that cannot follow.
fn explain<'a>(events: &[Event<'a>], search: &'a Search) -> String {
    let (_, info) = check_operations_info(&timed(events, search));
    let orders = info.partial_linearizations.into_iter().flatten();
    let longest = orders.max_by_key(|order| (order.len(), std::cmp::Reverse(order.clone()))).unwrap_or_default();
    let value = longest.iter().fold(None, |value, number| {
        let event = &events[*number];
        event.after(value).unwrap_or(value)
    });
    let mut text = "the longest order that is right ends with:\n".to_owned();
    let hidden = longest.len().saturating_sub(SHOWN_MAX);
    longest[hidden..].iter().for_each(|number| text += &format!("  {}\n", events[*number]));
    match value {
        Some(value) => text += &format!("then the value is {}, and none of these can follow:\n", Text(value)),
        None => text += "then there is no value, and none of these can follow:\n",
    }
    let left = (0..events.len()).filter(|number| !longest.contains(number));
    left.take(SHOWN_MAX).for_each(|number| text += &format!("  {}\n", events[number]));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_takes_too_long_is_undecided() {
        let put = |number: usize| Entry {
            client: number,
            begun: 0,
            operation: Operation::Put { key: Vec::new(), value: vec![number as u8] },
            end: End::Answered(100, Answer::Value(Some(b"never there".to_vec()))),
        };
        let deletes = (0..14).map(|_| Entry {
            operation: Operation::Delete { key: Vec::new() },
            end: End::Answered(100, Answer::Done),
            ..put(0)
        });
        let entries: Vec<Entry> = deletes.chain((0..14).map(put)).collect();
        let events: Vec<Event<'_>> = entries.iter().filter_map(Event::of).collect();
        assert_eq!(judge_within(1_000, REMEMBERED_BYTES_MAX, &events), Verdict::Undecided);
        assert_eq!(judge_within(STEPS_MAX, 100_000, &events), Verdict::Undecided);
        assert!(matches!(judge(&events[..15]), Verdict::Wrong(_)));
    }
}
