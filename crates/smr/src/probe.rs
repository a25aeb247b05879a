//! Reports the stages of a replica's work, for measurements.

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Parsing a client's request.
    Request,
    /// Parsing a replica's message.
    Parse,
    /// Giving the library a message or proposals.
    Step,
    /// Fetching the library's `Ready`, and reporting it done.
    Ready,
    /// Writing entries to the log.
    Log,
    /// The state machine executes a command or answers a query.
    Machine,
    /// The state machine prefetches memory for commands.
    Prefetch,
    /// Encoding messages and handing them to their sessions.
    Send,
    /// The whole visit of a replica: all of the above, and the work between them.
    Visit,
}

impl Stage {
    /// All stages.
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

/// Is called when a stage of work begins and ends. All stages are inside a [`Stage::Visit`]; otherwise they do not
/// nest.
pub trait Probe {
    /// A stage begins.
    fn begin(&self, stage: Stage);
    /// A stage ends.
    fn end(&self, stage: Stage);
}
