//! Operations that time out.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use dunlin_rpc::Timers;

/// The result of `work`; `None` if it takes longer than `patience`, if given: it is dropped then.
pub async fn within<F: Future>(timers: &Timers, patience: Option<Duration>, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    let mut patience = patience.map(|time| Box::pin(timers.sleep(time)));
    poll_fn(|context| {
        if let Poll::Ready(output) = work.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        match &mut patience {
            Some(patience) => patience.as_mut().poll(context).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}
