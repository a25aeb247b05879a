//! Invariants of all replicas (Raft, Figure 3): election safety, log matching, leader completeness, and that committed
//! entries stay committed, also in snapshots. Invariants of membership: one change at a time, and every leader is a
//! member.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use dunlin_smr::LogStore as _;
use dunlin_smr::raft::Storage as _;
use dunlin_smr::raft::eraftpb::{Entry, EntryType};
use dunlin_smr::wire::command::{Command, Kind};
use dunlin_smr::wire::response::{Role, Status};

use super::replica::Log;

/// All observations.
#[derive(Default)]
pub struct Observer {
    /// Leaders by term.
    leaders: BTreeMap<u64, u64>,
    /// By index and term: the entry's hash, and the term of the previous entry.
    entries: HashMap<(u64, u64), (u64, Option<u64>)>,
    /// By index.
    committed: BTreeMap<u64, Committed>,
    /// By index: committed commands, as far as they were seen in a log.
    commands: BTreeMap<u64, Vec<u8>>,
    /// By replica: the last index that was checked.
    looked_at: HashMap<u64, u64>,
    /// Replicas elected since the last call of `take_elected`.
    elected: Vec<u64>,
    /// The last leader's term, and the members it knows.
    members: (u64, Vec<u64>),
}

/// An entry that was committed.
#[derive(Debug, Clone, Copy)]
struct Committed {
    term: u64,
    /// The term of the replica at which the commit was first seen: it was committed in this term or an earlier one.
    known_in: u64,
}

fn content(entry: &Entry) -> u64 {
    let mut hasher = DefaultHasher::new();
    (entry.get_entry_type() as u32, &entry.data[..]).hash(&mut hasher);
    hasher.finish()
}

impl Observer {
    /// Resets what is known of a replica that restarts from its disk.
    pub fn restarted(&mut self, id: u64) {
        self.looked_at.remove(&id);
    }

    /// The commands in committed entries, in order.
    pub fn commands(&self) -> impl Iterator<Item = &[u8]> {
        let parsed = self.commands.values().filter_map(|entry| Command::parse(entry).ok());
        parsed.filter(|command| command.kind == Kind::Apply).map(|command| command.body)
    }

    /// The members, as the last leader knows them.
    pub fn members(&self) -> &[u64] {
        &self.members.1
    }

    /// The replicas that were elected since the last call.
    pub fn take_elected(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.elected)
    }

    /// Checks a replica.
    ///
    /// # Panics
    /// If an invariant is violated.
    pub fn look(&mut self, status: &Status, log: &Log) {
        // The only voter elects itself before its vote is durable, and may do so in the same term again after a crash.
        // Until it has committed an entry of the term, nobody else knows of it.
        let is_alone = status.role == Role::Leader && status.voters == [status.id];
        if !is_alone || log.term(status.committed) == Ok(status.term) {
            self.look_at_log(log);
        }
        self.look_at_committed(status, log);
        self.look_at_changes(status, log);
        if status.role == Role::Leader {
            self.look_at_leader(status, log);
        }
    }

    fn look_at_leader(&mut self, status: &Status, log: &Log) {
        let Status { id, term, .. } = *status;
        assert!(status.voters.contains(&id), "replica {id} leads in term {term}, and is no member with a vote");
        if term >= self.members.0 {
            self.members = (term, status.voters.iter().chain(&status.learners).copied().collect());
        }
        let is_new = !self.leaders.contains_key(&term);
        let leader = *self.leaders.entry(term).or_insert(id);
        assert_eq!(leader, id, "two replicas lead in term {term}");
        if !is_new {
            return;
        }
        self.elected.push(id);
        let before = self.committed.iter().rev().filter(|(_, committed)| committed.known_in < term);
        for (index, committed) in before.take_while(|(index, _)| **index >= status.first) {
            assert!(
                log.term(*index).is_ok_and(|term| term == committed.term),
                "replica {id} leads in term {term} without entry {index} of term {}, which was committed before",
                committed.term
            );
        }
    }

    /// A log has at most one uncommitted change of members.
    fn look_at_changes(&self, status: &Status, log: &Log) {
        let known = self.committed.last_key_value().map_or(0, |(index, _)| *index);
        let open = log.view().iter().rev().take_while(|entry| entry.index > known);
        let changes = open.filter(|entry| entry.get_entry_type() != EntryType::EntryNormal).count();
        assert!(changes <= 1, "replica {} has {changes} changes of members under way at a time", status.id);
    }

    /// From the end back to the first entry that was seen before with the same predecessor.
    fn look_at_log(&mut self, log: &Log) {
        let mut entries = log.view().iter().rev().peekable();
        while let Some(entry) = entries.next() {
            let before = entries.peek().map(|entry| entry.term);
            let seen = (content(entry), before);
            match self.entries.get_mut(&(entry.index, entry.term)) {
                None => _ = self.entries.insert((entry.index, entry.term), seen),
                Some(known) => {
                    let (index, term) = (entry.index, entry.term);
                    assert_eq!(known.0, seen.0, "two entries with index {index} and term {term} differ");
                    match (known.1, before) {
                        (Some(known), Some(before)) => {
                            assert_eq!(
                                known, before,
                                "before entry {index} of term {term} stand entries of different terms"
                            );
                            // All earlier entries were seen together with it.
                            return;
                        }
                        (None, Some(before)) => known.1 = Some(before),
                        (_, None) => {}
                    }
                }
            }
        }
    }

    fn look_at_committed(&mut self, status: &Status, log: &Log) {
        let looked_at = self.looked_at.entry(status.id).or_insert(0);
        let known = |term| Committed { term, known_in: status.term };
        let new = log.view().iter().rev().skip_while(|entry| entry.index > status.committed);
        for entry in new.take_while(|entry| entry.index > *looked_at) {
            if entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty() {
                self.commands.entry(entry.index).or_insert_with(|| entry.data.to_vec());
            }
            let committed = *self.committed.entry(entry.index).or_insert(known(entry.term));
            assert_eq!(
                committed.term, entry.term,
                "entry {} was committed with term {}, and replica {} has committed one of term {}",
                entry.index, committed.term, status.id, entry.term
            );
        }
        *looked_at = status.committed.max(*looked_at);
        // A snapshot is committed, too.
        let base = log.base().get_metadata();
        if base.index > 0 {
            let committed = *self.committed.entry(base.index).or_insert(known(base.term));
            assert_eq!(
                committed.term, base.term,
                "replica {} has a snapshot that ends with entry {} of term {}, which was committed with term {}",
                status.id, base.index, base.term, committed.term
            );
        }
    }
}
