//! What the protocol needs from the thread that it runs on.

use std::cell::RefCell;
use std::future::Future;
use std::time::Duration;

use dunlin_store::tier::{Ticket, Tier, TierStats};
use dunlin_store::{Store, StoreStats, UnixSeconds, Visit};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::batch::Batch;
use super::budget::{Budget, CONNECTION_BYTES_DEFAULT};
use super::connections::{ConnectionReport, Connections};
use super::counters::{Counters, Counts};
use super::dump::{self, DumpPart};
use super::limits::STALL_TURN_MAX;
use crate::metrics::{CoreMetrics, Timing};
use crate::routing::Core;
use crate::tier::{DeviceHangs, Holds};

/// The memcached state of one core, beyond that of its connections. Created once per core.
#[derive(Debug)]
pub struct CoreState {
    /// Its counters.
    pub counters: Counters,
    /// The connections it serves.
    pub connections: Connections,
    /// The limit of the connections' memory.
    pub(super) budget: Budget,
    /// Measures bursts of commands.
    pub(crate) timing: Timing,
    /// The line of those that wait for another turn of the core, and how often the first of it has looked in vain.
    stall_line: Mutex<u32>,
}

impl Default for CoreState {
    /// With [`CONNECTION_BYTES_DEFAULT`] for connections.
    fn default() -> CoreState {
        CoreState::with_connection_bytes(CONNECTION_BYTES_DEFAULT)
    }
}

/// A report requested from every core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inquiry {
    /// Counters.
    Totals,
    /// Counters and some of the connections.
    Connections {
        /// The first slot to look at, from zero on.
        first: usize,
        /// The number of slots to look at.
        count: usize,
    },
    /// Counters, which are then reset.
    Reset,
    /// Counters and a part of a list of items, for `stats cachedump`.
    Dump {
        /// The first range of hashes, from zero on.
        first: u64,
        /// The number of ranges to look at.
        count: u64,
        /// Maximum bytes of lines; one line more may exceed it.
        bytes_max: usize,
        /// Maximum number of items; zero for as many as there is room for.
        items_max: u32,
    },
}

/// The report of one core.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Its counters.
    pub counts: Counts,
    /// Statistics of its partition.
    pub store: StoreStats,
    /// Statistics of its tier, if it has one.
    pub tier: Option<TierStats>,
    /// Connections it serves.
    pub connections: u64,
    /// Bytes of memory that they hold while they wait.
    pub connection_bytes: u64,
    /// Bytes of memory that they may hold.
    pub connection_bytes_max: u64,
    /// Slots for connections, including free ones.
    pub connection_places: usize,
    /// Connections, if requested.
    pub each: Vec<ConnectionReport>,
    /// Items, if requested: lines of `stats cachedump`.
    pub dump: DumpPart,
}

impl CoreState {
    /// Creates the state of a core whose connections may hold this much memory, or [`super::CORE_BYTES_MIN`] if that is
    /// more.
    pub fn with_connection_bytes(bytes: usize) -> CoreState {
        CoreState {
            counters: Counters::default(),
            connections: Connections::default(),
            budget: Budget::new(bytes),
            timing: Timing::default(),
            stall_line: Mutex::default(),
        }
    }

    /// Returns the bytes of memory that the connections hold while they wait.
    pub fn connection_bytes(&self) -> u64 {
        self.budget.held() as u64
    }

    /// Returns the bytes of memory that they may hold.
    pub fn connection_bytes_max(&self) -> u64 {
        self.budget.max() as u64
    }

