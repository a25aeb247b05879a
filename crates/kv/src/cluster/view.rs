//! Who is live, as the cluster manager says.

use std::rc::Rc;

use futures::future::LocalBoxFuture;

/// What a cluster manager says of the servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// The epoch; 0 without a cluster manager.
    pub epoch: u64,
    /// For each server, by its number, whether it is a live member. Those that are not have no part in writes.
    pub live: Vec<bool>,
}

impl Seen {
    /// All servers of a cluster without a cluster manager.
    pub(super) fn all(servers: usize) -> Seen {
        Seen { epoch: 0, live: vec![true; servers] }
    }

    pub(super) fn is_live(&self, server: u32) -> bool {
        self.live.get(server as usize).copied().unwrap_or(false)
    }
}

/// Looks up who is live.
pub trait Directory {
    /// Asks the cluster manager. The error is text for people.
    fn look(self: Rc<Self>) -> LocalBoxFuture<'static, Result<Seen, String>>;
}
