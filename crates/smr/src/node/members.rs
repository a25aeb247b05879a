//! Membership changes: learners are added, get votes, and members leave, one at a time (Raft dissertation, chapter 4).
//! A change takes effect when its entry is executed. No change is begun after which the recently heard replicas would
//! not be a majority.

use dunlin_net::clock::nanos;
use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeType, Entry, EntryType};

use dunlin_net::Addr;
use dunlin_rpc::DeferredReply;

use super::clients::respond;
use super::core::Core;
use super::later::BEHIND_MAX;
use crate::mutation::{Mutation, is_planted};
use crate::wire::members::{ADDRESS_BYTES_MAX, MEMBERS_MAX};
use crate::wire::request::Change;
use crate::wire::response::Response;

impl Core {
    /// Whether a change can be made now: the change in the library's form, or the reason against it.
    pub fn check_change(&self, change: &Change) -> Result<ConfChange, String> {
        let raft = &self.raft.raft;
        if raft.has_pending_conf() && !is_planted(Mutation::TwoChangesAtOnce) {
            return Err("another change is under way, or this leader is new: try again".into());
        }
        let mut conf = self.conf_state();
        let learners = std::mem::take(&mut conf.learners);
        let is_learner = |id: &u64| learners.contains(id);
        let mut proposal = ConfChange::default();
        let kind = match change {
            Change::AddLearner { id, address } => {
                if *id == 0 || conf.voters.contains(id) || is_learner(id) {
                    return Err(format!("{id} is a member already, or 0: choose an id that was never used"));
                }
                if self.state.members.len() >= MEMBERS_MAX {
                    return Err(format!("there are {MEMBERS_MAX} members: remove one first"));
                }
                self.check_address(address)?;
                (proposal.node_id, proposal.context) = (*id, address.clone().into_bytes().into());
                ConfChangeType::AddLearnerNode
            }
            Change::Promote { id } => {
                if !is_learner(id) {
                    return Err(format!("{id} is no learner: add it as one first"));
                }
                let matched = raft.prs().get(*id).map_or(0, |progress| progress.matched);
                if matched == 0 {
                    return Err(format!("{id} has nothing yet: start it if it is not there, and try again"));
                }
                if matched + BEHIND_MAX < raft.raft_log.committed {
                    let behind = raft.raft_log.committed - matched;
                    return Err(format!("{id} is {behind} entries behind: try again when it has caught up"));
                }
                if let [_] = self.silent(&[*id])[..] {
                    return Err(format!(
                        "{id} was not heard of lately, and its vote would be missed: start it, and try again"
                    ));
                }
                conf.voters.push(*id);
                self.check_majority(&conf.voters)?;
                proposal.node_id = *id;
                ConfChangeType::AddNode
            }
            Change::Move { id, address } => {
                self.check_address(address)?;
                let kind = if conf.voters.contains(id) {
                    ConfChangeType::AddNode
                } else if is_learner(id) {
                    ConfChangeType::AddLearnerNode
                } else {
                    return Err(format!("{id} is no member"));
                };
                if *id != self.config.id && !self.knows_who_is_there() {
                    return Err(
                        "this leader is new, or its group has rested, so it does not know who is there: try again"
                            .into(),
                    );
                }
                // Two processes with one log would vote twice. A process that another group has moved is heard at its
                // new address.
                let is_there = address.parse().is_ok_and(|addr| self.common.links.borrow().addr(*id) == Some(&addr));
                if *id != self.config.id && !is_there && self.silent(&[*id]).is_empty() {
                    return Err(format!(
                        "{id} is heard of where it is reached now: end that process first, then try again"
                    ));
                }
                (proposal.node_id, proposal.context) = (*id, address.clone().into_bytes().into());
                kind
            }
            Change::Remove { id } => {
                if *id == self.config.id {
                    return Err(format!("{id} leads: transfer leadership to another first"));
                }
                if !conf.voters.contains(id) && !is_learner(id) {
                    return Err(format!("{id} is no member"));
                }
                if conf.voters.contains(id) {
                    conf.voters.retain(|voter| voter != id);
                    self.check_majority(&conf.voters)?;
                }
                proposal.node_id = *id;
                ConfChangeType::RemoveNode
            }
        };
        proposal.set_change_type(kind);
        Ok(proposal)
    }

    /// Whether a member may have this address: no other member has it, in any spelling.
    fn check_address(&self, address: &str) -> Result<(), String> {
        let Some(addr) = address.parse::<Addr>().ok().filter(|_| address.len() <= ADDRESS_BYTES_MAX) else {
            return Err(format!("{address} is no address, as udp://10.0.0.1:7000 is one"));
        };
        let is_there = |known: &String| known.parse::<Addr>().is_ok_and(|known| known == addr);
        match self.state.members.iter().find(|(_, known)| is_there(known)) {
            Some((other, _)) => Err(format!("{address} is the address of replica {other}")),
            None => Ok(()),
        }
    }

