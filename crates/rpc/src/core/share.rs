//! Limits on what one host may make this endpoint hold, so that a host that hoards, or is broken, leaves something to
//! the others.
//!
//! A limit per address and port would not bind: a host opens another port. So all endpoints of a host share what
//! [`crate::PeerLimits`] and the budget of [`super::memory`] allow it: sessions accepted from it, their places in the
//! receive queue, bytes that are kept for it, and its requests that handlers have.

use std::collections::HashMap;
use std::net::IpAddr;

use dunlin_net::{Addr, ShmName, host_of};

use super::Core;
use super::places::Places;
use super::process::Part;
use super::serve::ServeRef;
use crate::msgbuf;
use crate::wire::control::RefuseReason;

/// The owner of a share.
///
/// Over shared memory it is the endpoint, by its name: regions are private to one user, who can stop any of these
/// processes, so only a broken process has to be guarded against, and limits for the whole host would hit its victims.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum HostName {
    /// As returned by [`host_of`].
    Ip(IpAddr),
    Shm(ShmName),
    Node(u32),
    Sim(u32),
}

impl From<&Addr> for HostName {
    fn from(addr: &Addr) -> HostName {
        match addr {
            Addr::Udp(addr) => HostName::Ip(host_of(addr.ip())),
            Addr::Shm(name) => HostName::Shm(name.clone()),
            Addr::Node(number) => HostName::Node(*number),
            Addr::Sim { host, .. } => HostName::Sim(*host),
        }
    }
}

/// What a host holds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Share {
    /// Sessions accepted from it.
    pub accepted: u32,
    /// Places of the receive queue, for all its sessions.
    pub places: usize,
    /// Directions of its sessions that have a credit and no place for it. They get one when there are free places.
    pub unplaced: usize,
    /// Bytes kept for it: see [`super::memory`].
    pub held_bytes: u64,
    /// Requests that asynchronous and worker handlers have.
    pub deferred: u32,
}

impl Share {
    /// Places that it has or must get: its limit applies to their sum.
    pub fn places_due(&self) -> usize {
        self.places + self.unplaced
    }

    pub fn add_places(&mut self, places: Places) {
        self.places += places.sum();
        self.unplaced += places.without_place();
    }

    pub fn subtract_places(&mut self, places: Places) {
        self.places -= places.sum();
        self.unplaced -= places.without_place();
    }
}

#[derive(Debug)]
struct Host {
    name: HostName,
    share: Share,
    /// Its part of what the other endpoints of this process see; `None` for a simulated host.
    part: Option<Part>,
    /// Peers there, and requests that handlers keep: the latter outlive the sessions that they came on, and still
    /// count.
    users: u32,
}

/// Hosts for which anything is held.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    entries: Vec<Option<Host>>,
    free: Vec<u32>,
    by_name: HashMap<HostName, u32>,
}

impl Hosts {
    pub fn share(&self, host: u32) -> Option<&Share> {
        self.entries.get(host as usize)?.as_ref().map(|host| &host.share)
    }

    pub fn share_mut(&mut self, host: u32) -> Option<&mut Share> {
        self.entries.get_mut(host as usize)?.as_mut().map(|host| &mut host.share)
    }

    /// What a host holds, possibly nothing.
    pub fn share_of(&self, name: &HostName) -> Share {
        self.by_name.get(name).and_then(|host| self.share(*host)).copied().unwrap_or_default()
    }

    /// Bytes that a host holds here, and its part in this process.
    pub fn held_by(&self, host: u32) -> (u64, Option<&Part>) {
        let entry = self.entries.get(host as usize).and_then(Option::as_ref);
        entry.map_or((0, None), |host| (host.share.held_bytes, host.part.as_ref()))
    }

    /// Sets what a host holds here; returns whether there is such a host.
    pub fn set_held(&mut self, host: u32, bytes: impl FnOnce(u64) -> u64) -> bool {
        let Some(Some(Host { share, part, .. })) = self.entries.get_mut(host as usize) else { return false };
        share.held_bytes = bytes(share.held_bytes);
        if let Some(part) = part {
            part.tell_step(share.held_bytes);
        }
        true
    }

    /// Reports to the other endpoints of this process what each host holds here.
    pub fn tell_all(&mut self) {
        for host in self.entries.iter_mut().flatten() {
            if let Some(part) = &mut host.part {
                part.tell(host.share.held_bytes);
            }
        }
    }

    /// The numbers of all hosts.
    pub fn all(&self) -> impl Iterator<Item = u32> {
        let is_there = |host: &u32| self.entries[*host as usize].is_some();
        (0..self.entries.len() as u32).filter(is_there)
    }

    /// Counts one more user of the host with this name, which is added if it is new.
    pub fn join(&mut self, name: HostName) -> u32 {
        let host = self.by_name.get(&name).copied().unwrap_or_else(|| {
            let entry = Some(Host { part: Part::of(&name), name: name.clone(), share: Share::default(), users: 0 });
            let host = self.free.pop().unwrap_or(self.entries.len() as u32);
            match self.entries.get_mut(host as usize) {
                Some(place) => *place = entry,
                None => self.entries.push(entry),
            }
            self.by_name.insert(name, host);
            host
        });
        self.use_again(host);
        host
    }

