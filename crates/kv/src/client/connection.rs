//! One attempt at a time to reach the server, shared by all operations that wait for it.
//!
//! An endpoint that nobody turns sends no keep-alives, and its server gives it up after a second or so. An operation sent then would fail, and
//! nobody could say whether it had been executed. So sessions that were not used of late are tried with a question first, and opened anew if
//! they are over: the operation has not been sent yet, and is then.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use dunlin_net::{Addr, Transport};
use dunlin_rpc::Endpoint;

use super::config::ClientConfig;
use super::error::KvError;
use super::links::Links;

/// Sessions that no operation began on for so long, in nanoseconds, are tried before the next: less than the shortest time after which a server
/// of default settings gives up a client, [`dunlin_rpc::EndpointConfig::peer_timeout`], and so long that one round trip more is nothing.
const UNUSED_NANOS_MAX: u64 = 200_000_000;

/// The sessions with a server, or the attempt to get them.
pub(super) struct Connection<T: Transport> {
    pub endpoint: Rc<Endpoint<T>>,
    pub server: Addr,
    config: ClientConfig,
    links: RefCell<Option<Rc<Links>>>,
    /// When they were used last, on the endpoint's clock.
    used_at: Cell<u64>,
    /// Somebody is opening or trying them.
    is_opening: Cell<bool>,
    /// Attempts that have ended, and how the last one did if it failed.
    attempts: Cell<u64>,
    last_error: RefCell<Option<KvError>>,
    waiting: RefCell<Vec<Waker>>,
}

impl<T: Transport> Connection<T> {
    pub fn new(endpoint: Rc<Endpoint<T>>, server: Addr, config: ClientConfig) -> Connection<T> {
        Connection {
            endpoint,
            server,
            config,
            links: RefCell::default(),
            used_at: Cell::new(0),
            is_opening: Cell::new(false),
            attempts: Cell::new(0),
            last_error: RefCell::default(),
            waiting: RefCell::default(),
        }
    }

    /// The sessions, if they are there and were in use until `now`, and are from now on.
    #[inline]
    pub fn current(&self, now: u64) -> Option<Rc<Links>> {
        if now.saturating_sub(self.used_at.get()) > UNUSED_NANOS_MAX {
            return None;
        }
        self.used_at.set(now);
        self.links.borrow().clone()
    }

    /// The sessions; tries or opens them, or waits for whoever does.
    pub async fn links(&self) -> Result<Rc<Links>, KvError> {
        loop {
            if let Some(links) = self.current(self.endpoint.now()) {
                return Ok(links);
            }
            if !self.is_opening.replace(true) {
                return self.open().await;
            }
            let before = self.attempts.get();
            self.attempt_ended(before).await;
            if self.attempts.get() != before
                && self.links.borrow().is_none()
                && let Some(error) = &*self.last_error.borrow()
            {
                return Err(error.clone());
            }
            // Whoever was opening them has given up: it is our turn.
        }
    }

    async fn open(&self) -> Result<Rc<Links>, KvError> {
        let opening = Opening(self);
        let result = match self.try_unused().await {
            Some(links) => Ok(links),
            None => Links::open(&self.endpoint, &self.server, &self.config).await.map(Rc::new),
        };
        self.attempts.set(self.attempts.get() + 1);
        self.used_at.set(self.endpoint.now());
        *self.last_error.borrow_mut() = result.as_ref().err().cloned();
        *self.links.borrow_mut() = result.as_ref().ok().cloned();
        drop(opening);
        result
    }

    /// Tries the sessions that are there; `None` if they are over, or there are none.
    async fn try_unused(&self) -> Option<Rc<Links>> {
        let links = self.links.borrow().clone()?;
        let is_over = links.is_over(&self.config).await;
        if is_over {
            self.lost(&links);
        }
        (!is_over).then_some(links)
    }

    /// Waits until nobody opens sessions any more, or somebody has.
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

    /// Notes that the sessions are over: the next operation opens new ones. Does nothing if somebody else noticed before.
    pub fn lost(&self, links: &Rc<Links>) {
        let is_current = self.links.borrow().as_ref().is_some_and(|current| Rc::ptr_eq(current, links));
        if is_current {
            self.forget();
        }
    }

    /// Closes the sessions and forgets them.
    pub fn forget(&self) {
        let links = self.links.borrow_mut().take();
        if let Some(links) = links {
            links.close();
        }
    }
}

impl<T: Transport> Drop for Connection<T> {
    fn drop(&mut self) {
        self.forget();
    }
}

/// The right to open sessions. However it ends, even dropped half-way, those who wait look again.
struct Opening<'a, T: Transport>(&'a Connection<T>);

impl<T: Transport> Drop for Opening<'_, T> {
    fn drop(&mut self) {
        self.0.is_opening.set(false);
        let waiting = std::mem::take(&mut *self.0.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }
}
