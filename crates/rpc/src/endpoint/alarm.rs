//! Sleeping in tasks: timers of the application on the endpoint's wheel.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use dunlin_net::clock::nanos;

use super::Shared;
use crate::core::alarm::AlarmId;

/// A handle for tasks that wait for a time. Clones refer to the same endpoint.
///
/// ```
/// # use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
/// # use dunlin_rpc::{Endpoint, EndpointConfig};
/// use std::time::Duration;
///
/// # let network = LoopbackNetwork::new(LoopbackConfig::default());
/// # let endpoint = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
/// let timers = endpoint.timers();
/// let begun = timers.now();
/// let mut work = Box::pin(timers.sleep(Duration::from_millis(3)));
/// // The test moves the clock.
/// while endpoint.poll_once(work.as_mut()).is_none() {
///     network.advance(Duration::from_micros(50));
/// }
/// assert!(timers.now() - begun >= 3_000_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Timers {
    shared: Rc<Shared>,
}

impl Timers {
    pub(crate) fn new(shared: &Rc<Shared>) -> Timers {
        Timers { shared: shared.clone() }
    }

    /// Nanoseconds on the transport's clock, as the event loop last read it.
    pub fn now(&self) -> u64 {
        self.shared.core.borrow().now
    }

    /// Nanoseconds on the clock for promises to others that hold for a time
    /// ([`Transport::boot_clock`](dunlin_net::Transport::boot_clock)), which keeps running while the machine is
    /// suspended. Read anew each time; never compare it with [`Timers::now`].
    pub fn boot_now(&self) -> u64 {
        self.shared.boot_clock.now()
    }

    /// Sleeps for `time`, counted from [`Timers::now`], and up to some microseconds longer.
    pub fn sleep(&self, time: Duration) -> Sleep {
        self.sleep_until(self.now().saturating_add(nanos(time)))
    }

    /// Sleeps until `at`, in nanoseconds on the transport's clock, and up to some microseconds longer.
    pub fn sleep_until(&self, at: u64) -> Sleep {
        let alarm = self.shared.core.borrow_mut().set_alarm(at);
        self.shared.executor.notify_here();
        Sleep { shared: self.shared.clone(), alarm }
    }
}

/// The future of [`Timers::sleep`]. Dropping it removes the timer.
#[must_use = "it waits only while it is awaited"]
pub struct Sleep {
    shared: Rc<Shared>,
    alarm: AlarmId,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut core = self.shared.core.borrow_mut();
        if core.alarm_fired(self.alarm) {
            return Poll::Ready(());
        }
        let before = core.watch_alarm(self.alarm, context.waker());
        // Dropping a waker may drop what it owns, which may call back into the core.
        drop(core);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waker = self.shared.core.borrow_mut().forget_alarm(self.alarm);
        drop(waker);
    }
}
