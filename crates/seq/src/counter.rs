//! The counter: any number of threads draw numbers from it.
//!
//! Numbers are drawn from a *range*. The counter gets either all numbers at once ([`Counter::starting_at`]), or one
//! reserved range after the other ([`crate::reserve`]). In the second case it also has a *term*: the time, by the clock
//! for promises to others, at which its right to hand out numbers ends unless it is renewed. And it has an *epoch*, the
//! number of its term of office, which requests must name.
//!
//! # Why numbers rise in real time
//!
//! A thread first receives requests, then draws for them: [`Counter::draw`] reads the clock, then the end of the range,
//! and then adds to `next`. Take two operations, the first of which ended before the second began.
//!
//! - *Both draw from ranges of one term of office.* The first addition came before the second, on the same word.
//! - *The first draws from a later term than the second.* The first ended after its term began, since the range was
//!   installed before the addition that drew from it. The second began before it read the clock, and at that reading
//!   its own term was not over. Terms do not overlap ([`crate::reserve`]), so the second began before the first ended:
//!   a contradiction. So the first draws from an earlier term, whose numbers are all lower.
//!
//! So a thread may be stopped for any time between reading the clock and answering: no check follows, and none is
//! needed.
//!
//! # What epochs add
//!
//! The argument above rests on clocks, within the bounds that [`crate::reserve`] states. Epochs do not. A server draws
//! only for requests of its own epoch, and a client that has learned of an epoch takes no number of an earlier one. So
//! even if a clock is out of bounds, no number is handed out twice, and the numbers that one client gets increase from
//! the first one of the later epoch on.

use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

use crate::mutation::{Mutation, is_planted};

/// The first number that is never handed out: 2^64 - 2^48. The space above keeps the additions of threads that raced
/// past the end from overflowing.
pub const NUMBERS_END: u64 = u64::MAX - (1 << 48) + 1;

/// Maximum length of a run.
pub const RUN_MAX: u32 = 1 << 16;

/// A term that never ends.
pub const FOREVER: u64 = u64::MAX;

/// This close to [`NUMBERS_END`], additions never pass it. A thread would have to stand still while so many numbers are
/// drawn to add more than is left.
const NEAR_THE_END: u64 = 1 << 40;

/// Why no number is available now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unavailable {
    /// All reserved numbers are handed out, or the run is longer than the rest. Try again soon.
    #[error("no numbers are reserved at the moment; try again")]
    Dry,
    /// This counter has no term, or its term is over: ask another sequencer, which may hand out numbers.
    #[error("this sequencer does not serve at the moment; ask another one, or try again")]
    NotServing,
    /// The last number is handed out, or fewer are left than the run needs.
    #[error("the number space is exhausted: numbers end at {NUMBERS_END}")]
    Exhausted,
}

/// An invalid first number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot start at {0}: choose a number below {NUMBERS_END}")]
pub struct BadStart(pub u64);

/// A word on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// A counter. See the [module](self).
#[derive(Debug)]
pub struct Counter {
    /// The next number, unless it is at or above `end`.
    next: Line,
    /// When the term ends; 0 without a term.
    until: AtomicU64,
    /// The end of the range.
    end: AtomicU64,
    /// The number at which more are to be reserved.
    low: AtomicU64,
    /// The start of the first range of this term of office.
    start: AtomicU64,
    /// The current or last term of office; 0 if it never had one.
    epoch: AtomicU64,
    /// The latest epoch that a request has named since [`Counter::forget_named`]; 0 for none.
    named: AtomicU64,
    /// Wakes the keeper to reserve more, or to return to office.
    keeper: AtomicWaker,
    /// Times that a draw found too few numbers.
    dry: AtomicUsize,
}

impl Counter {
    /// A counter of all numbers from `start` on, without a term.
    ///
    /// # Errors
    /// [`BadStart`] if there are none.
    pub fn starting_at(start: u64) -> Result<Counter, BadStart> {
        if start >= NUMBERS_END {
            return Err(BadStart(start));
        }
        let counter = Counter::idle();
        counter.install(0, start..NUMBERS_END, FOREVER, u64::MAX);
        Ok(counter)
    }

