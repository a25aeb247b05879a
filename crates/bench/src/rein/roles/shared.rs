//! Queues of prioritized operations that many threads share, and those that each thread has for itself.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Mutex, PoisonError};

use dunlin_schedule::{ConfigError, Order, QueueConfig, RequestQueue, Tag};
use serde::{Deserialize, Serialize};

/// Priorities of the experiment, and levels of its multi-level queues.
pub const PRIORITIES: usize = 5;
/// Weights of the levels, from the fastest on.
const WEIGHTS: [u32; PRIORITIES] = [5, 4, 3, 2, 1];

/// A kind of queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueKind {
    /// A binary heap behind a lock, shared.
    Heap,
    /// A skip list without locks, shared: Lotan and Shavit's priority queue.
    #[cfg(feature = "rivals")]
    SkipList,
    /// A first-in, first-out queue without locks, shared.
    #[cfg(feature = "rivals")]
    Fifo,
    /// Five of these, drained by deficit round robin, whose state is one atomic word.
    #[cfg(feature = "rivals")]
    Levels,
    /// The same, with a state of each thread's own.
    #[cfg(feature = "rivals")]
    LevelsOwnTurn,
    /// Dunlin's weighted levels behind a lock, shared.
    LockedWeighted,
    /// Dunlin's queue of this order, one for each thread.
    Own(OwnOrder),
}

/// The order of a queue that one thread has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnOrder {
    /// First in, first out.
    Fifo,
    /// By exact rank.
    Exact,
    /// Levels with weights.
    Weighted,
    /// Levels that are learnt, with damping: as shipped.
    Shipped,
}

impl QueueKind {
    /// All kinds of this build.
    pub const ALL: &[QueueKind] = &[
        QueueKind::Heap,
        #[cfg(feature = "rivals")]
        QueueKind::SkipList,
        #[cfg(feature = "rivals")]
        QueueKind::Fifo,
        #[cfg(feature = "rivals")]
        QueueKind::Levels,
        #[cfg(feature = "rivals")]
        QueueKind::LevelsOwnTurn,
        QueueKind::LockedWeighted,
        QueueKind::Own(OwnOrder::Fifo),
        QueueKind::Own(OwnOrder::Exact),
        QueueKind::Own(OwnOrder::Weighted),
        QueueKind::Own(OwnOrder::Shipped),
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            QueueKind::Heap => "shared: heap, locked",
            #[cfg(feature = "rivals")]
            QueueKind::SkipList => "shared: skip list",
            #[cfg(feature = "rivals")]
            QueueKind::Fifo => "shared: FIFO",
            #[cfg(feature = "rivals")]
            QueueKind::Levels => "shared: 5 levels",
            #[cfg(feature = "rivals")]
            QueueKind::LevelsOwnTurn => "shared: 5 levels, each thread in its own turn",
            QueueKind::LockedWeighted => "shared: Dunlin's 5 levels, locked",
            QueueKind::Own(OwnOrder::Fifo) => "one a thread: Dunlin, FIFO",
            QueueKind::Own(OwnOrder::Exact) => "one a thread: Dunlin, exact",
            QueueKind::Own(OwnOrder::Weighted) => "one a thread: Dunlin, 5 levels",
            QueueKind::Own(OwnOrder::Shipped) => "one a thread: Dunlin, as shipped",
        }
    }

    /// Whether all threads use one.
    pub fn is_shared(self) -> bool {
        !matches!(self, QueueKind::Own(_))
    }

    /// An empty shared queue; `None` for those that each thread has.
    ///
    /// # Errors
    /// [`ConfigError`] does not happen: the orders are constant.
    pub(super) fn shared(self) -> Result<Option<Box<dyn Shared>>, ConfigError> {
        Ok(Some(match self {
            QueueKind::Heap => Box::new(Heap::default()),
            #[cfg(feature = "rivals")]
            QueueKind::SkipList => Box::new(rivals::SkipList::default()),
            #[cfg(feature = "rivals")]
            QueueKind::Fifo => Box::new(rivals::Fifo::default()),
            #[cfg(feature = "rivals")]
            QueueKind::Levels => Box::new(rivals::Levels::new(rivals::Turns::Shared)),
            #[cfg(feature = "rivals")]
            QueueKind::LevelsOwnTurn => Box::new(rivals::Levels::new(rivals::Turns::Own)),
            QueueKind::LockedWeighted => Box::new(Locked(Mutex::new(OwnOrder::Weighted.queue()?))),
            QueueKind::Own(_) => return Ok(None),
        }))
    }
}

