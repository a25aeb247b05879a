//! The effect of operations on a path of the tree, or on a lease: the promises of docs/coordination.md, specified
//! independently.
//!
//! A lease may end between any two operations: whether its time was over is judged apart from histories
//! ([`super::book`]).

use std::fmt;

use dunlin_coord::{Condition, CoordError, Holder, Incarnation, MemberId, Revision, Token};

use crate::clients::history;
use crate::clients::object::Object;

/// An operation in the history of a key.
pub type Entry = history::Entry<Subject>;
/// The end of an operation.
pub type End = history::End<Output>;

/// A value: a distinct text, followed by dots. Long values are cheap to compare.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Value {
    text: String,
    dots: usize,
}

impl Value {
    pub fn new(text: String, dots: usize) -> Value {
        Value { text, dots }
    }

    /// The value with at most this many dots.
    pub fn shortened(self, dots_max: usize) -> Value {
        Value { dots: self.dots.min(dots_max), ..self }
    }

    /// Decodes a value.
    pub fn of(bytes: &[u8]) -> Value {
        let dots = bytes.iter().rev().take_while(|byte| **byte == b'.').count();
        Value { text: String::from_utf8_lossy(&bytes[..bytes.len() - dots]).into_owned(), dots }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.text.clone().into_bytes();
        bytes.resize(bytes.len() + self.dots, b'.');
        bytes
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} and {} dots", self.text, self.dots)
    }
}

/// An operation on a path, or on a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    Get,
    Set {
        value: Value,
        condition: Condition,
    },
    Delete {
        condition: Condition,
    },
    /// A transaction's compare and write of this path.
    Part {
        write: Part,
        condition: Condition,
    },
    /// A transaction was executed under this lease.
    Under {
        token: Token,
    },
    Holder,
    Acquire {
        member: MemberId,
        incarnation: Incarnation,
        ttl_ms: u64,
    },
    Renew {
        token: Token,
    },
    Release {
        token: Token,
    },
}

/// A transaction's action on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Nothing,
    Set(Value),
    Delete,
}

impl Input {
    /// Whether it changes a path.
    pub fn changes(&self) -> bool {
        match self {
            Input::Part { write, .. } => *write != Part::Nothing,
            Input::Set { .. } | Input::Delete { .. } => true,
            _ => false,
        }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// To [`Input::Get`]: value and version.
    Found(Option<(Value, Revision)>),
    /// To changes of a path: the revision.
    Changed(Revision),
    /// To [`Input::Holder`].
    Holder(Option<Holder>),
    /// To [`Input::Acquire`].
    Granted(Token),
    /// Renewed, or released.
    Done,
    /// Nothing was changed.
    Refused(CoordError),
}

/// An entry of the tree. Its version is unknown if no client was told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Leaf {
    value: Value,
    version: Option<Revision>,
}

/// The holder of a lease. The token is unknown if no client was told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    member: MemberId,
    incarnation: Incarnation,
    token: Option<Token>,
}

/// A path with its entry in `leaf`, or a lease with its holder in `held`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Subject {
    leaf: Option<Leaf>,
    held: Option<Held>,
    /// The highest version or token seen so far: later ones are higher.
    highest: Revision,
}

impl Object for Subject {
    type Input = Input;
    type Output = Output;

