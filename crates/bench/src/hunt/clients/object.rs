//! What a service keeps under one key, in words of a specification.

use std::fmt::{Debug, Display};
use std::hash::Hash;

use super::history::Entry;

/// The state of what is kept under one key: what operations do to it is written down here once more, apart from the service.
pub trait Object: Clone + Debug + Default + Eq + Hash + Send + Sync + 'static {
    /// An operation.
    type Input: Clone + Debug + Display + Eq + Send + Sync + 'static;
    /// Its answer.
    type Output: Clone + Debug + Display + Eq + Send + Sync + 'static;

    /// The state after an operation; `None` if it cannot have had the answer that it had, or, without one, if it changes nothing.
    fn after(&self, entry: &Entry<Self>) -> Option<Self>;

    /// Whether an operation that was not answered tells nothing, as a read does.
    fn is_silent(input: &Self::Input) -> bool;

    /// Whether an operation without an answer that stands right before this one may as well stand later, or nowhere: this one does not see it, or overwrites it.
    fn is_blind(entry: &Entry<Self>) -> bool;

    /// Whether an operation has no place in a known order of commands, since others are the same to the byte.
    fn has_twins(input: &Self::Input) -> bool;

    /// The state, for whoever reads of a failure.
    fn told(&self) -> String;
}
