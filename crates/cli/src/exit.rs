//! Exit codes: the same for all commands. docs/commands.md has the table.

/// There is no such thing, or a check did not hold.
pub const NOT_FOUND: u8 = 1;
/// It was not done; of wrong usage, too.
pub const FAILED: u8 = 2;
/// A condition does not hold, or records were left out.
pub const CONDITION: u8 = 3;
/// It is not known whether it was done.
pub const IN_DOUBT: u8 = 4;
/// The reader of the output has gone, as a shell has it: 128 and SIGPIPE.
pub const BROKEN_PIPE: u8 = 141;
