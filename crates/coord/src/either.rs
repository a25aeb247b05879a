//! Two futures, of which one ends first.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// What ended first.
pub(crate) enum Either<L, R> {
    Left(L),
    Right(R),
}

/// Waits for whichever ends first, and drops the other. If both are ready, it is the left one.
pub(crate) async fn either<L: Future, R: Future>(left: L, right: R) -> Either<L::Output, R::Output> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|context| match left.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Either::Left(output)),
        Poll::Pending => right.as_mut().poll(context).map(Either::Right),
    })
    .await
}

/// What `work` gives, or `None` if `end` comes first.
pub(crate) async fn until<F: Future>(work: F, end: impl Future<Output = ()>) -> Option<F::Output> {
    match either(work, end).await {
        Either::Left(output) => Some(output),
        Either::Right(()) => None,
    }
}
