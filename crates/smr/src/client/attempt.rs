//! Sends one request to one replica after another until one answers.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{CallError, CallOptions, MsgBuf};

use super::lines::{Place, Switchboard};
use super::{Client, ClientError, ReadFrom, Reply, Waited};
use crate::cluster_id::ClusterId;
use crate::wire::CLIENT;
use crate::wire::members::MEMBERS_MAX;
use crate::wire::request::{Request, set_cluster, set_group};
use crate::wire::response::Response;

/// Redirects to a named leader in a row before the client pauses.
const REDIRECTS_MAX: usize = 2;

/// How long a query waits at one replica. After that it is sent again, whatever delayed the answer.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// How a request was answered.
pub(super) struct Answered {
    /// The response, which contains the reply; `None` if the session does not exist.
    pub reply: Option<MsgBuf>,
    /// Whether an earlier attempt may have executed the request.
    pub was_in_doubt: bool,
}

/// Why there is no answer to a request that was sent once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// There was none in time.
    Late,
    /// It came to nobody, or the way back was lost.
    Lost,
}

/// The result of one attempt.
enum Attempt {
    Answered(MsgBuf),
    /// It did nothing, or was not reached at this address.
    NotDone(Option<Addr>),
    /// Nobody knows. `is_late` says that there was no answer in time.
    InDoubt {
        is_late: bool,
    },
}

impl<T: Transport> Client<T> {
    /// Sends a request until a leader answers or time is over. The first attempt at each replica may take `patience`.
    pub(super) async fn ask(
        &self,
        request: &Request<'_>,
        patience: Duration,
        deadline: u64,
    ) -> Result<Answered, ClientError> {
        self.meet(deadline).await?;
        let (mut in_doubt, mut other_cluster) = (false, None);
        match (self.ask_again(request, patience, deadline, &mut in_doubt, &mut other_cluster).await, other_cluster) {
            (Ok(reply), _) => Ok(Answered { reply, was_in_doubt: in_doubt }),
            (Err(ClientError::TimedOut { .. }), Some(found)) => {
                Err(ClientError::OtherCluster { found }.after(in_doubt))
            }
            (Err(error), _) => Err(error.after(in_doubt)),
        }
    }

    /// Sends a request until there is an answer; `None` if the session does not exist.
    async fn ask_again(
        &self,
        request: &Request<'_>,
        patience: Duration,
        deadline: u64,
        in_doubt: &mut bool,
        other_cluster: &mut Option<ClusterId>,
    ) -> Result<Option<MsgBuf>, ClientError> {
        // Replicas of other clusters that have answered in a row, and whether this client's own cluster has answered.
        let (mut redirects, mut strangers, mut is_found) = (0, BTreeSet::new(), false);
        let mut search = Search::default();
        loop {
            let target = self.whom_to_ask(request)?;
            let patience = search.late.get(&target).map_or(patience, |late| self.longer(*late, deadline));
            let reply = match self.try_one((target, self.config.group), request, patience, deadline).await? {
                Attempt::Answered(reply) => reply,
                attempt => {
                    *in_doubt |= matches!(attempt, Attempt::InDoubt { .. });
                    // If a replica needs longer than an attempt for each command, no attempt of that length is ever
                    // answered. So an attempt after a late one takes longer there.
                    if let Attempt::InDoubt { is_late: true } = attempt {
                        search.late.insert(target, patience);
                    }
                    strangers.clear();
                    let at = if let Attempt::NotDone(at) = attempt { at } else { None };
                    self.turn_from_silent(target, at.as_ref(), &mut search);
                    self.pause(deadline, *in_doubt).await?;
                    continue;
                }
            };
            let Ok(response) = Response::parse(&reply) else {
                *in_doubt = true;
                return Err(ClientError::Protocol);
            };
            if !matches!(response, Response::OtherCluster { .. }) {
                self.members.borrow_mut().answered(target);
            }
            let was_named = match response {
                Response::Ok(_) => return Ok(Some(reply)),
                Response::NoSession => return Ok(None),
                Response::NotLeader { leader } => self.turn_to(target, leader, &mut search),
                Response::Deposed { leader } => {
                    *in_doubt = true;
                    self.turn_to(target, leader, &mut search)
                }
                Response::Busy => false,
                Response::OtherCluster { ours } => {
                    self.is_stranger(target, ours);
                    // Other members may still belong to this client's cluster: addresses are reused.
                    *other_cluster = (!is_found).then_some(ours);
                    let is_new = strangers.insert(target);
                    if strangers.len() >= self.who_may_answer(request) {
                        return Err(ClientError::OtherCluster { found: ours });
                    }
                    self.turn_from(target, &mut search);
                    if !is_new {
                        self.pause(deadline, *in_doubt).await?;
                    }
                    continue;
                }
                Response::Failed => {
                    *in_doubt = true;
                    self.turn_from(target, &mut search);
                    false
                }
                Response::TooLarge => return Err(ClientError::TooLarge),
                Response::NoGroup { groups } => {
                    return Err(ClientError::NoGroup { group: self.config.group, groups });
                }
                Response::Refused(why) => return Err(ClientError::Refused(why)),
                Response::Old => {
                    // The cluster gave the reply earlier.
                    *in_doubt = true;
                    return Err(ClientError::Protocol);
                }
                Response::Bad => return Err(ClientError::Protocol),
            };
            // This client's cluster answered, so a failure is no longer due to another cluster.
            strangers.clear();
            (is_found, *other_cluster) = (true, None);
            redirects += usize::from(was_named);
            // Replicas may name each other for a while after a leader has gone.
            if !was_named || redirects >= REDIRECTS_MAX {
                redirects = 0;
                self.pause(deadline, *in_doubt).await?;
            }
        }
    }

