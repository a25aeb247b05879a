//! Rounds that continue as a task when their future is dropped. A commit that stopped half-way would leave its
//! transaction in doubt, and an abandoned lock request may still take the lock. So a round that was begun is always
//! completed.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use dunlin_net::Transport;

use super::Inner;
use crate::transaction::State;

/// The end of a round: the transaction, unless it has ended, and the result for its caller.
pub(super) struct Finished<R> {
    pub state: Option<Box<State>>,
    pub result: R,
}

type Work<R> = Pin<Box<dyn Future<Output = Finished<R>>>>;

/// A round.
pub(super) struct Finish<T: Transport + 'static, R: 'static> {
    inner: Rc<Inner<T>>,
    work: Option<Work<R>>,
}

impl<T: Transport + 'static, R: 'static> Finish<T, R> {
    pub fn new(inner: &Rc<Inner<T>>, work: impl Future<Output = Finished<R>> + 'static) -> Finish<T, R> {
        Finish { inner: inner.clone(), work: Some(Box::pin(work)) }
    }
}

impl<T: Transport + 'static, R: 'static> Future for Finish<T, R> {
    type Output = Finished<R>;

    /// # Panics
    /// If polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished<R>> {
        let work = self.work.as_mut().expect("a round was polled after it was ready");
        let poll = work.as_mut().poll(context);
        if poll.is_ready() {
            self.work = None;
        }
        poll
    }
}

impl<T: Transport + 'static, R: 'static> Drop for Finish<T, R> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        let inner = self.inner.clone();
        self.inner.endpoint.spawn(async move {
            if let Some(state) = work.await.state {
                inner.abort(state).await;
            }
        });
    }
}
