//! The queue of a server: the operations that wait for a free slot, and their order.

mod ageing;
mod config;
mod demoted;
mod exact;
mod levels;
mod round_robin;
mod shares;
mod thresholds;

use std::collections::VecDeque;
use std::fmt;

pub use ageing::Ageing;
pub use config::{ConfigError, Order, QueueConfig};
pub use shares::{CLIENTS_MAX, Damping};

use demoted::Demoted;
use exact::Exact;
use levels::MultiLevel;
use shares::Shares;

/// One in this many of the service, by cost, is for operations above the share of their client, if there are any.
pub const DEMOTED_ONE_IN: u64 = 16;

/// What a server knows of a waiting operation. The requester supplies the rank. The server itself determines the cost
/// and the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The rank of its opset, from [`crate::Policy::rank`]. Any number is valid: levels beyond the last one are the
    /// last one.
    pub rank: u64,
    /// Its cost, in the unit of [`crate::CostEstimate`]; 0 counts as 1. Derive it from the work that the operation
    /// causes, such as the bytes that it reads, and never from a word of the client: fair shares and weights are only as
    /// good as this figure.
    pub cost: u32,
    /// The server's own number for the client, such as that of its session or host. A client that could choose its
    /// number could take as many shares as it likes.
    pub client: u64,
}

/// A queue of operations that wait for a slot. For one thread; it reads no clock.
///
/// A server that has a free slot and an empty queue should run an operation at once, without the queue. An unused queue
/// has allocated nothing for operations.
///
/// ```
/// use dunlin_schedule::{QueueConfig, RequestQueue, Tag};
///
/// let mut queue = RequestQueue::new(&QueueConfig::default())?;
/// queue.push(Tag { rank: 2000, cost: 1, client: 1 }, "part of a large multiget").unwrap();
/// assert_eq!(queue.pop(), Some("part of a large multiget"));
/// # Ok::<(), dunlin_schedule::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct RequestQueue<T> {
    discipline: Discipline<T>,
    /// Operations that were above the share of their client when they came.
    demoted: Demoted<T>,
    shares: Option<Shares>,
    limit: usize,
    /// Operations taken out so far: the clock of ageing.
    served: u64,
    /// Cost of ranked operations to be served before the next of `demoted`.
    until_demoted: u64,
}

#[derive(Debug)]
enum Discipline<T> {
    Exact(Exact<T>),
    Levels(MultiLevel<T>),
}

#[derive(Debug)]
struct Waiting<T> {
    tag: Tag,
    item: T,
}

/// The queue is full. Returns the operation.
#[derive(PartialEq, Eq)]
pub struct Full<T> {
    /// The operation.
    pub item: T,
    /// The limit of waiting operations.
    pub limit: usize,
}

/// Capacity that a line keeps when it is empty.
const PLACES_KEPT: usize = 1024;

/// Releases unused capacity of a line, in constant time on average: the peaks of all levels together could add up to
/// many times the limit of the queue.
fn shrink<T>(line: &mut VecDeque<T>) {
    if line.capacity() > PLACES_KEPT.max(4 * line.len()) {
        line.shrink_to(PLACES_KEPT.max(2 * line.len()));
    }
}

