//! A task of an endpoint that ends with its owner.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use dunlin_net::Transport;
use dunlin_rpc::Endpoint;
use futures::future::{AbortHandle, FutureExt as _, LocalBoxFuture, abortable};

/// A future that an endpoint polls until this is dropped. Its memory is freed at once then, even if the endpoint is not
/// turned any more. So it may own the endpoint.
pub(crate) struct OwnedTask {
    _future: Rc<RefCell<LocalBoxFuture<'static, ()>>>,
    task: AbortHandle,
}

impl OwnedTask {
    pub fn spawn<T: Transport>(endpoint: &Endpoint<T>, future: LocalBoxFuture<'static, ()>) -> OwnedTask {
        let future = Rc::new(RefCell::new(future));
        let polled = Rc::downgrade(&future);
        let (task, handle) = abortable(poll_fn(move |context| match polled.upgrade() {
            Some(future) => future.borrow_mut().poll_unpin(context),
            None => Poll::Ready(()),
        }));
        endpoint.spawn(task.map(drop));
        OwnedTask { _future: future, task: handle }
    }
}

impl Drop for OwnedTask {
    fn drop(&mut self) {
        // Wakes the task, which would otherwise stay in the endpoint.
        self.task.abort();
    }
}
