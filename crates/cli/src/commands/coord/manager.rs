//! Either back end.

use std::time::Duration;

use dunlin_coord::embedded::Embedded;
#[cfg(feature = "etcd")]
use dunlin_coord::etcd::Etcd;
use dunlin_coord::{
    Changes, CoordError, Coordinator, Entry, Epochs, Heartbeat, Holder, Lease, Leases, Listing, MemberId, Members,
    Membership, Revision, Scope, Transaction, View,
};
use dunlin_net::AnyTransport;

use crate::commands::raft::cluster::warn_of_strangers;

/// The cluster manager, on either back end.
pub enum Manager {
    /// On its own nodes.
    Embedded(Box<Embedded<AnyTransport>>),
    /// On an etcd.
    #[cfg(feature = "etcd")]
    Etcd(Etcd),
}

/// Calls the same method on either back end.
macro_rules! on {
    ($manager:expr, $back_end:ident => $value:expr) => {
        match $manager {
            Manager::Embedded($back_end) => $value,
            #[cfg(feature = "etcd")]
            Manager::Etcd($back_end) => $value,
        }
    };
}

impl Manager {
    /// Warns of nodes of other clusters that answered.
    pub fn warn_of_strangers(&self) {
        match self {
            Manager::Embedded(embedded) => warn_of_strangers(embedded.client()),
            #[cfg(feature = "etcd")]
            Manager::Etcd(_) => {}
        }
    }

    /// Ends the session.
    pub async fn close(&self) {
        match self {
            // If there is no answer, the nodes end the session themselves after it has been idle for long.
            Manager::Embedded(embedded) => drop(embedded.client().close().await),
            #[cfg(feature = "etcd")]
            Manager::Etcd(_) => {}
        }
    }
}

impl Coordinator for Manager {
    async fn join(&self, member: MemberId, about: &[u8]) -> Result<Membership, CoordError> {
        on!(self, back_end => back_end.join(member, about).await)
    }

    async fn heartbeat(&self, membership: &Membership) -> Result<Heartbeat, CoordError> {
        on!(self, back_end => back_end.heartbeat(membership).await)
    }

    async fn leave(&self, membership: &Membership) -> Result<(), CoordError> {
        on!(self, back_end => back_end.leave(membership).await)
    }

    async fn forget(&self, member: MemberId) -> Result<(), CoordError> {
        on!(self, back_end => back_end.forget(member).await)
    }

    async fn members(&self) -> Result<Members, CoordError> {
        on!(self, back_end => back_end.members().await)
    }

    async fn epochs(&self, after: u64) -> Result<Epochs, CoordError> {
        on!(self, back_end => back_end.epochs(after).await)
    }

    async fn cut_epochs(&self, up_to: u64) -> Result<(), CoordError> {
        on!(self, back_end => back_end.cut_epochs(up_to).await)
    }

    async fn acquire(&self, membership: &Membership, name: &str, ttl: Duration) -> Result<Lease, CoordError> {
        on!(self, back_end => back_end.acquire(membership, name, ttl).await)
    }

    async fn renew(&self, lease: &mut Lease) -> Result<(), CoordError> {
        on!(self, back_end => back_end.renew(lease).await)
    }

    async fn release(&self, lease: &Lease) -> Result<(), CoordError> {
        on!(self, back_end => back_end.release(lease).await)
    }

    async fn holder(&self, name: &str) -> Result<Option<Holder>, CoordError> {
        on!(self, back_end => back_end.holder(name).await)
    }

    async fn leases(&self, after: Option<&str>) -> Result<Leases, CoordError> {
        on!(self, back_end => back_end.leases(after).await)
    }

    async fn get(&self, path: &str) -> Result<Option<Entry>, CoordError> {
        on!(self, back_end => back_end.get(path).await)
    }

    async fn transact(&self, transaction: &Transaction) -> Result<Revision, CoordError> {
        on!(self, back_end => back_end.transact(transaction).await)
    }

    async fn view(&self, root: &str) -> Result<View, CoordError> {
        on!(self, back_end => back_end.view(root).await)
    }

    async fn list(&self, root: &str, after: Option<&str>) -> Result<Listing, CoordError> {
        on!(self, back_end => back_end.list(root, after).await)
    }

    async fn changes(&self, scope: &Scope, after: Revision) -> Result<Changes, CoordError> {
        on!(self, back_end => back_end.changes(scope, after).await)
    }

    fn now(&self) -> u64 {
        on!(self, back_end => back_end.now())
    }

    async fn sleep_until(&self, time: u64) {
        on!(self, back_end => back_end.sleep_until(time).await)
    }
}