    fn after(&self, entry: &Entry) -> Option<Subject> {
        match (&entry.input, entry.answer()) {
            (Input::Get, Some(Output::Found(found))) => self.read(found.as_ref()),
            (Input::Set { value, condition }, None) => {
                let is_met = self.may_meet(*condition);
                is_met.then(|| self.with_leaf(Some(Leaf { value: value.clone(), version: None })))
            }
            (Input::Set { value, condition }, Some(Output::Changed(version))) => {
                let leaf = Leaf { value: value.clone(), version: Some(*version) };
                let is_met = self.may_meet(*condition) && *version > self.highest;
                is_met.then(|| Subject { leaf: Some(leaf), highest: *version, ..self.clone() })
            }
            (Input::Delete { condition }, None) => {
                let is_met = self.leaf.is_some() && self.may_meet(*condition);
                is_met.then(|| self.with_leaf(None))
            }
            (Input::Delete { condition }, Some(Output::Changed(revision))) => {
                let is_met = self.leaf.is_some() && self.may_meet(*condition) && *revision > self.highest;
                is_met.then(|| Subject { leaf: None, highest: *revision, ..self.clone() })
            }
            (Input::Part { write, condition }, answer) if !matches!(answer, Some(Output::Refused(_))) => {
                self.after_part(write, *condition, answer)
            }
            (
                Input::Set { condition, .. } | Input::Delete { condition } | Input::Part { condition, .. },
                Some(Output::Refused(why)),
            ) => {
                let is_deletion = matches!(entry.input, Input::Delete { .. } | Input::Part { write: Part::Delete, .. });
                self.refused(*condition, is_deletion, why)
            }
            (Input::Holder, Some(Output::Holder(None))) => Some(self.ended()),
            (Input::Holder, Some(Output::Holder(Some(holder)))) => {
                let held = self.held.as_ref()?;
                let is_it = (held.member, held.incarnation) == (holder.member, holder.incarnation);
                is_it.then(|| self.learned(holder.token)).flatten()
            }
            (Input::Acquire { member, incarnation, .. }, None) => Some(self.held_by(*member, *incarnation, None)),
            (Input::Acquire { member, incarnation, .. }, Some(Output::Granted(token))) => {
                let after = self.held_by(*member, *incarnation, Some(*token));
                (*token > self.highest).then_some(Subject { highest: *token, ..after })
            }
            (Input::Acquire { .. }, Some(Output::Refused(CoordError::NotLive { .. }))) => Some(self.clone()),
            (Input::Acquire { member, .. }, Some(Output::Refused(CoordError::Held { holder, token, .. }))) => {
                let is_it = self.held.as_ref()?.member == *holder && holder != member;
                is_it.then(|| self.learned(*token)).flatten()
            }
            (Input::Renew { token } | Input::Under { token }, Some(Output::Done)) => {
                self.is_held_with(*token).then(|| self.clone())
            }
            (Input::Renew { token }, Some(Output::Refused(CoordError::NotLive { .. }))) => {
                self.is_held_with(*token).then(|| self.clone())
            }
            (Input::Release { token }, Some(Output::Done)) => self.is_held_with(*token).then(|| self.ended()),
            (
                Input::Renew { token } | Input::Release { token } | Input::Under { token },
                Some(Output::Refused(CoordError::LeaseLost { .. })),
            ) => Some(if self.is_held_with(*token) { self.ended() } else { self.clone() }),
            _ => None,
        }
    }

    /// A renewal changes nothing here, and the lease may end without being released.
    fn is_silent(input: &Input) -> bool {
        let is_read = matches!(input, Input::Get | Input::Holder | Input::Part { write: Part::Nothing, .. });
        is_read || matches!(input, Input::Renew { .. } | Input::Release { .. } | Input::Under { .. })
    }

    fn is_blind(entry: &Entry) -> bool {
        match (&entry.input, entry.answer()) {
            (Input::Set { condition: Condition::Always, .. }, None | Some(Output::Changed(_))) => true,
            (Input::Delete { .. } | Input::Part { write: Part::Delete, .. }, None) => true,
            (Input::Part { write: Part::Set(_), condition: Condition::Always }, None | Some(Output::Changed(_))) => {
                true
            }
            (Input::Get | Input::Set { .. } | Input::Delete { .. } | Input::Part { .. }, _) => false,
            // For leases, only these reveal a grant without an answer.
            (Input::Holder, Some(Output::Holder(Some(_)))) => false,
            (_, Some(Output::Refused(CoordError::Held { .. }))) => false,
            _ => true,
        }
    }

    fn has_twins(input: &Input) -> bool {
        !matches!(input, Input::Set { .. })
    }

    fn told(&self) -> String {
        match self {
            Subject { leaf: Some(leaf), .. } => {
                format!("there is {} with version {:?}", leaf.value, leaf.version)
            }
            Subject { held: Some(held), .. } => format!("the lease is held: {held:?}"),
            Subject { highest, .. } => format!("there is nothing, and the highest revision told is {highest}"),
        }
    }
}

impl Subject {
    /// The state of this path after a transaction that was, or may have been, executed: the same as if its write had
    /// been executed alone.
    fn after_part(&self, write: &Part, condition: Condition, answer: Option<&Output>) -> Option<Subject> {
        let input = match write {
            Part::Nothing => {
                let seen = |version| self.leaf.as_ref().and_then(|_| self.learned(version));
                return match condition {
                    Condition::Version { version } => seen(version),
                    _ => self.may_meet(condition).then(|| self.clone()),
                };
            }
            Part::Set(value) => Input::Set { value: value.clone(), condition },
            Part::Delete => Input::Delete { condition },
        };
        let end = answer.map_or(End::Unknown(0, String::new()), |answer| End::Answered(0, answer.clone()));
        self.after(&Entry { key: 0, client: None, input, begun: 0, end, place: None })
    }

    fn with_leaf(&self, leaf: Option<Leaf>) -> Subject {
        Subject { leaf, ..self.clone() }
    }

    fn ended(&self) -> Subject {
        Subject { held: None, ..self.clone() }
    }

    /// Possible even if another held it: that lease may have ended before.
    fn held_by(&self, member: MemberId, incarnation: Incarnation, token: Option<Token>) -> Subject {
        Subject { held: Some(Held { member, incarnation, token }), ..self.clone() }
    }

