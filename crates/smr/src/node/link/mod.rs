//! Links to other processes, which all groups share.
//!
//! Messages to a process, of any group, wait in a queue. They leave in the response to a request of that process, if
//! one waits for its response. Otherwise they leave in requests of this process, all waiting messages together, as long
//! as not too many requests are unanswered. So an append and its acknowledgement are one call. While a request of
//! several packets is in flight, no other is sent: a smaller one would overtake it, and the library would take that for
//! loss.

mod pace;
mod peer;
#[cfg(test)]
mod tests;

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::{ConnectError, ContinuationId, DeferredReply, Session};

pub(super) use self::peer::{Link, Sent};

use self::peer::{Awaited, RESPONSE_BYTES_MAX, TakeLast, close};
use super::transfer::Outgoing;
use crate::wire::members::Members;
use crate::wire::message::{Addressed, Sender};

/// Requests of one replica that may wait for their response.
const AWAITED_MAX: usize = 64;
/// Replicas known only from their messages.
const STRANGERS_MAX: usize = 16;
/// Lists of groups that are kept for reuse.
const SPARE_MAX: usize = 64;

/// Where an outgoing snapshot was queued.
pub(super) enum Queued {
    /// For a process without a sending task: that is to begin.
    First,
    /// Behind other snapshots.
    Behind,
    /// In place of an earlier one of its group.
    InsteadOf(Outgoing),
    /// Nowhere: this process has stopped.
    Nowhere,
}

/// Parameters of sending.
#[derive(Clone, Copy)]
pub(super) struct Sending {
    pub sender: Sender,
    pub continuation: ContinuationId,
    /// The timeout of a request.
    pub timeout: Duration,
    pub now: u64,
}

/// Counters of what was sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Traffic {
    pub envelopes: u64,
    pub messages: u64,
}

/// All links.
pub(super) struct Links {
    own: u64,
    links: Vec<Link>,
    next_number: u32,
    clock_now: u64,
    is_stopped: bool,
    /// Groups of this process that rest.
    pub resting: usize,
    pub traffic: Traffic,
    spare: Vec<Vec<(u16, u64)>>,
}

impl Links {
    pub fn new(own: u64) -> Links {
        Links {
            own,
            links: Vec::new(),
            next_number: 0,
            clock_now: 0,
            is_stopped: false,
            resting: 0,
            traffic: Traffic::default(),
            spare: Vec::new(),
        }
    }

