//! The keys in etcd. `coordination.md` has the table.

use crate::types::{Incarnation, MemberId};
use crate::wire::wire_struct;

/// Version of the layout, and the previous one.
const LAYOUT: &str = "v2";
const EARLIER_LAYOUT: &str = "v1";
/// Digits of a number in a key.
const DIGITS: usize = 20;

/// The names of all keys.
#[derive(Debug)]
pub(super) struct Keys {
    root: String,
    earlier_root: String,
}

/// The value of a lease. Its token is the revision of the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tenancy {
    pub member: MemberId,
    pub incarnation: Incarnation,
    pub ttl_ms: u64,
}

wire_struct!(Tenancy { member, incarnation, ttl_ms });

impl Keys {
    /// All keys are below this prefix, which has been checked to be a path.
    pub fn new(prefix: &str) -> Keys {
        Keys { root: format!("{prefix}/{LAYOUT}"), earlier_root: format!("{prefix}/{EARLIER_LAYOUT}") }
    }

    /// The prefix of all keys of one kind.
    fn all(&self, kind: &str) -> String {
        format!("{}/{kind}/", self.root)
    }

    fn numbered(&self, kind: &str, number: u64) -> String {
        // Zero-padded, so that keys sort as numbers.
        format!("{}{number:0DIGITS$}", self.all(kind))
    }

    /// The number of the epoch, as text.
    pub fn epoch(&self) -> String {
        format!("{}/epoch", self.root)
    }

    /// The epoch key of the previous layout.
    pub fn earlier_epoch(&self) -> String {
        format!("{}/epoch", self.earlier_root)
    }

    /// The members that came and went in an epoch.
    pub fn epoch_change(&self, epoch: u64) -> String {
        self.numbered("epochs", epoch)
    }

    pub fn epoch_changes(&self) -> String {
        self.all("epochs")
    }

    /// The epoch in which a member joined, as text.
    pub fn joined(&self, member: MemberId) -> String {
        self.numbered("joined", member)
    }

    pub fn all_joined(&self) -> String {
        self.all("joined")
    }

    /// The last epoch that a member has acknowledged, as text.
    pub fn acknowledged(&self, member: MemberId) -> String {
        self.numbered("acknowledged", member)
    }

    pub fn all_acknowledged(&self) -> String {
        self.all("acknowledged")
    }

    /// The last epoch that all live members have acknowledged, as text.
    pub fn settled(&self) -> String {
        format!("{}/settled", self.root)
    }

    /// The failure timeout of the reigning watchman, in milliseconds, as text.
    pub fn failure_timeout(&self) -> String {
        format!("{}/failure-timeout", self.root)
    }

    /// The latest events. The history of this key is the history of everything.
    pub fn events(&self) -> String {
        format!("{}/events", self.root)
    }

    /// The revision of this key is the number of the reign.
    pub fn reign(&self) -> String {
        format!("{}/reign", self.root)
    }

    /// Written by the reigning watchman as a sign of life.
    pub fn watchman(&self) -> String {
        format!("{}/watchman", self.root)
    }

    /// The member's description of itself; the key's revision is the incarnation.
    pub fn member(&self, member: MemberId) -> String {
        self.numbered("members", member)
    }

    pub fn members(&self) -> String {
        self.all("members")
    }

    /// Exists if the member has failed: the epoch of the failure, as text.
    pub fn failed(&self, member: MemberId) -> String {
        self.numbered("failed", member)
    }

    pub fn all_failed(&self) -> String {
        self.all("failed")
    }

    /// Written with each heartbeat: the failure timeout that the member was told, as text.
    pub fn beat(&self, member: MemberId) -> String {
        self.numbered("beats", member)
    }

    pub fn beats(&self) -> String {
        self.all("beats")
    }

    /// A [`Tenancy`]. Names begin with a slash, as paths do.
    pub fn lease(&self, name: &str) -> String {
        format!("{}/leases{name}", self.root)
    }

    pub fn leases(&self) -> String {
        self.all("leases")
    }

    /// Written when the member is granted a lease, and with each renewal. It exists as long as the member holds the
    /// lease.
    pub fn renewal(&self, member: MemberId, name: &str) -> String {
        format!("{}{name}", self.numbered("renewals", member))
    }

    /// The prefix of the renewals of a member.
    pub fn renewals_of(&self, member: MemberId) -> String {
        format!("{}/", self.numbered("renewals", member))
    }

    pub fn renewals(&self) -> String {
        self.all("renewals")
    }

    /// An entry of the tree, or the prefix of all entries below a root.
    pub fn entry(&self, path: &str) -> String {
        format!("{}/tree{path}", self.root)
    }
}

/// The member or the epoch in a key below `prefix`.
pub(super) fn number_of(key: &str, prefix: &str) -> Option<u64> {
    key.strip_prefix(prefix)?.parse().ok()
}

/// The member and the lease in the key of a renewal.
pub(super) fn renewal_of<'a>(key: &'a str, prefix: &str) -> Option<(MemberId, &'a str)> {
    let (member, name) = key.strip_prefix(prefix)?.split_at_checked(DIGITS)?;
    Some((member.parse().ok()?, name))
}

/// The path or name in a key below `prefix`; the slash that ends the prefix is its first character.
pub(super) fn path_of<'a>(key: &'a str, prefix: &str) -> Option<&'a str> {
    key.strip_prefix(prefix.strip_suffix('/')?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_what_they_are_of() {
        let keys = Keys::new("/dunlin");
        assert_eq!(keys.member(7), "/dunlin/v2/members/00000000000000000007");
        assert_eq!(renewal_of(&keys.renewal(7, "/a/b"), &keys.renewals()), Some((7, "/a/b")));
        assert!(keys.renewal(7, "/a").starts_with(&keys.renewals_of(7)));
        assert_eq!(renewal_of("/dunlin/v2/renewals/7", &keys.renewals()), None);
        assert_eq!(number_of(&keys.member(u64::MAX), &keys.members()), Some(u64::MAX));
        assert_eq!(number_of(&keys.beat(7), &keys.members()), None);
        assert_eq!(path_of(&keys.lease("/a/b"), &keys.leases()), Some("/a/b"));
        assert_eq!(path_of(&keys.lease("/a/b"), &keys.renewals()), None);
        assert_eq!(keys.entry("/a"), "/dunlin/v2/tree/a");
        assert!(keys.member(9) < keys.member(10));
    }
}
