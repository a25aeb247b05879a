//! Checks whether the history of a key is linearizable: [`porcupine_rs`] searches for an order, with the semantics of
//! operations from their [`Object`].
//!
//! Histories are judged key by key, which is equivalent to all at once (P-compositionality, Horn and Kroening 2015). An
//! operation without an answer may have been executed at any time after it began, or never: for the search it never
//! ends, so that it can come after all answered operations, where its effect is not observed. The search is bounded in
//! steps of the model, not in time, so a seed always has the same verdict.
//!
//! Each operation without an answer can be anywhere in the order, and the search would try all sets of them. Two rules
//! leave out redundant orders, since such an operation may as well come last: it must change something, and its change
//! must not be overwritten unseen.
//!
//! If the order in which a store executed writes is known ([`Entry::place`]), it is tried first, which leaves little to
//! search for. If it succeeds, that is a proof, however the order was found; otherwise all orders are tried.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use porcupine_rs::{CheckResult, Model, Operation, check_operations, check_operations_info};

use super::history::{End, Entry};
use super::object::Object;

/// Limit of steps of the search for one key.
const STEPS_MAX: u32 = 2_000_000;
/// Operations shown with a failure before the history: those of the longest valid order, and those that cannot follow
/// it.
const SHOWN_MAX: usize = 12;

/// The verdict on the history of one key that is not wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order in which all answers are right.
    Linearizable,
    /// Not decided within the limit of steps.
    Undecided,
}

/// One search.
struct Search {
    steps_left: AtomicU32,
    /// Operations that have an answer.
    answered: u32,
}

/// A key, for the search.
#[derive(Clone)]
struct OneKey<'a, O: Object>(PhantomData<&'a Entry<O>>);

/// An operation, for the search.
struct Op<'a, O: Object> {
    entry: &'a Entry<O>,
    search: &'a Search,
    /// Its position among the operations whose order is given.
    place: Option<u32>,
}

impl<O: Object> Clone for Op<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Object> Copy for Op<'_, O> {}

/// The state after some operations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct State<O> {
    object: O,
    /// How many of them have an answer.
    answered: u32,
    /// Whether the last of them has no answer and is not seen yet: the next operation must see it.
    is_unseen: bool,
    /// How many of them have a position.
    placed: u32,
}

impl<O: Object> std::fmt::Debug for Op<'_, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.entry)
    }
}

impl<'a, O: Object> Model for OneKey<'a, O> {
    type State = State<O>;
    type Op = Op<'a, O>;
    type Metadata = ();

    fn init() -> State<O> {
        State::default()
    }

    fn step(state: &State<O>, op: &Op<'a, O>) -> (bool, State<O>) {
        let after = if op.search.takes_step() { state.after(op) } else { None };
        (after.is_some(), after.unwrap_or_default())
    }
}

impl Search {
    fn new(steps: u32, answered: u32) -> Search {
        Search { steps_left: AtomicU32::new(steps), answered }
    }