    pub fn get(&self, id: u64) -> Option<&Link> {
        self.links.iter().find(|link| link.id == id)
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.id == id)
    }

    /// Sets the time of what is sent from now on; sending may be later by less than a tick.
    pub fn set_now(&mut self, now: u64) {
        self.clock_now = now;
    }

    /// Adds a link to each of these members, and removes links to processes that are members of no group. If the group
    /// has moved a process, its new address is used from now on. If a group has not heard of a move yet, its old
    /// address changes nothing.
    pub fn follow(&mut self, group: u16, members: &Members) {
        for link in self.links.iter_mut().filter(|link| !members.contains_key(&link.id)) {
            link.groups.remove(&group);
        }
        self.keep_links(|link| link.addr.is_none() || !link.groups.is_empty() || link.sends_snapshots);
        let own = self.own;
        for (id, address) in members.iter().filter(|(id, _)| **id != own) {
            let addr: Option<Addr> = address.parse().ok();
            let link = self.find_or_add(*id);
            let is_news = match link.groups.insert(group, addr.clone()) {
                Some(before) => before != addr,
                None => link.addr.is_none(),
            };
            if is_news {
                link.go_to(addr);
            }
        }
    }

    /// Removes all other links.
    fn keep_links(&mut self, is_kept: impl Fn(&Link) -> bool) {
        self.links.extract_if(.., |link| !is_kept(link)).for_each(|mut link| close(link.session.take()));
    }

    /// Returns the address of a process.
    pub fn addr(&self, id: u64) -> Option<&Addr> {
        self.get(id)?.addr.as_ref()
    }

    /// A process was not found at its address.
    pub fn not_there(&mut self, id: u64) {
        if let Some(link) = self.get_mut(id) {
            link.look_elsewhere();
        }
    }

    fn find_or_add(&mut self, id: u64) -> &mut Link {
        let place = self.links.iter().position(|link| link.id == id).unwrap_or_else(|| {
            let strangers = self.links.iter().filter(|link| link.addr.is_none()).count();
            if strangers >= STRANGERS_MAX {
                self.keep_links(|link| link.addr.is_some() || link.sends_snapshots);
            }
            let number = self.next_number;
            self.next_number += 1;
            self.links.push(Link::new(id, number));
            self.links.len() - 1
        });
        &mut self.links[place]
    }

    /// Queues a message.
    pub fn route(&mut self, addressed: Addressed) {
        if !self.is_stopped {
            self.find_or_add(addressed.message.to).push(addressed);
        }
    }

    /// Queues a snapshot.
    pub fn add_snapshot(&mut self, outgoing: Outgoing) -> Queued {
        if self.is_stopped {
            return Queued::Nowhere;
        }
        let link = self.find_or_add(outgoing.to());
        if let Some(earlier) = link.snapshots.iter_mut().find(|waiting| waiting.group() == outgoing.group()) {
            return Queued::InsteadOf(std::mem::replace(earlier, outgoing));
        }
        link.snapshots.push_back(outgoing);
        if std::mem::replace(&mut link.sends_snapshots, true) { Queued::Behind } else { Queued::First }
    }

    /// Returns the next snapshot for a process. If there is none, the sending task is done.
    pub fn next_snapshot(&mut self, to: u64) -> Option<Outgoing> {
        let link = self.get_mut(to)?;
        let next = link.snapshots.pop_front();
        link.sends_snapshots = next.is_some();
        if next.is_none() && link.addr.is_some() && link.groups.is_empty() {
            // The process is no longer a member.
            self.keep_links(|link| link.id != to);
        }
        next
    }

    /// Registers a request of a process, to be answered when all of this is persistent, each in its group.
    pub fn await_persisted(&mut self, from: u64, needs: Vec<(u16, u64)>, reply: DeferredReply) {
        let link = self.find_or_add(from);
        // The oldest is dropped; its sender learns that the request failed.
        if link.awaited.len() >= AWAITED_MAX {
            link.awaited.pop_front();
        }
        link.awaited.push_back(Awaited { needs, reply });
    }

    /// Lends the messages for a process that fit in a response, which `send` sends, and removes them.
    pub fn respond(&mut self, id: u64, send: impl FnOnce(&[Addressed])) {
        let Links { links, traffic, .. } = self;
        let send = |messages: &[Addressed]| {
            traffic.count(messages);
            send(messages);
        };
        match links.iter_mut().find(|link| link.id == id) {
            Some(link) => link.take(RESPONSE_BYTES_MAX, TakeLast::Leave, send),
            None => send(&[]),
        }
    }

    /// Returns the time of the last tick, or of the work since.
    pub fn now(&self) -> u64 {
        self.clock_now
    }

    /// Answers requests whose effect is persistent; `persisted` says how far each group is.
    pub fn answer(&mut self, sender: Sender, persisted: impl Fn(u16) -> u64) {
        for link in &mut self.links {
            link.answer(sender, &persisted, &mut self.traffic);
        }
    }

    /// Sends the waiting messages; returns the processes that cannot be reached.
    pub fn send(&mut self, sending: Sending) -> Vec<u64> {
        let mut unreachable = Vec::new();
        for link in &mut self.links {
            while link.may_send() {
                if link.send(sending, &mut self.spare, &mut self.traffic).is_err() {
                    unreachable.push(link.id);
                    break;
                }
            }
        }
        unreachable
    }

    /// A message came from a process; returns whether the process was missed.
    pub fn heard_of(&mut self, id: u64) -> bool {
        let Some(link) = self.get_mut(id) else { return false };
        link.silent = 0;
        std::mem::take(&mut link.is_missed)
    }

    /// Whether a process is missed: nothing came from it for an election timeout, or since its session ended.
    pub fn is_missed(&self, id: u64) -> bool {
        self.get(id).is_none_or(|link| link.is_missed)
    }

    /// A tick has passed. While groups rest, each process hears from this one once per `heartbeat`. Returns the
    /// processes that have just become missed, each with the ticks of silence: `silence`, or fewer if its session has
    /// ended. Such a process may have restarted, and then does not know what it led; or it is cut off, and relies for
    /// `silence` ticks on promises made to it.
    pub fn tick(&mut self, heartbeat: u32, silence: u32) -> Vec<(u64, u32)> {
        let rests = self.resting > 0;
        let mut missed = Vec::new();
        for link in self.links.iter_mut().filter(|link| link.addr.is_some()) {
            link.note_end();
            link.pace.tick(silence, link.large_in_flight);
            (link.silent, link.quiet) = (link.silent.saturating_add(1), link.quiet.saturating_add(1));
            link.wants_beat = rests && link.quiet >= heartbeat;
            let is_gone = std::mem::take(&mut link.is_lost) || link.silent >= silence;
            if is_gone && !std::mem::replace(&mut link.is_missed, true) {
                missed.push((link.id, link.silent));
            }
        }
        missed
    }

    /// Returns the ticks until a link has work to do, if no message arrives: a heartbeat of this process, or a silence.
    pub fn ticks_to_sleep(&self, heartbeat: u32, silence: u32) -> u32 {
        let rests = self.resting > 0;
        let of = |link: &Link| match &link.session {
            None if !link.is_connecting => 1,
            _ => {
                let until_beat = if rests { heartbeat.saturating_sub(link.quiet) } else { u32::MAX };
                let until_silence = silence.checked_sub(link.silent).filter(|left| *left > 0).unwrap_or(u32::MAX);
                until_beat.min(until_silence).max(1)
            }
        };
        self.links.iter().filter(|link| link.addr.is_some()).map(of).min().unwrap_or(u32::MAX)
    }

    /// Returns the links that lack a session and should have one.
    pub fn unconnected(&mut self) -> Vec<(u32, Addr)> {
        let mut found = Vec::new();
        for link in &mut self.links {
            link.note_end();
            if let (Some(addr), None, false) = (&link.addr, &link.session, link.is_connecting) {
                link.is_connecting = true;
                found.push((link.number, addr.clone()));
            }
        }
        found
    }

    /// Opening a session to this address has ended. The session is dropped if its process has another address by now,
    /// or has a session already.
    pub fn on_connected(&mut self, number: u32, addr: &Addr, result: Result<Session, ConnectError>) {
        let waits = |link: &Link| link.number == number && link.addr.as_ref() == Some(addr) && link.session.is_none();
        let Some(link) = self.links.iter_mut().find(|link| waits(link)) else { return close(result.ok()) };
        link.is_connecting = false;
        match result {
            Ok(session) => link.session = Some(session),
            Err(_) => {
                // The queued messages are stale; the library will send them again.
                link.clear();
                link.look_elsewhere();
            }
        }
    }

    /// Returns the request that an answer belongs to, and its receiver.
    pub fn on_answer(&mut self, tag: u64) -> Option<(u64, Sent)> {
        let link = self.links.iter_mut().find(|link| u64::from(link.number) == tag >> 8)?;
        let sent = link.sent.get_mut(tag as usize & 0xff)?.take()?;
        link.large_in_flight &= !sent.is_large();
        Some((link.id, sent))
    }

    /// A request was answered in time.
    pub fn note_in_time(&mut self, id: u64, sent: &Sent) {
        if let Some(link) = self.get_mut(id).filter(|_| sent.is_large()) {
            link.pace.note_in_time(sent.bytes);
        }
    }

    /// A request was not answered in time. Stale messages behind it are not sent.
    pub fn note_late(&mut self, id: u64, sent: &Sent) {
        if let Some(link) = self.get_mut(id).filter(|_| sent.is_large()) {
            link.pace.slow_down(sent.bytes);
            link.drop_old(sent);
        }
    }

    /// Returns the session to a replica, for data that is sent outside of messages.
    pub fn session(&self, id: u64) -> Option<Session> {
        self.get(id)?.session.clone()
    }

    /// Stops sending and answering.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        for link in &mut self.links {
            link.clear();
            link.snapshots.clear();
            link.awaited.clear();
        }
    }

    /// Reuses the list of an answered request.
    pub fn reuse(&mut self, mut sent: Sent) {
        if self.spare.len() < SPARE_MAX {
            sent.leads.clear();
            self.spare.push(sent.leads);
        }
    }
}

impl Traffic {
    fn count(&mut self, messages: &[Addressed]) {
        self.envelopes += 1;
        self.messages += messages.len() as u64;
    }
}
