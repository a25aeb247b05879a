//! Replicas of other clusters that contacted this one, or that it contacted: an address is in the lists of two
//! clusters, or was reused. Their messages are never acted on.

use crate::cluster_id::ClusterId;
use crate::wire::response::{FOREIGN_MAX, Foreign};

/// The foreign replicas noticed so far.
#[derive(Default)]
pub(super) struct Foreigners {
    /// At most [`FOREIGN_MAX`]: further ones are not logged, since there might be any number.
    known: Vec<Foreign>,
    /// Why first members of other clusters were refused; limited in the same way.
    refused: Vec<String>,
}

impl Foreigners {
    /// A replica of another cluster contacted this one, or was reached in place of a member. It is logged once.
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

    /// Returns the foreign replicas noticed so far.
    pub fn known(&self) -> Vec<Foreign> {
        self.known.clone()
    }
}
