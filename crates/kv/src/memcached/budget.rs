//! Limits the memory that a core's connections hold while they wait: for the rest of a command, for other cores, or for
//! their clients to read.
//!
//! Memory that a connection holds only while it runs is not counted, since one runs at a time. Before a connection may
//! hold more, it takes the bytes from a pool, and waits in line if the pool has none; while it waits, the server reads
//! nothing from it. Small commands and answers need no pool: they are counted beside the pools, so they take nothing
//! from connections in line. Unread answers do so only as long as all that is beside the pools is less than half of what
//! these have. There is a pool for each stage of a command. A connection takes memory in a fixed order of pools, and
//! never waits in a pool from which it already holds memory. So no two connections wait for each other: incoming
//! commands wait for turns, turns wait for answers, and answers wait for clients only.
//!
//! One host gets at most three quarters of a pool, or less if it must leave room for the longest command, and waiting
//! hosts are served in turn. So a host with many connections delays another host no longer than a single connection
//! would.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::hosts::{Host, Hosts};
use super::limits::{SHORT_BYTES, UNREAD_BYTES_MIN};

/// Minimum memory for the connections of one core, in bytes: each pool in which connections wait has room for the
/// longest commands or answers of two hosts.
pub const CORE_BYTES_MIN: usize = 8 << 20;
/// Default memory for the connections of a server, in bytes.
pub const CONNECTION_BYTES_DEFAULT: usize = 64 << 20;
/// Seconds within which a connection's client must send and read as many bytes as the connection holds. Otherwise, if
/// others wait for memory, the connection is closed. A client that sends or reads 1 MiB in that time has 35 kB/s.
pub const HOLD_SECONDS_MAX: u32 = 30;

/// How much memory a connection may hold before it asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Memory {
    /// As much as the limits allow.
    #[default]
    Ample,
    /// [`SHORT_BYTES`] of each kind.
    Short,
}

impl Memory {
    /// Returns the limit, or a lower one if memory is short.
    #[inline]
    pub fn limit(self, bytes: usize) -> usize {
        match self {
            Memory::Ample => bytes,
            Memory::Short => bytes.min(SHORT_BYTES),
        }
    }
}

/// Bytes held beside the pools. While they are less than this, every connection may keep small answers unread. A small
/// command needs no room here: clients that do not read would stop those of others.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    held: Cell<usize>,
    max: usize,
}

impl Beside {
    fn has_room(&self, bytes: usize) -> bool {
        self.held.get() + bytes <= self.max
    }
}

/// The pools of one core.
#[derive(Debug)]
pub(super) struct Budget {
    /// Small commands and answers.
    beside: Rc<Beside>,
    /// Read buffers. No connection waits for these: without room here, a connection reads little, or waits for room in
    /// `commands`.
    pub reads: Rc<Pool>,
    /// Incomplete commands, each with its maximum length.
    pub commands: Rc<Pool>,
    /// Commands that other cores execute, and their short answers.
    pub turns: Rc<Pool>,
    /// Answers that clients have yet to read, and long ones of other cores.
    pub answers: Rc<Pool>,
    /// The hosts that hold memory.
    pub hosts: Hosts,
}

impl Budget {
    /// Divides this many bytes, at least [`CORE_BYTES_MIN`], among the pools.
    pub fn new(bytes: usize) -> Budget {
        const PARTS: usize = 32;
        let beside = Rc::new(Beside { held: Cell::new(0), max: bytes.max(CORE_BYTES_MIN) / 2 });
        let pool = |parts: usize| {
            let max = bytes.max(CORE_BYTES_MIN) / PARTS * parts;
            let longest = CORE_BYTES_MIN / PARTS * parts / 2;
            Pool::new(max, max - longest.max(max / 4), &beside)
        };
        let (reads, commands, turns, answers) = (pool(3), pool(9), pool(11), pool(9));
        Budget { beside, reads, commands, turns, answers, hosts: Hosts::default() }
    }

