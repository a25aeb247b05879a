//! How a snapshot and the log share the disk.
//!
//! Whoever waits for a flush of the log also waits for the piece of a snapshot that is being written then. With a piece after
//! each flush, 64 writers had a fifth of their rate while a snapshot was taken: 26,000 of 135,000 writes a second. So a
//! snapshot gets a fifth of the disk's time while the log is written to, and half of it while nobody writes: writers that
//! were just answered come back in a moment. If the log takes nothing more before the snapshot is there, it gets all.

/// Parts of the disk's time that the log gets for each that a snapshot takes.
const LOG_SHARE: u64 = 4;

/// When pieces of a snapshot may be written, by the writer's time in nanoseconds. Each snapshot begins with one of its own.
#[derive(Debug, Default)]
pub struct Pacing {
    began: u64,
    /// When the next may be written, if the log was written to since the last, and if not.
    after_groups: u64,
    after_nothing: u64,
    is_busy: bool,
}

impl Pacing {
    /// A piece is being written.
    pub fn piece_began(&mut self, now: u64) {
        self.began = now;
    }

    /// It is on the disk.
    pub fn piece_ended(&mut self, now: u64) {
        let took = now.saturating_sub(self.began);
        self.after_nothing = now.saturating_add(took);
        self.after_groups = now.saturating_add(took.saturating_mul(LOG_SHARE));
        self.is_busy = false;
    }

    /// The log is being written.
    pub fn group_began(&mut self) {
        self.is_busy = true;
    }

    /// When the next piece may be written.
    pub fn next_piece(&self) -> u64 {
        if self.is_busy { self.after_groups } else { self.after_nothing }
    }
}
