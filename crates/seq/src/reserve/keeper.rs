//! The keeper, which supplies a counter with numbers.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::{Endpoint, Timers};

use super::{RANGE_MAX, Reserve, ReserveError, Reserved};
use crate::counter::{Counter, FOREVER, NUMBERS_END, RUN_MAX};
use crate::mutation::{Mutation, is_planted};

/// The term is renewed early if a request names a later epoch, up to so many times in an interval.
const EARLY_RENEWALS: u32 = 10;

/// Pause after a failure to take office that an operator must mend.
const WRONG_PAUSE: Duration = Duration::from_secs(1);

/// Settings of a keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeeperConfig {
    /// Numbers reserved at a time, at least twice [`RUN_MAX`], and at most [`RANGE_MAX`]. More are reserved when half as many are left. A crash
    /// loses up to one and a half times as many. Default 1,000,000.
    pub range: u64,
    /// Interval between renewals of the term: a fraction of the term. Default 500 ms.
    pub renew: Duration,
    /// Pause after a failure. Default 5 ms.
    pub pause: Duration,
}

impl Default for KeeperConfig {
    fn default() -> Self {
        let (renew, pause) = (Duration::from_millis(500), Duration::from_millis(5));
        KeeperConfig { range: 1_000_000, renew, pause }
    }
}

/// The counters of a keeper.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeeperStats {
    /// How often it took office.
    pub taken: u64,
    /// Ranges reserved, including the first of each term of office.
    pub ranges: u64,
    /// Renewals of the term without a range.
    pub renewals: u64,
    /// How often it was fenced.
    pub fenced: u64,
    /// How often its term ended before it could be renewed.
    pub expired: u64,
    /// Reservations and renewals that failed.
    pub failures: u64,
}

/// A keeper: a task on an endpoint that takes office for a counter, and takes it again after a loss. Dropping this
/// handle changes nothing: the task ends with the endpoint, or by [`Keeper::stop`].
#[derive(Clone)]
pub struct Keeper(Rc<Shared>);

struct Shared {
    stats: Cell<KeeperStats>,
    is_stopping: Cell<bool>,
    has_stopped: Cell<bool>,
    /// The task, if it sleeps, and the callers that wait for its end.
    wakers: RefCell<Vec<Waker>>,
}

