//! Waiting on a thread for another one: first awake, for as long as that is likely to pay off, then asleep.

use std::cell::Cell;
use std::hint::spin_loop;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use dunlin_net::Clock;
use dunlin_net::poll::{Idle, PollPolicy};

/// Reads of the flag between two reads of the clock, which takes as long as many of them.
const LOOKS: u32 = 32;

/// Wakes a thread.
struct Alarm {
    rung: Flag,
    /// Whether the thread sleeps, or is about to.
    is_asleep: AtomicBool,
    thread: Thread,
}

/// A flag on a cache line of its own, so that reading it is not disturbed by the reference counts of wakers.
#[derive(Default)]
#[repr(align(128))]
struct Flag(AtomicBool);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Both accesses are in one order with those of `Waiter::sleep`: either this sees the thread sleep, or the
        // thread sees the ring.
        self.rung.0.store(true, Ordering::SeqCst);
        if self.is_asleep.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

/// State that a thread keeps from one wait to the next: the length of the last waits decides whether to stay awake.
struct Waiter {
    alarm: Arc<Alarm>,
    waker: Waker,
    clock: Clock,
    policy: PollPolicy,
    idle: Idle,
}

thread_local! {
    static WAITER: Cell<Option<Waiter>> = const { Cell::new(None) };
}

impl Waiter {
    fn new(policy: PollPolicy) -> Waiter {
        let (rung, is_asleep) = (Flag::default(), AtomicBool::new(false));
        let alarm = Arc::new(Alarm { rung, is_asleep, thread: thread::current() });
        let waker = alarm.clone().into();
        Waiter { alarm, waker, clock: Clock::new(), policy, idle: Idle::new(policy) }
    }

    fn wait(&mut self) {
        loop {
            for _ in 0..LOOKS {
                // Load first: a swap takes the cache line away from the thread that rings.
                let rung = &self.alarm.rung.0;
                if rung.load(Ordering::Acquire) && rung.swap(false, Ordering::Acquire) {
                    return self.idle.on_work();
                }
                spin_loop();
            }
            if self.idle.should_sleep(self.clock.now()) {
                self.sleep();
            }
        }
    }

    fn sleep(&mut self) {
        self.alarm.is_asleep.store(true, Ordering::SeqCst);
        if !self.alarm.rung.0.load(Ordering::SeqCst) {
            thread::park();
            self.idle.on_wake(self.clock.now());
        }
        self.alarm.is_asleep.store(false, Ordering::Relaxed);
    }
}

/// Polls a future on this thread until it ends. The thread waits as the policy says.
pub(crate) fn block_on<F: Future>(future: F, policy: PollPolicy) -> F::Output {
    // A wait within a wait gets another waiter.
    let mut waiter = WAITER.take().filter(|kept| kept.policy == policy).unwrap_or_else(|| Waiter::new(policy));
    let mut future = pin!(future);
    let output = loop {
        let polled = future.as_mut().poll(&mut Context::from_waker(&waiter.waker));
        match polled {
            Poll::Ready(output) => break output,
            Poll::Pending => waiter.wait(),
        }
    };
    WAITER.set(Some(waiter));
    output
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::channel::oneshot;

    use super::*;

    const POLICIES: [PollPolicy; 4] = [
        PollPolicy::Spin,
        PollPolicy::Sleep,
        PollPolicy::Adaptive { spin: Duration::from_micros(50) },
        PollPolicy::Yielding { spin: Duration::from_micros(50) },
    ];

    #[test]
    fn a_thread_is_woken_awake_and_asleep() {
        for policy in POLICIES {
            for pause in [Duration::ZERO, Duration::from_micros(20), Duration::from_millis(5)] {
                let (tell, told) = oneshot::channel();
                let teller = thread::spawn(move || {
                    thread::sleep(pause);
                    tell.send(7).unwrap();
                });
                assert_eq!(block_on(told, policy), Ok(7));
                teller.join().unwrap();
            }
        }
    }

    #[test]
    fn what_is_ready_and_what_wakes_itself_needs_nobody_else() {
        for policy in POLICIES {
            assert_eq!(block_on(std::future::ready(1), policy), 1);
            let mut polls = 0;
            let woken = std::future::poll_fn(|context| {
                polls += 1;
                context.waker().wake_by_ref();
                if polls < 5 { Poll::Pending } else { Poll::Ready(polls) }
            });
            assert_eq!(block_on(woken, policy), 5);
        }
    }

    #[test]
    fn a_wait_within_a_wait_does_not_take_its_wake_up() {
        let policy = PollPolicy::Sleep;
        let (tell, mut told) = oneshot::channel();
        let mut tell = Some(tell);
        let outer = std::future::poll_fn(|context| {
            let answer = std::pin::Pin::new(&mut told).poll(context);
            if let Some(tell) = tell.take() {
                block_on(async { tell.send(3).unwrap() }, policy);
            }
            answer
        });
        assert_eq!(block_on(outer, policy), Ok(3));
    }
}
