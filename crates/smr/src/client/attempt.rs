//! One request, asked of one replica after another until it has an answer.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::{CallError, CallOptions, MsgBuf};

use super::lines::{Place, Switchboard};
use super::{Client, ClientError, ReadFrom};
use crate::cluster_id::ClusterId;
use crate::wire::CLIENT;
use crate::wire::request::{Request, set_cluster, set_group};
use crate::wire::response::Response;

/// Leaders that replicas may name in a row before the client waits a little.
const REDIRECTS_MAX: usize = 2;

/// How long a question waits for its answer at one replica. Whatever keeps the answer back, it is asked anew after that.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// How a request was answered.
pub(super) struct Answered {
    /// The response, of which a reply is the rest; `None` if there is no such session.
    pub reply: Option<MsgBuf>,
    /// Whether it may have been executed for an attempt before.
    pub was_in_doubt: bool,
}

/// What came of one attempt.
enum Attempt {
    Answered(MsgBuf),
    /// It was not reached, or did nothing.
    NotDone,
    /// Nobody knows.
    InDoubt,
}

impl<T: Transport> Client<T> {
    /// Asks until a leader answers or time is over.
    pub(super) async fn ask(&self, request: &Request<'_>, deadline: u64) -> Result<Answered, ClientError> {
        self.meet(deadline).await?;
        let (mut in_doubt, mut other_cluster) = (false, None);
        match (self.ask_again(request, deadline, &mut in_doubt, &mut other_cluster).await, other_cluster) {
            (Ok(reply), _) => Ok(Answered { reply, was_in_doubt: in_doubt }),
            (Err(ClientError::TimedOut { .. }), Some(found)) => Err(ClientError::OtherCluster { found }.after(in_doubt)),
            (Err(error), _) => Err(error.after(in_doubt)),
        }
    }

    /// Asks until there is an answer; `None` if there is no such session.
    async fn ask_again(
        &self,
        request: &Request<'_>,
        deadline: u64,
        in_doubt: &mut bool,
        other_cluster: &mut Option<ClusterId>,
    ) -> Result<Option<MsgBuf>, ClientError> {
        // Answers from another cluster in a row, and whether the one that is asked has answered at all.
        let (mut redirects, mut strangers, mut is_found) = (0, 0, false);
        loop {
            let target = self.whom_to_ask(request)?;
            let reply = match self.try_one((target, self.config.group), request, deadline).await? {
                Attempt::Answered(reply) => reply,
                attempt => {
                    *in_doubt |= matches!(attempt, Attempt::InDoubt);
                    strangers = 0;
                    self.turn_from(target);
                    self.pause(deadline, *in_doubt).await?;
                    continue;
                }
            };
            let Ok(response) = Response::parse(&reply) else {
                *in_doubt = true;
                return Err(ClientError::Protocol);
            };
            let was_named = match response {
                Response::Ok(_) => return Ok(Some(reply)),
                Response::NoSession => return Ok(None),
                Response::NotLeader { leader } => self.turn_to(target, leader),
                Response::Deposed { leader } => {
                    *in_doubt = true;
                    self.turn_to(target, leader)
                }
                Response::Busy => false,
                Response::OtherCluster { ours } => {
                    self.is_stranger(target, ours);
                    // Others may be of the one that is asked: addresses are used again.
                    *other_cluster = (!is_found).then_some(ours);
                    strangers += 1;
                    if strangers >= self.members.borrow().len() {
                        return Err(ClientError::OtherCluster { found: ours });
                    }
                    self.turn_from(target);
                    continue;
                }
                Response::Failed => {
                    *in_doubt = true;
                    self.turn_from(target);
                    false
                }
                Response::TooLarge => return Err(ClientError::TooLarge),
                Response::NoGroup { groups } => {
                    return Err(ClientError::NoGroup { group: self.config.group, groups });
                }
                Response::Refused(why) => return Err(ClientError::Refused(why)),
                Response::Old => {
                    // Its reply was given before.
                    *in_doubt = true;
                    return Err(ClientError::Protocol);
                }
                Response::Bad => return Err(ClientError::Protocol),
            };
            // Then it is its own trouble that it does nothing.
            (strangers, is_found, *other_cluster) = (0, true, None);
            redirects += usize::from(was_named);
            // Replicas may name each other for a while, when a leader has gone.
            if !was_named || redirects >= REDIRECTS_MAX {
                redirects = 0;
                self.pause(deadline, *in_doubt).await?;
            }
        }
    }

    /// Who is asked next.
    fn whom_to_ask(&self, request: &Request<'_>) -> Result<u64, ClientError> {
        let members = self.members.borrow();
        match (request, self.config.read_from) {
            (Request::ReadHere(_), ReadFrom::Any) => {
                let last = self.reader.get();
                let next = members.range(last + 1..).next().or_else(|| members.iter().next());
                let next = next.map_or(last, |(id, _)| *id);
                self.reader.set(next);
                Ok(next)
            }
            (Request::ReadHere(_), ReadFrom::Replica(id)) if members.contains_key(&id) => Ok(id),
            (Request::ReadHere(_), ReadFrom::Replica(id)) => Err(ClientError::Unknown(id)),
            _ => Ok(self.target.get()),
        }
    }

