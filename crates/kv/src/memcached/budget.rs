//! The memory that the connections of one core hold while they wait: for the rest of a command, for other cores, or for their clients to read.
//!
//! What a connection holds only while it runs is not counted: one runs at a time. Before it may come to hold more, it takes the bytes from a
//! pool, and waits in line if the pool has none; while it waits nothing is read from it. Small commands need no pool. There is a pool for each
//! stage of a command. A connection takes memory in a fixed order of pools and never waits in a pool that it already holds from. So no two
//! connections wait for each other: commands that come in wait for turns, turns wait for answers, and answers wait for clients only.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::limits::SHORT_BYTES;

/// Least memory for the connections of one core, in bytes: each pool has room for the longest command or answer.
pub const CORE_BYTES_MIN: usize = 8 << 20;
/// Memory for the connections of a server unless it is told otherwise, in bytes.
pub const CONNECTION_BYTES_DEFAULT: usize = 64 << 20;
/// Seconds that a connection may hold memory while others wait for some: then it is closed. A client that sends or reads 1 MiB in that time
/// has 35 kB/s.
pub const HOLD_SECONDS_MAX: u32 = 30;

/// How much memory a connection may come to hold before it asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Memory {
    /// As much as the limits say.
    #[default]
    Ample,
    /// [`SHORT_BYTES`] of each kind.
    Short,
}

impl Memory {
    /// The limit, or a lower one if memory is short.
    #[inline]
    pub fn limit(self, bytes: usize) -> usize {
        match self {
            Memory::Ample => bytes,
            Memory::Short => bytes.min(SHORT_BYTES),
        }
    }
}

/// The pools of one core.
#[derive(Debug)]
pub(super) struct Budget {
    /// The starts of commands, which every connection may keep: counted, but without a limit.
    pub short: Rc<Pool>,
    /// What is read at once. Nobody waits for that: a connection that finds no room here reads little, or waits for room in `commands`.
    pub reads: Rc<Pool>,
    /// Commands of which the rest is to come, each with all that it may come to have.
    pub commands: Rc<Pool>,
    /// Commands that other cores execute, and their answers as far as they are short.
    pub turns: Rc<Pool>,
    /// Answers that are to be read by clients, and long ones of other cores.
    pub answers: Rc<Pool>,
}

impl Budget {
    /// Divides so many bytes, at least [`CORE_BYTES_MIN`].
    pub fn new(bytes: usize) -> Budget {
        let sixteenth = bytes.max(CORE_BYTES_MIN) / 16;
        Budget {
            short: Pool::new(usize::MAX),
            reads: Pool::new(2 * sixteenth),
            commands: Pool::new(5 * sixteenth),
            turns: Pool::new(4 * sixteenth),
            answers: Pool::new(5 * sixteenth),
        }
    }

    fn pools(&self) -> [&Pool; 4] {
        [&self.reads, &self.commands, &self.turns, &self.answers]
    }

    /// Bytes held.
    pub fn held(&self) -> usize {
        self.short.held.get() + self.pools().iter().map(|pool| pool.held.get()).sum::<usize>()
    }

    /// Bytes that may be held.
    pub fn max(&self) -> usize {
        self.pools().iter().map(|pool| pool.max).sum()
    }

    /// Whether connections wait for memory.
    pub fn is_wanted(&self) -> bool {
        self.pools().iter().any(|pool| !pool.waiting.borrow().is_empty())
    }
}

/// Bytes that connections hold, up to a limit, and a line of those that wait for some.
#[derive(Debug)]
pub(super) struct Pool {
    max: usize,
    held: Cell<usize>,
    waiting: RefCell<VecDeque<Rc<Ticket>>>,
}

/// A place in the line.
#[derive(Debug)]
struct Ticket {
    bytes: usize,
    is_granted: Cell<bool>,
    waker: RefCell<Waker>,
}

impl Pool {
    fn new(max: usize) -> Rc<Pool> {
        Rc::new(Pool { max, held: Cell::new(0), waiting: RefCell::default() })
    }

    /// Bytes that may be held.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether so many bytes may be held in addition. Nobody overtakes those that wait.
    #[inline]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.fits(bytes) && self.waiting.borrow().is_empty()
    }

    #[inline]
    fn fits(&self, bytes: usize) -> bool {
        self.held.get().saturating_add(bytes) <= self.max
    }

    fn give_back(&self, bytes: usize) {
        self.held.set(self.held.get() - bytes);
        let mut waiting = self.waiting.borrow_mut();
        while let Some(ticket) = waiting.front().filter(|ticket| self.fits(ticket.bytes)) {
            self.held.set(self.held.get() + ticket.bytes);
            ticket.is_granted.set(true);
            ticket.waker.borrow().wake_by_ref();
            waiting.pop_front();
        }
    }
}

