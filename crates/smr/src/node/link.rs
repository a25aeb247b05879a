//! The way to other processes, which all groups share.
//!
//! Messages to a process, of whichever group, wait in a queue. They leave in the response to a request of that process, if one waits to be answered, and else in requests
//! of our own, all that wait together, as long as not too many are unanswered. So an append and its answer are one call. A request of
//! more than one packet goes alone: smaller ones would overtake it, and the library would take that for a loss.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::{CallOptions, ConnectError, ContinuationId, DeferredReply, MsgBuf, Session};
use raft::eraftpb::MessageType;

use super::transfer::Outgoing;
use crate::wire::PEER;
use crate::wire::members::Members;
use crate::wire::message::{Addressed, ENVELOPE_BYTES, MESSAGES_MAX, Sender, encode, encoded_len, envelope_len};

/// Messages that wait for one replica. Further ones are dropped, as a network drops them.
const QUEUE_MAX: usize = 4096;
/// Bytes of them.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Unanswered requests to one replica: the slots of a session.
const CALLS_MAX: usize = 8;
/// Bytes of messages that leave together, unless a single one is longer.
const ENVELOPE_BYTES_MAX: usize = 512 << 10;
/// Messages that leave in a response, in bytes; longer ones leave in requests, whose losses are noticed.
const RESPONSE_BYTES_MAX: usize = 64 << 10;
/// A request up to so long goes beside others: one packet over any transport.
const SMALL_BYTES_MAX: usize = 1024;
/// An answer to a longer request is awaited at most so many times as long as one to a short one.
const PATIENCE_MAX: u32 = 64;
/// Requests of one replica that wait to be answered.
const AWAITED_MAX: usize = 64;
/// Replicas that are known by their messages only.
const STRANGERS_MAX: usize = 16;

/// Lists of groups that are kept for further requests.
const SPARE_MAX: usize = 64;

/// A request that is unanswered.
#[derive(Debug)]
pub(super) struct Sent {
    /// When it was handed over at the earliest, by the replica's clock.
    pub at: u64,
    /// The groups as whose leader it spoke, and of which term, in the order of groups.
    leads: Vec<(u16, u64)>,
    /// How long it is.
    bytes: usize,
}

impl Sent {
    fn is_large(&self) -> bool {
        self.bytes > SMALL_BYTES_MAX
    }

    /// As leader of which term it spoke to a group; 0 if as none.
    pub fn leader_of(&self, group: u16) -> u64 {
        let place = self.leads.binary_search_by_key(&group, |(led, _)| *led);
        place.map_or(0, |place| self.leads[place].1)
    }

    /// The groups as whose leader it spoke.
    pub fn led(&self) -> impl Iterator<Item = u16> {
        self.leads.iter().map(|(group, _)| *group)
    }
}

/// A request of another process that is not answered yet.
struct Awaited {
    /// Groups, each with what must be durable before.
    needs: Vec<(u16, u64)>,
    reply: DeferredReply,
}

/// What is known of another process.
pub(super) struct Link {
    /// The id of its replicas.
    pub id: u64,
    /// Groups that it has a replica of.
    groups: BTreeSet<u16>,
    /// Unique: answers to calls of a link that is gone find none.
    number: u32,
    addr: Option<Addr>,
    session: Option<Session>,
    is_connecting: bool,
    /// Its session has ended since the last tick.
    is_lost: bool,
    queue: VecDeque<Addressed>,
    queue_bytes: usize,
    /// Snapshots that wait: one of each group, which leads it.
    snapshots: VecDeque<Outgoing>,
    /// A task sends them, one after the other.
    sends_snapshots: bool,
    sent: [Option<Sent>; CALLS_MAX],
    large_in_flight: bool,
    pace: Pace,
    /// Requests of that process.
    awaited: VecDeque<Awaited>,
    /// Ticks since anything came from it, and since anything was sent to it.
    silent: u32,
    quiet: u32,
    /// It is to hear of this process, whatever there is to say.
    wants_beat: bool,
}

/// What a path carries in time. After a request of several packets that was not answered in time, the next is shorter, and its answer awaited
/// longer: else a replica that has much to catch up with over a slow path would be sent the same for ever.
#[derive(Clone, Copy)]
struct Pace {
    /// Bytes of messages that leave together, unless a single one is longer.
    bytes_max: usize,
    /// How many times the usual time an answer may take.
    patience: u32,
    /// Bytes of the last request whose answer came too late; 0 if there was none.
    late_bytes: usize,
}

impl Pace {
    const FULL: Pace = Pace { bytes_max: ENVELOPE_BYTES_MAX, patience: 1, late_bytes: 0 };