    /// Takes one of the remaining steps; if none is left, no operation can follow, and the search ends.
    fn takes_step(&self) -> bool {
        self.steps_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn is_exhausted(&self) -> bool {
        self.steps_left.load(Relaxed) == 0
    }
}

impl<O: Object> State<O> {
    /// The state after an operation; `None` if it cannot be next.
    fn after(&self, op: &Op<'_, O>) -> Option<State<O>> {
        let is_answered = matches!(op.entry.end, End::Answered(..));
        if !is_answered && self.answered == op.search.answered {
            // All others are placed: from here on, no operation observes anything.
            return Some(self.clone());
        }
        if let Some(place) = op.place {
            return (place == self.placed).then(|| self.after_placed(op.entry)).flatten();
        }
        if self.is_unseen && O::is_blind(op.entry) {
            return None;
        }
        let object = self.object.after(op.entry)?;
        if is_answered {
            return Some(State { object, answered: self.answered + 1, is_unseen: false, ..*self });
        }
        (object != self.object).then_some(State { object, is_unseen: true, ..*self })
    }
}

impl<O: Object> State<O> {
    /// The state after an operation that is known to have been executed next.
    fn after_placed(&self, entry: &Entry<O>) -> Option<State<O>> {
        let placed = self.placed + 1;
        match (&entry.end, self.object.after(entry)) {
            (End::Answered(..), object) => {
                Some(State { object: object?, answered: self.answered + 1, is_unseen: false, placed })
            }
            // It changed nothing.
            (_, None) => Some(State { placed, ..self.clone() }),
            (_, Some(object)) => Some(State { object, is_unseen: false, placed, ..*self }),
        }
    }
}

/// Whether an operation reveals anything about the object.
fn counts<O: Object>(entry: &Entry<O>) -> bool {
    match entry.end {
        End::Answered(..) => true,
        End::NotExecuted(..) => false,
        // A read without an answer reveals nothing.
        End::Pending | End::Unknown(..) => !O::is_silent(&entry.input),
    }
}

/// Judges the history of a key.
///
/// # Errors
/// If it is not linearizable: the reason, and the history.
pub fn judge<O: Object>(key: usize, entries: &[Entry<O>]) -> Result<Verdict, String> {
    judge_within(STEPS_MAX, key, entries)
}

fn judge_within<O: Object>(steps: u32, key: usize, entries: &[Entry<O>]) -> Result<Verdict, String> {
    let of_key = || entries.iter().filter(|entry| entry.key == key);
    let counting: Vec<&Entry<O>> = of_key().filter(|entry| counts(entry)).collect();
    let answered = counting.iter().filter(|entry| matches!(entry.end, End::Answered(..))).count() as u32;
    if is_right_in_order(steps, answered, &counting) {
        return Ok(Verdict::Linearizable);
    }
    let search = Search::new(steps, answered);
    if check_operations(&operations(&counting, &search)) {
        return Ok(Verdict::Linearizable);
    }
    if search.is_exhausted() {
        return Ok(Verdict::Undecided);
    }
    let mut text = format!("the history of key {key} is not linearizable; ");
    explain(&counting, &Search::new(steps, answered), &mut text);
    text += "all that was done to it:\n";
    of_key().for_each(|entry| text += &format!("  {entry}\n"));
    Err(text)
}

/// Whether there is an order in which all answers are right and writes with known positions keep them.
fn is_right_in_order<O: Object>(steps: u32, answered: u32, counting: &[&Entry<O>]) -> bool {
    let mut placed: Vec<&Entry<O>> = counting.iter().copied().filter(|entry| entry.place.is_some()).collect();
    if placed.is_empty() {
        return false;
    }
    placed.sort_by_key(|entry| entry.place);
    let search = Search::new(steps, answered);
    let may_have_run = |entry: &&&Entry<O>| {
        // An executed operation without twins would have a position.
        matches!(entry.end, End::Answered(..)) || entry.place.is_some() || O::has_twins(&entry.input)
    };
    let entries: Vec<&Entry<O>> = counting.iter().filter(may_have_run).copied().collect();
    let mut operations = operations(&entries, &search);
    for operation in &mut operations {
        let place = operation.op.entry.place;
        operation.op.place = place.map(|place| placed.partition_point(|entry| entry.place < Some(place)) as u32);
    }
    check_operations(&operations)
}

/// A history in the form that the search needs.
fn operations<'a, O: Object>(entries: &[&'a Entry<O>], search: &'a Search) -> Vec<Operation<OneKey<'a, O>>> {
    let operation = |entry: &&'a Entry<O>| Operation {
        client_id: entry.client.map(|number| number as u32),
        call_time: entry.begun as i64,
        return_time: if let End::Answered(at, _) = entry.end { at as i64 } else { i64::MAX },
        op: Op { entry, search, place: None },
        metadata: None,
    };
    entries.iter().map(operation).collect()
}

/// The longest valid order, the state after it, and the operations that cannot follow.
fn explain<O: Object>(entries: &[&Entry<O>], search: &Search, text: &mut String) {
    let (result, info) = check_operations_info(&operations(entries, search));
    debug_assert_eq!(result, CheckResult::Illegal, "the same search ends in the same way");
    let orders = info.partial_linearizations.into_iter().flatten();
    let longest = orders.max_by_key(|order| (order.len(), std::cmp::Reverse(order.clone()))).unwrap_or_default();
    let state = longest.iter().fold(State::<O>::default(), |state, number| {
        state.after(&Op { entry: entries[*number], search, place: None }).expect("it stands in an order that is right")
    });
    *text += "the longest order that is right ends with:\n";
    let shown = longest.len().saturating_sub(SHOWN_MAX);
    longest[shown..].iter().for_each(|number| *text += &format!("  {}\n", entries[*number]));
    *text += &format!("then {}, and none of these can follow:\n", state.object.told());
    let left = (0..entries.len()).filter(|number| !longest.contains(number));
    left.take(SHOWN_MAX).for_each(|number| *text += &format!("  {}\n", entries[number]));
}

