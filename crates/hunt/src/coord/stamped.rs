//! A wrapper of a member's cluster manager that notes when each heartbeat is sent: the judge compares the answer with
//! that.

use std::time::Duration;

use dunlin_coord::{
    Changes, CoordError, Coordinator, Entry, Epochs, Heartbeat, Holder, Lease, Leases, Listing, MemberId, Members,
    Membership, Revision, Scope, Transaction, View,
};

use super::caller::Caller;
use super::testimony::Floor;

/// That of a client. What is called with each answer gets when its heartbeat was sent, in nanoseconds of virtual time,
/// and what was known then.
pub struct Stamped<'a, F> {
    pub caller: &'a Caller,
    pub on_heartbeat: F,
}

/// Forwards operations without a stamp.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) -> $output:ty;)*) => {
        $(
            async fn $name(&self, $($argument: $type),*) -> Result<$output, CoordError> {
                self.caller.coordinator.$name($($argument),*).await
            }
        )*
    };
}

impl<F: Fn(&Heartbeat, u64, Floor)> Coordinator for Stamped<'_, F> {
    async fn heartbeat(&self, membership: &Membership) -> Result<Heartbeat, CoordError> {
        let (sent_at, floor) = (self.caller.virtual_now(), self.caller.shared.service.testimony.floor());
        let heartbeat = self.caller.coordinator.heartbeat(membership).await?;
        (self.on_heartbeat)(&heartbeat, sent_at, floor);
        Ok(heartbeat)
    }

    forward! {
        join(member: MemberId, about: &[u8]) -> Membership;
        leave(membership: &Membership) -> ();
        forget(member: MemberId) -> ();
        members() -> Members;
        epochs(after: u64) -> Epochs;
        cut_epochs(up_to: u64) -> ();
        acquire(membership: &Membership, name: &str, ttl: Duration) -> Lease;
        renew(lease: &mut Lease) -> ();
        release(lease: &Lease) -> ();
        holder(name: &str) -> Option<Holder>;
        leases(after: Option<&str>) -> Leases;
        get(path: &str) -> Option<Entry>;
        transact(transaction: &Transaction) -> Revision;
        view(root: &str) -> View;
        list(root: &str, after: Option<&str>) -> Listing;
        changes(scope: &Scope, after: Revision) -> Changes;
    }

    fn now(&self) -> u64 {
        self.caller.coordinator.now()
    }

    async fn sleep_until(&self, time: u64) {
        self.caller.coordinator.sleep_until(time).await;
    }
}
