//! What is replicated.

use std::fmt;

use crate::discard;

/// Commands whose memory is asked for at once: what further ones need would be gone again when they are executed.
pub const PREFETCHED_MAX: usize = 16;

/// A deterministic state machine: the same commands in the same order give the same replies and the same state on every replica. Commands,
/// queries and replies are bytes that only it understands.
///
/// Nothing in it may depend on a clock, on chance, or on the replica. Limits must depend on the commands alone.
pub trait StateMachine {
    /// Executes the command of entry `index` of the log, and appends its reply to `reply`. Indices rise, not always by one.
    fn apply(&mut self, index: u64, command: &[u8], reply: &mut Vec<u8>);

    /// Asks for the memory that commands will need, [`PREFETCHED_MAX`] at most, which are executed soon, or never. For speed alone; by default nothing.
    fn prefetch(&self, _commands: &[&[u8]]) {}

    /// Answers a question and changes nothing; appends the answer to `reply`.
    fn query(&self, query: &[u8], reply: &mut Vec<u8>);

    /// Answers a question as [`StateMachine::query`] does; or keeps its `number`, beside the state, until there is an answer: [`StateMachine::take_ready`] then
    /// gives the number, and the question is asked again under it. Only a replica that leads asks. By default every question is answered at once.
    fn ask(&mut self, _number: u64, query: &[u8], reply: &mut Vec<u8>) -> Asked {
        self.query(query, reply);
        Asked::Answered
    }

    /// Takes the numbers of kept questions that have an answer by now.
    fn take_ready(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// Forgets a question that was kept: nobody waits for it any more.
    fn forget(&mut self, _number: u64) {}

    /// Whether a question must not wait behind others, such as a sign of life. A leader has as many places beside [`crate::NodeConfig::reads_max`] for
    /// those alone, and answers them first. By default none is.
    fn is_urgent(&self, _query: &[u8]) -> bool {
        false
    }

    /// Appends all of the state to `out`.
    fn snapshot(&self, out: &mut Vec<u8>);

    /// Begins a snapshot of the state as it is now. Commands are executed before it is complete, and are not in it; `out` gets what is ready, and
    /// [`StateMachine::continue_snapshot`] the rest. One that was begun before is given up. By default everything is ready, which takes the event loop's time:
    /// some milliseconds for each 10 MB.
    fn begin_snapshot(&mut self, out: &mut Vec<u8>) {
        self.snapshot(out);
    }

    /// Appends more of the snapshot that was begun to `out`, `bytes` or about that, and says whether that was all. All pieces together are as
    /// [`StateMachine::snapshot`] could have given them when it was begun.
    fn continue_snapshot(&mut self, _bytes: usize, _out: &mut Vec<u8>) -> Piece {
        Piece::Last
    }

    /// Gives up the snapshot that was begun, if there is one: the rest of it is not asked for.
    fn abandon_snapshot(&mut self) {}

    /// Makes an empty machine with the settings of this one. The replica restores a snapshot into it, a piece at a
    /// time, while this machine goes on. Then the new one takes its place, and this one is
    /// [discarded](StateMachine::discard). So both are in memory for a while.
    ///
    /// # Errors
    /// If there is no memory for a second machine. The replica then does not take the snapshot, and goes on as before.
    fn fresh(&self) -> Result<Self, RestoreError>
    where
        Self: Sized;

    /// Takes the state of a snapshot for its own, and forgets the one before.
    ///
    /// # Errors
    /// If the bytes are no snapshot of such a machine. The replica then rejects the snapshot, or does not start if it
    /// is that of its own log.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError>;

    /// Takes more of a snapshot into a machine of [`StateMachine::fresh`], which executes nothing before it has all of
    /// it: about `bytes` from byte `from` on, which is 0 for the first piece. Returns where the next piece begins: the
    /// end of the snapshot after the last one. By default all is one piece, which takes the event loop's time: a server of
    /// [`dunlin_serve`] does not take that for a core that hangs, but the replica answers nobody meanwhile.
    ///
    /// # Errors
    /// As for [`StateMachine::restore`]; no further piece is given then.
    fn restore_piece(&mut self, snapshot: &[u8], _from: usize, _bytes: usize) -> Result<usize, RestoreError> {
        self.restore(snapshot).map(|()| snapshot.len())
    }

    /// Frees a machine that is not used any more, in the event loop. By default it is just dropped, which takes 4 to 6
    /// ms for each 100 MB: a machine that may be large gives its memory to [`free_beside`].
    fn discard(self)
    where
        Self: Sized,
    {
    }
}

/// Drops something large on a thread of its own, beside the event loop. If much waits there already, drops it at once.
pub fn free_beside(memory: impl Send + 'static) {
    discard::free_later(memory);
}

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// It has its answer.
    Answered,
    /// It is kept until there is one.
    Kept,
}

/// A piece of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// There are more.
    Another,
    /// It was the last.
    Last,
}

/// A snapshot that a state machine cannot be restored from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreError {
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the snapshot cannot be restored: {}", self.why)
    }
}

impl std::error::Error for RestoreError {}

impl RestoreError {
    /// One for this reason.
    pub fn new(why: impl Into<String>) -> RestoreError {
        RestoreError { why: why.into() }
    }
}
