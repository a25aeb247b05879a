//! The replicated state machine.

use std::fmt;

use crate::discard;

/// Commands that are prefetched at once: memory for further ones would be evicted before they are executed.
pub const PREFETCHED_MAX: usize = 16;

/// A deterministic state machine: the same commands in the same order give the same replies and the same state on every
/// replica. Only the machine interprets commands, queries and replies, which are bytes.
///
/// It must not depend on a clock, on chance, or on the replica. Limits must depend on the commands alone.
pub trait StateMachine {
    /// Executes the command of entry `index` of the log, and appends its reply to `reply`. Indices rise, not always by
    /// one.
    fn apply(&mut self, index: u64, command: &[u8], reply: &mut Vec<u8>);

    /// Prefetches the memory that commands will need, at most [`PREFETCHED_MAX`]; they are executed soon, or never.
    /// Only affects speed; does nothing by default.
    fn prefetch(&self, _commands: &[&[u8]]) {}

    /// Answers a query without changing anything; appends the answer to `reply`.
    fn query(&self, query: &[u8], reply: &mut Vec<u8>);

    /// Answers a query like [`StateMachine::query`], or keeps its `number`, beside the state, until there is an answer.
    /// [`StateMachine::take_ready`] then returns the number, and the query is asked again under it. Only the leader
    /// calls this. By default every query is answered at once.
    fn ask(&mut self, _number: u64, query: &[u8], reply: &mut Vec<u8>) -> Asked {
        self.query(query, reply);
        Asked::Answered
    }

    /// Takes the numbers of kept queries that have an answer by now.
    fn take_ready(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// Forgets a kept query: no client waits for it any more.
    fn forget(&mut self, _number: u64) {}

    /// Whether a query must not wait behind others, such as a keep-alive. A leader has [`crate::NodeConfig::reads_max`]
    /// extra places for urgent queries, and answers them first. By default none is urgent.
    fn is_urgent(&self, _query: &[u8]) -> bool {
        false
    }

    /// Appends the whole state to `out`.
    fn snapshot(&self, out: &mut Vec<u8>);

    /// Begins a snapshot of the current state, and gives up one that was begun before. Commands executed before it is
    /// complete are not in it. `out` gets the part that is ready; [`StateMachine::continue_snapshot`] appends the rest.
    /// By default everything is ready, which takes the event loop's time: some milliseconds for each 10 MB.
    fn begin_snapshot(&mut self, out: &mut Vec<u8>) {
        self.snapshot(out);
    }

    /// Appends about `bytes` more of the snapshot to `out`, and returns whether that was the last piece. All pieces
    /// together equal a possible result of [`StateMachine::snapshot`] at the time when the snapshot was begun.
    fn continue_snapshot(&mut self, _bytes: usize, _out: &mut Vec<u8>) -> Piece {
        Piece::Last
    }

    /// Gives up the snapshot that was begun, if any: the rest of it is not needed.
    fn abandon_snapshot(&mut self) {}

    /// Makes an empty machine with the settings of this one. The replica restores a snapshot into it, a piece at a
    /// time, while this machine goes on. Then the new one replaces this one, which is
    /// [discarded](StateMachine::discard). So both are in memory for a while.
    ///
    /// # Errors
    /// If there is no memory for a second machine. The replica then rejects the snapshot, and goes on as before.
    fn fresh(&self) -> Result<Self, RestoreError>
    where
        Self: Sized;

    /// Replaces the state with that of a snapshot.
    ///
    /// # Errors
    /// If the bytes are not a snapshot of such a machine. The replica then rejects the snapshot, or does not start if
    /// it is that of its own log.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError>;

    /// Restores more of a snapshot into a machine of [`StateMachine::fresh`], which executes nothing until it is
    /// complete: about `bytes` from offset `from`, which is 0 for the first piece. Returns the offset of the next
    /// piece: the length of the snapshot after the last one. By default everything is one piece, which takes the event
    /// loop's time: [`dunlin_serve`] does not take this for a hung core, but the replica answers nobody meanwhile.
    ///
    /// # Errors
    /// As for [`StateMachine::restore`]; no further piece follows then.
    fn restore_piece(&mut self, snapshot: &[u8], _from: usize, _bytes: usize) -> Result<usize, RestoreError> {
        self.restore(snapshot).map(|()| snapshot.len())
    }

    /// Frees a machine that is no longer used, in the event loop. By default it is just dropped, which takes 4 to 6 ms
    /// for each 100 MB: a machine that may be large hands its memory to [`free_beside`].
    fn discard(self)
    where
        Self: Sized,
    {
    }
}

/// Drops a large value on a separate thread, outside of the event loop. If too much waits there already, drops it at
/// once.
pub fn free_beside(memory: impl Send + 'static) {
    discard::free_later(memory);
}

/// The result of asking a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// It is answered.
    Answered,
    /// It is kept until there is an answer.
    Kept,
}

/// Whether a piece of a snapshot was the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// More follow.
    Another,
    /// It was the last.
    Last,
}

/// A snapshot that a state machine cannot be restored from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreError {
    /// The reason.
    pub why: String,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the snapshot cannot be restored: {}", self.why)
    }
}

impl std::error::Error for RestoreError {}

impl RestoreError {
    /// Creates an error with this reason.
    pub fn new(why: impl Into<String>) -> RestoreError {
        RestoreError { why: why.into() }
    }
}