    /// A counter without numbers, until it gets a range.
    pub fn idle() -> Counter {
        Counter {
            next: Line::default(),
            until: AtomicU64::new(0),
            end: AtomicU64::new(0),
            low: AtomicU64::new(u64::MAX),
            start: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            named: AtomicU64::new(0),
            keeper: AtomicWaker::new(),
            dry: AtomicUsize::new(0),
        }
    }

    /// Draws `count` consecutive numbers, or as many as are left but at least one, and returns them. `now` reads the
    /// clock of the term, and must not have been read before the requests were received. A counter whose term never
    /// ends does not call it.
    ///
    /// # Errors
    /// [`Unavailable`].
    #[inline]
    pub fn draw(&self, now: impl FnOnce() -> u64, count: u64) -> Result<Range<u64>, Unavailable> {
        self.check_term(now)?;
        let (end, room) = self.room();
        if is_near_the_end(end, room) {
            return self.draw_near_the_end(count);
        }
        self.draw_within(end, count.min(room))
    }

    /// Draws while other threads may draw the last numbers: only what is left, and nothing else is lost.
    #[cold]
    fn draw_near_the_end(&self, count: u64) -> Result<Range<u64>, Unavailable> {
        let mut first = self.next.0.load(Relaxed);
        loop {
            let count = count.min(NUMBERS_END.saturating_sub(first));
            if count == 0 {
                return Err(self.lack(NUMBERS_END));
            }
            match self.next.0.compare_exchange_weak(first, first + count, AcqRel, Relaxed) {
                Ok(_) => return Ok(first..first + count),
                Err(now) => first = now,
            }
        }
    }

    /// Draws one run for each of `lengths`, with one addition for all of them, and stores the first number of each in
    /// `firsts`. A run that no longer fits is left out, and takes no numbers.
    ///
    /// # Panics
    /// If `firsts` is shorter than `lengths`.
    #[inline]
    pub fn draw_runs(&self, now: impl FnOnce() -> u64, lengths: &[u32], firsts: &mut [Result<u64, Unavailable>]) {
        let firsts = &mut firsts[..lengths.len()];
        if let Err(why) = self.check_term(now) {
            firsts.fill(Err(why));
            return;
        }
        let (end, room) = self.room();
        if is_near_the_end(end, room) {
            self.draw_runs_near_the_end(lengths, firsts);
            return;
        }
        let total = lay_out(lengths, room, firsts);
        let drawn = self.draw_within(end, total);
        for (length, first) in lengths.iter().zip(firsts) {
            *first = match (&drawn, *first) {
                // Another thread drew the numbers that were left a moment ago.
                (Ok(range), Ok(at)) if range.start + at + u64::from(*length) > range.end => Err(self.lack(end)),
                (Ok(range), Ok(at)) => Ok(range.start + at),
                (Ok(_), Err(_)) => Err(self.lack(end)),
                (Err(why), _) => Err(*why),
            };
        }
    }

    /// [`Counter::draw_near_the_end`] for runs.
    #[cold]
    fn draw_runs_near_the_end(&self, lengths: &[u32], firsts: &mut [Result<u64, Unavailable>]) {
        let mut next = self.next.0.load(Relaxed);
        loop {
            let total = lay_out(lengths, NUMBERS_END.saturating_sub(next), firsts);
            match self.next.0.compare_exchange_weak(next, next + total, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(now) => next = now,
            }
        }
        for first in firsts {
            *first = first.map(|at| next + at).map_err(|_| self.lack(NUMBERS_END));
        }
    }

    #[inline]
    fn check_term(&self, now: impl FnOnce() -> u64) -> Result<(), Unavailable> {
        let until = self.until.load(Acquire);
        if until == FOREVER || is_planted(Mutation::TermNotChecked) {
            return Ok(());
        }
        if until == 0 || now() >= until { Err(Unavailable::NotServing) } else { Ok(()) }
    }

    /// The end of the range, and how many numbers are left before it. The end is read first: a number drawn below it is
    /// in its range, even if another range is installed meanwhile.
    #[inline]
    fn room(&self) -> (u64, u64) {
        let end = if is_planted(Mutation::RangeEndPassed) { NUMBERS_END } else { self.end.load(Acquire) };
        (end, end.saturating_sub(self.next.0.load(Relaxed)))
    }

