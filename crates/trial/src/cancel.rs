//! A future that can be dropped from outside while a task waits for it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct Inner<O> {
    future: Option<Pin<Box<dyn Future<Output = O>>>>,
    waker: Option<Waker>,
}

/// Waits for the future: `None` once it was cancelled.
pub struct Cancellable<O>(Rc<RefCell<Inner<O>>>);

/// Drops the future. Outlives the task, and even the endpoint.
pub struct CancelHandle<O>(Rc<RefCell<Inner<O>>>);

/// Wraps a future so that the handle can cancel it.
pub fn cancellable<O>(future: impl Future<Output = O> + 'static) -> (Cancellable<O>, CancelHandle<O>) {
    let inner = Rc::new(RefCell::new(Inner { future: Some(Box::pin(future)), waker: None }));
    (Cancellable(inner.clone()), CancelHandle(inner))
}

impl<O> Future for Cancellable<O> {
    type Output = Option<O>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<O>> {
        let mut inner = self.0.borrow_mut();
        let Some(future) = &mut inner.future else { return Poll::Ready(None) };
        match future.as_mut().poll(context) {
            Poll::Ready(output) => {
                inner.future = None;
                Poll::Ready(Some(output))
            }
            Poll::Pending => {
                inner.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<O> CancelHandle<O> {
    /// Drops the future now, if it still runs; returns whether it did.
    pub fn cancel(&self) -> bool {
        let (future, waker) = {
            let mut inner = self.0.borrow_mut();
            (inner.future.take(), inner.waker.take())
        };
        let ran = future.is_some();
        drop(future);
        if let Some(waker) = waker {
            waker.wake();
        }
        ran
    }
}
