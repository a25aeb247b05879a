//! Waits with a time limit, on threads with an event loop and without.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use dunlin_net::clock::nanos;
use dunlin_rpc::Timers;

/// A deadline further away than this never comes: 30 years.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How often the end of a thread is checked.
const END_LOOK: Duration = Duration::from_millis(1);

/// Waits for the end of a thread, and returns whether it has ended in time.
pub(crate) fn ends_within<R>(time: Duration, thread: &JoinHandle<R>) -> bool {
    let deadline = deadline_in(time);
    while !thread.is_finished() && Instant::now() < deadline {
        thread::sleep(END_LOOK);
    }
    thread.is_finished()
}

/// The deadline after `time`. If the clock cannot represent it, a deadline far away.
pub(crate) fn deadline_in(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time.min(FAR)).unwrap_or(now)
}

/// Wakes the thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs `work` on this thread until the deadline. Unlike an executor it may run inside another one.
pub(crate) fn wait_until<F: Future>(deadline: Instant, work: F) -> Option<F::Output> {
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(output) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

/// Runs some work in a task of an endpoint, for at most `time`.
pub(crate) async fn within<R>(timers: &Timers, time: Duration, work: impl Future<Output = R>) -> Option<R> {
    until(timers, timers.now().saturating_add(nanos(time)), work).await
}

/// Does some work until `end`, on the clock of the endpoint, at most.
pub(crate) async fn until<R>(timers: &Timers, end: u64, work: impl Future<Output = R>) -> Option<R> {
    let (mut work, mut end) = (pin!(work), pin!(timers.sleep_until(end)));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn no_time_is_too_long() {
        assert!(deadline_in(Duration::MAX) > Instant::now() + Duration::from_secs(86_400));
        assert_eq!(wait_until(deadline_in(Duration::MAX), async { 1 }), Some(1));
        assert_eq!(wait_until(deadline_in(Duration::ZERO), std::future::pending::<()>()), None);
    }

    #[test]
    fn another_thread_ends_the_wait() {
        let (answer, answered) = oneshot::channel();
        let other = thread::spawn(move || answer.send(2));
        assert_eq!(wait_until(deadline_in(Duration::MAX), answered), Some(Ok(2)));
        other.join().unwrap().unwrap();
    }
}