    #[inline]
    fn draw_within(&self, end: u64, count: u64) -> Result<Range<u64>, Unavailable> {
        if count == 0 {
            return Err(self.lack(end));
        }
        let first = if is_planted(Mutation::AdditionNotAtomic) {
            let first = self.next.0.load(Relaxed);
            std::thread::yield_now();
            self.next.0.store(first + count, Relaxed);
            first
        } else {
            self.next.0.fetch_add(count, AcqRel)
        };
        let last = first + count;
        if last >= self.low.load(Relaxed) {
            self.ask_for_more();
        }
        if first >= end { Err(self.lack(end)) } else { Ok(first..last.min(end)) }
    }

    #[cold]
    fn ask_for_more(&self) {
        self.low.store(u64::MAX, Relaxed);
        self.keeper.wake();
    }

    /// Why there are too few numbers before `end`. Another range may have been installed meanwhile, also the last one.
    #[cold]
    fn lack(&self, end: u64) -> Unavailable {
        if end == NUMBERS_END {
            return Unavailable::Exhausted;
        }
        self.dry.fetch_add(1, Relaxed);
        self.ask_for_more();
        Unavailable::Dry
    }

    /// Installs a range above all earlier ranges, with a term. When `reserve` numbers are left, [`Counter::poll_low`]
    /// is ready. Only for the task that reserves ranges.
    pub(crate) fn install(&self, epoch: u64, range: Range<u64>, until: u64, reserve: u64) {
        if range.start != self.end.load(Relaxed) || self.until.load(Relaxed) == 0 {
            // The rest of the earlier range is lost. This must come before `end` is raised: see `room`.
            self.next.0.fetch_max(range.start, AcqRel);
        }
        if self.until.load(Relaxed) == 0 {
            self.start.store(range.start, Relaxed);
        }
        self.low.store(range.end.saturating_sub(reserve), Relaxed);
        self.end.store(range.end, Release);
        self.epoch.store(epoch, Release);
        self.until.store(until, Release);
    }

    /// Extends the term.
    pub(crate) fn renew(&self, until: u64) {
        self.until.store(until, Release);
    }

    /// Ends its term: requests from now on get no number.
    pub(crate) fn stop(&self) {
        self.until.store(0, Release);
    }