    /// Counts one more user of a host that has one.
    fn use_again(&mut self, host: u32) {
        if let Some(Some(host)) = self.entries.get_mut(host as usize) {
            host.users += 1;
        }
    }

    /// Counts one user fewer, and removes the host with its last one.
    pub fn leave(&mut self, host: u32) {
        let Some(Some(entry)) = self.entries.get_mut(host as usize) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            self.forget(host);
        }
    }

    #[cold]
    fn forget(&mut self, host: u32) {
        let Some(entry) = self.entries[host as usize].take() else { return };
        debug_assert!(entry.share.held_bytes == 0 && entry.share.deferred == 0, "{entry:?} holds nothing any more");
        self.by_name.remove(&entry.name);
        self.free.push(host);
    }
}

/// A request that a handler keeps, as charged to its host's share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerRef {
    host: u32,
    bytes: u32,
}

impl Core {
    /// Whether a host may have one more session with at least the minimum of `wanted`; the error says which of its
    /// limits is reached.
    pub fn check_share(&self, host: &HostName, wanted: Places) -> Result<(), RefuseReason> {
        let share = self.peers.hosts.share_of(host);
        let limits = &self.config.peer_limits;
        if share.accepted >= limits.sessions_max {
            return Err(RefuseReason::PeerSessions);
        }
        let least = if self.shares_credits() { wanted.least() } else { wanted }.sum();
        if share.places_due() + least > limits.places_max as usize {
            return Err(RefuseReason::PeerCredits);
        }
        Ok(())
    }

    /// Places that a host may have in addition to `held`.
    pub fn places_left(&self, held: usize) -> usize {
        (self.config.peer_limits.places_max as usize).saturating_sub(held)
    }

    /// Whether handlers may keep one more request of the host that sent this one.
    pub fn may_defer(&self, serve: ServeRef) -> bool {
        let serve = &self.serves[serve.index() as usize];
        let host = self.peers.host_of(self.sessions[serve.session as usize].peer);
        let count_fits = |deferred| deferred < self.config.peer_limits.deferred_requests_max;
        self.peers.hosts.share(host).is_none_or(|share| count_fits(share.deferred))
            && self.may_hold(host, msgbuf::capacity_for(serve.request_bytes as usize) as u64)
    }

    /// Counts a request that a handler keeps.
    pub fn count_deferred(&mut self, serve: ServeRef) -> PeerRef {
        let serve = &self.serves[serve.index() as usize];
        let bytes = msgbuf::capacity_for(serve.request_bytes as usize) as u32;
        let host = self.peers.host_of(self.sessions[serve.session as usize].peer);
        self.peers.hosts.use_again(host);
        self.hold(host, u64::from(bytes));
        if let Some(share) = self.peers.hosts.share_mut(host) {
            share.deferred += 1;
        }
        PeerRef { host, bytes }
    }

    /// Counts one fewer.
    pub fn uncount_deferred(&mut self, PeerRef { host, bytes }: PeerRef) {
        self.let_go(host, u64::from(bytes));
        if let Some(share) = self.peers.hosts.share_mut(host) {
            share.deferred -= 1;
        }
        self.peers.hosts.leave(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_what_its_ports_and_threads_have_in_common() {
        let host = |text: &str| HostName::from(&text.parse::<Addr>().unwrap());
        assert_eq!(host("udp://10.0.0.1:7"), host("udp://10.0.0.1:8"));
        assert_eq!(host("udp://10.0.0.1:7"), host("udp://[::ffff:10.0.0.1]:8"));
        assert_eq!(host("udp://[2001:db8:0:7::1]:7"), host("udp://[2001:db8:0:7:ffff::9]:8"));
        assert_eq!(host("sim:3:0"), host("sim:3:1"));
        for [one, other] in [
            ["udp://10.0.0.1:7", "udp://10.0.0.2:7"],
            ["udp://[2001:db8:0:7::1]:7", "udp://[2001:db8:0:8::1]:7"],
            ["shm:one", "shm:other"],
            ["sim:3:0", "sim:4:0"],
            ["node:3", "sim:3:0"],
        ] {
            assert_ne!(host(one), host(other));
        }
    }

    #[test]
    fn a_host_is_forgotten_with_its_last_user() {
        let mut hosts = Hosts::default();
        let (one, other) = (hosts.join(HostName::Node(1)), hosts.join(HostName::Node(2)));
        assert_eq!(hosts.join(HostName::Node(1)), one);
        hosts.share_mut(one).unwrap().places = 5;
        hosts.leave(one);
        assert_eq!(hosts.share_of(&HostName::Node(1)).places, 5);
        hosts.leave(one);
        assert_eq!((hosts.share_of(&HostName::Node(1)).places, hosts.all().count()), (0, 1));
        assert_eq!(hosts.join(HostName::Node(3)), one, "its place is used again");
        assert_ne!(one, other);
    }
}
