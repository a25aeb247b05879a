//! Why a core serves no more, told to the whole server.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use super::mail::Mail;
use crate::routing::Core;

/// A core that failed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    pub core: Core,
    pub why: String,
}

/// The first failure of a server, if there was one.
#[derive(Debug, Clone, Default)]
pub(super) struct Failure(Arc<Mutex<Option<Failed>>>);

impl Failure {
    /// Notes a failure. The first one is the cause of others.
    pub fn note(&self, core: Core, why: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(Failed { core, why });
    }

    /// The failure.
    pub fn get(&self) -> Option<Failed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The health of one core, for the tasks of its thread. A core that failed executes nothing more: its partition may be in the middle of a
/// change. It only takes part in a last snapshot.
#[derive(Clone)]
pub(super) struct Health(Rc<Inner>);

struct Inner {
    core: Core,
    has_failed: Cell<bool>,
    failure: Failure,
    mailbox: mpsc::Sender<Mail>,
    stops: RefCell<Vec<Box<dyn Fn()>>>,
}

impl Health {
    /// A core that is well, with its own mailbox.
    pub fn new(core: Core, failure: Failure, mailbox: mpsc::Sender<Mail>) -> Health {
        let inner = Inner { core, has_failed: Cell::new(false), failure, mailbox, stops: RefCell::default() };
        Health(Rc::new(inner))
    }

    /// Has `stop` called when the core fails, from within what failed, to end some of its work before it does anything more.
    pub fn on_failure(&self, stop: impl Fn() + 'static) {
        self.0.stops.borrow_mut().push(Box::new(stop));
    }

    /// Notes why the core serves no more, and ends its work.
    pub fn fail(&self, why: String) {
        let inner = &*self.0;
        if inner.has_failed.replace(true) {
            return;
        }
        tracing::error!(core = inner.core, why, "a core has failed, and the server ends");
        inner.failure.note(inner.core, why);
        inner.stops.borrow().iter().for_each(|stop| stop());
        // A mailbox that is full needs no letter to be looked at.
        let _ = inner.mailbox.try_send(Mail::Failed);
    }

    /// Whether it serves no more.
    pub fn has_failed(&self) -> bool {
        self.0.has_failed.get()
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("core", &self.0.core).field("has_failed", &self.0.has_failed).finish_non_exhaustive()
    }
}
