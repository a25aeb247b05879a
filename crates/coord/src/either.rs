//! Runs two futures until one ends.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// The result of the future that ended first.
pub(crate) enum Either<L, R> {
    Left(L),
    Right(R),
}

/// Waits for the first of two futures to end, and drops the other. If both are ready, the left one wins.
pub(crate) async fn either<L: Future, R: Future>(left: L, right: R) -> Either<L::Output, R::Output> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|context| match left.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Either::Left(output)),
        Poll::Pending => right.as_mut().poll(context).map(Either::Right),
    })
    .await
}

/// The result of `work`, or `None` if `end` comes first.
pub(crate) async fn until<F: Future>(work: F, end: impl Future<Output = ()>) -> Option<F::Output> {
    match either(work, end).await {
        Either::Left(output) => Some(output),
        Either::Right(()) => None,
    }
}
