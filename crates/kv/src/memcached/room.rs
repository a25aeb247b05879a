//! Memory that connections of a proxy hold: for commands that are incomplete, and for values. Memory for values is
//! reserved before they are read, when nobody knows yet how long they are.
//!
//! As in a server, one host gets at most three quarters of a room, or less if it must leave room for another host's
//! longest piece, and waiting hosts are served in turn.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::budget::{Account, HOLD_SECONDS_MAX, Held, Pool};
use super::hosts::HostName;

/// Memory is counted in units of this many bytes.
const UNIT: usize = 1 << 10;
/// One retrieval reserves at most this part of what is free, as long as that is enough for one value: so others find
/// some, however many keys it has, and however long its servers take.
const SHARE: usize = 4;
/// How long a connection waits for memory. Nobody waits who holds some of the same room, but clients may be slow.
const WAIT: Duration = Duration::from_secs(5);
/// If what clients keep leaves fewer pieces, retrievals get memory for one value at a time.
const SHORTAGE: usize = 2 * SHARE;
/// In such a shortage, a client must need less than this to send or to read all that its connection keeps.
const KEEP_MAX: Duration = Duration::from_secs(HOLD_SECONDS_MAX as u64);

/// Memory that connections share.
#[derive(Debug)]
pub(super) struct Room {
    pool: Rc<Pool>,
    max: usize,
    host_max: usize,
    /// Bytes of the longest piece.
    longest: usize,
    /// Bytes that are kept, and not only reserved.
    kept: Rc<Cell<usize>>,
    parts: RefCell<HashMap<HostName, Weak<Part>>>,
}

/// A host's part of a room, which its connections share.
#[derive(Debug)]
pub(super) struct Part {
    account: Rc<Account>,
    kept: Cell<usize>,
    all_kept: Rc<Cell<usize>>,
}

/// Memory for pieces that are not there yet.
#[derive(Debug)]
pub(super) struct Reserved {
    held: Held,
    longest: usize,
    part: Rc<Part>,
}

/// Memory that waits for a client, until this is dropped.
#[derive(Debug)]
pub(super) struct Kept {
    held: Held,
    since: Instant,
    part: Rc<Part>,
}

impl Room {
    /// Creates a room of this many bytes, for pieces that are no longer than `longest`: of one piece in any case.
    pub fn new(bytes: usize, longest: usize) -> Room {
        let max = bytes.max(longest);
        let host_max = (max - (max / 4).max(longest).min(max)).max(longest);
        let pool = Pool::new(max, host_max, &Rc::default());
        Room { pool, max, host_max, longest, kept: Rc::default(), parts: RefCell::default() }
    }

    /// Returns a host's part, for one of its connections.
    pub fn part(&self, host: HostName) -> Rc<Part> {
        let mut parts = self.parts.borrow_mut();
        if let Some(part) = parts.get(&host).and_then(Weak::upgrade) {
            return part;
        }
        parts.retain(|_, part| part.strong_count() > 0);
        let (account, all_kept) = (Account::of(&self.pool), self.kept.clone());
        let part = Rc::new(Part { account, kept: Cell::default(), all_kept });
        parts.insert(host, Rc::downgrade(&part));
        part
    }

    /// Reserves memory for some of this many pieces: one at least. `None` if there is none for a long time.
    pub async fn reserve(&self, part: &Rc<Part>, pieces: usize) -> Option<Reserved> {
        let most = part.account.room() / SHARE / self.longest;
        self.reserve_bytes(part, self.longest * pieces.clamp(1, most.max(1))).await
    }

    /// The same for a piece of this many bytes.
    pub async fn reserve_bytes(&self, part: &Rc<Part>, bytes: usize) -> Option<Reserved> {
        let mut held = Held::nothing(&part.account);
        tokio::time::timeout(WAIT, poll_fn(|context| held.poll_at_least(bytes, context))).await.ok()?;
        Some(Reserved { held, longest: self.longest, part: part.clone() })
    }

    /// Returns the bytes held.
    pub fn held(&self) -> usize {
        self.pool.held()
    }

    /// Whether a connection must give up what it keeps: its client is slow, and what clients keep leaves little for its
    /// host, or for all of them.
    pub fn must_give_up(&self, kept: &Kept) -> bool {
        let least = (SHORTAGE * self.longest).min(self.host_max / 4).max(self.longest);
        let left = (self.host_max - kept.part.kept.get()).min(self.max - self.kept.get());
        kept.since.elapsed() >= KEEP_MAX && left < least
    }
}

impl Reserved {
    /// Returns for how many pieces it is.
    pub fn pieces(&self) -> usize {
        self.held.bytes() / self.longest
    }

