//! Envelopes: requests of other processes, and responses to this one's, each with messages of any groups.

use arrayvec::ArrayVec;
use dunlin_net::transport::RX_BURST;
use dunlin_rpc::{CallError, Completion, RequestBurst};

use super::receive::Received;
use super::shared::Shared;
use crate::cluster_id::{ClusterId, bits};
use crate::probe::Stage;
use crate::wire::message::{Addressed, Sender, encode, envelope_len, parse, sender_of};
use crate::wire::{WireError, cluster_of};

/// An envelope of at least this many bytes is given to the log before the next is read.
const LARGE_BYTES: usize = 64 << 10;

/// The result of an envelope.
enum Came {
    /// Nothing to answer.
    Nothing,
    /// Messages of this process, for these groups: the last `groups` entries of the list.
    From { id: u64, groups: usize },
    /// An envelope of another cluster, or any envelope while this process has no number: it is answered at once, in the
    /// name of this cluster, with these messages.
    Foreign(u64, Vec<Addressed>),
}

impl Shared {
    /// Handles requests of other processes. Each is answered when its effect is persistent: at once if that takes no
    /// flush.
    pub fn on_envelopes(&self, burst: &mut RequestBurst<'_>) {
        if self.core(0).failure.is_some() {
            return;
        }
        let mut groups = self.envelope_groups.take();
        // Not collected: that would copy the whole array.
        let mut all = ArrayVec::<Came, RX_BURST>::new();
        (0..burst.len()).for_each(|i| all.push(self.on_envelope(burst.payload(i), &mut groups)));
        self.work_touched();
        if self.core(0).failure.is_some() {
            return;
        }
        let mut rest = &groups[..];
        // Draining it moves no more than is in it.
        for (i, came) in all.drain(..).enumerate() {
            match came {
                Came::Nothing => {}
                Came::Foreign(cluster, messages) => {
                    let sender = Sender { cluster, id: self.config.id };
                    burst.respond_written(i, envelope_len(&messages), |out| encode(out, sender, &messages));
                }
                Came::From { id, groups: count } => {
                    let (own, others) = rest.split_at(count);
                    rest = others;
                    self.answer(burst, i, id, own);
                }
            }
        }
        groups.clear();
        self.envelope_groups.replace(groups);
    }

    /// Answers a request that had messages for these groups, now or when all of its effect is durable.
    fn answer(&self, burst: &mut RequestBurst<'_>, i: usize, from: u64, groups: &[u16]) {
        let is_open = |group: &u16| !self.core(*group).all_is_persisted();
        let needs: Vec<(u16, u64)> =
            groups.iter().filter(|group| is_open(group)).map(|group| (*group, self.core(*group).last_ready)).collect();
        let mut links = self.common.links.borrow_mut();
        if !needs.is_empty() {
            // If the endpoint holds too many deferred replies, the sender gets an error, and resends what is not
            // acknowledged.
            if let Ok(reply) = burst.defer_reply(i) {
                links.await_persisted(from, needs, reply);
            }
            return;
        }
        self.begin(Stage::Send);
        let sender = self.sender();
        links.respond(from, |messages| {
            burst.respond_written(i, envelope_len(messages), |out| encode(out, sender, messages));
        });
        self.end(Stage::Send);
    }

    /// Takes the messages of an envelope, and adds their groups to `groups`.
    fn on_envelope(&self, bytes: &[u8], groups: &mut Vec<u16>) -> Came {
        let Some(ours) = self.cluster() else { return self.on_envelope_while_waiting(bytes) };
        match self.parse(bytes, ours.bits()) {
            Ok((from, messages)) => {
                self.heard_of(from);
                let before = groups.len();
                let mut is_unread = false;
                for message in messages {
                    let is_here = usize::from(message.group) < self.cores.len();
                    if is_here && groups[before..].last() != Some(&message.group) {
                        groups.push(message.group);
                    }
                    is_unread |= self.deliver(from, ours, message) == Some(Received::Unread);
                }
                if bytes.len() >= LARGE_BYTES {
                    // The log gets these before the next envelope is read: so its limits are exceeded by at most this
                    // envelope and small ones.
                    self.work_touched();
                }
                if is_unread {
                    groups.truncate(before);
                    return Came::Nothing;
                }
                Came::From { id: from, groups: groups.len() - before }
            }
            Err(WireError::OtherCluster { theirs, .. }) => {
                self.visit(0, |core| core.note_foreign(sender_of(bytes), theirs));
                Came::Foreign(ours.bits(), Vec::new())
            }
            Err(error) => {
                tracing::debug!(id = self.config.id, %error, "a replica sent what is none of its messages");
                self.visit(0, |core| core.counters.bad += 1);
                Came::Nothing
            }
        }
    }