impl OwnOrder {
    /// An empty queue.
    pub(super) fn queue(self) -> Result<RequestQueue<u64>, ConfigError> {
        let QueueConfig { order: shipped, damping, .. } = QueueConfig::default();
        let (order, damping) = match self {
            OwnOrder::Fifo => (Order::Fifo, None),
            OwnOrder::Exact => (Order::Exact { ageing: None }, None),
            OwnOrder::Weighted => (Order::Weighted { weights: WEIGHTS.to_vec() }, None),
            OwnOrder::Shipped => (shipped, damping),
        };
        // The random walk of the experiment has no end.
        RequestQueue::new(&QueueConfig { order, damping, limit: usize::MAX })
    }
}

/// A queue that many threads share.
pub(super) trait Shared: Sync {
    /// Adds an operation with a priority below [`PRIORITIES`]; 0 is served first.
    fn push(&self, priority: usize, item: u64);

    /// Takes the operation to serve next. `turn` is the calling thread's.
    fn pop(&self, turn: &mut Turn) -> Option<u64>;
}

/// A place in a deficit round robin: the level, and the operations that it may still serve.
#[derive(Debug, Clone, Copy, Default)]
#[cfg_attr(not(feature = "rivals"), allow(dead_code, reason = "only queues of other crates take turns here"))]
pub(super) struct Turn {
    level: usize,
    credit: u32,
}

/// Adds to a queue of one thread.
#[inline]
pub(super) fn push_own(queue: &mut RequestQueue<u64>, priority: usize, item: u64) {
    // Ranks from 0 on are levels, and sizes of requests to the learnt ones.
    let tag = Tag { rank: priority as u64, cost: 1, client: 0 };
    // It has no limit.
    let _ = queue.push(tag, item);
}

#[derive(Default)]
struct Heap(Mutex<Numbered>);

/// Keys are the priority and the order of arrival.
#[derive(Default)]
struct Numbered {
    next: u64,
    items: BinaryHeap<Reverse<(usize, u64, u64)>>,
}

impl Shared for Heap {
    fn push(&self, priority: usize, item: u64) {
        let Numbered { next, items } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        items.push(Reverse((priority, *next, item)));
        *next += 1;
    }

    fn pop(&self, _: &mut Turn) -> Option<u64> {
        let mut heap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heap.items.pop().map(|Reverse((.., item))| item)
    }
}

struct Locked(Mutex<RequestQueue<u64>>);

impl Shared for Locked {
    fn push(&self, priority: usize, item: u64) {
        push_own(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), priority, item);
    }

    fn pop(&self, _: &mut Turn) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

/// A bare queue of one thread: the floor of those that are not shared.
pub(super) type Bare = VecDeque<u64>;

/// Queues of other crates.
#[cfg(feature = "rivals")]
mod rivals {
    use std::sync::atomic::{AtomicU64, Ordering};

    use crossbeam_queue::SegQueue;
    use crossbeam_skiplist::SkipMap;

    use super::{PRIORITIES, Shared, Turn, WEIGHTS};

    /// Keys are the priority and the order of arrival.
    #[derive(Default)]
    pub struct SkipList {
        numbers: AtomicU64,
        items: SkipMap<(usize, u64), u64>,
    }

    impl Shared for SkipList {
        fn push(&self, priority: usize, item: u64) {
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            self.items.insert((priority, number), item);
        }

        fn pop(&self, _: &mut Turn) -> Option<u64> {
            self.items.pop_front().map(|entry| *entry.value())
        }
    }

    #[derive(Default)]
    pub struct Fifo(SegQueue<u64>);

