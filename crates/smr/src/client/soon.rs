//! Queries that are of no use unless they are answered soon.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use dunlin_net::Transport;

use super::attempt::Answered;
use super::{Client, ClientError, Reply};
use crate::wire::request::Request;

/// If there is no answer in this part of the time, other replicas are asked, too, and each has as long to answer.
const ATTEMPTS: u32 = 6;
/// But no less than this.
const ATTEMPT_MIN: Duration = Duration::from_millis(10);

impl<T: Transport> Client<T> {
    /// Like [`Client::query`], for one that is of no use unless it is answered within `time`. If the leader does not
    /// answer in a sixth of that, others are asked who leads, while its answer still counts: it may be gone, or slow.
    ///
    /// # Errors
    /// [`ClientError`], as [`Client::query`].
    pub async fn query_within(&self, query: &[u8], time: Duration) -> Result<Reply, ClientError> {
        let (request, deadline) = (self.query_of(query), self.deadline().min(self.after(time)));
        let attempt = self.config.attempt_timeout.min((time / ATTEMPTS).max(ATTEMPT_MIN));
        let patient = self.ask(&request, self.config.attempt_timeout, deadline);
        let answered = first_of(patient, self.ask_others_after(attempt, &request, deadline)).await;
        answered.map_err(ClientError::without_doubt)?.reply.map(Reply).ok_or(ClientError::Protocol)
    }

    async fn ask_others_after(
        &self,
        attempt: Duration,
        request: &Request<'_>,
        deadline: u64,
    ) -> Result<Answered, ClientError> {
        let silent = self.target.get();
        self.endpoint.timers().sleep(attempt).await;
        // With a place of its own in the list: two requests that share one may turn each other from one follower to
        // another, and neither would ask the leader.
        let others = self.of_group(self.config.group);
        if others.target.get() == silent {
            others.turn_away(silent);
        }
        let answered = others.ask(request, attempt, deadline).await?;
        let leader = others.target.get();
        if self.members.borrow().get(leader).is_some() {
            self.target.set(leader);
        }
        Ok(answered)
    }
}

/// Returns the first answer. The second request makes up for an answer that is late; other failures of the first are
/// final.
async fn first_of(
    first: impl Future<Output = Result<Answered, ClientError>>,
    second: impl Future<Output = Result<Answered, ClientError>>,
) -> Result<Answered, ClientError> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut late, mut failed) = (None, None);
    poll_fn(|context| {
        if late.is_none()
            && let Poll::Ready(result) = first.as_mut().poll(context)
        {
            match result {
                Err(error @ ClientError::TimedOut { .. }) => late = Some(error),
                result => return Poll::Ready(result),
            }
        }
        if failed.is_none()
            && let Poll::Ready(result) = second.as_mut().poll(context)
        {
            match result {
                Err(error) => failed = Some(error),
                answered => return Poll::Ready(answered),
            }
        }
        match (&late, failed.take()) {
            (Some(_), Some(error)) => Poll::Ready(Err(error)),
            (_, error) => {
                failed = error;
                Poll::Pending
            }
        }
    })
    .await
}