    /// A request of so many bytes was not answered in time.
    fn slow_down(&mut self, bytes: usize) {
        self.bytes_max = (self.bytes_max / 2).max(SMALL_BYTES_MAX);
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
        self.late_bytes = bytes;
    }

    /// A request of so many bytes was. That of a much shorter one says nothing of longer ones.
    fn speed_up(&mut self, bytes: usize) {
        if bytes >= self.late_bytes / 2 {
            self.bytes_max = (self.bytes_max * 2).min(ENVELOPE_BYTES_MAX);
            self.patience = (self.patience / 2).max(1);
        }
    }
}

/// Where a snapshot went that is to be sent.
pub(super) enum Queued {
    /// To a process for which nobody sends any: that is to begin.
    First,
    /// Behind others.
    Behind,
    /// In the place of an earlier one of its group.
    InsteadOf(Outgoing),
    /// This process has stopped.
    Nowhere,
}

/// With what is sent.
#[derive(Clone, Copy)]
pub(super) struct Sending {
    pub sender: Sender,
    pub continuation: ContinuationId,
    /// How long an answer may take.
    pub timeout: Duration,
    pub now: u64,
}

/// What was counted of what was sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Traffic {
    pub envelopes: u64,
    pub messages: u64,
}

/// All of them.
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

    /// What is sent from now on is sent at this time, or later by less than a tick.
    pub fn set_now(&mut self, now: u64) {
        self.clock_now = now;
    }

    /// Has a link to each of these, where it is reached now, and to none that is a member of no group any more.
    pub fn follow(&mut self, group: u16, members: &Members) {
        for link in self.links.iter_mut().filter(|link| !members.contains_key(&link.id)) {
            link.groups.remove(&group);
        }
        self.links.retain(|link| link.addr.is_none() || !link.groups.is_empty() || link.sends_snapshots);
        let own = self.own;
        for (id, address) in members.iter().filter(|(id, _)| **id != own) {
            let addr: Option<Addr> = address.parse().ok();
            let link = self.find_or_add(*id);
            link.groups.insert(group);
            if link.addr != addr {
                link.addr = addr;
                // It ends at once; nobody need wait until the other side knows.
                drop(link.session.take().map(|session| session.close()));
            }
        }
    }

    fn find_or_add(&mut self, id: u64) -> &mut Link {
        let place = self.links.iter().position(|link| link.id == id).unwrap_or_else(|| {
            let strangers = self.links.iter().filter(|link| link.addr.is_none()).count();
            if strangers >= STRANGERS_MAX {
                self.links.retain(|link| link.addr.is_some() || link.sends_snapshots);
            }
            let number = self.next_number;
            self.next_number += 1;
            self.links.push(Link::new(id, number));
            self.links.len() - 1
        });
        &mut self.links[place]
    }

    /// A message is to be sent.
    pub fn route(&mut self, addressed: Addressed) {
        if !self.is_stopped {
            self.find_or_add(addressed.message.to).push(addressed);
        }
    }

    /// A snapshot is to be sent.
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

    /// The next snapshot for a process. If there is none, whoever asked is done.
    pub fn next_snapshot(&mut self, to: u64) -> Option<Outgoing> {
        let link = self.get_mut(to)?;
        let next = link.snapshots.pop_front();
        link.sends_snapshots = next.is_some();
        if next.is_none() && link.addr.is_some() && link.groups.is_empty() {
            // It is no member any more.
            self.links.retain(|link| link.id != to);
        }
        next
    }

    /// A request of a process is to be answered when all of this is done for good, each in its group.
    pub fn await_persisted(&mut self, from: u64, needs: Vec<(u16, u64)>, reply: DeferredReply) {
        let link = self.find_or_add(from);
        // The oldest is dropped, which tells its sender that nothing came of it.
        if link.awaited.len() >= AWAITED_MAX {
            link.awaited.pop_front();
        }
        link.awaited.push_back(Awaited { needs, reply });
    }

    /// Messages for a process that fit in a response to it, which is sent.
    pub fn for_response(&mut self, id: u64) -> Vec<Addressed> {
        let messages = self.get_mut(id).map_or_else(Vec::new, |link| link.take(RESPONSE_BYTES_MAX, TakeLast::Leave));
        self.traffic.count(&messages);
        messages
    }

    /// The time of the last tick or of the work since.
    pub fn now(&self) -> u64 {
        self.clock_now
    }

    /// Answers requests whose effect is there for good, as `persisted` says of each group.
    pub fn answer(&mut self, sender: Sender, persisted: impl Fn(u16) -> u64) {
        for link in &mut self.links {
            link.answer(sender, &persisted, &mut self.traffic);
        }
    }

    /// Sends what waits; gives those who cannot be reached.
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

    /// Something came from a process; says whether that is the first for so many ticks, or more.
    pub fn heard_of(&mut self, id: u64, silence: u32) -> bool {
        self.get_mut(id).is_some_and(|link| std::mem::take(&mut link.silent) >= silence)
    }

    /// Whether nothing came from a process for so many ticks.
    pub fn is_silent(&self, id: u64, ticks: u32) -> bool {
        self.get(id).is_none_or(|link| link.silent >= ticks)
    }

    /// A tick has passed. While groups rest, each process hears of this one once in so many ticks. Gives those from which nothing came for
    /// `silence` ticks as of now. One whose session has ended counts as silent for as long: it may have been restarted, and then does not know
    /// what it led.
    pub fn tick(&mut self, heartbeat: u32, silence: u32) -> Vec<u64> {
        let rests = self.resting > 0;
        let mut silent = Vec::new();
        for link in self.links.iter_mut().filter(|link| link.addr.is_some()) {
            link.note_end();
            if std::mem::take(&mut link.is_lost) && link.silent < silence {
                link.silent = silence - 1;
            }
            (link.silent, link.quiet) = (link.silent.saturating_add(1), link.quiet.saturating_add(1));
            link.wants_beat = rests && link.quiet >= heartbeat;
            if link.silent == silence {
                silent.push(link.id);
            }
        }
        silent
    }

    /// Ticks until one of them has something to do, if nothing comes: a sign of life of this process, or a silence.
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

    /// Links without a session that should have one.
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

    /// A session was opened, or was not.
    pub fn on_connected(&mut self, number: u32, result: Result<Session, ConnectError>) {
        let Some(link) = self.links.iter_mut().find(|link| link.number == number) else { return };
        link.is_connecting = false;
        match result {
            Ok(session) => link.session = Some(session),
            // What waited is old by now; the library will say it again.
            Err(_) => link.clear(),
        }
    }

    /// The request that an answer is to, and whose it was.
    pub fn on_answer(&mut self, tag: u64) -> Option<(u64, Sent)> {
        let link = self.links.iter_mut().find(|link| u64::from(link.number) == tag >> 8)?;
        let sent = link.sent.get_mut(tag as usize & 0xff)?.take()?;
        link.large_in_flight &= !sent.is_large();
        Some((link.id, sent))
    }

    /// A request was answered in time.
    pub fn note_in_time(&mut self, id: u64, sent: &Sent) {
        if let Some(link) = self.get_mut(id).filter(|_| sent.is_large()) {
            link.pace.speed_up(sent.bytes);
        }
    }

    /// A request was not answered in time. What waits behind it and is old by now is not sent.
    pub fn note_late(&mut self, id: u64, sent: &Sent) {
        if let Some(link) = self.get_mut(id).filter(|_| sent.is_large()) {
            link.pace.slow_down(sent.bytes);
            link.drop_old(sent);
        }
    }

    /// The session to a replica, for what is sent beside messages.
    pub fn session(&self, id: u64) -> Option<Session> {
        self.get(id)?.session.clone()
    }

    /// Nothing is sent or answered any more.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        for link in &mut self.links {
            link.clear();
            link.snapshots.clear();
            link.awaited.clear();
        }
    }

    /// The list of a request that was answered is used again.
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