    /// Returns those that this leader has not heard from for an election timeout.
    pub fn silent(&self, ids: &[u64]) -> Vec<u64> {
        self.silent_for(ids, 1)
    }

    /// The same for so many election timeouts.
    pub fn silent_for(&self, ids: &[u64], elections: u32) -> Vec<u64> {
        let now = self.now();
        let timeout = nanos(self.config.tick) * u64::from(self.config.election_ticks.saturating_mul(elections));
        let heard = self.heard(ids.iter().copied(), now);
        // A leader whose own disk hangs acknowledges nothing.
        let is_hung = |id: u64| id == self.config.id && self.disk.hangs();
        let is_silent = |id: u64, heard: u64| heard == 0 || heard + timeout < now || is_hung(id);
        ids.iter().zip(heard).filter(|(id, heard)| is_silent(**id, *heard)).map(|(id, _)| *id).collect()
    }

    /// Whether a majority of these was heard recently. With other voters, the cluster could stall from the change on,
    /// for good, since no further change would be possible either.
    fn check_majority(&self, voters: &[u64]) -> Result<(), String> {
        let silent = self.silent(voters);
        if silent.len() <= (voters.len() - 1) / 2 {
            return Ok(());
        }
        let list = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<String>>().join(", ");
        Err(format!(
            "of {}, which would have votes then, {} {} not heard of lately, and the others are no majority: start or remove who is missing first, and try \
             again",
            list(voters),
            list(&silent),
            if silent.len() == 1 { "was" } else { "were" }
        ))
    }

    pub fn propose_change(&mut self, proposal: ConfChange, reply: DeferredReply) {
        // Earlier commands are submitted first, unless they wait for others.
        self.submit();
        let (index, term) = (self.raft.raft.raft_log.last_index() + 1, self.raft.raft.term);
        if is_planted(Mutation::TwoChangesAtOnce) {
            self.raft.raft.pending_conf_index = 0;
        }
        match self.raft.propose_conf_change(Vec::new(), proposal) {
            Ok(()) => self.waiters.wait(index, term, 0, reply),
            Err(error) => respond(reply, &Response::Refused(error.to_string())),
        }
    }

    /// The change of an entry takes effect.
    pub fn change_members(&mut self, entry: &Entry) {
        let response = match self.apply_change(entry) {
            Ok(()) => Response::Ok(&[]),
            Err(why) => Response::Refused(why),
        };
        self.waiters.changed(entry.index, entry.term, &response);
    }

    fn apply_change(&mut self, entry: &Entry) -> Result<(), String> {
        if entry.get_entry_type() == EntryType::EntryConfChangeV2 {
            return Err("no replica proposes several changes at once".into());
        }
        let change = ConfChange::parse_from_bytes(&entry.data).map_err(|error| error.to_string())?;
        self.raft.apply_conf_change(&change).map_err(|error| error.to_string())?;
        match change.get_change_type() {
            // A learner that gets a vote keeps its address.
            ConfChangeType::AddNode if change.context.is_empty() => {}
            ConfChangeType::AddLearnerNode | ConfChangeType::AddNode => {
                let address = String::from_utf8_lossy(&change.context).into_owned();
                self.state.members.insert(change.node_id, address);
            }
            ConfChangeType::RemoveNode => {
                self.state.members.remove(&change.node_id);
                self.step_down_if_removed(change.node_id);
            }
        }
        self.common.links.borrow_mut().follow(self.group, &self.state.members);
        self.reconnect();
        Ok(())
    }

    /// No leader proposes to remove itself. But one that was elected with such an entry in its log, from an earlier
    /// leader, removes itself when the entry is committed. The library would leave it leader, and panic when it next
    /// counts acknowledgements, since the leader is not among the members. The others, which have the entry, elect a
    /// new leader.
    fn step_down_if_removed(&mut self, removed: u64) {
        if removed == self.config.id && self.is_leader() {
            let term = self.raft.raft.term;
            self.raft.raft.become_follower(term, raft::INVALID_ID);
        }
    }

    /// Begins to make another replica leader. It takes over when it has all entries; until then, for at most an
    /// election timeout, no commands are accepted.
    pub fn transfer_to(&mut self, to: u64) -> Result<(), String> {
        if to == self.config.id {
            return Err(format!("{to} leads already"));
        }
        if !self.conf_state().voters.contains(&to) {
            return Err(format!("{to} has no vote"));
        }
        self.wake();
        self.submit();
        self.raft.transfer_leader(to);
        Ok(())
    }

    /// As leader, begins to make another member leader: preferably one heard recently, and of those the one with the
    /// longest log. Returns its id.
    pub fn hand_over(&mut self) -> Option<u64> {
        if self.failure.is_some() || !self.is_leader() {
            return None;
        }
        let (own, progress) = (self.config.id, self.raft.raft.prs());
        let others = self.conf_state().voters.into_iter().filter(|id| *id != own);
        let known = others.filter_map(|id| progress.get(id).map(|of| (of.recent_active, of.matched, id)));
        let (.., id) = known.max()?;
        self.transfer_to(id).ok().map(|()| id)
    }
}
