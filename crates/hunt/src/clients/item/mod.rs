//! The operations of a key-value store, and their effect on one item: the promises of [`dunlin_store::Store`],
//! specified independently.

use std::fmt;

use dunlin_store::{Condition, Delta, Refused, Side, UnixSeconds};

mod words;

use super::history;
use super::object::Object;
pub use words::{Found, Input, Output, Shown};

/// An operation in the history of a key.
pub type Entry = history::Entry<Option<Item>>;
/// The end of an operation.
pub type End = history::End<Output>;

/// The time on the clock of every server, for a whole run: an item expires when an operation sets an expiry in the
/// past, never between two operations.
pub const NOW: UnixSeconds = 1_000;

/// An item. Its token is unknown if no client was told.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Item {
    value: Vec<u8>,
    flags: u32,
    expires: Option<UnixSeconds>,
    token: Option<u64>,
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Item { value, flags, expires, token } = self;
        write!(f, "{}", Shown { value, flags: *flags, expires: *expires })?;
        match token {
            Some(token) => write!(f, " token {token}"),
            None => write!(f, " with a token that nobody was told"),
        }
    }
}

impl Object for Option<Item> {
    type Input = Input;
    type Output = Output;

    fn after(&self, entry: &Entry) -> Option<Option<Item>> {
        apply(self, entry)
    }

    fn is_silent(input: &Input) -> bool {
        matches!(input, Input::Get | Input::Read)
    }

    fn is_blind(entry: &Entry) -> bool {
        match entry.input {
            Input::Put { condition: Condition::Always, .. } | Input::Lost => true,
            // An answer tells whether the item existed. A delete without an answer has no effect if the item did not
            // exist.
            Input::Delete => entry.answer().is_none(),
            _ => false,
        }
    }

    fn has_twins(input: &Input) -> bool {
        *input == Input::Delete
    }

    fn told(&self) -> String {
        self.as_ref().map_or("there is no item".into(), |item| format!("the item is {item:?}"))
    }
}

fn apply(state: &Option<Item>, entry: &Entry) -> Option<Option<Item>> {
    match (&entry.input, entry.answer()) {
        (Input::Lost, _) => Some(None),
        (Input::Get, Some(Output::Value(found))) => {
            let is_it = match (state, found) {
                (None, None) => true,
                (Some(item), Some((value, flags))) => item.value == *value && item.flags == *flags,
                _ => false,
            };
            is_it.then(|| state.clone())
        }
        (Input::Read, Some(Output::Item(found))) => read(state, found.as_ref()),
        (Input::ReadAndTouch { expires }, Some(Output::Item(found))) => read(&touched(state, *expires), found.as_ref()),
        (Input::ReadAndTouch { expires }, None) => Some(touched(state, *expires)),
        (Input::Get | Input::Read | Input::ReadAndTouch { .. }, _) => None,
        (input, output) => change(state, input, output),
    }
}

/// The state of an item after a read with this result: its token is known then.
fn read(state: &Option<Item>, found: Option<&Found>) -> Option<Option<Item>> {
    match (state, found) {
        (None, None) => Some(None),
        (Some(item), Some(found)) => {
            let is_it = item.value == found.value
                && (item.flags, item.expires) == (found.flags, found.expires)
                && item.token.is_none_or(|known| known == found.token);
            is_it.then(|| Some(Item { token: Some(found.token), ..item.clone() }))
        }
        _ => None,
    }
}

/// The state after a touch of an item that may exist.
fn touched(state: &Option<Item>, expires: Option<UnixSeconds>) -> Option<Item> {
    state.clone().and_then(|item| unless_expired(Item { expires, ..item }))
}

/// An expired item counts as absent.
fn unless_expired(item: Item) -> Option<Item> {
    item.expires.is_none_or(|at| at > NOW).then_some(item)
}