#[cfg(test)]
mod tests {
    use dunlin_store::{Condition, Refused, Side};
    use dunlin_trial::Random;

    use super::*;
    use crate::clients::item::{Entry, Found, Input, Item, Output};

    fn put(value: u64, condition: Condition) -> Input {
        Input::Put { value: value.to_string().into_bytes(), flags: 0, expires: None, condition }
    }

    fn read(value: u64, token: u64) -> Output {
        Output::Item(Some(Found { value: value.to_string().into_bytes(), flags: 0, token, expires: None }))
    }

    fn entry(begun: u64, input: Input, answer: Option<(u64, Output)>) -> Entry {
        let end = answer.map_or(End::Pending, |(at, output)| End::Answered(at, output));
        Entry { key: 0, client: Some(0), input, begun, end, place: None }
    }

    fn is_right(entries: &[Entry]) -> bool {
        judge(0, entries).is_ok_and(|verdict| verdict == Verdict::Linearizable)
    }

    fn written(begun: u64, ended: u64, value: u64) -> Entry {
        entry(begun, put(value, Condition::Always), Some((ended, Output::Stored(value))))
    }

    fn found(begun: u64, ended: u64, value: u64) -> Entry {
        entry(begun, Input::Read, Some((ended, read(value, value))))
    }

    fn nothing(begun: u64, ended: u64) -> Entry {
        entry(begun, Input::Read, Some((ended, Output::Item(None))))
    }

    #[test]
    fn orders_that_agree_with_time_are_found() {
        assert!(is_right(&[]));
        // Both reads are during the write.
        assert!(is_right(&[written(0, 10, 1), nothing(1, 2), found(3, 4, 1)]));
        // The second must not see an older state than the first.
        assert!(!is_right(&[written(0, 10, 1), found(1, 2, 1), nothing(3, 4)]));
        // A stale read.
        assert!(!is_right(&[written(0, 1, 1), nothing(2, 3)]));
        // If one ends when the other begins, they count as concurrent.
        assert!(is_right(&[written(0, 2, 1), nothing(2, 3)]));
    }

    #[test]
    fn what_never_ended_may_have_been_executed_late_or_never() {
        let write = || entry(0, put(1, Condition::Always), None);
        assert!(is_right(&[write(), nothing(5, 6)]));
        assert!(is_right(&[write(), nothing(5, 6), found(7, 8, 1)]));
        assert!(!is_right(&[write(), found(5, 6, 1), nothing(7, 8)]));
        // Not before it began.
        assert!(!is_right(&[found(0, 1, 1), entry(5, put(1, Condition::Always), None)]));
        // Nor if its client says that it was not executed.
        let refused = Entry { end: End::NotExecuted(1, "refused".into()), ..write() };
        assert!(!is_right(&[refused, found(5, 6, 1)]));
    }

    /// Appends whose order only the last read reveals, too late to guide the search.
    #[test]
    fn a_search_that_takes_too_long_is_undecided() {
        let append = |number: u8| Input::Extend { bytes: vec![b'a' + number], side: Side::End };
        let appends =
            (0..16).map(|number| entry(2, append(number), Some((100, Output::Stored(100 + u64::from(number))))));
        let history: Vec<_> = [written(0, 1, 1)].into_iter().chain(appends).chain([found(101, 102, 99)]).collect();
        assert_eq!(judge_within(10_000, 0, &history), Ok(Verdict::Undecided));
    }

    /// Appends without an answer, each of which a read shows: if their order is known, it is found at once; a wrong
    /// order is rejected.
    #[test]
    fn a_known_order_is_tried_first() {
        const APPENDS: u8 = 100;
        let letter = |number: u8| vec![number];
        let extend = |number: u8| Input::Extend { bytes: letter(number), side: Side::End };
        let append = |number: u8| Entry { place: Some(u32::from(number) + 1), ..entry(2, extend(number), None) };
        let value: Vec<u8> = b"1".iter().copied().chain(0..APPENDS).collect();
        let read = Output::Item(Some(Found { value, flags: 0, token: 99, expires: None }));
        let first = Entry { place: Some(0), ..written(0, 1, 1) };
        let read = entry(500, Input::Read, Some((501, read)));
        // Numbered against their order in time, in which the search tries them.
        let appends: Vec<Entry> = (0..APPENDS).rev().map(append).collect();
        let history: Vec<Entry> = [first].into_iter().chain(appends).chain([read]).collect();
        assert_eq!(judge_within(100_000, 0, &history), Ok(Verdict::Linearizable));
        let unknown: Vec<Entry> = history.iter().map(|entry| Entry { place: None, ..entry.clone() }).collect();
        assert_eq!(judge_within(10_000, 0, &unknown), Ok(Verdict::Undecided));
        // Impossible positions do not hide a valid order.
        let places = [Some(1), None, Some(0)];
        let wrong = [written(0, 1, 1), found(2, 3, 1), written(4, 5, 2)];
        let wrong: Vec<Entry> = wrong.into_iter().zip(places).map(|(entry, place)| Entry { place, ..entry }).collect();
        assert!(is_right(&wrong));
        // Nor do they make a wrong history valid.
        let stale = [Entry { place: Some(0), ..written(0, 1, 1) }, nothing(2, 3)];
        assert!(!is_right(&stale));
    }