    /// Asks one replica of a group once.
    pub(super) async fn ask_one(
        &self,
        (id, group): (u64, u16),
        request: &Request<'_>,
        deadline: u64,
    ) -> Result<MsgBuf, ClientError> {
        if !self.members.borrow().contains_key(&id) {
            return Err(ClientError::Unknown(id));
        }
        match self.try_one((id, group), request, deadline).await? {
            Attempt::Answered(reply) => Ok(reply),
            Attempt::NotDone | Attempt::InDoubt => Err(ClientError::TimedOut { may_have_run: false }),
        }
    }

    /// Asks the replica that is thought to lead, and the one that it names, and waits for any time. Without an answer, gives `None`.
    pub(super) async fn wait_at_leader(&self, request: &Request<'_>, deadline: u64) -> Result<Option<MsgBuf>, ClientError> {
        self.meet(deadline).await?;
        let mut redirects = 0;
        loop {
            let target = self.target.get();
            let Some(place) = self.place(&self.waiting_lines, target, deadline).await else { return Ok(None) };
            let buffer = self.encoded(request, self.config.group)?;
            let call = place.session.call_with(CLIENT, buffer, CallOptions::timeout(WAIT_MAX));
            if place.must_wait() {
                drop(call);
                // One that was given up keeps its slot until the replica has heard of that.
                self.pause(deadline, false).await?;
                continue;
            }
            let Ok(reply) = call.await else { return Ok(None) };
            let was_named = match Response::parse(&reply.response) {
                Ok(Response::Ok(_)) => return Ok(Some(reply.response)),
                Ok(Response::NotLeader { leader }) => self.turn_to(target, leader),
                _ => false,
            };
            redirects += 1;
            if !was_named || redirects > REDIRECTS_MAX {
                return Ok(None);
            }
        }
    }

    /// A request to a group of this client's cluster.
    fn encoded(&self, request: &Request<'_>, group: u16) -> Result<MsgBuf, ClientError> {
        let mut buffer = MsgBuf::written(request.encoded_len(), |out| request.encode(out))?;
        set_group(&mut buffer, group);
        if let Some(cluster) = self.cluster.get() {
            set_cluster(&mut buffer, cluster);
        }
        Ok(buffer)
    }

    async fn try_one(&self, (id, group): (u64, u16), request: &Request<'_>, deadline: u64) -> Result<Attempt, ClientError> {
        let lines = if matches!(request, Request::Read(_) | Request::ReadHere(_) | Request::Piece { .. }) {
            &self.read_lines
        } else {
            &self.command_lines
        };
        let Some(place) = self.place(lines, id, deadline).await else { return Ok(Attempt::NotDone) };
        let session = &place.session;
        let buffer = self.encoded(request, group)?;
        let options = CallOptions::timeout(self.time_left(deadline).min(self.config.attempt_timeout));
        let error = match session.call_with(CLIENT, buffer, options).await {
            Ok(reply) => return Ok(Attempt::Answered(reply.response)),
            Err(failure) => failure.error,
        };
        match error {
            CallError::RequestTooLarge => Err(ClientError::TooLarge),
            error if error.may_have_run() => Ok(Attempt::InDoubt),
            _ => Ok(Attempt::NotDone),
        }
    }

    /// A place on a session with a replica, which is opened if there is none.
    async fn place(&self, lines: &Switchboard, id: u64, deadline: u64) -> Option<Place> {
        let (addr, opening) = loop {
            if let Some(place) = lines.place(id, &self.endpoint) {
                return Some(place);
            }
            let addr = self.members.borrow().get(&id)?.clone();
            if let Some(opening) = lines.begin(id, &addr) {
                break (addr, opening);
            }
            // Another request opens it.
            self.pause(deadline, false).await.ok()?;
        };
        let patience = self.time_left(deadline).min(self.config.attempt_timeout);
        let session = self.within(patience, self.endpoint.connect(&addr)).await?.ok()?;
        Some(opening.done(session))
    }

    /// What becomes of a future in this time, if anything.
    pub(super) async fn within<F: Future>(&self, patience: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        // Most are ready at once, and need no timer.
        if let Poll::Ready(output) = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
            return Some(output);
        }
        let mut patience = pin!(self.endpoint.timers().sleep(patience));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => patience.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    pub(super) fn time_left(&self, deadline: u64) -> Duration {
        Duration::from_nanos(deadline.saturating_sub(self.endpoint.now()))
    }

    /// Waits before the next attempt.
    pub(super) async fn pause(&self, deadline: u64, may_have_run: bool) -> Result<(), ClientError> {
        if self.time_left(deadline).is_zero() {
            return Err(ClientError::TimedOut { may_have_run });
        }
        self.endpoint.timers().sleep(self.config.pause).await;
        Ok(())
    }

    /// Asks the leader next that a replica named; says whether it named another than itself.
    fn turn_to(&self, from: u64, leader: Option<(u64, String)>) -> bool {
        let named = leader.and_then(|(id, address)| Some((id, address.parse().ok()?)));
        let Some((id, addr)) = named.filter(|(id, _)| *id != from) else {
            self.turn_from(from);
            return false;
        };
        self.learn(id, addr);
        self.target.set(id);
        true
    }

    /// Asks the next in the order of ids after one that did not help, unless another request has turned elsewhere meanwhile.
    fn turn_from(&self, from: u64) {
        if self.target.get() != from {
            return;
        }
        let members = self.members.borrow();
        let next = members.range(from + 1..).next().or_else(|| members.iter().next());
        if let Some((id, _)) = next {
            self.target.set(*id);
        }
    }
}
