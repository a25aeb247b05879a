//! First contact of a client that was given no cluster number: before anything else, it asks all replicas of its list
//! which cluster they belong to. From then on it uses that cluster only.
//!
//! More than half of the list must belong to one cluster. A replica that does not answer counts for a cluster if a
//! replica of that cluster names it as a member at exactly the address in the list. So an address that is stale, or in
//! the list by mistake, does not count.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use dunlin_net::{Addr, Transport};

use super::attempt::Unanswered;
use super::{Client, ClientError};
use crate::cluster_id::ClusterId;
use crate::wire::members::Members;
use crate::wire::request::Request;
use crate::wire::response::{Response, Status};

/// Replicas of other clusters that a client remembers.
const STRANGERS_MAX: usize = 64;

/// A replica that answered at an address of the client's list and belongs to another cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    /// Its id in the client's list.
    pub id: u64,
    /// Its address.
    pub addr: Addr,
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
}

/// A replica's answer: its cluster, and the addresses of that cluster's members.
type Named = (ClusterId, Members);
type Asking<'a> = Pin<Box<dyn Future<Output = Option<Named>> + 'a>>;

impl<T: Transport> Client<T> {
    /// Returns the number of this client's cluster: as configured, or as learned at first contact.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster.get()
    }

    /// Returns replicas of other clusters that answered at addresses of this client's list: the list is wrong.
    pub fn strangers(&self) -> Vec<Stranger> {
        self.strangers.borrow().clone()
    }

    /// Learns the number of the cluster, unless it is known. One operation does so while the others wait for it.
    pub(super) async fn meet(&self, deadline: u64) -> Result<(), ClientError> {
        loop {
            if self.cluster.get().is_some() {
                return Ok(());
            }
            if !self.is_meeting.replace(true) {
                break;
            }
            self.pause(deadline, false).await?;
        }
        let _meeting = Meeting(self);
        // The answers of the last round in which any replica named its cluster.
        let (mut named, mut patience) = (Vec::new(), self.config.attempt_timeout);
        loop {
            let (answers, are_late) = self.ask_all(patience, deadline).await;
            if let Some(cluster) = agreed(&self.count(&answers))? {
                self.cluster.set(Some(cluster));
                answers
                    .iter()
                    .for_each(|(id, named)| _ = named.as_ref().is_some_and(|(of, _)| self.is_stranger(*id, *of)));
                return Ok(());
            }
            if answers.iter().any(|(_, named)| named.is_some()) {
                named = answers;
            }
            if are_late {
                // Half of the time at most: others may answer meanwhile.
                patience = patience.saturating_mul(2).min(patience.max(self.time_left(deadline) / 2));
            }
            if let Err(late) = self.pause(deadline, false).await {
                let named: Vec<_> = named.iter().map(|(id, named)| (*id, named.as_ref().map(|(of, _)| *of))).collect();
                return Err(undecided(&named).unwrap_or(late));
            }
        }
    }

    /// Collects the replicas' answers until more than half of them belong to one cluster or no answer is outstanding.
    /// Returns also whether one did not answer in time.
    async fn ask_all(&self, patience: Duration, deadline: u64) -> (Vec<(u64, Option<Named>)>, bool) {
        let are_late = Cell::new(false);
        let ids = self.listed.iter().map(|(id, _)| *id);
        let ask = |id| Some(self.ask_whose(id, patience, deadline, &are_late));
        let mut asking: Vec<Option<Asking<'_>>> = ids.clone().map(ask).collect();
        let mut answers: Vec<(u64, Option<Named>)> = ids.map(|id| (id, None)).collect();
        poll_fn(|context| {
            for (future, (_, answer)) in asking.iter_mut().zip(&mut answers) {
                if let Some(Poll::Ready(named)) = future.as_mut().map(|future| future.as_mut().poll(context)) {
                    *answer = named;
                    *future = None;
                }
            }
            let is_over = asking.iter().all(Option::is_none) || majority(&self.count(&answers)).is_some();
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        drop(asking);
        (answers, are_late.get())
    }

    fn ask_whose<'a>(&'a self, id: u64, patience: Duration, deadline: u64, are_late: &'a Cell<bool>) -> Asking<'a> {
        Box::pin(async move {
            // Every process has the first group.
            let reply = self.try_to_ask((id, 0), &Request::Status, patience, deadline).await.ok()?;
            are_late.set(are_late.get() || reply.as_ref().err() == Some(&Unanswered::Late));
            let reply = reply.ok()?;
            match Response::parse(&reply).ok()? {
                Response::Ok(bytes) => {
                    let status = Status::parse(bytes).ok()?;
                    Some((status.cluster?, status.addresses))
                }
                _ => None,
            }
        })
    }

    /// Returns the cluster of each replica of the list: as it says itself, or as those replicas say that have it as a
    /// member.
    fn count(&self, answers: &[(u64, Option<Named>)]) -> Vec<(u64, Option<ClusterId>)> {
        let cluster_of = |id: u64, addr: &Addr| {
            let is_there =
                |members: &Members| members.get(&id).is_some_and(|at| at.parse().is_ok_and(|at: Addr| at == *addr));
            let mut clusters = answers.iter().filter_map(|(_, named)| named.as_ref());
            clusters.find(|(_, members)| is_there(members)).map(|(cluster, _)| *cluster)
        };
        let own = answers.iter().map(|(_, named)| named.as_ref().map(|(cluster, _)| *cluster));
        self.listed.iter().zip(own).map(|((id, addr), own)| (*id, own.or_else(|| cluster_of(*id, addr)))).collect()
    }

    /// Whether a replica that answered belongs to another cluster; if so, this is noted.
    pub(super) fn is_stranger(&self, id: u64, cluster: ClusterId) -> bool {
        if self.cluster.get() == Some(cluster) {
            return false;
        }
        let mut strangers = self.strangers.borrow_mut();
        let is_known = strangers.iter().any(|stranger| stranger.id == id && stranger.cluster == cluster);
        if let (false, true, Some(addr)) = (is_known, strangers.len() < STRANGERS_MAX, self.members.borrow().get(id)) {
            tracing::warn!(id, %addr, %cluster, "a replica of another cluster is reached at an address that was given for one of this");
            strangers.push(Stranger { id, addr: addr.clone(), cluster });
        }
        true
    }
}

/// Returns the number that more than half of the replicas in the list agree on.
fn majority(answers: &[(u64, Option<ClusterId>)]) -> Option<ClusterId> {
    let count = |cluster: ClusterId| answers.iter().filter(|(_, answer)| *answer == Some(cluster)).count();
    answers.iter().find_map(|(_, answer)| answer.filter(|cluster| 2 * count(*cluster) > answers.len()))
}

/// Returns the number that more than half agree on; `None` if missing answers can still decide. Fewer than half decide
/// nothing: they may belong to another cluster, at stale addresses.
///
/// # Errors
/// [`ClientError::SeveralClusters`] if no number can reach a majority any more.
fn agreed(answers: &[(u64, Option<ClusterId>)]) -> Result<Option<ClusterId>, ClientError> {
    if let Some(cluster) = majority(answers) {
        return Ok(Some(cluster));
    }
    // Whether this number has a majority if all missing answers agree with it.
    let is_open = |(_, named): &(u64, Option<ClusterId>)| {
        let others = answers.iter().map(|(id, answer)| (*id, answer.or(*named)));
        majority(&others.collect::<Vec<_>>()).is_some()
    };
    match undecided(answers) {
        Some(several @ ClientError::SeveralClusters { .. }) if !answers.iter().any(is_open) => Err(several),
        _ => Ok(None),
    }
}

/// Explains why there is no majority; `None` if no replica has named a cluster.
fn undecided(answers: &[(u64, Option<ClusterId>)]) -> Option<ClientError> {
    let mut named = answers.iter().filter_map(|(id, cluster)| Some((*id, (*cluster)?)));
    let (answered, one) = (named.clone().count(), named.next()?);
    Some(match named.find(|(_, cluster)| *cluster != one.1) {
        Some(other) => ClientError::SeveralClusters { one, other },
        None => ClientError::NoMajority { one, answered, asked: answers.len() },
    })
}

/// Lets other operations ask, whatever the result of this attempt.
struct Meeting<'a, T: Transport>(&'a Client<T>);

