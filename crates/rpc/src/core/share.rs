//! What one peer may hold of this endpoint: so that a peer that hoards, or is broken, leaves something to the others.
//!
//! Whatever a peer may make this endpoint hold is counted in its entry, and limited by [`crate::PeerLimits`]: the sessions that were accepted
//! from it and their places in the receive queue, the memory of requests that have begun to arrive, and requests in the hands of handlers.

use dunlin_net::Route;

use super::Core;
use super::places::Places;
use super::serve::ServeRef;
use crate::wire::control::RefuseReason;

/// What a peer holds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Share {
    /// Sessions accepted from it.
    pub accepted: u32,
    /// Places of the receive queue, for all its sessions.
    pub places: usize,
    /// Bytes of buffers for requests that have begun to arrive.
    pub receiving_bytes: u64,
    /// Requests in the hands of asynchronous and worker handlers.
    pub deferred: u32,
}

/// Names a peer, and not a later one with the same index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerRef {
    pub index: u32,
    pub serial: u32,
}

impl Core {
    /// Whether the peer at `from`, if it is one already, may have one more session with at least the first credits of `wanted`; says which of its
    /// limits is in the way.
    pub fn check_share(&self, from: Option<Route>, wanted: Places) -> Result<(), RefuseReason> {
        let share = from.and_then(|from| self.peers.share_at(from)).copied().unwrap_or_default();
        let limits = &self.config.peer_limits;
        if share.accepted >= limits.sessions_max {
            return Err(RefuseReason::PeerSessions);
        }
        let least = if self.shares_credits() { wanted.least() } else { wanted }.sum();
        if share.places + least > limits.places_max as usize {
            return Err(RefuseReason::PeerCredits);
        }
        Ok(())
    }

    /// Places that the peer at `from` may have in addition.
    pub fn places_left(&self, from: Option<Route>) -> usize {
        let held = from.and_then(|from| self.peers.share_at(from)).map_or(0, |share| share.places);
        (self.config.peer_limits.places_max as usize).saturating_sub(held)
    }

    /// Whether a peer may begin to send a request of so many bytes.
    pub fn may_receive(&self, session: u32, bytes: usize) -> bool {
        let share = self.peers.share(self.sessions[session as usize].peer);
        share.is_none_or(|share| share.receiving_bytes + bytes as u64 <= self.config.peer_limits.receiving_bytes_max)
    }

    /// Counts the buffer of a request that begins to arrive.
    pub fn charge_receiving(&mut self, session: u32, bytes: usize) {
        if let Some(share) = self.peers.share_mut(self.sessions[session as usize].peer) {
            share.receiving_bytes += bytes as u64;
        }
    }

    /// Counts it off, when the request is complete or given up.
    pub fn refund_receiving(&mut self, session: u32, bytes: usize) {
        if let Some(share) = self.peers.share_mut(self.sessions[session as usize].peer) {
            share.receiving_bytes -= bytes as u64;
        }
    }

    /// Whether handlers may keep one more request of the peer that sent this one.
    pub fn may_defer(&self, serve: ServeRef) -> bool {
        let peer = self.sessions[self.serves[serve.index() as usize].session as usize].peer;
        self.peers.share(peer).is_none_or(|share| share.deferred < self.config.peer_limits.deferred_requests_max)
    }

    /// Counts a request that a handler keeps.
    pub fn count_deferred(&mut self, serve: ServeRef) -> PeerRef {
        let index = self.sessions[self.serves[serve.index() as usize].session as usize].peer;
        if let Some(share) = self.peers.share_mut(index) {
            share.deferred += 1;
        }
        PeerRef { index, serial: self.peers.serial(index) }
    }

    /// Counts it off.
    pub fn uncount_deferred(&mut self, peer: PeerRef) {
        if self.peers.serial(peer.index) == peer.serial
            && let Some(share) = self.peers.share_mut(peer.index)
        {
            share.deferred -= 1;
        }
    }
}