    /// Opens accounts for a host that holds nothing.
    pub fn open_accounts(&self) -> Host {
        Host {
            reads: Account::of(&self.reads),
            commands: Account::of(&self.commands),
            turns: Account::of(&self.turns),
            answers: Account::of(&self.answers),
        }
    }

    fn pools(&self) -> [&Pool; 4] {
        [&self.reads, &self.commands, &self.turns, &self.answers]
    }

    /// Returns the bytes held.
    pub fn held(&self) -> usize {
        self.beside.held.get() + self.pools().iter().map(|pool| pool.held.get()).sum::<usize>()
    }

    /// Returns the bytes that may be held.
    pub fn max(&self) -> usize {
        self.pools().iter().map(|pool| pool.max).sum()
    }

    /// Whether connections wait for memory, or must do without what they may usually have.
    pub fn is_wanted(&self) -> bool {
        !self.beside.has_room(UNREAD_BYTES_MIN) || self.pools().iter().any(|pool| !pool.waiting.borrow().is_empty())
    }
}

/// Bytes that connections hold, up to a limit, and the hosts whose connections wait for some.
#[derive(Debug)]
pub(crate) struct Pool {
    max: usize,
    /// Bytes that one host may hold.
    host_max: usize,
    held: Cell<usize>,
    /// Bytes held beside all pools.
    beside: Rc<Beside>,
    /// The waiting hosts, each once, in the order of their turns.
    waiting: RefCell<VecDeque<Rc<Account>>>,
}

/// The bytes that one host holds of a pool, and the line of its waiting connections.
#[derive(Debug)]
pub(crate) struct Account {
    pool: Rc<Pool>,
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
    /// Creates a pool of this many bytes, of which one host may hold `host_max`.
    pub fn new(max: usize, host_max: usize, beside: &Rc<Beside>) -> Rc<Pool> {
        Rc::new(Pool { max, host_max, held: Cell::new(0), beside: beside.clone(), waiting: RefCell::default() })
    }

    /// Returns the bytes held.
    pub fn held(&self) -> usize {
        self.held.get()
    }

    #[inline]
    fn fits(&self, bytes: usize) -> bool {
        self.held.get().saturating_add(bytes) <= self.max
    }

    /// Serves the waiting connections: the hosts in turn, and for each the connection that came first. Skips a host
    /// that has reached its share; but no connection overtakes one that waits for the pool's bytes.
    fn serve(&self) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(next) = waiting.iter().position(|account| account.is_next_allowed()) {
            if !waiting[next].grant_next() {
                return;
            }
            if let Some(account) = waiting.remove(next)
                && !account.waiting.borrow().is_empty()
            {
                waiting.push_back(account);
            }
        }
    }

    /// Whether a host waits only because the pool is exhausted.
    #[inline]
    fn is_wanted(&self) -> bool {
        let waiting = self.waiting.borrow();
        !waiting.is_empty() && waiting.iter().any(|account| account.is_next_allowed())
    }
}

impl Account {
    /// Opens the account of a host that holds nothing of this pool.
    pub fn of(pool: &Rc<Pool>) -> Rc<Account> {
        Rc::new(Account { pool: pool.clone(), held: Cell::new(0), waiting: RefCell::default() })
    }

    /// Whether the host may hold this many more bytes.
    #[inline]
    fn allows(&self, bytes: usize) -> bool {
        self.held.get().saturating_add(bytes) <= self.pool.host_max
    }

    /// Returns how many more bytes may be held. Waiting connections are not overtaken: neither those of the same host,
    /// nor those of others that wait for the pool.
    #[inline]
    pub fn room(&self) -> usize {
        let (pool, is_wanted) = (&self.pool, !self.waiting.borrow().is_empty() || self.pool.is_wanted());
        if is_wanted { 0 } else { (pool.host_max - self.held.get()).min(pool.max - pool.held.get()) }
    }

