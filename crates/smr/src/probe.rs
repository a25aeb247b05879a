//! What a replica works on, told to whoever measures it.

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Reading what a client sent.
    Request,
    /// Reading what a replica sent.
    Parse,
    /// The library takes a message or proposals.
    Step,
    /// The library says what is to be done, and is told that it was.
    Ready,
    /// Entries go to the log.
    Log,
    /// The state machine executes a command or answers a question.
    Machine,
    /// The state machine asks for memory that commands will need.
    Prefetch,
    /// Writing messages and handing them to their sessions.
    Send,
    /// Everything from when a replica is entered until it is left: all of the above, and what is between them.
    Visit,
}

impl Stage {
    /// All of them.
    pub const ALL: [Stage; 9] = [
        Stage::Request,
        Stage::Parse,
        Stage::Step,
        Stage::Ready,
        Stage::Log,
        Stage::Machine,
        Stage::Prefetch,
        Stage::Send,
        Stage::Visit,
    ];
}

/// Is told when work of a kind begins and ends. All work stands inside a [`Stage::Visit`]; else kinds do not nest.
pub trait Probe {
    /// It begins.
    fn begin(&self, stage: Stage);
    /// It ends.
    fn end(&self, stage: Stage);
}
