//! The counters of a core's memcached side, under memcached's names.

use std::cell::Cell;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Count {
            $($(#[$doc])* $name,)*
        }

        impl Count {
            /// All counters, in the order of `stats`.
            pub const ALL: [Count; COUNTS] = [$(Count::$name,)*];

            /// Returns memcached's name of it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Count::$name => $text,)*
                }
            }
        }
    };
}

/// The number of counters.
pub const COUNTS: usize = 32;

counts! {
    /// Connections opened since the start.
    TotalConnections = "total_connections",
    /// Connections rejected because of the limit.
    RejectedConnections = "rejected_connections",
    /// Keys retrieved.
    CmdGet = "cmd_get",
    /// Values stored, including failed attempts.
    CmdSet = "cmd_set",
    /// `flush_all`
    CmdFlush = "cmd_flush",
    /// `touch` and retrievals that touch.
    CmdTouch = "cmd_touch",
    /// `me`
    CmdMeta = "cmd_meta",
    /// Keys retrieved and found.
    GetHits = "get_hits",
    /// Keys retrieved and not found.
    GetMisses = "get_misses",
    /// Deletions of absent keys.
    DeleteMisses = "delete_misses",
    /// Deletions.
    DeleteHits = "delete_hits",
    /// `incr` of absent keys.
    IncrMisses = "incr_misses",
    /// `incr`
    IncrHits = "incr_hits",
    /// `decr` of absent keys.
    DecrMisses = "decr_misses",
    /// `decr`
    DecrHits = "decr_hits",
    /// `cas` of absent keys.
    CasMisses = "cas_misses",
    /// `cas` that stored.
    CasHits = "cas_hits",
    /// `cas` of changed items.
    CasBadval = "cas_badval",
    /// Touches that found an item.
    TouchHits = "touch_hits",
    /// Touches of absent keys.
    TouchMisses = "touch_misses",
    /// Values rejected as too long.
    StoreTooLarge = "store_too_large",
    /// Values rejected for lack of memory.
    StoreNoMemory = "store_no_memory",
    /// Bytes read from connections.
    BytesRead = "bytes_read",
    /// Bytes written to connections.
    BytesWritten = "bytes_written",
    /// Times a connection yielded to others.
    ConnYields = "conn_yields",
    /// Connections closed because they were idle.
    IdleKicks = "idle_kicks",
    /// Times a connection stopped reading because its client did not read answers.
    Backpressure = "backpressure",
    /// Times a connection waited for memory that others held.
    MemoryWaits = "conn_memory_waits",
    /// Connections closed because they held memory for too long while others waited for it.
    MemoryKicks = "conn_memory_kicks",
    /// Units sent to other cores.
    Forwarded = "forwarded_units",
    /// Batches sent to other cores.
    ForwardedBatches = "forwarded_batches",
    /// Units for which another core did not answer.
    ForwardsFailed = "forwards_failed",
}

/// The counters of one core, for its thread.
#[derive(Debug, Default)]
pub struct Counters([Cell<u64>; COUNTS]);

impl Counters {
    /// Adds one to a counter.
    #[inline]
    pub fn add(&self, count: Count) {
        self.add_many(count, 1);
    }

    /// Adds to a counter.
    #[inline]
    pub fn add_many(&self, count: Count, by: u64) {
        let cell = &self.0[count as usize];
        cell.set(cell.get().wrapping_add(by));
    }

    /// Returns the counters so far.
    pub fn snapshot(&self) -> Counts {
        Counts(std::array::from_fn(|i| self.0[i].get()))
    }

    /// Resets all counters (`stats reset`).
    pub fn reset(&self) {
        self.0.iter().for_each(|cell| cell.set(0));
    }
}

/// A snapshot of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts([u64; COUNTS]);

impl Counts {
    /// Returns one of them.
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize]
    }
}

impl std::ops::AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, other: &Counts) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.wrapping_add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_its_place() {
        for (at, count) in Count::ALL.into_iter().enumerate() {
            assert_eq!(count as usize, at, "{}", count.name());
        }
        let counters = Counters::default();
        counters.add(Count::GetHits);
        counters.add_many(Count::BytesRead, 7);
        let mut sum = counters.snapshot();
        sum += &counters.snapshot();
        assert_eq!((sum.get(Count::GetHits), sum.get(Count::BytesRead), sum.get(Count::CmdGet)), (2, 14, 0));
        counters.reset();
        assert_eq!(counters.snapshot(), Counts::default());
    }
}