/// What becomes of a first message that is too long.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TakeLast {
    /// It is taken alone.
    Take,
    /// It stays.
    Leave,
}

impl Link {
    fn new(id: u64, number: u32) -> Link {
        Link {
            id,
            number,
            addr: None,
            session: None,
            is_connecting: false,
            is_lost: false,
            queue: VecDeque::new(),
            queue_bytes: 0,
            snapshots: VecDeque::new(),
            sends_snapshots: false,
            groups: BTreeSet::new(),
            sent: [const { None }; CALLS_MAX],
            large_in_flight: false,
            pace: Pace::FULL,
            awaited: VecDeque::new(),
            silent: 0,
            quiet: 0,
            wants_beat: false,
        }
    }

    fn push(&mut self, addressed: Addressed) {
        let len = encoded_len(&addressed.message);
        if self.queue.len() >= QUEUE_MAX || self.queue_bytes + len > QUEUE_BYTES_MAX {
            return;
        }
        self.queue_bytes += len;
        self.queue.push_back(addressed);
    }

    /// Forgets a session that has ended.
    fn note_end(&mut self) {
        if self.session.take_if(|session| !session.is_open()).is_some() {
            self.is_lost = true;
        }
    }

    fn clear(&mut self) {
        self.queue.clear();
        self.queue_bytes = 0;
    }