    /// Whether this many more bytes may be held.
    #[inline]
    fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.room()
    }

    fn is_next_allowed(&self) -> bool {
        self.waiting.borrow().front().is_some_and(|ticket| self.allows(ticket.bytes))
    }

    /// Gives the first connection in line what it waits for. False if the pool has no room for that.
    fn grant_next(&self) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let Some(ticket) = waiting.front().filter(|ticket| self.pool.fits(ticket.bytes)) else { return false };
        self.take(ticket.bytes);
        ticket.is_granted.set(true);
        ticket.waker.borrow().wake_by_ref();
        waiting.pop_front();
        true
    }

    fn take(&self, bytes: usize) {
        debug_assert!(self.allows(bytes) && self.pool.fits(bytes), "no pool and no share of a host is passed");
        self.held.set(self.held.get() + bytes);
        self.pool.held.set(self.pool.held.get() + bytes);
    }

    fn give_back(&self, bytes: usize) {
        self.held.set(self.held.get() - bytes);
        self.pool.held.set(self.pool.held.get() - bytes);
        self.pool.serve();
    }

    /// Gets in line.
    fn enter(self: &Rc<Self>, ticket: Rc<Ticket>) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            self.pool.waiting.borrow_mut().push_back(self.clone());
        }
        waiting.push_back(ticket);
    }

    /// Leaves the line.
    fn leave(&self, ticket: &Rc<Ticket>) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|waiting| !Rc::ptr_eq(waiting, ticket));
        if waiting.is_empty() {
            self.pool.waiting.borrow_mut().retain(|account| !std::ptr::eq(&**account, self));
        }
        drop(waiting);
        // Those behind it may need less.
        self.pool.serve();
    }
}

/// The bytes that one connection holds of a pool. Dropping it returns them.
#[derive(Debug)]
pub(crate) struct Held {
    account: Rc<Account>,
    bytes: usize,
    /// Bytes held beside the pool.
    beside: usize,
    ticket: Option<Rc<Ticket>>,
}

impl Held {
    /// Holds nothing yet, on its host's account.
    pub fn nothing(account: &Rc<Account>) -> Held {
        Held { account: account.clone(), bytes: 0, beside: 0, ticket: None }
    }

    /// Returns how many bytes of the pool are held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether this many bytes are held, or could be without waiting; a host's whole share always suffices.
    #[inline]
    pub fn can_have(&self, bytes: usize) -> bool {
        let bytes = bytes.min(self.account.pool.host_max);
        bytes <= self.bytes || self.account.has_room(bytes - self.bytes)
    }

