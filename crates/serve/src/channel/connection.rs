//! The connection to a server: one attempt at a time, shared by all calls that wait for it.
//!
//! An endpoint that is not turned sends no keep-alives, and after a second or so its server gives it up. A call sent
//! then would fail, and nobody could say whether it had run. So sessions that were not used recently are checked, or
//! reopened, before the call is sent.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::Notify;

/// Something connected: one session or many.
pub trait Connected {
    /// Closes its sessions; closing continues while the endpoint runs.
    fn close(&self);
}

/// A connection, or the attempt to open it. After a time without use it is opened again.
pub struct Connection<C: Connected, E> {
    connected: RefCell<Option<Rc<C>>>,
    unused_nanos_max: u64,
    /// When it was last used, on the endpoint's clock.
    used_at: Cell<u64>,
    /// Whether a call is opening it.
    is_opening: Cell<bool>,
    /// The number of attempts that have ended, and the error of the last one if it failed.
    attempts: Cell<u64>,
    last_error: RefCell<Option<E>>,
    attempt_ended: Notify,
}

impl<C: Connected, E: Clone> Connection<C, E> {
    /// Creates it without a connection. A connection that was not used for longer than `unused_nanos_max` nanoseconds
    /// is opened again.
    pub fn new(unused_nanos_max: u64) -> Connection<C, E> {
        Connection {
            connected: RefCell::default(),
            unused_nanos_max,
            used_at: Cell::new(0),
            is_opening: Cell::new(false),
            attempts: Cell::new(0),
            last_error: RefCell::new(None),
            attempt_ended: Notify::default(),
        }
    }

    /// What is connected, if it was in use until `now`. A look at it is no use.
    #[inline]
    pub fn peek(&self, now: u64) -> Option<Rc<C>> {
        if now.saturating_sub(self.used_at.get()) > self.unused_nanos_max {
            return None;
        }
        self.connected.borrow().clone()
    }

    /// What is connected, if it was in use until `now`, and is from now on.
    #[inline]
    pub fn current(&self, now: u64) -> Option<Rc<C>> {
        let connected = self.peek(now)?;
        self.used_at.set(now);
        Some(connected)
    }

    /// Notes that `one` was in use until `now`, if it is still the current connection.
    pub fn used(&self, one: &Rc<C>, now: u64) {
        if self.is_current(one) {
            self.used_at.set(now);
        }
    }

    /// The connection; opens it, or waits for the call that is opening it. `open` gets the connection that was not used
    /// recently: it returns it if it still works, and otherwise closes it and opens another.
    ///
    /// # Errors
    /// The error of `open`, also for the calls that waited for it.
    pub async fn get(
        &self,
        clock: impl Fn() -> u64,
        open: impl AsyncFnOnce(Option<Rc<C>>) -> Result<Rc<C>, E>,
    ) -> Result<Rc<C>, E> {
        loop {
            if let Some(connected) = self.current(clock()) {
                return Ok(connected);
            }
            if !self.is_opening.replace(true) {
                return self.open(clock, open).await;
            }
            let before = self.attempts.get();
            self.attempt_ended.notified().await;
            if self.attempts.get() != before
                && self.connected.borrow().is_none()
                && let Some(error) = &*self.last_error.borrow()
            {
                return Err(error.clone());
            }
            // The call that was opening it has given up: it is our turn.
        }
    }

    async fn open(
        &self,
        clock: impl Fn() -> u64,
        open: impl AsyncFnOnce(Option<Rc<C>>) -> Result<Rc<C>, E>,
    ) -> Result<Rc<C>, E> {
        let opening = Opening(self);
        let unused = self.connected.borrow().clone();
        let result = open(unused).await;
        self.attempts.set(self.attempts.get() + 1);
        self.used_at.set(clock());
        *self.last_error.borrow_mut() = result.as_ref().err().cloned();
        *self.connected.borrow_mut() = result.as_ref().ok().cloned();
        drop(opening);
        result
    }

    /// Notes that it is over: the next call opens it again. Does nothing if somebody else noticed before.
    pub fn lost(&self, lost: &Rc<C>) {
        if self.is_current(lost) {
            self.forget();
        }
    }

    /// Leaves it to the calls in progress on it, without closing it: the next call opens another. Returns whether it
    /// was still the current one.
    pub fn detach(&self, leaving: &Rc<C>) -> bool {
        let is_current = self.is_current(leaving);
        if is_current {
            self.connected.borrow_mut().take();
        }
        is_current
    }

    fn is_current(&self, one: &Rc<C>) -> bool {
        self.connected.borrow().as_ref().is_some_and(|current| Rc::ptr_eq(current, one))
    }
}

impl<C: Connected, E> Connection<C, E> {
    /// Closes it and forgets it.
    pub fn forget(&self) {
        let connected = self.connected.borrow_mut().take();
        if let Some(connected) = connected {
            connected.close();
        }
    }
}

impl<C: Connected, E> Drop for Connection<C, E> {
    fn drop(&mut self) {
        self.forget();
    }
}

/// The right to open it. However the attempt ends, even dropped half-way, the waiting calls check again.
struct Opening<'a, C: Connected, E>(&'a Connection<C, E>);

impl<C: Connected, E> Drop for Opening<'_, C, E> {
    fn drop(&mut self) {
        self.0.is_opening.set(false);
        self.0.attempt_ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};

    use super::*;

    struct Nothing;

    impl Connected for Nothing {
        fn close(&self) {}
    }

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn calls_that_give_up_waiting_leave_nothing_behind() {
        let connection = Connection::<Nothing, ()>::new(u64::MAX);
        let begin = || connection.get(|| 0, async |_| pending().await);
        let mut opening = pin!(begin());
        assert!(opening.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        for _ in 0..100 {
            let task = Arc::new(Task);
            let waker = Waker::from(task.clone());
            let mut waiting = Box::pin(begin());
            for _ in 0..2 {
                assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
            drop((waiting, waker));
            assert_eq!(Arc::strong_count(&task), 1, "its waker is kept");
        }
    }
}
