//! The programs that threads run.

/// When a program wants to run again. Never before the CPU time that it was charged is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// At once: it has more work.
    Soon,
    /// At a time, in nanoseconds on the clock of [`dunlin_net::Transport::now`].
    At(u64),
    /// When a packet can be received, or its [`dunlin_net::Waker`] is used.
    OnPacket {
        /// At this time at the latest.
        or_at: Option<u64>,
    },
    /// Never: the program is dropped.
    Done,
}

/// A program of a thread: runs without blocking until it has nothing to do, and says when it wants to run again.
///
/// To drive an RPC endpoint, call `run_once` until it returns zero, then return [`Next::OnPacket`] with the endpoint's
/// `next_due`.
///
/// Any `FnMut() -> Next` is a program.
pub trait Program {
    /// Runs now.
    fn run(&mut self) -> Next;
}

impl<F: FnMut() -> Next> Program for F {
    fn run(&mut self) -> Next {
        self()
    }
}