    /// Selects the replica to ask next.
    fn whom_to_ask(&self, request: &Request<'_>) -> Result<u64, ClientError> {
        let members = self.members.borrow();
        match (request, self.config.read_from) {
            (Request::ReadHere(_), ReadFrom::Any) => {
                let after = |last| members.after(last).unwrap_or(last);
                let next = after(self.reader.get());
                let is_asked = members.get(next).is_some_and(|addr| self.is_asked_elsewhere(next, addr));
                let next = if is_asked { after(next) } else { next };
                self.reader.set(next);
                Ok(next)
            }
            (Request::ReadHere(_), ReadFrom::Replica(id)) if members.get(id).is_some() => Ok(id),
            (Request::ReadHere(_), ReadFrom::Replica(id)) => Err(ClientError::Unknown(id)),
            _ => Ok(self.target.get()),
        }
    }

    /// Returns how many replicas may be asked.
    fn who_may_answer(&self, request: &Request<'_>) -> usize {
        match (request, self.config.read_from) {
            (Request::ReadHere(_), ReadFrom::Replica(_)) => 1,
            _ => self.members.borrow().len(),
        }
    }

    /// Sends a request to one replica of a group, once.
    pub(super) async fn try_to_ask(
        &self,
        (id, group): (u64, u16),
        request: &Request<'_>,
        patience: Duration,
        deadline: u64,
    ) -> Result<Result<MsgBuf, Unanswered>, ClientError> {
        if self.members.borrow().get(id).is_none() {
            return Err(ClientError::Unknown(id));
        }
        match self.try_one((id, group), request, patience, deadline).await? {
            Attempt::Answered(reply) => Ok(Ok(reply)),
            Attempt::InDoubt { is_late: true } => Ok(Err(Unanswered::Late)),
            Attempt::NotDone(_) | Attempt::InDoubt { .. } => Ok(Err(Unanswered::Lost)),
        }
    }