/// The state of an item after a change, given the answer if there was one.
fn change(state: &Option<Item>, input: &Input, output: Option<&Output>) -> Option<Option<Item>> {
    let expected = expect(state, input);
    match (expected, output) {
        (Ok(after), None) => Some(after),
        // Without an answer, a refused change is equivalent to one that was not executed, which the search has tried.
        (Err(_), None) => None,
        (Ok(None), Some(Output::Done)) => Some(None),
        (Ok(Some(item)), Some(Output::Stored(token))) => Some(Some(Item { token: Some(*token), ..item })),
        (Ok(None), Some(Output::Stored(_))) => matches!(input, Input::Put { .. }).then_some(None),
        (Ok(Some(item)), Some(Output::Done)) => matches!(input, Input::Touch { .. }).then_some(Some(item)),
        (Ok(Some(item)), Some(Output::Number(number, token))) => {
            let is_it = item.value.trim_ascii_end() == number.to_string().as_bytes();
            is_it.then_some(Some(Item { token: Some(*token), ..item }))
        }
        // The token is unknown, so this may be right.
        (Ok(_), Some(Output::Refused(Refused::Changed))) => {
            let is_unknown = state.as_ref().is_some_and(|item| item.token.is_none());
            let is_conditional = matches!(input, Input::Put { condition: Condition::Unchanged(_), .. });
            (is_unknown && is_conditional).then(|| state.clone())
        }
        (Err(refused), Some(Output::Refused(answer))) => (refused == *answer).then(|| state.clone()),
        _ => None,
    }
}