    /// A message came from a process. If the process was missed, groups led here may be resting without it, or may have
    /// elected leaders that it never heard of.
    fn heard_of(&self, id: u64) {
        let is_back = self.common.links.borrow_mut().heard_of(id);
        if is_back {
            self.cores.iter().for_each(|core| core.borrow_mut().wake_for(id));
        }
    }

    /// Gives a message to its group. A group that has not begun answers that it needs a snapshot.
    fn deliver(&self, from: u64, ours: ClusterId, message: Addressed) -> Option<Received> {
        let received = self.visit(message.group, |core| {
            if core.cluster == Some(ours) {
                return core.receive_request(from, message);
            }
            if let Some(answer) = core.answer_while_waiting(&message.message, ours) {
                self.common.links.borrow_mut().route(answer);
            }
            Received::Read
        });
        if received.is_none() {
            self.visit(0, |core| core.counters.bad += 1);
        }
        received
    }

    fn parse(&self, bytes: &[u8], cluster: u64) -> Result<(u64, Vec<Addressed>), WireError> {
        self.begin(Stage::Parse);
        let parsed = parse(bytes, cluster);
        self.end(Stage::Parse);
        parsed
    }

    /// Takes an envelope while no group knows the cluster's number.
    fn on_envelope_while_waiting(&self, bytes: &[u8]) -> Came {
        let Some(theirs) = cluster_of(bytes).ok().and_then(ClusterId::from_bits) else {
            self.visit(0, |core| core.counters.bad += 1);
            return Came::Nothing;
        };
        if !self.core(0).waits_for(theirs) {
            return Came::Foreign(bits(self.config.cluster), Vec::new());
        }
        let Ok((_, messages)) = parse(bytes, theirs.bits()) else {
            self.visit(0, |core| core.counters.bad += 1);
            return Came::Foreign(bits(self.config.cluster), Vec::new());
        };
        let answer = |addressed: &Addressed| {
            let core = self.cores.get(usize::from(addressed.group))?.borrow();
            core.answer_while_waiting(&addressed.message, theirs)
        };
        Came::Foreign(theirs.bits(), messages.iter().filter_map(answer).collect())
    }

    /// A request of this process was answered, or failed.
    pub fn on_answer(&self, completion: Completion) {
        let Some((id, sent)) = self.common.links.borrow_mut().on_answer(completion.tag) else { return };
        let report = || {
            for group in sent.led() {
                self.visit(group, |core| core.raft.report_unreachable(id));
            }
        };
        let response = match completion.result {
            Ok(response) => response,
            Err(error) => {
                if error == CallError::DeadlineExceeded {
                    self.common.links.borrow_mut().note_late(id, &sent);
                }
                return report();
            }
        };
        self.common.links.borrow_mut().note_in_time(id, &sent);
        match self.parse(&response, bits(self.cluster())) {
            // Another process is at that address: its answer says nothing about this one.
            Ok((from, _)) if from != id => {
                self.visit(0, |core| core.counters.bad += 1);
                self.common.links.borrow_mut().not_there(id);
                report();
            }
            Ok((_, messages)) => {
                self.heard_of(id);
                for message in messages {
                    self.visit(message.group, |core| {
                        core.note_heard(id, &sent, &message);
                        core.receive(id, message);
                    });
                }
            }
            Err(WireError::OtherCluster { theirs, .. }) => {
                // A process without a number has not begun yet.
                if theirs != 0 {
                    self.visit(0, |core| core.note_foreign(Some(id), theirs));
                }
                self.common.links.borrow_mut().not_there(id);
                report();
            }
            Err(_) => _ = self.visit(0, |core| core.counters.bad += 1),
        }
        self.common.links.borrow_mut().reuse(sent);
    }
}