    fn is_held_with(&self, token: Token) -> bool {
        self.held.as_ref().is_some_and(|held| held.token == Some(token))
    }

    /// The state of a path after a read with this result: its version is known then.
    fn read(&self, found: Option<&(Value, Revision)>) -> Option<Subject> {
        match (&self.leaf, found) {
            (None, None) => Some(self.clone()),
            (Some(leaf), Some((value, version))) => (leaf.value == *value).then(|| self.learned(*version)).flatten(),
            _ => None,
        }
    }

    /// The state once the version or token is known; `None` if it cannot have that.
    fn learned(&self, number: Revision) -> Option<Subject> {
        let mut after = self.clone();
        let known = match (&mut after.leaf, &mut after.held) {
            (Some(leaf), _) => &mut leaf.version,
            (None, Some(held)) => &mut held.token,
            (None, None) => return None,
        };
        let may_be = known.map_or(number > self.highest, |known| known == number);
        *known = Some(number);
        after.highest = self.highest.max(number);
        may_be.then_some(after)
    }

    /// Whether a condition holds, or may hold if the version is unknown.
    fn may_meet(&self, condition: Condition) -> bool {
        match (condition, &self.leaf) {
            (Condition::Always, _) | (Condition::Absent, None) => true,
            (Condition::Version { version }, Some(leaf)) => leaf.version.is_none_or(|known| known == version),
            _ => false,
        }
    }

