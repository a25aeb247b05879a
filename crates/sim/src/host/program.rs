//! What a thread runs.

/// When a program wants to run again. In any case not before the CPU time that it was charged is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// At once: it has more to do.
    Soon,
    /// At a time, in nanoseconds on the clock of [`dunlin_net::Transport::now`].
    At(u64),
    /// When a packet is there to be received, or its [`dunlin_net::Waker`] is used.
    OnPacket {
        /// At this time at the latest.
        or_at: Option<u64>,
    },
    /// Never: the program is dropped.
    Done,
}

/// A program of a thread: runs without blocking until it has nothing to do, and says when it wants to run again.
///
/// An RPC endpoint is driven by calling `run_once` until it gives zero, and then returning [`Next::OnPacket`] with what its
/// `next_due` says.
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
