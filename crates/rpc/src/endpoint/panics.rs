//! Handling of a panic in a handler or a task: it fails what panicked, and nothing else.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::Shared;

/// The panic that [`catch_unwind`] returns.
type Panic = Box<dyn Any + Send>;

/// What panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The handler of this request type.
    Handler(u8),
    /// A task of [`crate::Endpoint::spawn`].
    Task,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Handler(req_type) => write!(f, "the handler of request type {req_type}"),
            Origin::Task => f.write_str("a spawned task"),
        }
    }
}

/// An endpoint's policy for panics.
#[derive(Default)]
pub(crate) struct Panics {
    /// Whether they end the event loop.
    pub are_propagated: Cell<bool>,
    /// What panicked before, and is not logged again.
    logged: RefCell<Vec<Origin>>,
}

impl Shared {
    /// Counts a panic, and logs the first of each origin; or passes it on to the caller of the event loop.
    #[cold]
    pub(crate) fn on_panic(&self, origin: Origin, panic: Panic) {
        self.core.borrow_mut().counters.panics_caught += 1;
        if self.panics.are_propagated.get() {
            resume_unwind(panic);
        }
        let mut logged = self.panics.logged.borrow_mut();
        if !logged.contains(&origin) {
            logged.push(origin);
            let message = panic_message(&*panic);
            tracing::error!(%origin, message, "a panic was caught; further ones of this origin are only counted");
        }
    }
}

/// The message of a panic that [`catch_unwind`] returned.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Runs `work` to its end. If it panics, it ends there, and what it owns is dropped.
pub(crate) async fn guarded(shared: Rc<Shared>, origin: Origin, work: impl Future<Output = ()>) {
    let mut work = pin!(Some(work));
    let result = poll_fn(|context| {
        let poll = || work.as_mut().as_pin_mut().map_or(Poll::Ready(()), |work| work.poll(context));
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await;
    let dropped = catch_unwind(AssertUnwindSafe(|| work.set(None)));
    for panic in [result, dropped].into_iter().filter_map(Result::err) {
        shared.on_panic(origin, panic);
    }
}