    #[test]
    fn a_failure_shows_the_history_of_its_key() {
        let lost = Entry { client: Some(3), ..written(1_000, 2_500, 7) };
        let refused = Entry { end: End::NotExecuted(9_000, "no leader".into()), ..found(3_000, 0, 0) };
        let other = Entry { key: 1, ..written(0, 1, 1) };
        let why = judge(0, &[lost, refused, other, nothing(4_000, 5_000)]).unwrap_err();
        let all = why.split_once("all that was done to it:\n").unwrap().1;
        let lines: Vec<&str> = all.lines().map(str::trim).collect();
        assert_eq!(lines.len(), 3, "{why}");
        assert!(lines[0].contains("2.500 us  client 3    put \"7\": stored with token 7"), "{why}");
        assert!(lines[1].ends_with("Read: not executed: no leader"), "{why}");
        assert!(lines[2].ends_with("Read: nothing there"), "{why}");
    }

    /// Whether a valid order exists of all remaining operations with answers, and any of the others.
    fn exists(entries: &[Entry], executed: &mut Vec<usize>, item: &Option<Item>) -> bool {
        let ended = |number: &usize| if let End::Answered(at, _) = entries[*number].end { Some(at) } else { None };
        let left: Vec<usize> = (0..entries.len()).filter(|number| !executed.contains(number)).collect();
        if left.iter().all(|number| ended(number).is_none()) {
            return true;
        }
        left.iter().any(|&number| {
            let is_first = !left.iter().any(|other| ended(other).is_some_and(|at| at < entries[number].begun));
            let Some(after) = item.after(&entries[number]).filter(|_| is_first) else { return false };
            executed.push(number);
            let found = exists(entries, executed, &after);
            executed.pop();
            found
        })
    }

    /// Trying all orders of a few random operations, without any rule, agrees with the search.
    #[test]
    fn it_agrees_with_trying_all_orders() {
        const HISTORIES: u32 = 4_000;
        let mut random = Random::new(7);
        let r = &mut random;
        let mut counts = [0; 2];
        for _ in 0..HISTORIES {
            let history: Vec<Entry> = (0..5)
                .map(|number| {
                    let (begun, value) = (r.between(0, 20), r.between(0, 2));
                    let (input, output) = match r.between(0, 9) {
                        0..=1 => (put(value, Condition::Always), Output::Stored(value)),
                        2 => (put(value, Condition::Absent), Output::Stored(value)),
                        3 => (put(value, Condition::Present), Output::Refused(Refused::NotFound)),
                        4 => (put(value, Condition::Unchanged(number)), Output::Stored(value)),
                        5 => (Input::Delete, Output::Done),
                        6 => (Input::Extend { bytes: b"0".into(), side: Side::Start }, Output::Stored(value)),
                        7 => (Input::Read, Output::Item(None)),
                        _ => (Input::Read, read(value, value)),
                    };
                    let is_answered = Option::<Item>::is_silent(&input) || r.chance(40);
                    let ended = begun + r.between(0, 12);
                    // Mostly wrong positions: the verdict is the same.
                    let place = r.chance(30).then(|| r.between(0, 9) as u32);
                    Entry { place, ..entry(begun, input, is_answered.then_some((ended, output))) }
                })
                .collect();
            let expected = exists(&history, &mut Vec::new(), &None);
            assert_eq!(is_right(&history), expected, "{history:#?}");
            counts[usize::from(expected)] += 1;
        }
        assert!(counts.iter().all(|count| *count > HISTORIES / 10), "{counts:?}");
    }
}