    /// Keeps what these pieces need from now on, and gives back the rest. Their memory may be that of one message: so
    /// all of it is kept until the last of them is gone.
    pub fn keep(self, pieces: impl Iterator<Item = usize>) -> Kept {
        let Reserved { mut held, part, .. } = self;
        // No server has longer values than were reserved for.
        let bytes = pieces.map(|bytes| bytes.max(1).next_multiple_of(UNIT)).sum::<usize>().min(held.bytes());
        held.set(bytes);
        part.kept.set(part.kept.get() + bytes);
        part.all_kept.set(part.all_kept.get() + bytes);
        Kept { held, since: Instant::now(), part }
    }
}

impl Kept {
    /// The client has sent or read all of it so far.
    pub fn renew(&mut self) {
        self.since = Instant::now();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Kept { held, part, .. } = self;
        part.kept.set(part.kept.get() - held.bytes());
        part.all_kept.set(part.all_kept.get() - held.bytes());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const VALUE: usize = 1 << 20;

    fn host(number: u32) -> HostName {
        HostName::Node(number)
    }

    #[tokio::test]
    async fn large_retrievals_leave_room_for_others() {
        let room = Room::new(1 << 30, VALUE);
        let part = room.part(host(1));
        let reserve = |pieces| room.reserve(&part, pieces).now_or_never().flatten();
        let large: Vec<Reserved> = (0..16).filter_map(|_| reserve(1024)).collect();
        assert_eq!(large.len(), 16);
        assert!(large[0].pieces() >= 128 && large[15].pieces() >= 2, "{large:?}");
        assert!(reserve(1).is_some());
    }

    #[tokio::test]
    async fn what_values_do_not_need_is_given_back() {
        let room = Room::new(4 * VALUE, VALUE);
        let parts = [room.part(host(1)), room.part(host(2))];
        let reserve = |part: &Rc<Part>, pieces| room.reserve(part, pieces).now_or_never().flatten();
        let mut all: Vec<Reserved> = (0..4).filter_map(|place| reserve(&parts[place / 3], 9)).collect();
        assert_eq!(all.iter().map(Reserved::pieces).sum::<usize>(), 4);
        assert!(reserve(&parts[1], 1).is_none());
        let values: Vec<Kept> = all.drain(..).map(|reserved| reserved.keep([100, 0].into_iter())).collect();
        assert_eq!((room.held(), room.kept.get()), (8 * UNIT, 8 * UNIT));
        drop(values);
        assert_eq!((room.held(), room.kept.get()), (0, 0));
    }

    /// However many connections a host has, and however long it reads nothing.
    #[tokio::test]
    async fn a_host_that_reads_nothing_leaves_room_for_another() {
        for values in [1, 2, 3, 4, 64] {
            let room = Room::new(values * VALUE, VALUE);
            let [bad, good] = [1, 2].map(|number| room.part(host(number)));
            let reserve = |part: &Rc<Part>| room.reserve(part, 9).now_or_never().flatten();
            let taken: Vec<Kept> = std::iter::from_fn(|| Some(reserve(&bad)?.keep([VALUE].into_iter()))).collect();
            assert!(!taken.is_empty());
            let alone = reserve(&good);
            assert_eq!(alone.is_some(), values > 1, "{values}");
            drop((taken, alone));
            assert_eq!((room.held(), room.kept.get()), (0, 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_slow_clients_give_up_what_they_keep_and_only_in_a_shortage() {
        let room = Room::new(128 * VALUE, VALUE);
        let [slow, other] = [1, 2].map(|number| room.part(host(number)));
        let keep = |part: &Rc<Part>, values: usize| {
            let reserved = room.reserve_bytes(part, values * VALUE).now_or_never().flatten().unwrap();
            reserved.keep(std::iter::repeat_n(VALUE, values))
        };
        let first = keep(&slow, 80);
        tokio::time::advance(KEEP_MAX * 100).await;
        assert!(!room.must_give_up(&first), "there is enough");
        // Reservations are over soon, and no fault of the slow client.
        let reserved = room.reserve_bytes(&slow, 16 * VALUE).await.unwrap();
        assert!(!room.must_give_up(&first));
        let second = reserved.keep(std::iter::repeat_n(VALUE, 16));
        assert!(room.must_give_up(&first) && !room.must_give_up(&second), "the second is not slow yet");
        let others = keep(&other, 1);
        tokio::time::advance(KEEP_MAX).await;
        assert!(room.must_give_up(&second) && !room.must_give_up(&others), "the other host has its share");
        let _more = keep(&other, 30);
        assert!(room.must_give_up(&others), "nothing is left to anybody");
    }

    /// Its connections are of one part, and it is forgotten with the last of them.
    #[tokio::test]
    async fn a_host_has_one_part() {
        let room = Room::new(64 * VALUE, VALUE);
        let (first, second) = (room.part(host(1)), room.part(host(1)));
        assert!(Rc::ptr_eq(&first, &second));
        drop((first, second));
        drop(room.part(host(2)));
        assert_eq!(room.parts.borrow().len(), 1);
    }
}
