//! What the path to another process carries in time.

/// Bytes of messages that leave together, unless a single message is longer.
pub(super) const ENVELOPE_BYTES_MAX: usize = 512 << 10;
/// Requests up to this many bytes may be sent in parallel: one packet over any transport.
pub(super) const SMALL_BYTES_MAX: usize = 1024;
/// The response to a longer request may take at most this many times the timeout of a short one.
pub(super) const PATIENCE_MAX: u32 = 64;

/// The pace that a path supports. If a request of several packets is not answered in time, the next one is shorter, and
/// its timeout longer: otherwise a replica that has to catch up over a slow path would be sent the same entries for
/// ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    /// Bytes of messages that leave together, unless a single message is longer.
    pub bytes_max: usize,
    /// The timeout, as a multiple of the usual one.
    pub patience: u32,
    /// Bytes of the last request whose answer was late; 0 if there was none.
    late_bytes: usize,
    /// Ticks since an answer was late, or since the pace was last raised.
    undisturbed: u32,
    /// The next long request that is answered in time raises the pace.
    is_due: bool,
}

impl Pace {
    pub const FULL: Pace =
        Pace { bytes_max: ENVELOPE_BYTES_MAX, patience: 1, late_bytes: 0, undisturbed: 0, is_due: false };

    /// A request of this many bytes was not answered in time.
    pub fn slow_down(&mut self, bytes: usize) {
        self.bytes_max = (self.bytes_max / 2).max(SMALL_BYTES_MAX);
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
        (self.late_bytes, self.undisturbed, self.is_due) = (bytes, 0, false);
    }

    /// A request of this many bytes was answered in time. A much shorter one says nothing about longer ones, unless no
    /// answer was late for long.
    pub fn note_in_time(&mut self, bytes: usize) {
        if bytes >= self.late_bytes / 2 || self.is_due {
            self.speed_up();
        }
    }

    fn speed_up(&mut self) {
        (self.undisturbed, self.is_due) = (0, false);
        self.bytes_max = (self.bytes_max * 2).min(ENVELOPE_BYTES_MAX);
        self.patience = (self.patience / 2).max(1);
    }

    /// A tick has passed; `timeout` is the usual timeout in ticks. If no answer was late for longer than one may take,
    /// the path may have improved. Short requests alone would never show that: they say nothing about longer ones. While
    /// a long request is in flight, it may be late, too: so its answer is awaited first.
    pub fn tick(&mut self, timeout: u32, is_in_flight: bool) {
        if *self == Pace::FULL {
            return;
        }
        self.undisturbed = self.undisturbed.saturating_add(1);
        if self.undisturbed > timeout.saturating_mul(self.patience) {
            self.is_due = true;
        }
        if self.is_due && !is_in_flight {
            self.speed_up();
        }
        if self.bytes_max == ENVELOPE_BYTES_MAX && self.patience == 1 {
            *self = Pace::FULL;
        }
    }
}