    impl Shared for Fifo {
        fn push(&self, _: usize, item: u64) {
            self.0.push(item);
        }

        fn pop(&self, _: &mut Turn) -> Option<u64> {
            self.0.pop()
        }
    }

    /// Who knows whose turn it is.
    #[derive(PartialEq, Eq)]
    pub enum Turns {
        /// All threads together.
        Shared,
        /// Each thread for itself.
        Own,
    }

    /// The thesis' multi-level queue. It serves whatever is there: it is empty to a thread that found all levels empty,
    /// one after the other.
    pub struct Levels {
        levels: [SegQueue<u64>; PRIORITIES],
        turns: Turns,
        /// A [`Turn`]: the level in the upper half.
        turn: AtomicU64,
    }

    impl Levels {
        pub fn new(turns: Turns) -> Levels {
            Levels { levels: Default::default(), turns, turn: AtomicU64::new(packed(Turn::default())) }
        }

        /// Takes an operation in turn, and returns the next turn.
        fn pop_in(&self, mut turn: Turn) -> (Option<u64>, Turn) {
            // Each level once, and the first one again, whose credit may have been used up.
            for _ in 0..=PRIORITIES {
                if turn.credit > 0
                    && let Some(item) = self.levels[turn.level].pop()
                {
                    return (Some(item), Turn { credit: turn.credit - 1, ..turn });
                }
                let level = (turn.level + 1) % PRIORITIES;
                turn = Turn { level, credit: WEIGHTS[level] };
            }
            (None, turn)
        }
    }

    impl Shared for Levels {
        fn push(&self, priority: usize, item: u64) {
            self.levels[priority].push(item);
        }

        fn pop(&self, turn: &mut Turn) -> Option<u64> {
            if self.turns == Turns::Own {
                let (item, next) = self.pop_in(*turn);
                *turn = next;
                return item;
            }
            let seen = self.turn.load(Ordering::Relaxed);
            let (item, next) = self.pop_in(unpacked(seen));
            // Of threads that saw the same turn, one says what the next is.
            let _ = self.turn.compare_exchange(seen, packed(next), Ordering::Relaxed, Ordering::Relaxed);
            item
        }
    }

    fn packed(Turn { level, credit }: Turn) -> u64 {
        (level as u64) << 32 | u64::from(credit)
    }

    fn unpacked(word: u64) -> Turn {
        Turn { level: (word >> 32) as usize, credit: word as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a queue returns for 20 operations, four of each priority, the slowest first.
    fn drained(kind: QueueKind) -> Vec<u64> {
        let priorities = || (0..PRIORITIES * 4).map(|number| PRIORITIES - 1 - number % PRIORITIES);
        if let Some(queue) = kind.shared().unwrap() {
            priorities().for_each(|priority| queue.push(priority, priority as u64));
            let mut turn = Turn::default();
            return std::iter::from_fn(|| queue.pop(&mut turn)).collect();
        }
        let QueueKind::Own(order) = kind else { panic!("{kind:?} is not shared") };
        let mut queue = order.queue().unwrap();
        priorities().for_each(|priority| push_own(&mut queue, priority, priority as u64));
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn each_kind_has_its_order_and_loses_nothing() {
        for kind in QueueKind::ALL {
            let items = drained(*kind);
            let mut sorted = items.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4].map(|priority| [priority; 4]).concat(), "{kind:?}");
            let is_sorted = items == sorted;
            match kind.name() {
                "shared: heap, locked" | "shared: skip list" | "one a thread: Dunlin, exact" => {
                    assert!(is_sorted, "{kind:?}: {items:?}");
                }
                "shared: FIFO" | "one a thread: Dunlin, FIFO" => {
                    assert_eq!(items, [4, 3, 2, 1, 0].repeat(4), "{kind:?}");
                }
                // The fastest level is emptied first, the slowest last.
                name if name.contains("5 levels") => {
                    let last = |priority| items.iter().rposition(|item| *item == priority).unwrap();
                    assert!(!is_sorted && last(0) < last(4) && last(1) < last(4), "{kind:?}: {items:?}");
                }
                _ => {}
            }
        }
    }
}
