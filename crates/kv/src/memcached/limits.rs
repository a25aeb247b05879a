//! Limits of the protocol and of a connection. Limits that memcached has are the same here unless noted.

use std::time::Duration;

/// Longest command line that is not a retrieval of several keys, including its end, in bytes. memcached closes a
/// connection that sends more than this without a line end; here a longer line closes it even if it arrived in one
/// piece, so that the result does not depend on how the bytes were split.
pub const LINE_BYTES_MAX: usize = 2048;

/// Shortest line that may be a command, including its end, in bytes.
pub const LINE_BYTES_MIN: usize = 4;

/// Longest line of `get`, `gets`, `gat` or `gats`, in bytes: about 4,000 of the longest keys. memcached has no limit;
/// here a longer line closes the connection.
pub const RETRIEVAL_LINE_BYTES_MAX: usize = 1 << 20;

/// Spaces that may precede a retrieval longer than [`LINE_BYTES_MAX`].
pub const LEADING_SPACES_MAX: usize = 100;

/// Maximum number of words of a line that are read.
pub const TOKENS_MAX: usize = 23;

/// Maximum number of words of a meta command: its name, key, length and flags.
pub const META_TOKENS_MAX: usize = 20;

/// Longest opaque flag of a meta command, including its letter, in bytes.
pub const OPAQUE_BYTES_MAX: usize = 32;

/// Single-key operations that run together on a partition, so that their cache misses overlap.
pub const BURST_UNITS_MAX: usize = 32;

/// Single-key operations that one turn of a connection may forward to other cores before it waits for their answers.
pub const TURN_UNITS_MAX: usize = 256;

/// Bytes of commands that one turn may forward to one core, plus one command.
pub const FORWARD_BYTES_MAX: usize = 256 << 10;

/// Bytes of answers that may wait to be written before a connection stops executing, plus one answer.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Bytes of answers that a turn gets from all other cores together before any of them may exceed its share.
pub const TURN_ANSWER_BYTES: usize = 2 * OUTPUT_BYTES_MAX;

/// Bytes that all cores together report of a list at once (`stats cachedump`, `stats conns`). The answer built from
/// them has as many.
pub const LIST_PART_BYTES: usize = 4 * OUTPUT_BYTES_MAX;

/// Operations of one connection before the other tasks of its core get their turn.
pub const FAIR_UNITS_MAX: usize = 512;

/// Bytes that commands may move, including the values that they add to, before the other tasks of their core get their
/// turn, plus one command: some tens of microseconds.
pub const WORK_BYTES_MAX: usize = 256 << 10;

/// How long a core's changes may wait for a snapshot's disk, all together, before further commands wait for another
/// turn of its event loop. One change may exceed it by 10 ms. Meanwhile the core answers pings. Changes of Dunlin
/// clients yield after half of it. From then on, at least one of them is made in each turn, however long that turn has
/// waited.
pub const STALL_TURN_MAX: Duration = Duration::from_millis(20);

/// Bytes that a connection may hold of each kind (an incomplete command, answers, commands for other cores) when the
/// budget is exhausted: enough for small commands, so that clients that hold much do not keep others from being served.
pub const SHORT_BYTES: usize = 2 << 10;

/// Bytes of answers held beside the budget while the client does not read them: the answers of commands that run with
/// little memory, and of `stats`, including the buffer.
pub const UNREAD_BYTES_MIN: usize = 8 << 10;

/// Bytes that a connection reads at once: it borrows this much memory while it has work, and none while it is idle.
pub const READ_BYTES: usize = 64 << 10;

/// Read buffers that a core keeps for reuse.
pub const SPARE_BUFFERS_MAX: usize = 64;