    /// Sets how many bytes are held now. An increase must have been allowed by [`Held::can_have`] in the same run of
    /// the connection; any excess that the pool has no room for is counted beside it.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        self.leave();
        let of_pool = if bytes <= self.bytes { bytes } else { bytes.min(self.bytes + self.account.room()) };
        self.divide(of_pool, bytes - of_pool);
    }

    /// Returns how many bytes are held beside the pool.
    pub fn bytes_beside(&self) -> usize {
        self.beside
    }

    /// Whether this many bytes may be held beside the pool: so many connections may do so that few are not enough.
    pub fn may_be_beside(&self, bytes: usize) -> bool {
        bytes <= self.beside || self.account.pool.beside.has_room(bytes - self.beside)
    }

    /// Sets how many bytes are held now, all beside the pool: few, and bounded for each connection.
    #[inline]
    pub fn set_beside(&mut self, bytes: usize) {
        self.leave();
        self.divide(0, bytes);
    }

    fn divide(&mut self, of_pool: usize, beside: usize) {
        let pool = &self.account.pool;
        pool.beside.held.set(pool.beside.held.get() - self.beside + beside);
        self.beside = beside;
        let before = std::mem::replace(&mut self.bytes, of_pool);
        if of_pool < before {
            self.account.give_back(before - of_pool);
        } else {
            self.account.take(of_pool - before);
        }
    }

    /// Holds at least this many bytes as soon as the pool has them for this host. A connection that may have to wait
    /// must hold nothing of this pool.
    pub fn poll_at_least(&mut self, bytes: usize, context: &mut Context<'_>) -> Poll<()> {
        // A host cannot hold more.
        let bytes = bytes.min(self.account.pool.host_max);
        if let Some(ticket) = &self.ticket {
            if !ticket.is_granted.get() {
                let _ = ticket.waker.replace(context.waker().clone());
                return Poll::Pending;
            }
            self.bytes += ticket.bytes;
            self.ticket = None;
        }
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 || self.account.has_room(more) {
            self.set(self.bytes + more);
            return Poll::Ready(());
        }
        debug_assert_eq!(self.bytes, 0, "whoever holds some of a pool and waits for more may wait for itself");
        let ticket = Ticket { bytes: more, is_granted: Cell::new(false), waker: RefCell::new(context.waker().clone()) };
        let ticket = Rc::new(ticket);
        self.account.enter(ticket.clone());
        self.ticket = Some(ticket);
        Poll::Pending
    }

    /// Leaves the line.
    fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        if ticket.is_granted.get() {
            self.bytes += ticket.bytes;
        } else {
            self.account.leave(&ticket);
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

    /// Creates a pool of 100 bytes, and accounts of several hosts: each may hold 75.
    fn pool<const N: usize>() -> (Rc<Pool>, [Rc<Account>; N]) {
        let pool = Pool::new(100, 75, &Rc::default());
        let accounts = std::array::from_fn(|_| Account::of(&pool));
        (pool, accounts)
    }

    /// Two thousand clients that read none of their answers.
    #[test]
    fn small_answers_need_a_pool_when_many_are_unread() {
        const UNREAD_BYTES: usize = 7 << 10;
        let budget = Budget::new(CORE_BYTES_MIN);
        let host = budget.open_accounts();
        let mut connections: Vec<Held> = (0..2_000).map(|_| Held::nothing(&host.answers)).collect();
        for held in &mut connections {
            if held.may_be_beside(UNREAD_BYTES) {
                held.set_beside(UNREAD_BYTES);
            } else {
                is_ready(held, UNREAD_BYTES);
            }
        }
        assert!(budget.is_wanted());
        assert!(budget.held() <= CORE_BYTES_MIN * 3 / 2, "{} bytes", budget.held());
        let waiting = connections.iter().filter(|held| held.bytes() + held.bytes_beside() == 0).count();
        assert!(waiting > 1_000, "{waiting} wait");
        drop(connections);
        assert_eq!((budget.held(), budget.is_wanted()), (0, false));
    }

    fn is_ready(held: &mut Held, bytes: usize) -> bool {
        held.poll_at_least(bytes, &mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn whoever_wants_more_than_there_is_waits_in_line() {
        let (pool, [host]) = pool();
        let [mut first, mut second, mut third] = [(); 3].map(|()| Held::nothing(&host));
        assert!(is_ready(&mut first, 60));
        assert!(!is_ready(&mut second, 30));
        // There is room for it, but it must not overtake.
        assert!(!is_ready(&mut third, 10));
        assert!(!third.can_have(1));
        first.set(45);
        assert!(is_ready(&mut second, 30));
        assert!(!is_ready(&mut third, 10));
        drop(first);
        assert!(is_ready(&mut third, 10));
        assert_eq!(pool.held.get(), 40);
        drop((second, third));
        assert_eq!((pool.held.get(), host.held.get(), Held::nothing(&host).can_have(75)), (0, 0, true));
        assert!(pool.waiting.borrow().is_empty());
    }

    #[test]
    fn whoever_goes_away_gives_its_place_and_its_bytes_to_others() {
        let (pool, [host]) = pool();
        let [mut first, mut second, mut third] = [(); 3].map(|()| Held::nothing(&host));
        first.set(65);
        assert!(!is_ready(&mut second, 50));
        assert!(!is_ready(&mut third, 10));
        drop(second);
        assert!(is_ready(&mut third, 10));
        let mut fourth = Held::nothing(&host);
        assert!(!is_ready(&mut fourth, 30));
        first.set(0);
        // Granted, but dropped before it was polled.
        assert_eq!(pool.held.get(), 40);
        drop(fourth);
        assert_eq!(pool.held.get(), 10);
    }

    #[test]
    fn more_than_a_host_may_have_is_all_of_that() {
        let (_, [host]) = pool();
        let [mut first, mut second] = [(); 2].map(|()| Held::nothing(&host));
        assert!(is_ready(&mut first, usize::MAX));
        assert_eq!(host.held.get(), 75);
        assert!(!is_ready(&mut second, 1));
        first.set(0);
        assert!(is_ready(&mut second, 1));
    }

    #[test]
    fn no_share_is_passed_and_what_lies_beside_takes_nothing_from_others() {
        let (pool, [greedy, honest]) = pool();
        let mut small: Vec<Held> = (0..1000).map(|_| Held::nothing(&greedy)).collect();
        small.iter_mut().for_each(|held| held.set_beside(4));
        let (mut large, mut other) = (Held::nothing(&greedy), Held::nothing(&honest));
        large.set(100);
        assert_eq!((pool.held.get(), pool.beside.held.get()), (75, 4_025), "more than a host may hold");
        large.set(75);
        assert!(is_ready(&mut other, 25));
        assert_eq!((pool.held.get(), pool.beside.held.get()), (100, 4_000));
        drop((small, large, other));
        assert_eq!((pool.held.get(), pool.beside.held.get()), (0, 0));
    }

    /// Each takes as much as a host may have, plus a byte, if it can.
    #[test]
    fn what_is_more_than_a_pool_has_lies_beside_it_for_one_connection_only() {
        let (pool, [host]) = pool();
        let mut connections: Vec<Held> = (0..100).map(|_| Held::nothing(&host)).collect();
        for held in &mut connections {
            if held.can_have(76) {
                held.set(76);
            }
        }
        assert_eq!((pool.held.get(), pool.beside.held.get()), (75, 1));
    }

    #[test]
    fn a_host_with_its_full_share_keeps_no_other_waiting() {
        let (_, [greedy, honest]) = pool();
        let mut first = Held::nothing(&greedy);
        first.set(75);
        let mut line: Vec<Held> = (0..1000).map(|_| Held::nothing(&greedy)).collect();
        assert!(line.iter_mut().all(|held| !is_ready(held, 20)));
        let mut other = Held::nothing(&honest);
        for _ in 0..3 {
            assert!(is_ready(&mut other, 25));
            other.set(0);
        }
        // The first host's remaining share does not hold it up.
        first.set(55);
        assert!(is_ready(&mut line[0], 20) && !is_ready(&mut line[1], 20));
    }

    #[test]
    fn hosts_are_served_in_turn_however_long_their_lines_are() {
        let (_, [greedy, honest, holder, other]) = pool();
        let mut full: Vec<Held> = [&holder, &holder, &holder, &other].map(Held::nothing).into();
        assert!(full.iter_mut().all(|held| is_ready(held, 25)));
        let mut long: Vec<Held> = (0..1000).map(|_| Held::nothing(&greedy)).collect();
        let mut short = [(); 2].map(|()| Held::nothing(&honest));
        assert!(long.iter_mut().chain(&mut short).all(|held| !is_ready(held, 25)));
        for turn in 0..2 {
            full.pop();
            assert!(is_ready(&mut long[turn], 25) && !is_ready(&mut short[turn], 25));
            full.pop();
            assert!(is_ready(&mut short[turn], 25) && !is_ready(&mut long[turn + 1], 25));
        }
    }
}
