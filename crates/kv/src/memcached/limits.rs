//! The limits of the protocol and of a connection. What memcached has, it has with the same number unless the text says otherwise.

use std::time::Duration;

/// Longest command line that is not a retrieval of several keys, with its end, in bytes. memcached closes a connection that sends more
/// than this without a line end; here a longer line closes it even if it came in one piece, so that the answer does not depend on how
/// the bytes were cut.
pub const LINE_BYTES_MAX: usize = 2048;

/// Shortest line that may be a command, with its end, in bytes.
pub const LINE_BYTES_MIN: usize = 4;

/// Longest line of `get`, `gets`, `gat` or `gats`, in bytes: about 4,000 of the longest keys. memcached has no limit; here a longer line
/// closes the connection.
pub const RETRIEVAL_LINE_BYTES_MAX: usize = 1 << 20;

/// Spaces that may stand before a retrieval longer than [`LINE_BYTES_MAX`].
pub const LEADING_SPACES_MAX: usize = 100;

/// Words of a line that are looked at.
pub const TOKENS_MAX: usize = 23;

/// Words of a meta command: its name, key, length and flags.
pub const META_TOKENS_MAX: usize = 20;

/// Longest opaque flag of a meta command, its letter counted, in bytes.
pub const OPAQUE_BYTES_MAX: usize = 32;

/// Single-key operations that run together on a partition, so that each waits for memory while the others do.
pub const BURST_UNITS_MAX: usize = 32;

/// Single-key operations that one turn of a connection may forward to other cores before their answers are waited for.
pub const TURN_UNITS_MAX: usize = 256;

/// Bytes of commands that one turn may forward to one core, plus one command.
pub const FORWARD_BYTES_MAX: usize = 256 << 10;

/// Bytes of answers that wait to be written before a connection does no more, plus one answer.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Bytes of answers that a turn gets from all other cores together before any of them is longer than its share.
pub const TURN_ANSWER_BYTES: usize = 2 * OUTPUT_BYTES_MAX;

/// Bytes that the cores together tell of a list at once (`stats cachedump`, `stats conns`). The answer that is made of
/// them has as many.
pub const LIST_PART_BYTES: usize = 4 * OUTPUT_BYTES_MAX;

/// Operations of one connection before the other tasks of its core get their turn.
pub const FAIR_UNITS_MAX: usize = 512;

/// Bytes that commands may move, values that they add to included, before the other tasks of their core get their turn, plus one command: some tens
/// of microseconds.
pub const WORK_BYTES_MAX: usize = 256 << 10;

/// How long changes of a core may wait for the disk of a snapshot, all together, before further commands wait for another turn of its event
/// loop. One change may exceed it by 10 ms. Meanwhile the core answers pings.
pub const STALL_TURN_MAX: Duration = Duration::from_millis(20);

/// Bytes that a connection may hold of each kind (the rest of a command, answers, commands for other cores) when the budget has no more: enough for
/// small commands, so that clients that hold much do not keep others from being served.
pub const SHORT_BYTES: usize = 2 << 10;

/// Bytes of answers that lie beside the budget while the client does not read them: what commands on little memory, and `stats`, answer with
/// its buffer.
pub const UNREAD_BYTES_MIN: usize = 8 << 10;

/// What a connection reads at once, in bytes: it borrows this much memory while it has work, and none while it is idle.
pub const READ_BYTES: usize = 64 << 10;

/// Read buffers that a core keeps for later.
pub const SPARE_BUFFERS_MAX: usize = 64;
