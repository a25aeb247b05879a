//! What the protocol asks of the thread it runs on.

use std::cell::RefCell;
use std::future::Future;
use std::time::Duration;

use dunlin_store::{Store, StoreStats, UnixSeconds, Visit};

use super::batch::Batch;
use super::budget::{Budget, CONNECTION_BYTES_DEFAULT};
use super::connections::{ConnectionReport, Connections};
use super::counters::{Counters, Counts};
use super::dump::{self, DumpPart};
use super::limits::STALL_TURN_MAX;
use crate::metrics::{CoreMetrics, Timing};
use crate::routing::Core;

/// What the memcached side of one core keeps beside its connections' own state. Made once per core.
#[derive(Debug)]
pub struct CoreState {
    /// What it counts.
    pub counters: Counters,
    /// The connections it serves.
    pub connections: Connections,
    /// The memory that they may hold.
    pub(super) budget: Budget,
    /// Times bursts of commands.
    pub(crate) timing: Timing,
}

impl Default for CoreState {
    /// With [`CONNECTION_BYTES_DEFAULT`] for connections.
    fn default() -> CoreState {
        CoreState::with_connection_bytes(CONNECTION_BYTES_DEFAULT)
    }
}

/// What every core is to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inquiry {
    /// Its counts.
    Totals,
    /// Its counts and some of its connections.
    Connections {
        /// The first place that is looked at, from zero on.
        first: usize,
        /// How many places are looked at.
        count: usize,
    },
    /// Its counts, which then begin anew.
    Reset,
    /// Its counts and a part of a list of items, `stats cachedump`.
    Dump {
        /// The first range of hashes, from zero on.
        first: u64,
        /// How many ranges are looked at.
        count: u64,
        /// Bytes of lines, and one line more, at most.
        bytes_max: usize,
        /// Items at most; zero for as many as there is room for.
        items_max: u32,
    },
}

/// What one core tells.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What it counted.
    pub counts: Counts,
    /// Its partition.
    pub store: StoreStats,
    /// Connections it serves.
    pub connections: u64,
    /// Bytes of memory that they hold while they wait.
    pub connection_bytes: u64,
    /// Bytes of memory that they may hold.
    pub connection_bytes_max: u64,
    /// Places that connections have, free ones included.
    pub connection_places: usize,
    /// Connections, if asked.
    pub each: Vec<ConnectionReport>,
    /// Items, if asked: lines of `stats cachedump`.
    pub dump: DumpPart,
}

impl CoreState {
    /// A core whose connections may hold so many bytes of memory, or [`super::CORE_BYTES_MIN`] if that is more.
    pub fn with_connection_bytes(bytes: usize) -> CoreState {
        CoreState {
            counters: Counters::default(),
            connections: Connections::default(),
            budget: Budget::new(bytes),
            timing: Timing::default(),
        }
    }

    /// Bytes of memory that the connections hold while they wait.
    pub fn connection_bytes(&self) -> u64 {
        self.budget.held() as u64
    }

    /// Bytes of memory that they may hold.
    pub fn connection_bytes_max(&self) -> u64 {
        self.budget.max() as u64
    }

    /// What this core tells.
    pub fn report(&self, inquiry: Inquiry, store: &(impl Store + Visit), now: UnixSeconds) -> Report {
        let mut report = Report {
            counts: self.counters.snapshot(),
            store: store.stats(),
            connections: self.connections.len() as u64,
            connection_places: self.connections.places(),
            connection_bytes: self.connection_bytes(),
            connection_bytes_max: self.connection_bytes_max(),
            ..Report::default()
        };
        match inquiry {
            Inquiry::Totals => {}
            Inquiry::Connections { first, count } => report.each = self.connections.report(first, count, now),
            Inquiry::Reset => self.counters.reset(),
            Inquiry::Dump { first, count, bytes_max, items_max } => {
                report.dump = dump::part(store, first..first.saturating_add(count), items_max, bytes_max, now);
            }
        }
        report
    }
}

/// How long a task waits for its core to have another turn before it looks again.
const STALL_WAIT: Duration = Duration::from_millis(1);
/// How often it looks. A snapshot that has no turn any more must not stop a connection for good.
const STALL_WAITS_MAX: u32 = 1_000;