    /// Of the groups that a request led, drops the appends, since they begin anew where their follower is; and the
    /// heartbeats but the last, and the last that confirms reads, which confirms those before it, too. The answer to each
    /// would begin another append.
    fn drop_old(&mut self, sent: &Sent) {
        let mut later = BTreeSet::new();
        let mut stays = |Addressed { group, message, asks_to_rest }: &Addressed| match message.get_msg_type() {
            _ if sent.leader_of(*group) == 0 || *asks_to_rest => true,
            MessageType::MsgAppend => false,
            MessageType::MsgHeartbeat => later.insert((*group, message.context.is_empty())),
            _ => true,
        };
        let waiting = std::mem::take(&mut self.queue);
        waiting
            .into_iter()
            .rev()
            .filter(|addressed| stays(addressed))
            .for_each(|addressed| self.queue.push_front(addressed));
        self.queue_bytes = self.queue.iter().map(|addressed| encoded_len(&addressed.message)).sum();
    }

    /// The first messages of the queue, as many as fit.
    fn take(&mut self, bytes_max: usize, last: TakeLast) -> Vec<Addressed> {
        let mut bytes = ENVELOPE_BYTES;
        let mut taken = Vec::new();
        while let Some(addressed) = self.queue.front()
            && taken.len() < MESSAGES_MAX
        {
            let len = encoded_len(&addressed.message);
            if bytes + len > bytes_max && !(taken.is_empty() && last == TakeLast::Take) {
                break;
            }
            bytes += len;
            self.queue_bytes -= len;
            taken.extend(self.queue.pop_front());
        }
        taken
    }

    /// Answers requests of that process whose effect is there for good: the first with all that is to be said.
    fn answer(&mut self, sender: Sender, persisted: &impl Fn(u16) -> u64, traffic: &mut Traffic) {
        let mut place = 0;
        while let Some(awaited) = self.awaited.get_mut(place) {
            awaited.needs.retain(|(group, ready)| *ready > persisted(*group));
            if !awaited.needs.is_empty() {
                place += 1;
                continue;
            }
            let Some(Awaited { reply, .. }) = self.awaited.remove(place) else { break };
            let messages = self.take(RESPONSE_BYTES_MAX, TakeLast::Leave);
            // Without a buffer the sender learns that nothing came, and asks again.
            if let Some(envelope) = envelope(&messages, sender, traffic) {
                // It may have given up, or be gone.
                let _ = reply.enqueue_response(envelope);
            }
        }
    }

    fn may_send(&self) -> bool {
        // Of a session that has ended, the next attempt says so.
        let has_room = |session: &Session| session.room() > 0 || !session.is_open();
        (self.wants_beat || !self.queue.is_empty())
            && !self.large_in_flight
            && self.sent.iter().any(Option::is_none)
            && self.session.as_ref().is_some_and(has_room)
    }

    fn send(&mut self, sending: Sending, spare: &mut Vec<Vec<(u16, u64)>>, traffic: &mut Traffic) -> Result<(), ()> {
        let Sending { sender, continuation, timeout, now } = sending;
        let messages = self.take(self.pace.bytes_max, TakeLast::Take);
        let (Some(session), Some(slot)) = (&self.session, self.sent.iter().position(Option::is_none)) else {
            return Err(());
        };
        (self.wants_beat, self.quiet) = (false, 0);
        let envelope = envelope(&messages, sender, traffic).ok_or(())?;
        let bytes = envelope.len();
        let mut leads = spare.pop().unwrap_or_default();
        leads.extend(messages.iter().filter_map(led));
        leads.sort_unstable();
        // Of two terms the first: what it says of followers counts for no later one.
        leads.dedup_by_key(|(group, _)| *group);
        let tag = u64::from(self.number) << 8 | slot as u64;
        let sent = Sent { at: now, leads, bytes };
        let patience = if sent.is_large() { self.pace.patience } else { 1 };
        let options = CallOptions::timeout(timeout * patience);
        session.enqueue_request_with(PEER, envelope, continuation, tag, options).map_err(|_| ())?;
        self.large_in_flight |= sent.is_large();
        self.sent[slot] = Some(sent);
        Ok(())
    }
}

/// The group as whose leader a message speaks, and of which term.
fn led(Addressed { group, message, .. }: &Addressed) -> Option<(u16, u64)> {
    let is_leaders = matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgHeartbeat);
    is_leaders.then_some((*group, message.term))
}

/// Messages in a buffer; `None` if there is none.
fn envelope(messages: &[Addressed], sender: Sender, traffic: &mut Traffic) -> Option<MsgBuf> {
    let buffer = MsgBuf::written(envelope_len(messages), |out| encode(out, sender, messages)).ok()?;
    traffic.count(messages);
    Some(buffer)
}