    /// Returns the report of this core.
    pub fn report(&self, inquiry: Inquiry, store: &(impl Store + Visit), now: UnixSeconds) -> Report {
        let mut report = Report {
            counts: self.counters.snapshot(),
            store: store.stats(),
            tier: store.tier().map(Tier::stats),
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

/// How long a task waits for its core's next turn before it checks again.
pub(crate) const STALL_WAIT: Duration = Duration::from_millis(1);
/// How often it looks. A snapshot that has no turn any more must not stop connections for good: after that, one more of
/// them goes on each time.
const STALL_WAITS_MAX: u32 = 1_000;

/// Whether changes have waited for a snapshot's disk for [`STALL_TURN_MAX`] in this turn of the core.
fn has_stalled(backend: &impl Backend) -> bool {
    backend.with_store(|store| store.stalled()) >= STALL_TURN_MAX
}

/// Whether a change has to wait for another turn of the core: changes have waited for long enough in this one, or others
/// wait in line. What only reads never waits.
pub(crate) fn must_wait(backend: &impl Backend) -> bool {
    // The lock is fair: it is taken while anybody waits for it.
    backend.with_store(|store| store.may_stall())
        && (has_stalled(backend) || backend.state().stall_line.try_lock().is_err())
}

/// Lets the core have another turn, and the snapshot with it, if changes have waited for long enough in this one.
/// Changes that would wait on the core's thread wait as a task instead, so that they slow down to the pace of the disk
/// and the core goes on. When this returns, one burst of changes may run at once.
///
/// They wait in line, and only the first one looks: however many there are, no more go on in one turn than
/// [`STALL_TURN_MAX`] allows. Returns for how long it waited, in nanoseconds.
pub(crate) async fn wait_for_turn(backend: &impl Backend) -> u64 {
    if !must_wait(backend) {
        return 0;
    }
    let begun = Instant::now();
    let mut looks = backend.state().stall_line.lock().await;
    while has_stalled(backend) && *looks <= STALL_WAITS_MAX {
        tokio::time::sleep(STALL_WAIT).await;
        *looks += 1;
    }
    // The next one looks once more, at least.
    *looks = if has_stalled(backend) { STALL_WAITS_MAX } else { 0 };
    begun.elapsed().as_nanos().try_into().unwrap_or(u64::MAX)
}

/// When everything is to be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushTime {
    /// Before the answer.
    Now,
    /// At this time.
    At(UnixSeconds),
}

/// The core that a batch was for does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the core that owns these keys does not answer")]
pub struct Unavailable;

/// One core of a server, as seen by the memcached connections on it. Calls and futures stay on its thread.
pub trait Backend: 'static {
    /// Its partition.
    type Store: Store + Visit;

    /// Returns the core that owns a key, if it is another one.
    fn elsewhere(&self, key: &[u8]) -> Option<Core>;

    /// Returns the number of cores.
    fn cores(&self) -> Core;

    /// Whether this core owns every key, so that no other needs to be asked.
    #[inline]
    fn owns_all(&self) -> bool {
        self.cores() == 1
    }

    /// Lends the partition. Never called recursively.
    fn with_store<R>(&self, run: impl FnOnce(&mut Self::Store) -> R) -> R;

    /// Returns the time, from a clock that is free to read and at most a second late.
    fn now(&self) -> UnixSeconds;

    /// Returns the counters and connections of this core.
    fn state(&self) -> &CoreState;

    /// Returns this core's metrics of operations, for all protocols.
    fn metrics(&self) -> &RefCell<CoreMetrics>;

    /// Has another core [`Batch::run`] a batch, and returns the batch: `Err` if it will not come back.
    fn forward(&self, core: Core, batch: Box<Batch>) -> impl Future<Output = Result<Box<Batch>, Unavailable>>;

    /// Whether items may have to be read from a tier: see [`Backend::fetch`].
    #[inline]
    fn has_tier(&self) -> bool {
        false
    }

    /// Waits until these records of this core's tier have been read. Their items are found as long as the result lives.
    /// `Err` if the device does not answer.
    fn fetch(&self, _tickets: Vec<Ticket>, _client: u64) -> impl Future<Output = Result<Holds, DeviceHangs>> {
        std::future::ready(Ok(Holds::default()))
    }

    /// Deletes everything on all cores. Returns when every core has done so, or has scheduled it for the given time in
    /// place of any earlier schedule. `Err` if a core does not answer.
    fn flush(&self, at: FlushTime) -> impl Future<Output = Result<(), Unavailable>>;

    /// Reports that a task of this core panicked, from within that task. The state that tasks share may be
    /// inconsistent, so the core must stop serving.
    fn panicked(&self, why: String) {
        tracing::error!(why, "a task of a core has failed");
    }

    /// Asks all cores, including this one.
    fn ask(&self, inquiry: Inquiry) -> impl Future<Output = Vec<Report>>;
}

#[cfg(test)]
mod tests {
    use dunlin_store::{KeyHash, Model, Sweep as _, Watch};
    use futures::future::join_all;
    use futures::poll;
    use std::cell::Cell;
    use std::pin::pin;
    use std::rc::Rc;
    use std::sync::{Arc, Mutex};
    use std::task::Poll;
    use tokio::task::{LocalSet, spawn_local};