    /// Ready when no more than `reserve` numbers are left.
    pub(crate) fn poll_low(&self, reserve: u64, context: &mut Context<'_>) -> Poll<()> {
        self.keeper.register(context.waker());
        if self.left() <= reserve {
            return Poll::Ready(());
        }
        // A draw from an earlier range may have cleared the mark.
        self.low.store(self.end.load(Relaxed).saturating_sub(reserve), Relaxed);
        if self.left() <= reserve { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The number of its current or last term of office: requests must name it. 0 if it never had one.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// Whether a request of this epoch may get numbers.
    #[inline]
    pub(crate) fn admits(&self, epoch: u64) -> bool {
        epoch == self.epoch() || is_planted(Mutation::EpochNotChecked)
    }

    /// Tells that a request named an epoch. If it is later than its own, the keeper checks its office early: any client
    /// may invent an epoch, so the request alone ends nothing.
    #[cold]
    pub(crate) fn heard_of(&self, epoch: u64) {
        if epoch > self.epoch() && epoch > self.named.fetch_max(epoch, AcqRel) {
            self.keeper.wake();
        }
    }

    /// Ready when a request has named a later epoch since [`Counter::forget_named`].
    pub(crate) fn poll_named(&self, context: &mut Context<'_>) -> Poll<()> {
        self.keeper.register(context.waker());
        if self.named.load(Acquire) > self.epoch() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Forgets which epochs requests have named, before the office is checked.
    pub(crate) fn forget_named(&self) {
        self.named.store(0, Release);
    }

    /// Numbers left in the range.
    pub fn left(&self) -> u64 {
        self.room().1
    }

    /// The number that is drawn next, or the end of the range.
    pub fn next(&self) -> u64 {
        let end = self.end.load(Acquire);
        self.next.0.load(Relaxed).min(end)
    }

    /// The first number of its current term of office, or of all numbers if it has no term.
    pub fn start(&self) -> u64 {
        self.start.load(Relaxed)
    }

    /// The end of the range.
    pub fn end(&self) -> u64 {
        self.end.load(Acquire)
    }

    /// Whether it may hand out numbers at this time.
    pub fn is_serving(&self, now: impl FnOnce() -> u64) -> bool {
        self.check_term(now).is_ok()
    }

    /// How often a draw found no reserved numbers.
    pub fn dry(&self) -> usize {
        self.dry.load(Relaxed)
    }
}

#[inline]
fn is_near_the_end(end: u64, room: u64) -> bool {
    end == NUMBERS_END && room <= NEAR_THE_END
}

/// Lays runs out one after the other as far as there is room: stores where each begins. Returns the length of all.
#[inline]
fn lay_out(lengths: &[u32], room: u64, firsts: &mut [Result<u64, Unavailable>]) -> u64 {
    let mut total = 0;
    for (length, first) in lengths.iter().zip(firsts) {
        let length = u64::from(*length);
        if total + length <= room {
            *first = Ok(total);
            total += length;
        } else {
            *first = Err(Unavailable::Dry);
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_CLOCK: fn() -> u64 = || panic!("a counter without an end of its term asks no clock");

    fn runs(counter: &Counter, lengths: &[u32]) -> Vec<Result<u64, Unavailable>> {
        let mut firsts = vec![Ok(0); lengths.len()];
        counter.draw_runs(NO_CLOCK, lengths, &mut firsts);
        firsts
    }

    #[test]
    fn runs_of_one_burst_follow_each_other() {
        let counter = Counter::starting_at(7).unwrap();
        assert_eq!(runs(&counter, &[1, 5, 1]), [Ok(7), Ok(8), Ok(13)]);
        assert_eq!(counter.draw(NO_CLOCK, 3), Ok(14..17));
        assert_eq!((counter.start(), counter.next()), (7, 17));
    }

    #[test]
    fn the_last_number_is_given_once_and_a_run_that_does_not_fit_takes_nothing() {
        let counter = Counter::starting_at(NUMBERS_END - 10).unwrap();
        assert_eq!(
            runs(&counter, &[4, 7, 5]),
            [Ok(NUMBERS_END - 10), Err(Unavailable::Exhausted), Ok(NUMBERS_END - 6)]
        );
        assert_eq!(counter.draw(NO_CLOCK, 3), Ok(NUMBERS_END - 1..NUMBERS_END));
        assert_eq!(counter.draw(NO_CLOCK, 1), Err(Unavailable::Exhausted));
        assert_eq!(runs(&counter, &[1]), [Err(Unavailable::Exhausted)]);
        assert_eq!(Counter::starting_at(NUMBERS_END).unwrap_err(), BadStart(NUMBERS_END));
    }

    /// Threads race for the last numbers: those of runs that do not fit are still there for shorter ones.
    #[test]
    fn of_the_last_numbers_none_is_lost() {
        const LEFT: u64 = 40;
        for _ in 0..2_000 {
            let counter = Counter::starting_at(NUMBERS_END - LEFT).unwrap();
            let barrier = std::sync::Barrier::new(2);
            let draw = |length: u32| {
                barrier.wait();
                let mut had = 0;
                while runs(&counter, &[length])[0].is_ok() {
                    had += u64::from(length);
                }
                had
            };
            let had: u64 = std::thread::scope(|scope| {
                let other = scope.spawn(|| draw(7));
                draw(5) + other.join().unwrap()
            });
            let rest = counter.draw(NO_CLOCK, LEFT).map_or(0, |range| range.end - range.start);
            assert_eq!(had + rest, LEFT);
            assert_eq!(counter.next(), NUMBERS_END);
        }
    }

    #[test]
    fn a_range_is_drawn_to_its_end_and_the_next_one_goes_on() {
        let counter = Counter::idle();
        assert_eq!(counter.draw(|| 0, 1), Err(Unavailable::NotServing));
        counter.install(1, 100..110, 50, 4);
        assert_eq!(counter.draw(|| 49, 8), Ok(100..108));
        assert_eq!(counter.draw(|| 50, 1), Err(Unavailable::NotServing), "the term is over");
        counter.install(1, 110..120, 60, 4);
        assert_eq!(counter.draw(|| 50, 4), Ok(108..112), "what follows is one range with what was left");
        assert_eq!(counter.draw(|| 50, 100), Ok(112..120), "as many as there are");
        assert_eq!(counter.draw(|| 50, 1), Err(Unavailable::Dry));
        counter.install(1, 130..140, 60, 4);
        assert_eq!(counter.draw(|| 50, 1), Ok(130..131), "what another one reserved is left out");
        assert_eq!(counter.start(), 100, "it is the same term of office");
        counter.stop();
        counter.install(1, 200..210, 70, 4);
        assert_eq!((counter.draw(|| 61, 1), counter.start()), (Ok(200..201), 200));
        assert_eq!(counter.dry(), 1);
    }

    #[test]
    fn later_epochs_are_told_to_the_keeper_once() {
        let counter = Counter::idle();
        assert!(counter.admits(0) && !counter.admits(1));
        counter.install(3, 0..10, 50, 4);
        assert!(counter.admits(3) && !counter.admits(2) && !counter.admits(4));
        let mut context = Context::from_waker(std::task::Waker::noop());
        counter.heard_of(3);
        assert!(counter.poll_named(&mut context).is_pending());
        counter.heard_of(7);
        counter.heard_of(5);
        assert!(counter.poll_named(&mut context).is_ready());
        counter.forget_named();
        assert!(counter.poll_named(&mut context).is_pending());
        counter.stop();
        counter.install(8, 10..20, 90, 4);
        counter.heard_of(7);
        assert!(counter.poll_named(&mut context).is_pending());
        assert_eq!(counter.epoch(), 8);
    }

    #[test]
    fn more_is_asked_for_before_the_range_ends() {
        let counter = Counter::idle();
        counter.install(1, 0..10, FOREVER, 4);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(counter.poll_low(4, &mut context).is_pending());
        counter.draw(NO_CLOCK, 5).unwrap();
        assert!(counter.poll_low(4, &mut context).is_pending());
        counter.draw(NO_CLOCK, 1).unwrap();
        assert!(counter.poll_low(4, &mut context).is_ready());
    }

    /// Threads draw while ranges are installed, some of them after a gap: no number comes twice, none is in a gap, and
    /// each thread sees them rise.
    #[test]
    fn threads_share_a_counter() {
        const RANGE: u64 = 10_000;
        const RANGES: u64 = 60;
        let counter = Counter::idle();
        // The odd ranges belong to another counter.
        let begin = |at: u64| (at + at / 3) * RANGE;
        let drawn: Vec<Vec<Range<u64>>> = std::thread::scope(|scope| {
            let draw = |thread: u64| {
                let (mut drawn, mut last) = (Vec::<Range<u64>>::new(), 0);
                loop {
                    match counter.draw(|| 1, 1 + thread * 7) {
                        Ok(range) => {
                            assert!(drawn.is_empty() || range.start >= last, "{range:?} after {last}");
                            last = range.end;
                            drawn.push(range);
                        }
                        Err(_) if counter.end() == begin(RANGES - 1) + RANGE && counter.left() == 0 => return drawn,
                        Err(_) => std::thread::yield_now(),
                    }
                }
            };
            let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || draw(thread))).collect();
            for at in 0..RANGES {
                counter.install(1, begin(at)..begin(at) + RANGE, 2, RANGE / 2);
                while counter.left() > RANGE / 2 && !threads.iter().any(|thread| thread.is_finished()) {
                    std::thread::yield_now();
                }
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut all: Vec<Range<u64>> = drawn.into_iter().flatten().collect();
        all.sort_unstable_by_key(|range| range.start);
        assert!(all.windows(2).all(|two| two[0].end <= two[1].start), "a number came twice");
        let is_reserved = |number: u64| (0..RANGES).any(|at| (begin(at)..begin(at) + RANGE).contains(&number));
        assert!(all.iter().all(|range| is_reserved(range.start) && is_reserved(range.end - 1)));
    }
}