    /// Asks the presumed leader, follows its redirects, and waits for at most [`WAIT_MAX`].
    pub(super) async fn wait_at_leader(&self, request: &Request<'_>, deadline: u64) -> Result<Waited, ClientError> {
        self.meet(deadline).await?;
        let until = self.after(WAIT_MAX);
        let (mut redirects, mut search) = (0, Search::default());
        loop {
            let target = self.target.get();
            let place = match self.place(&self.waiting_lines, target, deadline.min(until)).await {
                Ok(place) => place,
                Err(at) => {
                    // One that has no room for another question may well lead.
                    if !self.reaches(target) {
                        self.turn_from_silent(target, at.as_ref(), &mut search);
                    }
                    return Ok(Waited::Refused);
                }
            };
            let buffer = self.encoded(request, self.config.group)?;
            let call = place.session.call_with(CLIENT, buffer, CallOptions::timeout(self.time_left(until)));
            if place.must_wait() {
                drop(call);
                // Try another session, or wait until this one has more credits.
                self.pause(deadline, false).await?;
                continue;
            }
            let reply = match call.await {
                Ok(reply) => reply.response,
                // The query may simply have no answer yet: its replica may well lead.
                Err(failure) if failure.error == CallError::DeadlineExceeded => return Ok(Waited::NotYet),
                Err(_) => {
                    self.turn_from_silent(target, None, &mut search);
                    return Ok(Waited::Refused);
                }
            };
            let was_named = match Response::parse(&reply) {
                Ok(Response::Ok(_)) => return Ok(Waited::Answered(Reply(reply))),
                Ok(Response::NotLeader { leader }) => self.turn_to(target, leader, &mut search),
                Ok(Response::OtherCluster { ours }) => {
                    self.is_stranger(target, ours);
                    self.turn_from(target, &mut search);
                    false
                }
                _ => false,
            };
            redirects += 1;
            if !was_named || redirects > REDIRECTS_MAX {
                return Ok(Waited::Refused);
            }
        }
    }

    /// Encodes a request to a group of this client's cluster.
    fn encoded(&self, request: &Request<'_>, group: u16) -> Result<MsgBuf, ClientError> {
        let mut buffer = MsgBuf::written(request.encoded_len(), |out| request.encode(out))?;
        set_group(&mut buffer, group);
        if let Some(cluster) = self.cluster.get() {
            set_cluster(&mut buffer, cluster);
        }
        Ok(buffer)
    }

    async fn try_one(
        &self,
        replica: (u64, u16),
        request: &Request<'_>,
        patience: Duration,
        deadline: u64,
    ) -> Result<Attempt, ClientError> {
        self.awaited.set(Some((replica.0, self.endpoint.now())));
        let attempt = self.attempt(replica, request, patience, deadline).await;
        self.awaited.set(None);
        attempt
    }

    async fn attempt(
        &self,
        (id, group): (u64, u16),
        request: &Request<'_>,
        patience: Duration,
        deadline: u64,
    ) -> Result<Attempt, ClientError> {
        let lines = if matches!(request, Request::Read(_) | Request::ReadHere(_) | Request::Piece { .. }) {
            &self.read_lines
        } else {
            &self.command_lines
        };
        let connected_by = deadline.min(self.after(patience));
        let place = match self.place(lines, id, connected_by).await {
            Ok(place) => place,
            Err(at) => return Ok(Attempt::NotDone(at)),
        };
        let left = self.time_left(deadline);
        if left.is_zero() {
            return Ok(Attempt::NotDone(None));
        }
        let session = &place.session;
        let buffer = self.encoded(request, group)?;
        let options = CallOptions::timeout(left.min(patience));
        let error = match session.call_with(CLIENT, buffer, options).await {
            Ok(reply) => return Ok(Attempt::Answered(reply.response)),
            Err(failure) => failure.error,
        };
        match error {
            CallError::RequestTooLarge => Err(ClientError::TooLarge),
            CallError::NoHandler => {
                // Whatever is there, it is no replica.
                place.addr().iter().for_each(|addr| self.forget_lines(addr));
                Ok(Attempt::NotDone(None))
            }
            error if error.may_have_run() => Ok(Attempt::InDoubt { is_late: error == CallError::DeadlineExceeded }),
            _ => Ok(Attempt::NotDone(None)),
        }
    }