    use super::*;
    use crate::memcached::Single;

    /// A snapshot that has held up changes for this long.
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
        assert_eq!(poll!(pin!(wait_for_turn(&core))), Poll::Ready(0));
        stall(STALL_TURN_MAX);
        let mut waiting = pin!(wait_for_turn(&core));
        tokio::time::timeout(4 * STALL_WAIT, &mut waiting).await.unwrap_err();
        stall(Duration::ZERO);
        assert!(Duration::from_nanos(waiting.await) >= 4 * STALL_WAIT);
        // One that has no turn any more. Those behind the first that gave it up do not wait as long again.
        stall(STALL_TURN_MAX);
        wait_for_turn(&core).await;
        tokio::time::timeout(STALL_WAIT * STALL_WAITS_MAX / 2, wait_for_turn(&core)).await.unwrap();
    }

    /// A snapshot that has held changes up for what is said here.
    #[derive(Debug, Clone)]
    struct Disk(Arc<Mutex<Duration>>);

    impl Watch for Disk {
        fn before_change(&mut self, _items: &dyn Visit, _hash: KeyHash) {}

        fn before_flush(&mut self, _items: &dyn Visit) {}

        fn stalled(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    /// More of them than have a part of the turns in which one of them would give up a snapshot that has none. Some
    /// come right after a turn of the snapshot.
    #[tokio::test]
    async fn a_crowd_that_waits_for_turns_of_a_snapshot_keeps_its_order_and_holds_the_core_for_a_bounded_time_in_each()
    {
        const CROWD: usize = 3_000;
        const NEWCOMERS: usize = 50;
        const STALL: Duration = Duration::from_millis(10);
        let core = Rc::new(Single::new(Model::new(), 0));
        let disk = Disk(Arc::new(Mutex::new(STALL_TURN_MAX)));
        core.with_store(|store| drop(store.watch(Box::new(disk.clone()))));
        let done = Rc::new(RefCell::new(Vec::new()));
        let change = |number| {
            let (core, disk, done) = (core.clone(), disk.clone(), done.clone());
            async move {
                wait_for_turn(&*core).await;
                *disk.0.lock().unwrap() += STALL;
                done.borrow_mut().push(number);
            }
        };
        let longest = Rc::new(Cell::new(Duration::ZERO));
        let work = async {
            let crowd = (0..CROWD).map(|number| spawn_local(change(number)));
            let newcomers = Vec::from_iter((CROWD..CROWD + NEWCOMERS).map(&change));
            let (newcoming, newcame) = tokio::sync::oneshot::channel();
            let crowd = join_all(crowd);
            let (disk, longest) = (disk.clone(), longest.clone());
            spawn_local(async move {
                let mut newcomers = newcomers.into_iter();
                let (mut spawned, mut newcoming) = (Vec::new(), Some(newcoming));
                loop {
                    tokio::time::sleep(STALL_WAIT).await;
                    longest.set(longest.get().max(std::mem::take(&mut *disk.0.lock().unwrap())));
                    match newcomers.next() {
                        Some(newcomer) => spawned.push(spawn_local(newcomer)),
                        None => drop(newcoming.take().map(|all| all.send(std::mem::take(&mut spawned)))),
                    }
                }
            });
            let mut results = join_all(newcame.await.unwrap()).await;
            results.extend(crowd.await);
            results
        };
        LocalSet::new().run_until(work).await.into_iter().for_each(Result::unwrap);
        assert!(done.borrow().is_sorted(), "some have overtaken others");
        assert_eq!(done.borrow().len(), CROWD + NEWCOMERS);
        let longest = longest.get();
        assert!((STALL_TURN_MAX..=STALL_TURN_MAX + STALL).contains(&longest), "{longest:?} in one turn");
    }
}
