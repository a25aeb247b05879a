//! The failure of a core, as the whole server sees it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use crate::interrupt::Interrupt;
use crate::mailbox::{Control, Mailboxes};

/// A core that failed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The core.
    pub core: u16,
    /// Why.
    pub why: String,
}

/// The first failure of a server, if there was one. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Failure {
    first: Arc<Mutex<Option<Failed>>>,
    interrupt: Interrupt,
}

impl Failure {
    pub(crate) fn ringing(interrupt: Interrupt) -> Failure {
        Failure { interrupt, ..Failure::default() }
    }

    /// Notes a failure. Only the first is kept: it causes the others.
    pub(crate) fn note(&self, core: u16, why: String) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(Failed { core, why });
        self.interrupt.ring();
    }

    /// The failure.
    pub fn get(&self) -> Option<Failed> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The health of one core, for the tasks of its thread. A core that has failed executes nothing more: its state may be
/// in the middle of a change.
#[derive(Clone)]
pub struct Health(Rc<Inner>);

struct Inner {
    core: u16,
    has_failed: Cell<bool>,
    failure: Failure,
    tell: Box<dyn Fn()>,
    stops: RefCell<Vec<Box<dyn Fn()>>>,
}

impl Health {
    /// Creates it for a healthy core.
    pub fn new<L: 'static>(core: u16, failure: Failure, mailboxes: &Mailboxes<L>) -> Health {
        let control = mailboxes.control(core);
        // A core that has ended need not be told.
        let tell = Box::new(move || drop(control.send(Control::Failed)));
        Health(Rc::new(Inner { core, has_failed: Cell::new(false), failure, tell, stops: RefCell::default() }))
    }

    /// Calls `stop` when the core fails, from within the code that failed, to end some of its work before it does
    /// anything more.
    pub fn on_failure(&self, stop: impl Fn() + 'static) {
        self.0.stops.borrow_mut().push(Box::new(stop));
    }

    /// Notes why the core has failed, and ends its work. The server ends with this reason.
    pub fn fail(&self, why: String) {
        let inner = &*self.0;
        if inner.has_failed.replace(true) {
            return;
        }
        tracing::error!(core = inner.core, why, "a core has failed, and the server ends");
        inner.failure.note(inner.core, why);
        inner.stops.borrow().iter().for_each(|stop| stop());
        (inner.tell)();
    }

    /// Whether the core has failed.
    pub fn has_failed(&self) -> bool {
        self.0.has_failed.get()
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health")
            .field("core", &self.0.core)
            .field("has_failed", &self.0.has_failed)
            .finish_non_exhaustive()
    }
}