    /// Returns the time of the attempt after one that took this long: twice as much, or all that is left if there is not
    /// enough for yet another one at another replica, or for a longer one if there is no other.
    pub(super) fn longer(&self, patience: Duration, deadline: u64) -> Duration {
        let (next, left) = (patience.saturating_mul(2), self.time_left(deadline));
        let spare = if self.members.borrow().len() > 1 { patience } else { next };
        if left < next.saturating_add(spare) { left } else { next }
    }

    /// A place on a session with a replica, which is opened if there is none. If it is not reached, the error says at
    /// which address.
    async fn place(&self, lines: &Switchboard, id: u64, deadline: u64) -> Result<Place, Option<Addr>> {
        let addr = self.members.borrow().get(id).cloned().ok_or(None)?;
        let place = lines.place(&addr, &self.endpoint, self.config.attempt_timeout);
        self.within(self.time_left(deadline), place).await.flatten().ok_or(Some(addr))
    }

    /// Returns the output of a future, or `None` if it is not ready in time.
    pub(super) async fn within<F: Future>(&self, patience: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        // Most futures are ready at once and need no timer.
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

    /// Waits before the next attempt. If time is over then, there is none.
    pub(super) async fn pause(&self, deadline: u64, may_have_run: bool) -> Result<(), ClientError> {
        let pause = self.config.pause;
        self.endpoint.timers().sleep(pause.min(self.time_left(deadline))).await;
        if self.time_left(deadline).is_zero() {
            return Err(ClientError::TimedOut { may_have_run });
        }
        Ok(())
    }

    /// Turns to the leader that a replica named; returns whether it named one that was not passed over yet.
    fn turn_to(&self, from: u64, leader: Option<(u64, String)>, search: &mut Search) -> bool {
        let named = leader.and_then(|(id, address)| Some((id, address.parse().ok()?)));
        let Some((id, addr)) = named.filter(|(id, _)| *id != from) else {
            self.turn_from(from, search);
            return false;
        };
        self.pass(from, search);
        // A replica that was passed over at another address may help at this one. One that names others without end
        // does not keep the client from the members that it knows.
        if self.is_asked_elsewhere(id, &addr) {
            self.turn_from(from, search);
            return false;
        }
        let may_help = !search.has_passed(&addr) && search.passed.len() < MEMBERS_MAX;
        if !may_help {
            search.named_again += 1;
            // Other requests turn to other replicas meanwhile, so this one may never ask all of them itself.
            let is_sure = search.named_again >= self.members.borrow().len();
            if !is_sure && !self.has_passed_all(search) {
                self.turn_from(from, search);
                return false;
            }
            // It was asked before it was elected.
            (search.passed, search.named_again) = (Vec::new(), 0);
        }
        self.learn(id, addr);
        self.target.set(id);
        may_help
    }

    /// Whether the same request has been sent there already, and waits for an answer ([`Client::query_within`]).
    fn is_asked_elsewhere(&self, id: u64, addr: &Addr) -> bool {
        self.elsewhere.as_ref().is_some_and(|other| {
            other.awaited.get().is_some_and(|(asked, _)| asked == id) && other.members.borrow().get(id) == Some(addr)
        })
    }

    fn has_passed_all(&self, search: &Search) -> bool {
        self.members.borrow().iter().all(|(_, addr)| search.has_passed(addr))
    }

    fn pass(&self, id: u64, search: &mut Search) {
        if let Some(addr) = self.members.borrow().get(id) {
            search.pass(addr);
        }
    }

    /// Passes a replica that did not answer, or was not reached at this address. If it is not reached at all, and
    /// others named its address, it is asked next at the one of the client's list: it may have moved without their
    /// knowledge.
    fn turn_from_silent(&self, from: u64, at: Option<&Addr>, search: &mut Search) {
        if let Some(at) = at
            && self.members.borrow().get(from) != Some(at)
        {
            // Another request has learned meanwhile where it is.
            search.pass(at);
            return;
        }
        self.pass(from, search);
        let mut listed = self.listed.iter().filter(|_| !self.follows.get());
        let listed = listed.find(|(id, addr)| *id == from && !search.has_passed(addr));
        match listed.filter(|_| !self.reaches(from)) {
            Some((_, listed)) => self.learn(from, listed.clone()),
            None => self.turn_from(from, search),
        }
    }

    /// Turns to the next replica in the list.
    pub(super) fn turn_away(&self, from: u64) {
        self.turn_from(from, &mut Search::default());
    }

    /// Passes over a replica that did not help, and turns to the next one in the list, unless another request has turned
    /// elsewhere meanwhile. A request that has time for a single attempt goes on where the last one ended.
    fn turn_from(&self, from: u64, search: &mut Search) {
        self.pass(from, search);
        if self.target.get() != from {
            return;
        }
        let members = self.members.borrow();
        let place = members.iter().position(|(id, _)| id == from).unwrap_or(0);
        let others = members.iter().skip(place).chain(members.iter().take(place));
        let mut others = others.filter(|(id, addr)| *id != from && !self.is_asked_elsewhere(*id, addr));
        let next = others.clone().find(|(_, addr)| !search.has_passed(addr)).or_else(|| {
            search.passed.clear();
            others.next()
        });
        if let Some((id, _)) = next {
            self.target.set(id);
        }
    }
}

/// A request's search for the leader. Removed replicas may name each other for ever, so the client asks nobody twice at
/// an address before it has asked all of them once.
#[derive(Default)]
struct Search {
    /// The addresses of replicas that did not help: whatever ids they go by.
    passed: Vec<Addr>,
    /// Replicas that did not answer in time, each with the time of its last attempt.
    late: BTreeMap<u64, Duration>,
    /// Answers that named a leader which did not help before.
    named_again: usize,
}

impl Search {
    fn pass(&mut self, addr: &Addr) {
        if !self.has_passed(addr) {
            self.passed.push(addr.clone());
        }
    }

