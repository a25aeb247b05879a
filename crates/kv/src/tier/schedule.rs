//! The order in which waiting operations are served.

use dunlin_schedule::{Levels, Order, QueueConfig};

use crate::wire::Ranked;

/// The queue of a core, and the rank of requests that carry none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schedule {
    /// The order, the damping of claims, and the limit.
    pub queue: QueueConfig,
    /// The levels of requests whose rank is no level, if the queue has levels ([`Order::Weighted`]).
    intervals: Option<Levels>,
}

impl Schedule {
    /// Serves in this order, with the default damping and limit. For [`Schedule::levels`], use that.
    pub fn new(order: Order) -> Schedule {
        Schedule { queue: QueueConfig { order, ..QueueConfig::default() }, intervals: None }
    }

    /// Serves levels by deficit round robin with their weights. Requests whose rank is a size get the level whose interval
    /// contains it, and those without a rank the level of their number of keys.
    pub fn levels(levels: Levels) -> Schedule {
        let order = Order::Weighted { weights: levels.weights().to_vec() };
        Schedule { intervals: Some(levels), ..Schedule::new(order) }
    }

    /// Returns the rank in the queue of a request for this many keys. If the queue has levels, a rank that is a size
    /// gets the level whose interval contains it.
    pub(crate) fn rank(&self, ranked: Option<Ranked>, keys: usize) -> u64 {
        let size = match ranked {
            Some(Ranked { rank, is_level: true, .. }) => return rank,
            Some(Ranked { rank, .. }) => rank,
            None if self.queue.order == Order::Fifo => 0,
            None => keys as u64,
        };
        self.intervals.as_ref().map_or(size, |levels| levels.of_cost(size) as u64)
    }
}

#[cfg(test)]
mod tests {
    use dunlin_schedule::{RequestQueue, Tag};

    use super::*;
    use crate::tier::desk::cost;
    use crate::wire::MULTI_GET_VALUE_BYTES_MAX;

    #[test]
    fn the_longest_answer_to_a_multi_get_is_within_the_lead_of_its_client() {
        let mut queue = RequestQueue::new(&Schedule::default().queue).unwrap();
        let demoted = |queue: &RequestQueue<()>| *queue.lengths().last().unwrap();
        let parts = 2;
        for _ in 0..parts {
            let tag = Tag { rank: 2, cost: cost(MULTI_GET_VALUE_BYTES_MAX / parts), client: 1 };
            assert!(queue.push(tag, ()).is_ok());
        }
        assert_eq!(demoted(&queue), 0);
        (0..10).for_each(|_| assert!(queue.push(Tag { rank: 2, cost: cost(1 << 20), client: 1 }, ()).is_ok()));
        assert!(demoted(&queue) > 0, "the lead ends");
    }

    #[test]
    fn requests_without_a_rank_have_one_by_their_keys() {
        assert_eq!([1, 50].map(|keys| Schedule::new(Order::Fifo).rank(None, keys)), [0, 0]);
        assert_eq!([1, 50].map(|keys| Schedule::default().rank(None, keys)), [1, 50]);
        let levels = Schedule::levels(Levels::uniform(4, 3).unwrap());
        assert_eq!([1, 2, 3, 9, 27, 1000].map(|keys| levels.rank(None, keys)), [0, 0, 1, 2, 3, 3]);
    }

    /// Clients need not know the order of a server: totals are no levels, nor the slowest one.
    #[test]
    fn sizes_have_levels_and_levels_stay() {
        let rank = |schedule: &Schedule, is_level, rank| {
            schedule.rank(Some(Ranked { rank, is_level, wants_waited: false }), 1)
        };
        let levels = Schedule::levels(Levels::uniform(4, 3).unwrap());
        assert_eq!([1, 2, 3, 9, 27, 1000].map(|size| rank(&levels, false, size)), [0, 0, 1, 2, 3, 3]);
        assert_eq!([0, 1, 2, 3].map(|level| rank(&levels, true, level)), [0, 1, 2, 3]);
        assert_eq!([1, 50].map(|size| rank(&Schedule::default(), false, size)), [1, 50]);
    }
}