    fn refused(&self, condition: Condition, is_deletion: bool, why: &CoordError) -> Option<Subject> {
        match (condition, why) {
            (Condition::Absent, CoordError::Exists { version, .. }) if self.leaf.is_some() => self.learned(*version),
            (Condition::Version { version: wanted }, CoordError::Changed { version, .. }) if self.leaf.is_some() => {
                (*version != wanted).then(|| self.learned(*version)).flatten()
            }
            (Condition::Version { .. }, CoordError::NotFound { .. }) => self.leaf.is_none().then(|| self.clone()),
            (_, CoordError::NotFound { .. }) if is_deletion => self.leaf.is_none().then(|| self.clone()),
            _ => None,
        }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Set { value, condition } => write!(f, "set {value} if {condition:?}"),
            other => write!(f, "{other:?}"),
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Output::Found(Some((value, version))) => write!(f, "{value} with version {version}"),
            Output::Refused(why) => write!(f, "refused: {why}"),
            other => write!(f, "{other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::judge::{Verdict, judge};

    const FIRST: Input = Input::Acquire { member: 1, incarnation: 1, ttl_ms: 10 };
    const SECOND: Input = Input::Acquire { member: 2, incarnation: 2, ttl_ms: 10 };

    /// Operations in sequence.
    fn history(operations: &[(Input, Option<Output>)]) -> Vec<Entry> {
        let entry = |(number, (input, output)): (usize, &(Input, Option<Output>))| {
            let begun = 10 * number as u64;
            let end = output
                .clone()
                .map_or(End::Unknown(begun + 5, String::new()), |output| End::Answered(begun + 5, output));
            Entry { key: 0, client: Some(0), input: input.clone(), begun, end, place: None }
        };
        operations.iter().enumerate().map(entry).collect()
    }

    fn is_right(operations: &[(Input, Option<Output>)]) -> bool {
        judge(0, &history(operations)).is_ok_and(|verdict| verdict == Verdict::Linearizable)
    }

    fn value(text: &str) -> Value {
        Value::new(text.into(), 3)
    }

    fn set(text: &str, condition: Condition) -> Input {
        Input::Set { value: value(text), condition }
    }

    fn found(text: &str, version: Revision) -> Option<Output> {
        Some(Output::Found(Some((value(text), version))))
    }

    fn refused(why: CoordError) -> Option<Output> {
        Some(Output::Refused(why))
    }

    fn held(member: MemberId, token: Token) -> Option<Output> {
        Some(Output::Holder(Some(Holder { member, incarnation: member, token })))
    }

    fn lost(token: Token) -> Option<Output> {
        refused(CoordError::LeaseLost { name: "/a".into(), token })
    }

    #[test]
    fn values_are_told_from_their_bytes() {
        assert_eq!(Value::of(&value("1.2").bytes()), value("1.2"));
        assert_ne!(Value::of(b"1.2"), value("1.2"));
    }

    #[test]
    fn right_histories_of_a_path_are_right() {
        let version = |version| Condition::Version { version };
        let changed = |version| refused(CoordError::Changed { path: "/a".into(), version });
        assert!(is_right(&[
            (Input::Get, Some(Output::Found(None))),
            (set("a", Condition::Absent), Some(Output::Changed(3))),
            (set("b", version(2)), changed(3)),
            (set("c", version(3)), None),
            (Input::Get, found("c", 7)),
            (Input::Delete { condition: version(3) }, changed(7)),
            (Input::Delete { condition: version(7) }, Some(Output::Changed(8))),
            (set("d", Condition::Always), Some(Output::Changed(9))),
        ]));
        let old = [
            (set("a", Condition::Always), Some(Output::Changed(3))),
            (set("b", Condition::Always), Some(Output::Changed(5))),
        ];
        for wrong in [
            (Input::Get, found("a", 3)),
            (Input::Get, found("b", 4)),
            (set("c", version(3)), Some(Output::Changed(6))),
            (set("c", version(5)), changed(5)),
            (set("c", Condition::Always), Some(Output::Changed(4))),
            (Input::Delete { condition: version(3) }, Some(Output::Changed(6))),
        ] {
            assert!(!is_right(&[&old[..], std::slice::from_ref(&wrong)].concat()), "{wrong:?}");
        }
    }

    #[test]
    fn right_histories_of_a_lease_are_right() {
        let refusal = |holder, token| refused(CoordError::Held { name: "/a".into(), holder, token });
        assert!(is_right(&[
            (FIRST, Some(Output::Granted(4))),
            (SECOND, refusal(1, 4)),
            (Input::Renew { token: 4 }, Some(Output::Done)),
            // Its time was over.
            (SECOND, Some(Output::Granted(6))),
            (Input::Renew { token: 4 }, lost(4)),
            (Input::Release { token: 6 }, Some(Output::Done)),
            (FIRST, None),
            (Input::Holder, held(1, 9)),
            (Input::Holder, Some(Output::Holder(None))),
        ]));
        let granted = [(FIRST, Some(Output::Granted(4))), (SECOND, Some(Output::Granted(6)))];
        for wrong in [
            (Input::Renew { token: 4 }, Some(Output::Done)),
            (Input::Holder, held(1, 4)),
            (SECOND, Some(Output::Granted(6))),
            (FIRST, Some(Output::Granted(5))),
            (FIRST, refusal(2, 5)),
            (Input::Release { token: 4 }, Some(Output::Done)),
        ] {
            assert!(!is_right(&[&granted[..], std::slice::from_ref(&wrong)].concat()), "{wrong:?}");
        }
        // Once it was over it does not come back.
        assert!(!is_right(&[
            (FIRST, Some(Output::Granted(4))),
            (Input::Renew { token: 4 }, lost(4)),
            (Input::Holder, held(1, 4))
        ]));
    }

    #[test]
    fn parts_of_transactions_are_right_as_if_done_alone() {
        let version = |version| Condition::Version { version };
        let part = |write, condition| Input::Part { write, condition };
        let old = [(set("a", Condition::Always), Some(Output::Changed(3)))];
        let then = |rest: &[(Input, Option<Output>)]| is_right(&[&old[..], rest].concat());
        assert!(then(&[
            (part(Part::Nothing, version(3)), Some(Output::Done)),
            (part(Part::Set(value("b")), version(3)), Some(Output::Changed(5))),
            (part(Part::Delete, version(3)), refused(CoordError::Changed { path: "/a".into(), version: 5 })),
            (part(Part::Delete, Condition::Always), None),
            (Input::Get, Some(Output::Found(None))),
            (part(Part::Delete, Condition::Always), refused(CoordError::NotFound { what: "/a".into() })),
        ]));
        for wrong in [
            (part(Part::Nothing, version(2)), Some(Output::Done)),
            (part(Part::Nothing, Condition::Absent), Some(Output::Done)),
            (part(Part::Set(value("b")), version(2)), Some(Output::Changed(5))),
            (part(Part::Set(value("b")), Condition::Always), Some(Output::Changed(3))),
            (part(Part::Delete, Condition::Always), refused(CoordError::NotFound { what: "/a".into() })),
        ] {
            assert!(!then(std::slice::from_ref(&wrong)), "{wrong:?}");
        }
        let granted = [(FIRST, Some(Output::Granted(4))), (SECOND, Some(Output::Granted(6)))];
        let under = |token, output| is_right(&[&granted[..], &[(Input::Under { token }, output)]].concat());
        assert!(under(6, Some(Output::Done)) && under(4, lost(4)) && under(6, lost(6)));
        assert!(!under(4, Some(Output::Done)), "a former holder writes nothing");
    }

    /// Many requests for a lease without an answer, some of which were granted.
    #[test]
    fn grants_without_an_answer_are_found_soon() {
        let unanswered = (0..40).map(|_| (FIRST, None));
        let seen = (0..10).map(|number| (Input::Holder, held(1, 50 + number)));
        let free = (0..20).map(|_| (Input::Holder, Some(Output::Holder(None))));
        let history: Vec<_> = unanswered.chain(seen).chain(free).collect();
        assert!(is_right(&history));
    }
}
