//! Tasks that wait for room, in order of arrival.

use std::collections::BTreeMap;
use std::task::Waker;

/// Tasks that wait. A task keeps its position until it leaves; whoever makes room, and whoever leaves, wakes as many as
/// there is room for. So no room is lost with a task that was woken and dropped.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By position. A task that was woken has no waker until it waits again.
    tasks: BTreeMap<u64, Option<Waker>>,
    /// The last position that was given out.
    last: u64,
}

impl Queue {
    /// Returns a position behind all others.
    pub fn join(&mut self) -> u64 {
        self.last += 1;
        self.tasks.insert(self.last, None);
        self.last
    }

    /// Gives a position up.
    pub fn leave(&mut self, position: u64) {
        self.tasks.remove(&position);
    }

    /// Has the task at a position woken when it may have room.
    pub fn wait(&mut self, position: u64, waker: &Waker) {
        self.tasks.insert(position, Some(waker.clone()));
    }

    /// Wakes the first `count` tasks, unless they are awake.
    pub fn wake(&mut self, count: usize) {
        self.tasks.values_mut().take(count).filter_map(Option::take).for_each(Waker::wake);
    }

    /// Returns how many tasks are before a position, or in all: at most `max`.
    pub fn ahead(&self, position: Option<u64>, max: usize) -> usize {
        position.map_or(self.tasks.len().min(max), |position| self.tasks.range(..position).take(max).count())
    }
}