impl Keeper {
    /// Starts the task. The counter must be [idle](Counter::idle), and no other keeper may use it.
    ///
    /// # Panics
    /// If [`KeeperConfig::range`] is less than twice [`RUN_MAX`], or more than [`RANGE_MAX`].
    pub fn start<T: Transport, R: Reserve + 'static>(
        endpoint: &Endpoint<T>,
        counter: &Arc<Counter>,
        reserve: R,
        config: KeeperConfig,
    ) -> Keeper {
        let lengths = 2 * u64::from(RUN_MAX)..=RANGE_MAX;
        assert!(lengths.contains(&config.range), "a range has {lengths:?} numbers, not {}", config.range);
        let (stats, wakers) = (Cell::default(), RefCell::default());
        let shared = Rc::new(Shared { stats, is_stopping: Cell::new(false), has_stopped: Cell::new(false), wakers });
        let (counter, timers) = (counter.clone(), endpoint.timers());
        let work = Work { counter, reserve, config, timers, shared: shared.clone(), told: None };
        endpoint.spawn(work.reserve.attend());
        endpoint.spawn(work.run());
        Keeper(shared)
    }

    /// The counters.
    pub fn stats(&self) -> KeeperStats {
        self.0.stats.get()
    }

    /// Stops handing out numbers and gives up office, so that another sequencer can begin at once. Returns when that is
    /// done, or has failed.
    pub async fn stop(&self) {
        self.0.is_stopping.set(true);
        self.0.wake();
        poll_fn(|context| {
            if self.0.has_stopped.get() {
                return Poll::Ready(());
            }
            self.0.wakers.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Shared {
    fn wake(&self) {
        let wakers = self.wakers.take();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ready when the keeper is to stop.
    fn poll_stopping(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_stopping.get() {
            return Poll::Ready(());
        }
        let mut wakers = self.wakers.borrow_mut();
        wakers.retain(|waker| !waker.will_wake(context.waker()));
        wakers.push(context.waker().clone());
        Poll::Pending
    }

    fn count(&self, count: impl FnOnce(&mut KeeperStats)) {
        let mut stats = self.stats.get();
        count(&mut stats);
        self.stats.set(stats);
    }
}

/// Runs `work`, unless the keeper is to stop before it ends.
async fn until_stopping<F: Future>(shared: &Shared, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => shared.poll_stopping(context).map(|()| None),
    })
    .await
}

struct Work<R> {
    counter: Arc<Counter>,
    reserve: R,
    config: KeeperConfig,
    timers: Timers,
    shared: Rc<Shared>,
    /// The last failure that an operator must mend and has been told.
    told: Option<String>,
}

/// However it ends, by a panic too: nobody waits for more.
impl<R> Drop for Work<R> {
    fn drop(&mut self) {
        self.shared.has_stopped.set(true);
        self.shared.wake();
    }
}

impl<R: Reserve> Work<R> {
    async fn run(mut self) {
        while !self.shared.is_stopping.get() {
            // This does not end as long as another sequencer holds office.
            match until_stopping(&self.shared, self.reserve.take(self.config.range)).await {
                Some(Ok(first)) => {
                    self.told = None;
                    self.hold(first).await;
                    self.counter.stop();
                }
                Some(Err(why)) => self.pause_after(&why, WRONG_PAUSE).await,
                None => break,
            }
        }
        // The office may have been taken with no answer yet. Without one it is no member any more. If this fails, the term
        // and the membership end by themselves.
        let _ = self.reserve.release().await;
    }

    /// Counts a failure, and pauses, unless the keeper is to stop. What no retry mends is told once, and tried again only
    /// after `wrong_pause`.
    async fn pause_after(&mut self, why: &ReserveError, wrong_pause: Duration) {
        self.shared.count(|stats| stats.failures += 1);
        let pause = match why {
            ReserveError::Wrong(wrong) => {
                if self.told.as_ref() != Some(wrong) {
                    tracing::warn!("this sequencer hands out no numbers: {wrong}");
                    self.told = Some(wrong.clone());
                }
                wrong_pause
            }
            _ => {
                tracing::debug!(%why, "a sequencer reserved nothing");
                self.config.pause
            }
        };
        until_stopping(&self.shared, self.timers.sleep(pause)).await;
    }

    /// Holds office from its first range on, until it is lost or the keeper is to stop.
    async fn hold(&mut self, first: Reserved) {
        tracing::info!(start = first.range.start, "this sequencer has taken office");
        self.shared.count(|stats| {
            stats.taken += 1;
            stats.ranges += 1;
        });
        let (mut until, mut is_last, epoch) = (first.until, first.range.end == NUMBERS_END, first.epoch);
        self.counter.install(epoch, first.range, until, self.config.range / 2);
        let mut has_failed = false;
        loop {
            let reserve = if is_last { 0 } else { self.config.range / 2 };
            let is_low = self.wait(reserve, is_last).await;
            if self.shared.is_stopping.get() {
                return;
            }
            // An epoch that is named from now on may be newer than the answer.
            self.counter.forget_named();
            // After a failure it is the term alone that is to be extended, which may succeed where a reservation does not.
            let count = if is_low && !is_last && !has_failed { self.config.range } else { 0 };
            let extended = self.reserve.extend(count).await;
            has_failed = extended.is_err();
            match extended {
                Ok(reserved) => {
                    until = reserved.until;
                    if count == 0 {
                        self.shared.count(|stats| stats.renewals += 1);
                        self.counter.renew(until);
                    } else {
                        self.shared.count(|stats| stats.ranges += 1);
                        is_last = reserved.range.end == NUMBERS_END;
                        self.counter.install(epoch, reserved.range, until, self.config.range / 2);
                    }
                }
                Err(ReserveError::Fenced) if is_planted(Mutation::FencingIgnored) => self.counter.renew(FOREVER),
                Err(ReserveError::Fenced) => {
                    tracing::warn!("this sequencer has lost its office to another one");
                    self.shared.count(|stats| stats.fenced += 1);
                    return;
                }
                Err(why) => {
                    if self.timers.boot_now() >= until {
                        tracing::warn!(%why, "the term of this sequencer has ended");
                        self.shared.count(|stats| {
                            stats.failures += 1;
                            stats.expired += 1;
                        });
                        return;
                    }
                    self.pause_after(&why, self.config.renew).await;
                }
            }
        }
    }

    /// Waits until few numbers are left, in which case it returns true, until the term must be renewed, until a request
    /// has named a later epoch, or until the keeper is to stop.
    async fn wait(&self, reserve: u64, is_last: bool) -> bool {
        let mut sleep = pin!(self.timers.sleep(self.config.renew));
        let mut early = pin!(self.timers.sleep(self.config.renew / EARLY_RENEWALS));
        poll_fn(|context| {
            if !is_last && self.counter.poll_low(reserve, context).is_ready() {
                return Poll::Ready(true);
            }
            if self.shared.poll_stopping(context).is_ready() {
                return Poll::Ready(false);
            }
            let is_named = self.counter.poll_named(context).is_ready();
            if is_named && early.as_mut().poll(context).is_ready() {
                return Poll::Ready(false);
            }
            sleep.as_mut().poll(context).map(|()| false)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
    use dunlin_rpc::EndpointConfig;

    use super::*;

    struct Faulty;

    impl Reserve for Faulty {
        async fn take(&mut self, _: u64) -> Result<Reserved, ReserveError> {
            panic!("a fault")
        }

        async fn extend(&mut self, _: u64) -> Result<Reserved, ReserveError> {
            unreachable!("it never takes office")
        }

        async fn release(&mut self) -> Result<(), ReserveError> {
            unreachable!("it never takes office")
        }
    }

    #[test]
    fn a_keeper_that_panicked_has_stopped() {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let endpoint = Endpoint::new(network.endpoint(1).unwrap(), EndpointConfig::default()).unwrap();
        let keeper = Keeper::start(&endpoint, &Arc::new(Counter::idle()), Faulty, KeeperConfig::default());
        let mut stop = pin!(keeper.stop());
        let ended = (0..100).any(|_| {
            network.advance(Duration::from_micros(1));
            endpoint.poll_once(stop.as_mut()).is_some()
        });
        assert_eq!((ended, endpoint.stats().counters.panics_caught), (true, 1));
    }
}
