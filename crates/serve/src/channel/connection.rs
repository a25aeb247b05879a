//! One attempt at a time to reach a server, shared by all calls that wait for it.
//!
//! An endpoint that nobody turns sends no keep-alives, and its server gives it up after a second or so. A call sent
//! then would fail, and nobody could say whether it had run. So sessions that were not used of late are tried, or
//! opened anew, before the call is sent.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// What is connected: one session or many.
pub trait Connected {
    /// Closes its sessions; that goes on while the endpoint runs.
    fn close(&self);
}

/// What is connected, or the attempt to connect it. Not used for a while, it is opened again.
pub struct Connection<C: Connected, E> {
    connected: RefCell<Option<Rc<C>>>,
    unused_nanos_max: u64,
    /// When it was used last, on the endpoint's clock.
    used_at: Cell<u64>,
    /// Somebody is opening it.
    is_opening: Cell<bool>,
    /// Attempts that have ended, and how the last one did if it failed.
    attempts: Cell<u64>,
    last_error: RefCell<Option<E>>,
    waiting: RefCell<Vec<Waker>>,
}

impl<C: Connected, E: Clone> Connection<C, E> {
    /// Nothing yet. What was not used for longer than `unused_nanos_max` nanoseconds is opened again.
    pub fn new(unused_nanos_max: u64) -> Connection<C, E> {
        Connection {
            connected: RefCell::default(),
            unused_nanos_max,
            used_at: Cell::new(0),
            is_opening: Cell::new(false),
            attempts: Cell::new(0),
            last_error: RefCell::new(None),
            waiting: RefCell::default(),
        }
    }

    /// What is connected, if it was in use until `now`, and is from now on.
    #[inline]
    pub fn current(&self, now: u64) -> Option<Rc<C>> {
        if now.saturating_sub(self.used_at.get()) > self.unused_nanos_max {
            return None;
        }
        self.used_at.set(now);
        self.connected.borrow().clone()
    }

    /// What is connected; opens it, or waits for whoever does. `open` is given what was not used of late: it gives that
    /// back if it is good still, and else closes it and opens another.
    ///
    /// # Errors
    /// Whatever `open` says, also to those who waited for it.
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
            self.attempt_ended(before).await;
            if self.attempts.get() != before
                && self.connected.borrow().is_none()
                && let Some(error) = &*self.last_error.borrow()
            {
                return Err(error.clone());
            }
            // Whoever was opening it has given up: it is our turn.
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

    /// Waits until nobody opens it any more, or somebody has.
    async fn attempt_ended(&self, before: u64) {
        poll_fn(|context| {
            if !self.is_opening.get() || self.attempts.get() != before {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Notes that it is over: the next call opens it again. Does nothing if somebody else noticed before.
    pub fn lost(&self, lost: &Rc<C>) {
        if self.is_current(lost) {
            self.forget();
        }
    }

    /// Leaves it to the calls in progress on it, without closing it: the next call opens another. Says whether it was
    /// still the current one.
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

/// The right to open it. However it ends, even dropped half-way, those who wait look again.
struct Opening<'a, C: Connected, E>(&'a Connection<C, E>);

impl<C: Connected, E> Drop for Opening<'_, C, E> {
    fn drop(&mut self) {
        self.0.is_opening.set(false);
        let waiting = std::mem::take(&mut *self.0.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }
}
