//! Decides whether a core polls its sockets, or sleeps until one of them is ready.
//!
//! Sleeping and being woken costs a core tens of microseconds, more than hundreds of commands. A client that waits for
//! each answer before its next command pays that every time. So while commands follow each other closely, the core
//! polls for a bounded time. It begins to poll only after several reads in a row, each soon after the previous one.
//! After polling without success it requires a longer row: a server that is idle, slow, or shares its processor with
//! its clients sleeps.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::yield_now;

/// Default time for which a core polls before it sleeps: about twice as long as it takes to wake up a client.
pub const LOOK_DEFAULT: Duration = Duration::from_micros(200);
/// Reads in a row, each soon after the previous one, after which a core begins to poll.
const ROW_MIN: u32 = 4;
/// The longest row required after polling without success. If polling never succeeds, each read costs a 64th of a
/// polling period. It is not more, since on a busy machine no row is long.
const ROW_MAX: u32 = 64;
/// Polling was worth it if it found this many reads: each saved the cost of being woken.
const WORTH: u32 = 8;

/// The lookout of one core.
#[derive(Debug)]
pub(super) struct Lookout {
    /// How long it polls, and the largest gap that counts as soon.
    length: Duration,
    last_read: Cell<Option<Instant>>,
    /// Reads of the current row; while it polls, reads since it began.
    row: Cell<u32>,
    /// The length of row that it requires.
    row_wanted: Cell<u32>,
    is_looking: Cell<bool>,
    begin: Notify,
}

impl Lookout {
    /// Creates one that polls for this long; it never polls if that is zero.
    pub fn new(length: Duration) -> Lookout {
        Lookout {
            length,
            last_read: Cell::new(None),
            row: Cell::new(0),
            row_wanted: Cell::new(ROW_MIN),
            is_looking: Cell::new(false),
            begin: Notify::new(),
        }
    }

    /// Whether it ever polls.
    pub fn is_on(&self) -> bool {
        !self.length.is_zero()
    }

    /// Records a read from a socket.
    pub fn note_read(&self) {
        if self.is_on() {
            self.note_read_at(Instant::now());
        }
    }

    fn note_read_at(&self, now: Instant) {
        let before = self.last_read.replace(Some(now));
        if self.is_looking.get() {
            self.row.set(self.row.get().saturating_add(1));
            return;
        }
        let is_soon = before.is_some_and(|before| now.saturating_duration_since(before) <= self.length);
        self.row.set(if is_soon { self.row.get() + 1 } else { 0 });
        if self.row.get() >= self.row_wanted.get() {
            self.row.set(0);
            self.is_looking.set(true);
            self.begin.notify_one();
        }
    }

    /// Whether it still polls.
    fn looks_at(&self, now: Instant) -> bool {
        let is_over = self.last_read.get().is_none_or(|last| now.saturating_duration_since(last) > self.length);
        if self.is_looking.get() && is_over {
            self.is_looking.set(false);
            let wanted = self.row_wanted.get();
            let was_worth_it = self.row.replace(0) >= WORTH;
            self.row_wanted.set(if was_worth_it { ROW_MIN } else { (wanted * 2).min(ROW_MAX) });
        }
        self.is_looking.get()
    }

    /// Keeps the thread awake while it is to poll: the runtime checks its sockets whenever all tasks had their turn.
    /// Never ends.
    pub async fn run(&self) {
        loop {
            self.begin.notified().await;
            while self.looks_at(Instant::now()) {
                yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    const LENGTH: Duration = Duration::from_micros(100);

    /// A lookout, and a clock that only its steps advance.
    struct Scene {
        lookout: Lookout,
        now: Instant,
    }

    impl Scene {
        fn new(length: Duration) -> Scene {
            Scene { lookout: Lookout::new(length), now: Instant::now() }
        }

        /// Makes this many reads with this gap.
        fn read(&mut self, count: u32, gap: Duration) {
            for _ in 0..count {
                self.now += gap;
                self.lookout.looks_at(self.now);
                self.lookout.note_read_at(self.now);
            }
        }

        fn is_looking(&self) -> bool {
            self.lookout.looks_at(self.now)
        }

        fn pause(&mut self) {
            self.now += LENGTH * 2;
            assert!(!self.is_looking(), "it looks no longer than it may");
        }

        /// Counts the reads until it polls.
        fn reads_until_it_looks(&mut self) -> u32 {
            (1..10_000)
                .find(|_| {
                    self.read(1, LENGTH);
                    self.is_looking()
                })
                .expect("it looks at last")
        }
    }

    #[test]
    fn reads_that_follow_each_other_begin_it_and_a_pause_ends_it() {
        let mut scene = Scene::new(LENGTH);
        // The first one follows none.
        assert_eq!(scene.reads_until_it_looks(), ROW_MIN + 1);
        scene.read(100, LENGTH);
        assert!(scene.is_looking());
        scene.pause();
        // It was worth it, so it begins as soon as before.
        assert_eq!(scene.reads_until_it_looks(), ROW_MIN + 1);
    }

    #[test]
    fn a_slow_server_never_looks() {
        let mut scene = Scene::new(LENGTH);
        for _ in 0..1000 {
            scene.read(1, LENGTH + Duration::from_nanos(1));
            // A few at once are not a row.
            scene.read(ROW_MIN - 1, Duration::ZERO);
            assert!(!scene.is_looking());
        }
    }

    #[test]
    fn it_looks_less_often_the_more_often_it_looked_in_vain() {
        let mut scene = Scene::new(LENGTH);
        let mut wanted = ROW_MIN;
        for _ in 0..20 {
            assert_eq!(scene.reads_until_it_looks(), wanted + 1);
            scene.pause();
            wanted = (wanted * 2).min(ROW_MAX);
        }
        assert_eq!(wanted, ROW_MAX);
        // As soon as it is worth it again, the failures are forgotten.
        scene.reads_until_it_looks();
        scene.read(WORTH, LENGTH);
        scene.pause();
        assert_eq!(scene.reads_until_it_looks(), ROW_MIN + 1);
    }

    #[test]
    fn one_of_no_length_is_off() {
        let lookout = Lookout::new(Duration::ZERO);
        assert!(!lookout.is_on() && Lookout::new(LOOK_DEFAULT).is_on());
        (0..100).for_each(|_| lookout.note_read());
        assert!(!lookout.is_looking.get() && lookout.last_read.get().is_none());
    }

    #[test]
    fn it_yields_while_it_looks_and_sleeps_else() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // Long enough not to end during this test.
        let lookout = Lookout::new(Duration::from_secs(3600));
        runtime.block_on(async {
            let mut run = pin!(lookout.run());
            let mut poll = || assert!(run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            poll();
            assert!(!lookout.is_looking.get());
            (0..=ROW_MIN).for_each(|_| lookout.note_read());
            (0..3).for_each(|_| poll());
            assert!(lookout.is_looking.get());
            // The hour is over.
            lookout.last_read.set(None);
            poll();
            assert!(!lookout.is_looking.get());
        });
    }
}
