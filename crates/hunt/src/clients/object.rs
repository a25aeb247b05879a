//! A specification of the object that a service keeps under one key.

use std::fmt::{Debug, Display};
use std::hash::Hash;

use super::history::Entry;

/// The state of the object under one key, with the effect of operations specified independently of the service.
pub trait Object: Clone + Debug + Default + Eq + Hash + Send + Sync + 'static {
    /// An operation.
    type Input: Clone + Debug + Display + Eq + Send + Sync + 'static;
    /// Its answer.
    type Output: Clone + Debug + Display + Eq + Send + Sync + 'static;

    /// The state after an operation; `None` if the answer is impossible or, without an answer, if it changes nothing.
    fn after(&self, entry: &Entry<Self>) -> Option<Self>;

    /// Whether an operation without an answer reveals nothing, like a read.
    fn is_silent(input: &Self::Input) -> bool;

    /// Whether an operation without an answer just before this one may as well come later, or never: this one does not
    /// see it, or overwrites it.
    fn is_blind(entry: &Entry<Self>) -> bool;

    /// Whether an operation has no position in a known order of commands, since others are identical to it.
    fn has_twins(input: &Self::Input) -> bool;

    /// The state in readable form, for failures.
    fn told(&self) -> String;
}