impl<T: Transport> Drop for Meeting<'_, T> {
    fn drop(&mut self) {
        self.0.is_meeting.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_is_agreed_on_or_none() {
        let [one, two] = [1, 2].map(|bits| ClusterId::from_bits(bits).unwrap());
        let all = |answers: &[Option<ClusterId>]| agreed(&(1..).zip(answers.iter().copied()).collect::<Vec<_>>());
        assert_eq!(all(&[None, None]), Ok(None));
        assert_eq!(all(&[None, Some(one), None]), Ok(None), "a minority");
        assert_eq!(all(&[None, Some(one), None, Some(one)]), Ok(None), "half");
        assert_eq!(all(&[None, Some(one), Some(one)]), Ok(Some(one)));
        assert_eq!(all(&[Some(one)]), Ok(Some(one)));
        assert_eq!(all(&[Some(two), Some(one), Some(one)]), Ok(Some(one)));
        let several = ClientError::SeveralClusters { one: (1, two), other: (3, one) };
        assert_eq!(all(&[Some(two), None, Some(one)]), Ok(None), "the second decides");
        assert_eq!(all(&[Some(two), None, Some(one), None]), Ok(None), "both of them do");
        assert_eq!(all(&[Some(two), Some(two), Some(one), None]), Ok(None), "the last decides");
        assert_eq!(all(&[Some(two), Some(two), Some(one), Some(one), None, None]), Ok(None));
        assert_eq!(all(&[Some(two), Some(two), Some(one), Some(one)]), Err(several));
    }
}
