//! What must be true of all replicas at any time (Raft, Figure 3): election safety, log matching, and that what is committed stays committed.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use dunlin_smr::LogStore as _;
use dunlin_smr::raft::eraftpb::Entry;
use dunlin_smr::wire::response::{Role, Status};

use super::replica::Log;

/// Everything that was seen.
#[derive(Default)]
pub struct Observer {
    leaders: BTreeMap<u64, u64>,
    /// By index and term: what the entry says, and the term of the one before it.
    entries: HashMap<(u64, u64), (u64, Option<u64>)>,
    /// By index: term of the entry that was committed.
    committed: BTreeMap<u64, u64>,
    /// By replica: up to where it was looked at.
    looked_at: HashMap<u64, u64>,
}

fn content(entry: &Entry) -> u64 {
    let mut hasher = DefaultHasher::new();
    (entry.get_entry_type() as u32, &entry.data[..]).hash(&mut hasher);
    hasher.finish()
}

impl Observer {
    /// A replica begins with what its disk has.
    pub fn restarted(&mut self, id: u64) {
        self.looked_at.remove(&id);
    }

    /// Looks at a replica.
    ///
    /// # Panics
    /// If something is not as it must be.
    pub fn look(&mut self, status: &Status, log: &Log) {
        if status.role == Role::Leader {
            let leader = *self.leaders.entry(status.term).or_insert(status.id);
            assert_eq!(leader, status.id, "two replicas lead in term {}", status.term);
        }
        self.look_at_log(log);
        self.look_at_committed(status, log);
    }

    /// From the end on, up to the first entry that was seen with the same before it.
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
                            // What is before was seen with it.
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
        let new = log.view().iter().rev().skip_while(|entry| entry.index > status.committed);
        for entry in new.take_while(|entry| entry.index > *looked_at) {
            let term = *self.committed.entry(entry.index).or_insert(entry.term);
            assert_eq!(
                term, entry.term,
                "entry {} was committed with term {term}, and replica {} has committed one of term {}",
                entry.index, status.id, entry.term
            );
        }
        *looked_at = status.committed.max(*looked_at);
        let base = log.base().get_metadata();
        if let Some(term) = self.committed.get(&base.index) {
            assert_eq!(*term, base.term, "a snapshot is of an entry that was not committed");
        }
    }
}
