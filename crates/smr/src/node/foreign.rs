//! Replicas of other clusters that have reached this one, or that it has reached: an address stands in the lists of two, or was used before. Nothing that they say
//! is acted on.

use crate::cluster_id::ClusterId;
use crate::wire::response::{FOREIGN_MAX, Foreign};

/// Those that were noticed.
#[derive(Default)]
pub(super) struct Foreigners {
    /// At most [`FOREIGN_MAX`]: of others nothing is said, since they might be any number.
    known: Vec<Foreign>,
    /// Why first members of other clusters were refused, as often.
    refused: Vec<String>,
}

impl Foreigners {
    /// A replica of another cluster has reached this one, or was reached in place of one of this. It is logged once.
    pub fn note(&mut self, own: u64, ours: ClusterId, id: u64, theirs: ClusterId) {
        let foreign = Foreign { id, cluster: theirs };
        if self.known.contains(&foreign) || self.known.len() >= FOREIGN_MAX {
            return;
        }
        tracing::warn!(
            "replica {id} of cluster {theirs} takes replica {own} of cluster {ours} for one of its own, or is taken for one: an address stands in the lists of both. They \
             do not listen to each other; correct the lists, or remove the replica from one of the clusters"
        );
        self.known.push(foreign);
    }

    /// A first member of another cluster asked for the number. It is logged once.
    pub fn refused_founder(&mut self, own: u64, why: &str) {
        if self.refused.len() < FOREIGN_MAX && !self.refused.iter().any(|known| known == why) {
            tracing::warn!(id = own, "a first member of another cluster asks for the number of this one: {why}");
            self.refused.push(why.to_owned());
        }
    }

    /// Those that were noticed.
    pub fn known(&self) -> Vec<Foreign> {
        self.known.clone()
    }
}
