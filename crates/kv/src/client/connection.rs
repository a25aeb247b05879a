//! One attempt at a time to reach the server, shared by all operations that wait for it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use dunlin_net::{Addr, Transport};
use dunlin_rpc::Endpoint;

use super::config::ClientConfig;
use super::error::KvError;
use super::links::Links;

/// The sessions with a server, or the attempt to get them.
pub(super) struct Connection<T: Transport> {
    pub endpoint: Rc<Endpoint<T>>,
    pub server: Addr,
    config: ClientConfig,
    links: RefCell<Option<Rc<Links>>>,
    /// Somebody is opening them.
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
            is_opening: Cell::new(false),
            attempts: Cell::new(0),
            last_error: RefCell::default(),
            waiting: RefCell::default(),
        }
    }

    /// The sessions, if they are there.
    #[inline]
    pub fn current(&self) -> Option<Rc<Links>> {
        self.links.borrow().clone()
    }

    /// The sessions; opens them, or waits for whoever does.
    pub async fn links(&self) -> Result<Rc<Links>, KvError> {
        loop {
            if let Some(links) = self.current() {
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
        let result = Links::open(&self.endpoint, &self.server, &self.config).await;
        self.attempts.set(self.attempts.get() + 1);
        let result = result.map(Rc::new);
        *self.last_error.borrow_mut() = result.as_ref().err().cloned();
        *self.links.borrow_mut() = result.as_ref().ok().cloned();
        drop(opening);
        result
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
