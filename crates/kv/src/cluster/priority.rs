//! The one place where a part of a multiget gets the rank that its policy gave it.

use dunlin_net::Transport;

use crate::client::KvClient;

/// What a server is told of a part, so that it serves first what somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Priority {
    /// The rank by the policy; lower ones are served sooner.
    pub rank: u64,
}

/// Returns the client whose requests carry a priority. Requests of this version of the protocol carry none.
pub(super) fn attach<T: Transport>(client: KvClient<T>, _priority: Priority) -> KvClient<T> {
    client
}