/// The state after an operation, with an unknown token; or why it changes nothing.
fn expect(state: &Option<Item>, input: &Input) -> Result<Option<Item>, Refused> {
    let there = || state.as_ref().ok_or(Refused::NotFound);
    match input {
        Input::Put { value, flags, expires, condition } => {
            match (condition, state) {
                (Condition::Absent, Some(_)) => return Err(Refused::Exists),
                (Condition::Present | Condition::Unchanged(_), None) => return Err(Refused::NotFound),
                (Condition::Unchanged(token), Some(item)) if item.token.is_some_and(|known| known != *token) => {
                    return Err(Refused::Changed);
                }
                _ => {}
            }
            Ok(unless_expired(Item { value: value.clone(), flags: *flags, expires: *expires, token: None }))
        }
        Input::Touch { expires } => there().map(|_| touched(state, *expires)),
        Input::Delete => there().map(|_| None),
        Input::Extend { bytes, side } => {
            let item = there()?;
            let value = match side {
                Side::End => [&item.value[..], bytes].concat(),
                Side::Start => [&bytes[..], &item.value].concat(),
            };
            Ok(Some(Item { value, token: None, ..item.clone() }))
        }
        Input::Count { delta } => {
            let item = there()?;
            // The hunt stores no leading spaces and no plus sign.
            let digits = item.value.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let is_number = item.value.get(digits).is_none_or(|byte| *byte == b' ');
            let text = std::str::from_utf8(&item.value[..digits]).ok().filter(|_| is_number);
            let number: u64 = text.and_then(|text| text.parse().ok()).ok_or(Refused::NotANumber)?;
            let number = match delta {
                Delta::Up(by) => number.wrapping_add(*by),
                Delta::Down(by) => number.saturating_sub(*by),
            };
            // A shorter number is padded with spaces to the old length.
            let value = format!("{number:<width$}", width = item.value.len()).into_bytes();
            Ok(Some(Item { value, token: None, ..item.clone() }))
        }
        Input::Get | Input::Read | Input::ReadAndTouch { .. } | Input::Lost => {
            unreachable!("they are no changes by a client")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::judge::{Verdict, judge};

    /// Operations in sequence; the last ones have no answer.
    fn history(operations: &[(Input, Option<Output>)]) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (number, (input, output)) in operations.iter().enumerate() {
            let begun = 10 * number as u64;
            let end = output
                .clone()
                .map_or(End::Unknown(begun + 5, String::new()), |output| End::Answered(begun + 5, output));
            entries.push(Entry { key: 0, client: Some(0), input: input.clone(), begun, end, place: None });
        }
        entries
    }

    fn put(value: &str, condition: Condition) -> Input {
        Input::Put { value: value.into(), flags: 0, expires: None, condition }
    }

    fn found(value: &str, token: u64, expires: Option<UnixSeconds>) -> Option<Output> {
        Some(Output::Item(Some(Found { value: value.into(), flags: 0, token, expires })))
    }

    fn value(value: &str) -> Option<Output> {
        Some(Output::Value(Some((value.into(), 0))))
    }

    const UP: Input = Input::Count { delta: Delta::Up(1) };

    #[test]
    fn right_answers_are_right() {
        let entries = history(&[
            (Input::Get, Some(Output::Value(None))),
            (put("7", Condition::Absent), Some(Output::Stored(1))),
            (UP, Some(Output::Number(8, 2))),
            (put("x", Condition::Unchanged(1)), Some(Output::Refused(Refused::Changed))),
            (put("x", Condition::Unchanged(2)), Some(Output::Stored(3))),
            (UP, Some(Output::Refused(Refused::NotANumber))),
            (Input::Extend { bytes: b"y".into(), side: Side::Start }, None),
            (Input::Read, found("yx", 9, None)),
            (put("z", Condition::Unchanged(9)), Some(Output::Stored(10))),
            (Input::Delete, Some(Output::Done)),
            (Input::Delete, Some(Output::Refused(Refused::NotFound))),
        ]);
        assert_eq!(judge(0, &entries), Ok(Verdict::Linearizable));
    }

    #[test]
    fn expiries_that_are_right() {
        let later = Some(NOW + 9);
        let mut until_later = put("a", Condition::Always);
        if let Input::Put { expires, .. } = &mut until_later {
            *expires = later;
        }
        let mut until_now = put("b", Condition::Always);
        if let Input::Put { expires, .. } = &mut until_now {
            *expires = Some(NOW);
        }
        let entries = history(&[
            (until_later, Some(Output::Stored(1))),
            (Input::Read, found("a", 1, later)),
            (Input::Touch { expires: None }, Some(Output::Done)),
            (Input::Read, found("a", 1, None)),
            (Input::Extend { bytes: b"b".into(), side: Side::End }, Some(Output::Stored(2))),
            (Input::ReadAndTouch { expires: later }, found("ab", 2, later)),
            (Input::Touch { expires: None }, None),
            (Input::Read, found("ab", 2, None)),
            (Input::Touch { expires: Some(NOW) }, Some(Output::Done)),
            (Input::Touch { expires: None }, Some(Output::Refused(Refused::NotFound))),
            (Input::ReadAndTouch { expires: None }, Some(Output::Item(None))),
            (put("c", Condition::Always), Some(Output::Stored(3))),
            (until_now, Some(Output::Stored(4))),
            (Input::Get, Some(Output::Value(None))),
        ]);
        assert_eq!(judge(0, &entries), Ok(Verdict::Linearizable));
    }

    #[test]
    fn wrong_answers_are_found_and_told() {
        let stale = [(put("a", Condition::Always), Some(Output::Stored(1))), (Input::Get, Some(Output::Value(None)))];
        let lost = [
            (put("1", Condition::Always), Some(Output::Stored(1))),
            (UP, Some(Output::Number(2, 2))),
            (Input::Get, value("1")),
        ];
        let twice = [(put("1", Condition::Always), Some(Output::Stored(1))), (UP, None), (Input::Get, value("3"))];
        let swapped = [
            (put("1", Condition::Always), Some(Output::Stored(1))),
            (put("2", Condition::Always), Some(Output::Stored(2))),
            (put("3", Condition::Unchanged(1)), Some(Output::Stored(3))),
        ];
        for wrong in [&stale[..], &lost, &twice, &swapped] {
            let told = judge(0, &history(wrong)).unwrap_err();
            assert!(told.contains("none of these can follow"), "{told}");
        }
        let later = Some(NOW + 9);
        let not_touched = [
            (put("a", Condition::Always), Some(Output::Stored(1))),
            (Input::Touch { expires: later }, Some(Output::Done)),
            (Input::Read, found("a", 1, None)),
        ];
        let gone = [
            (put("a", Condition::Always), Some(Output::Stored(1))),
            (Input::Touch { expires: later }, Some(Output::Refused(Refused::NotFound))),
        ];
        let expired = [
            (put("a", Condition::Always), Some(Output::Stored(1))),
            (Input::Touch { expires: Some(NOW) }, Some(Output::Done)),
            (Input::Get, value("a")),
        ];
        let other_token = [
            (put("a", Condition::Always), Some(Output::Stored(1))),
            (Input::ReadAndTouch { expires: later }, found("a", 2, later)),
        ];
        for wrong in [&not_touched[..], &gone, &expired, &other_token] {
            assert!(judge(0, &history(wrong)).is_err(), "{wrong:?}");
        }
        // Other keys are unaffected.
        assert_eq!(judge(1, &history(&stale)), Ok(Verdict::Linearizable));
    }

    #[test]
    fn what_was_not_executed_has_no_effect_and_a_loss_has() {
        let mut entries = history(&[(put("a", Condition::Always), None), (Input::Get, value("a"))]);
        assert_eq!(judge(0, &entries), Ok(Verdict::Linearizable));
        entries[0].end = End::NotExecuted(5, String::new());
        assert!(judge(0, &entries).is_err());
        let lost = [
            (put("a", Condition::Always), Some(Output::Stored(1))),
            (Input::Lost, Some(Output::Done)),
            (Input::Get, Some(Output::Value(None))),
        ];
        assert_eq!(judge(0, &history(&lost)), Ok(Verdict::Linearizable));
    }
}