/// What one connection holds of a pool. Dropped, it is given back.
#[derive(Debug)]
pub(super) struct Held {
    pool: Rc<Pool>,
    bytes: usize,
    ticket: Option<Rc<Ticket>>,
}

impl Held {
    /// Nothing of this pool.
    pub fn nothing(pool: &Rc<Pool>) -> Held {
        Held { pool: pool.clone(), bytes: 0, ticket: None }
    }

    /// How many bytes are held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether so many bytes are held, or could be without waiting; all that the pool has are enough.
    #[inline]
    pub fn can_have(&self, bytes: usize) -> bool {
        let bytes = bytes.min(self.pool.max);
        bytes <= self.bytes || self.pool.has_room(bytes - self.bytes)
    }

    /// Says how many bytes are held now. More than before only what [`Pool::has_room`] allowed in the same run of the connection.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        self.leave();
        if bytes < self.bytes {
            self.pool.give_back(self.bytes - bytes);
        } else {
            self.pool.held.set(self.pool.held.get() + (bytes - self.bytes));
        }
        self.bytes = bytes;
    }

    /// Holds so many bytes, or more if it did already, as soon as the pool has them. A connection that may have to wait holds nothing of this pool.
    pub fn poll_at_least(&mut self, bytes: usize, context: &mut Context<'_>) -> Poll<()> {
        // Nobody can hold more: that is the pool for one alone.
        let bytes = bytes.min(self.pool.max);
        if let Some(ticket) = &self.ticket {
            if !ticket.is_granted.get() {
                ticket.waker.borrow_mut().clone_from(context.waker());
                return Poll::Pending;
            }
            self.bytes += ticket.bytes;
            self.ticket = None;
        }
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 || self.pool.has_room(more) {
            self.set(self.bytes + more);
            return Poll::Ready(());
        }
        debug_assert_eq!(self.bytes, 0, "whoever holds some of a pool and waits for more may wait for itself");
        let ticket = Ticket { bytes: more, is_granted: Cell::new(false), waker: RefCell::new(context.waker().clone()) };
        let ticket = Rc::new(ticket);
        self.pool.waiting.borrow_mut().push_back(ticket.clone());
        self.ticket = Some(ticket);
        Poll::Pending
    }

    /// Leaves the line.
    fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        if ticket.is_granted.get() {
            self.bytes += ticket.bytes;
        } else {
            self.pool.waiting.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, &ticket));
            // Those behind may need less.
            self.pool.give_back(0);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_wants_more_than_there_is_waits_in_line() {
        let pool = Pool::new(100);
        let [mut first, mut second, mut third] = [(); 3].map(|()| Held::nothing(&pool));
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.poll_at_least(60, &mut context).is_ready());
        assert!(second.poll_at_least(50, &mut context).is_pending());
        // There is room for it, but it does not overtake.
        assert!(third.poll_at_least(10, &mut context).is_pending());
        assert!(!pool.has_room(1));
        first.set(50);
        assert!(second.poll_at_least(50, &mut context).is_ready());
        assert!(third.poll_at_least(10, &mut context).is_pending());
        drop(first);
        assert!(third.poll_at_least(10, &mut context).is_ready());
        assert_eq!(pool.held.get(), 60);
        drop((second, third));
        assert_eq!((pool.held.get(), pool.has_room(100)), (0, true));
    }

    #[test]
    fn whoever_goes_away_gives_its_place_and_its_bytes_to_others() {
        let pool = Pool::new(100);
        let [mut first, mut second, mut third] = [(); 3].map(|()| Held::nothing(&pool));
        let mut context = Context::from_waker(Waker::noop());
        first.set(90);
        assert!(second.poll_at_least(50, &mut context).is_pending());
        assert!(third.poll_at_least(10, &mut context).is_pending());
        drop(second);
        assert!(third.poll_at_least(10, &mut context).is_ready());
        let mut fourth = Held::nothing(&pool);
        assert!(fourth.poll_at_least(30, &mut context).is_pending());
        first.set(0);
        // Granted, and gone before it heard of it.
        assert_eq!(pool.held.get(), 40);
        drop(fourth);
        assert_eq!(pool.held.get(), 10);
    }

    #[test]
    fn more_than_the_whole_pool_is_the_pool_alone() {
        let pool = Pool::new(100);
        let [mut first, mut second] = [(); 2].map(|()| Held::nothing(&pool));
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.poll_at_least(usize::MAX, &mut context).is_ready());
        assert_eq!(pool.held.get(), 100);
        assert!(second.poll_at_least(1, &mut context).is_pending());
        first.set(0);
        assert!(second.poll_at_least(1, &mut context).is_ready());
    }
}
