//! How a snapshot and the log share the disk.
//!
//! A waiter for a flush of the log also waits for the piece of a snapshot that is being written at that time. With a
//! piece after each flush, 64 writers had a fifth of their rate during a snapshot: 26,000 of 135,000 writes a second.
//! So a snapshot gets a fifth of the disk's time while the log is written to. It gets half while nobody writes, since
//! writers that were just answered return in a moment. If the log accepts nothing more before the snapshot is done, the
//! snapshot gets all.

/// The log's share of the disk's time, in multiples of the snapshot's.
const LOG_SHARE: u64 = 4;

/// The most that a piece counts for, in nanoseconds: a disk that hung once says nothing about the next piece.
const PIECE_NANOS_MAX: u64 = 1_000_000_000;

/// When pieces of snapshots may be written, by the writer's time in nanoseconds. All snapshots of a log share the time:
/// many short ones get no more than one long one.
#[derive(Debug, Default)]
pub struct Pacing {
    began: u64,
    /// When the next piece may be written: if the log was written to since the last piece, and if not.
    after_groups: u64,
    after_nothing: u64,
    is_busy: bool,
}

impl Pacing {
    /// A piece is being written.
    pub fn piece_began(&mut self, now: u64) {
        self.began = now;
    }

    /// The piece is durable.
    pub fn piece_ended(&mut self, now: u64) {
        let took = now.saturating_sub(self.began).min(PIECE_NANOS_MAX);
        self.after_nothing = now.saturating_add(took);
        self.after_groups = now.saturating_add(took.saturating_mul(LOG_SHARE));
        self.is_busy = false;
    }

    /// The log is being written.
    pub fn group_began(&mut self) {
        self.is_busy = true;
    }

    /// Returns when the next piece may be written.
    pub fn next_piece(&self) -> u64 {
        if self.is_busy { self.after_groups } else { self.after_nothing }
    }
}
