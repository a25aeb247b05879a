//! Ageing: operations that were overtaken for long are served, whatever their rank.

/// When an operation counts as old, and which share of the service old ones get.
///
/// Age is the number of operations served since the operation came, so it needs no clock and fits servers of any speed.
/// If `q` operations wait when one comes, at most `after + one_in * (q + 1)` ranked operations are served before it,
/// whatever comes later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ageing {
    /// An operation is old when this many were served since it came.
    pub after: u64,
    /// While old operations wait, one in this many served is the oldest of them. The rest follows the ranks, so that an
    /// overload, in which everything grows old, does not turn the queue into first come, first served.
    pub one_in: u32,
}

impl Default for Ageing {
    fn default() -> Self {
        Ageing { after: 1024, one_in: 8 }
    }
}

/// Counts turns.
#[derive(Debug)]
pub(super) struct Turns {
    ageing: Ageing,
    /// Operations until the next turn of an old one.
    left: u32,
}

impl Turns {
    pub fn new(ageing: Ageing) -> Self {
        Turns { ageing, left: ageing.one_in }
    }

    /// Counts an operation to be served, and returns whether it should be the oldest one, which came when `since`
    /// operations had been served.
    pub fn is_for_oldest(&mut self, since: u64, served: u64) -> bool {
        if served - since < self.ageing.after {
            return false;
        }
        self.left = self.left.saturating_sub(1);
        let is_turn = self.left == 0;
        if is_turn {
            self.left = self.ageing.one_in;
        }
        is_turn
    }
}