impl<T> RequestQueue<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: &QueueConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let discipline = match &config.order {
            Order::Exact { ageing } => Discipline::Exact(Exact::new(*ageing)),
            Order::Fifo => Discipline::Levels(MultiLevel::fifo()),
            Order::Weighted { weights } => Discipline::Levels(MultiLevel::weighted(weights)),
            Order::Learnt { levels, ageing } => Discipline::Levels(MultiLevel::learnt(*levels, *ageing)),
        };
        let shares = config.damping.map(Shares::new);
        Ok(RequestQueue {
            discipline,
            demoted: Demoted::new(),
            shares,
            limit: config.limit,
            served: 0,
            until_demoted: 0,
        })
    }

    /// Adds an operation. With damping, clients above their shares make room in a full queue: for an operation within
    /// its client's share, and for one of a client that has fewer operations above its share than another. The client
    /// with the most of them loses its last one, which is returned and must be answered as rejected.
    ///
    /// # Errors
    /// [`Full`], with the operation.
    pub fn push(&mut self, tag: Tag, item: T) -> Result<Option<T>, Full<T>> {
        let is_full = self.len() >= self.limit;
        if is_full && self.demoted.is_empty() {
            return Err(Full { item, limit: self.limit });
        }
        let is_within_share = self.shares.as_mut().is_none_or(|shares| shares.enter(tag.client, tag.cost));
        let displaced = if is_full {
            let least = if is_within_share { 1 } else { self.demoted.count(tag.client) + 2 };
            let displaced = self.displace(least);
            if displaced.is_none() {
                self.leave(tag);
                return Err(Full { item, limit: self.limit });
            }
            displaced
        } else {
            None
        };
        let waiting = Waiting { tag, item };
        match &mut self.discipline {
            _ if !is_within_share => self.demoted.push(waiting),
            Discipline::Exact(exact) => exact.push(waiting, self.served),
            Discipline::Levels(levels) => levels.push(waiting, self.served),
        }
        Ok(displaced)
    }

    /// Takes the operation to run next; `None` if the queue is empty.
    pub fn pop(&mut self) -> Option<T> {
        self.pop_unless(|_| false)
    }

    /// As [`RequestQueue::pop`], but drops operations for which `is_over` returns true, such as those past their
    /// deadline. Dropped operations do not count as served. Each keeps its place until it would be next, or stands first
    /// in its level: there, its cost would decide whose turn it is.
    pub fn pop_unless(&mut self, mut is_over: impl FnMut(&T) -> bool) -> Option<T> {
        loop {
            self.drop_first_of_levels(&mut is_over);
            let (Waiting { tag, item }, was_demoted) = self.take()?;
            let is_over = is_over(&item);
            if !is_over {
                self.count_service(tag.cost, was_demoted);
            }
            self.leave(tag);
            if !is_over {
                return Some(item);
            }
        }
    }

    fn drop_first_of_levels(&mut self, mut is_over: impl FnMut(&T) -> bool) {
        while let Discipline::Levels(levels) = &mut self.discipline
            && let Some(waiting) = levels.take_first_if(&mut is_over)
        {
            self.leave(waiting.tag);
        }
    }

    fn count_service(&mut self, cost: u32, was_demoted: bool) {
        self.served += 1;
        let of_cost = u64::from(cost.max(1));
        self.until_demoted = match was_demoted {
            true => of_cost * (DEMOTED_ONE_IN - 1),
            false => self.until_demoted.saturating_sub(of_cost),
        };
        if let Some(shares) = &mut self.shares {
            shares.serve(cost, was_demoted);
        }
    }

    /// Takes the next operation, with whether it is above the share of its client.
    fn take(&mut self) -> Option<(Waiting<T>, bool)> {
        let is_turn_of_demoted = !self.demoted.is_empty() && self.until_demoted == 0;
        let from_order = if is_turn_of_demoted { None } else { self.pop_in_order() };
        match from_order {
            Some(waiting) => Some((waiting, false)),
            None => Some((self.demoted.pop()?, true)),
        }
    }

    fn pop_in_order(&mut self) -> Option<Waiting<T>> {
        match &mut self.discipline {
            Discipline::Exact(exact) => exact.pop(self.served),
            Discipline::Levels(levels) => levels.pop(self.served),
        }
    }

    /// Removes an operation of the client that is furthest above its share, if it has at least `least` above it.
    fn displace(&mut self, least: usize) -> Option<T> {
        let Waiting { tag, item } = self.demoted.displace(least)?;
        self.leave(tag);
        Some(item)
    }

    /// Releases the share of an operation that no longer waits.
    fn leave(&mut self, tag: Tag) {
        if let Some(shares) = &mut self.shares {
            shares.leave(tag.client);
        }
    }

    /// Number of waiting operations.
    pub fn len(&self) -> usize {
        self.demoted.len()
            + match &self.discipline {
                Discipline::Exact(exact) => exact.len(),
                Discipline::Levels(levels) => levels.len(),
            }
    }

    /// Whether no operation waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waiting operations at each level, the fastest first, then those above the share of their client. A queue without
    /// levels counts as one level.
    pub fn lengths(&self) -> Vec<usize> {
        let mut lengths = match &self.discipline {
            Discipline::Exact(exact) => vec![exact.len()],
            Discipline::Levels(levels) => levels.lengths().collect(),
        };
        lengths.push(self.demoted.len());
        lengths
    }
}

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Full").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Full<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} operations wait already, which is the limit of the queue: repeat it later", self.limit)
    }
}

impl<T> std::error::Error for Full<T> {}
