//! One waiting caller.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use dunlin_rpc::{Sleep, Timers};

use crate::error::{SeqError, Setback};

/// State shared by a caller and its batch.
pub struct Ask {
    /// Numbers requested.
    pub length: u32,
    /// When it gives up, by the clock of the endpoint.
    pub deadline: u64,
    state: RefCell<State>,
    last: RefCell<Option<Setback>>,
}

enum State {
    Waiting(Option<Waker>),
    Ended(Result<u64, SeqError>),
    Gone,
}

impl Ask {
    pub fn new(length: u32, deadline: u64) -> Ask {
        let state = RefCell::new(State::Waiting(None));
        Ask { length, deadline, state, last: RefCell::new(None) }
    }

    pub fn is_waited_for(&self) -> bool {
        matches!(*self.state.borrow(), State::Waiting(_))
    }

    /// Records why the last attempt failed.
    pub fn set_back(&self, setback: &Setback) {
        *self.last.borrow_mut() = Some(setback.clone());
    }

    /// Passes the result to the caller, if it still waits.
    pub fn end(&self, result: Result<u64, SeqError>) {
        if !self.is_waited_for() {
            return;
        }
        if let State::Waiting(Some(waker)) = self.state.replace(State::Ended(result)) {
            waker.wake();
        }
    }
}

/// The future of a run's first number.
pub struct Asking {
    ask: Rc<Ask>,
    timers: Timers,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Asking {
    pub fn new(ask: Rc<Ask>, timers: Timers) -> Asking {
        Asking { ask, timers, sleep: None }
    }
}

impl Future for Asking {
    type Output = Result<u64, SeqError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = this.ask.state.borrow_mut();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Ended(result) => return Poll::Ready(result),
            State::Waiting(_) => {}
            State::Gone => panic!("a call for numbers was polled after it was ready"),
        }
        let deadline = this.ask.deadline;
        let sleep = this.sleep.get_or_insert_with(|| Box::pin(this.timers.sleep_until(deadline)));
        if sleep.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(SeqError::TimedOut { last: this.ask.last.take() }));
        }
        *state = State::Waiting(Some(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let gone = self.ask.state.replace(State::Gone);
        drop(gone);
    }
}