    fn has_passed(&self, addr: &Addr) -> bool {
        self.passed.contains(addr)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
    use dunlin_rpc::{Endpoint, EndpointConfig};

    use super::*;
    use crate::client::ClientConfig;

    /// All name replica 3, which was asked before it was elected. Two requests, each of which is answered by another
    /// follower, share the replica to ask next.
    #[test]
    fn two_requests_do_not_turn_each_other_from_one_follower_to_the_next() {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let endpoint = Rc::new(Endpoint::new(network.endpoint(9).unwrap(), EndpointConfig::default()).unwrap());
        let members = [1, 2, 3].map(|id| (id, Addr::Node(id as u32)));
        let client = Client::new(&endpoint, members, ClientConfig::default());
        let mut searches = [Search::default(), Search::default()];
        searches.iter_mut().for_each(|search| search.pass(&Addr::Node(3)));
        let mut asked = Vec::new();
        for turn in 0..20 {
            let target = client.target.get();
            if target == 3 {
                break;
            }
            asked.push(target);
            client.turn_to(target, Some((3, Addr::Node(3).to_string())), &mut searches[turn % 2]);
        }
        assert_eq!(client.target.get(), 3, "{asked:?}");
        assert_eq!(asked, [1, 2, 1, 2, 1], "the first of them that was told so by as many as there are members");
    }

    /// Operations that end before the client may turn elsewhere a second time.
    #[test]
    fn operations_of_one_attempt_each_come_to_all_replicas() {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let endpoint = Rc::new(Endpoint::new(network.endpoint(9).unwrap(), EndpointConfig::default()).unwrap());
        let members = [1, 2, 3, 4, 5].map(|id| (id, Addr::Node(id as u32)));
        let client = Client::new(&endpoint, members, ClientConfig::default());
        let asked = || {
            [0; 7].map(|_| {
                let target = client.target.get();
                client.turn_from_silent(target, None, &mut Search::default());
                target
            })
        };
        assert_eq!(asked(), [1, 2, 3, 4, 5, 1, 2]);
        // Those that have answered last come first in the list.
        client.members.borrow_mut().answered(5);
        client.target.set(5);
        assert_eq!(asked(), [5, 1, 2, 3, 4, 5, 1]);
    }
}
