//! Queries that are of no use unless they are answered soon.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_net::clock::nanos;

use super::attempt::Answered;
use super::{Client, ClientError, ReadFrom, Reply};

/// If a replica does not answer in this part of the time, others are asked, too.
const ATTEMPTS: u32 = 6;
/// But no less than this.
const ATTEMPT_MIN: Duration = Duration::from_millis(10);

impl<T: Transport> Client<T> {
    /// Like [`Client::query`], for one that is of no use unless it is answered within `time`. If a replica does not
    /// answer in a sixth of that, others are asked, too, while its answer still counts: it may be gone, or slow.
    ///
    /// # Errors
    /// [`ClientError`], as [`Client::query`].
    pub async fn query_within(&self, query: &[u8], time: Duration) -> Result<Reply, ClientError> {
        let (request, deadline) = (self.query_of(query), self.deadline().min(self.after(time)));
        // Each has a place of its own in the list of replicas: two requests that share one may turn each other from one
        // follower to another, and neither would ask the leader.
        let first = Rc::new(self.of_group(self.config.group));
        let patient = async {
            let answered = first.ask(&request, self.config.attempt_timeout, deadline).await?;
            self.adopt(&first);
            Ok(answered)
        };
        let impatient = async {
            let attempt = self.config.attempt_timeout.min((time / ATTEMPTS).max(ATTEMPT_MIN));
            let silent = first.silence(attempt).await;
            // Whatever becomes of this one, the next query does not begin with the same replica.
            match self.config.read_from {
                ReadFrom::Leader => self.turn_away(silent),
                ReadFrom::Any => self.reader.set(silent),
                ReadFrom::Replica(_) => {}
            }
            let others = Client { elsewhere: Some(first.clone()), ..first.of_group(self.config.group) };
            others.turn_away(silent);
            let answered = others.ask(&request, attempt, deadline).await?;
            self.adopt(&others);
            Ok(answered)
        };
        let in_time = async {
            let answered = self.within(self.time_left(deadline), impatient).await;
            answered.unwrap_or(Err(ClientError::TimedOut { may_have_run: false }))
        };
        let answered = first_of(patient, in_time).await;
        answered.map_err(ClientError::without_doubt)?.reply.map(Reply).ok_or(ClientError::Protocol)
    }

    /// Waits until a replica has not answered for this long, and returns its id. If there is no other, that is never.
    async fn silence(&self, time: Duration) -> u64 {
        let timers = self.endpoint.timers();
        loop {
            let asked = self.awaited.get();
            let has_others = self.members.borrow().len() > 1;
            let Some((id, since)) = asked.filter(|_| has_others) else {
                timers.sleep(time).await;
                continue;
            };
            timers.sleep_until(since.saturating_add(nanos(time))).await;
            if self.awaited.get() == asked {
                return id;
            }
        }
    }

    /// Takes over what another client has learned from an answer.
    fn adopt(&self, other: &Client<T>) {
        let leader = other.target.get();
        if self.cluster.get().is_none() {
            self.cluster.set(other.cluster.get());
        }
        if let Some(addr) = other.members.borrow().get(leader)
            && self.members.borrow().get(leader) != Some(addr)
        {
            self.learn(leader, addr.clone());
        }
        match self.config.read_from {
            ReadFrom::Leader => self.target.set(leader),
            ReadFrom::Any => self.reader.set(other.reader.get()),
            ReadFrom::Replica(_) => {}
        }
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
