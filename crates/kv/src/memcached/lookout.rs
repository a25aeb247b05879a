//! Whether a core looks at its sockets again and again, or sleeps until one of them has something.
//!
//! To sleep and be woken costs a core tens of microseconds, more than hundreds of commands. A client that waits for each answer before it asks again
//! pays that for every command. So while commands follow each other closely, the core goes on looking for a bounded time. It begins only after
//! several came in a row, each soon after the one before, and from one that looked in vain it learns to ask for more of them: a server
//! that is idle, slow, or shares its processor with its clients sleeps.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::yield_now;

/// How long a core looks before it sleeps, unless it is told otherwise: about twice what a client needs that has to be woken up.
pub const LOOK_DEFAULT: Duration = Duration::from_micros(200);
/// Reads in a row, each soon after the one before, after which a core begins to look.
const ROW_MIN: u32 = 4;
/// The same after it often looked in vain. Where it always does, each read pays a 64th of a look. Not more, since on a machine that does
/// much else no row is long.
const ROW_MAX: u32 = 64;
/// Looking was worth it if it found so many reads: each spared as much as it costs to be woken up.
const WORTH: u32 = 8;

/// The lookout of one core.
#[derive(Debug)]
pub(super) struct Lookout {
    /// How long it looks, and how soon is soon.
    length: Duration,
    last_read: Cell<Option<Instant>>,
    /// Reads of this row; while it looks, since it began to.
    row: Cell<u32>,
    /// How long a row it asks for.
    row_wanted: Cell<u32>,
    is_looking: Cell<bool>,
    begin: Notify,
}

impl Lookout {
    /// One that looks for so long; never if that is nothing.
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

    /// Whether it looks at times.
    pub fn is_on(&self) -> bool {
        !self.length.is_zero()
    }

    /// Tells that a socket had something.
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

    /// Whether it still looks.
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

    /// Keeps the thread awake while it is to look: the runtime looks at its sockets whenever all tasks had their turn. Never ends.
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

    /// A lookout and a clock that only its steps move.
    struct Scene {
        lookout: Lookout,
        now: Instant,
    }

    impl Scene {
        fn new(length: Duration) -> Scene {
            Scene { lookout: Lookout::new(length), now: Instant::now() }
        }

        /// So many reads, each so long after the one before.
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

        /// How many reads it takes now until it looks.
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
        // The first follows none.
        assert_eq!(scene.reads_until_it_looks(), ROW_MIN + 1);
        scene.read(100, LENGTH);
        assert!(scene.is_looking());
        scene.pause();
        // It was worth it, and so it begins as soon again.
        assert_eq!(scene.reads_until_it_looks(), ROW_MIN + 1);
    }

    #[test]
    fn a_slow_server_never_looks() {
        let mut scene = Scene::new(LENGTH);
        for _ in 0..1000 {
            scene.read(1, LENGTH + Duration::from_nanos(1));
            // A few at once are no row.
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
        // As soon as it is worth it again, all is forgotten.
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
        // So long that it is not over while this test runs.
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