/// Whether changes have waited for the disk of a snapshot for [`STALL_TURN_MAX`] in this turn of the core.
pub(crate) fn has_stalled(backend: &impl Backend) -> bool {
    backend.with_store(|store| store.stalled()) >= STALL_TURN_MAX
}

/// Lets the core have another turn, and the snapshot with it, if changes have waited for long enough in this one. Commands that would wait on the
/// core's thread wait as a task instead, so that changes slow down to the pace of the disk and the core goes on.
pub(crate) async fn wait_for_turn(backend: &impl Backend) {
    for _ in 0..STALL_WAITS_MAX {
        if !has_stalled(backend) {
            return;
        }
        tokio::time::sleep(STALL_WAIT).await;
    }
}

/// When everything is to be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushTime {
    /// Before the answer.
    Now,
    /// When this time has come.
    At(UnixSeconds),
}

/// The core that a batch was for does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the core that owns these keys is stopping")]
pub struct Unavailable;

/// One core of a server, as the memcached connections on it see it. Calls and futures stay on its thread.
pub trait Backend: 'static {
    /// Its partition.
    type Store: Store + Visit;

    /// The core that owns a key, if it is another one.
    fn elsewhere(&self, key: &[u8]) -> Option<Core>;

    /// How many cores there are.
    fn cores(&self) -> Core;

    /// Whether every key is owned here, so that nobody needs to be asked.
    #[inline]
    fn owns_all(&self) -> bool {
        self.cores() == 1
    }

    /// Lends the partition. Never called within itself.
    fn with_store<R>(&self, run: impl FnOnce(&mut Self::Store) -> R) -> R;

    /// The time, from a clock that costs nothing to read and is at most a second late.
    fn now(&self) -> UnixSeconds;

    /// The counters and connections of this core.
    fn state(&self) -> &CoreState;

    /// What it counts of operations, whatever protocol they came by.
    fn metrics(&self) -> &RefCell<CoreMetrics>;

    /// Lets another core [`Batch::run`] a batch, and gives it back: `Err` if it will not come back.
    fn forward(&self, core: Core, batch: Box<Batch>) -> impl Future<Output = Result<Box<Batch>, Unavailable>>;

    /// Deletes everything on all cores. Returns when every core has done so, or knows the time at which it is to, instead of one that was
    /// planned before. `Err` if a core does not answer.
    fn flush(&self, at: FlushTime) -> impl Future<Output = Result<(), Unavailable>>;

    /// Hears that a task of this core panicked, from within that task. What tasks share is as it left it, so the core shall serve no more.
    fn panicked(&self, why: String) {
        tracing::error!(why, "a task of a core has failed");
    }

    /// Asks all cores, this one too.
    fn ask(&self, inquiry: Inquiry) -> impl Future<Output = Vec<Report>>;
}

#[cfg(test)]
mod tests {
    use dunlin_store::{KeyHash, Model, Sweep as _, Watch};
    use futures::poll;
    use std::pin::pin;

    use super::*;
    use crate::memcached::Single;

    /// A snapshot that has held changes up for so long.
    #[derive(Debug)]
    struct Stalled(Duration);

    impl Watch for Stalled {
        fn before_change(&mut self, _items: &dyn Visit, _hash: KeyHash) {}

        fn before_flush(&mut self, _items: &dyn Visit) {}

        fn stalled(&self) -> Duration {
            self.0
        }
    }

    #[tokio::test]
    async fn commands_wait_for_the_next_turn_of_a_snapshot_that_has_held_the_core_up() {
        let core = Single::new(Model::new(), 0);
        let stall = |time| core.with_store(|store| drop(store.watch(Box::new(Stalled(time)))));
        stall(STALL_TURN_MAX - Duration::from_millis(1));
        assert!(poll!(pin!(wait_for_turn(&core))).is_ready());
        stall(STALL_TURN_MAX);
        let mut waiting = pin!(wait_for_turn(&core));
        tokio::time::timeout(4 * STALL_WAIT, &mut waiting).await.unwrap_err();
        stall(Duration::ZERO);
        waiting.await;
        // One that has no turn any more.
        stall(STALL_TURN_MAX);
        wait_for_turn(&core).await;
    }
}
