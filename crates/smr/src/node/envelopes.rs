//! Envelopes: requests of other processes, and answers to ours, each with messages of any groups.

use arrayvec::ArrayVec;
use dunlin_net::transport::RX_BURST;
use dunlin_rpc::{CallError, Completion, RequestBurst};

use super::host::Shared;
use super::receive::Received;
use crate::cluster_id::{ClusterId, bits};
use crate::log::LogStore;
use crate::machine::StateMachine;
use crate::probe::Stage;
use crate::wire::message::{Addressed, Sender, encode, envelope_len, parse, sender_of};
use crate::wire::{WireError, cluster_of};

/// An envelope of so many bytes is given to the log before the next is looked at.
const LARGE_BYTES: usize = 64 << 10;

/// What came of an envelope.
enum Came {
    /// Nothing that is answered.
    Nothing,
    /// Messages of this process, for these groups: as many as stand in the list of all that came.
    From { id: u64, groups: usize },
    /// One of another cluster, or of any while this process has no number: it is answered at once, in the name of this cluster, with these messages.
    Foreign(u64, Vec<Addressed>),
}

impl<M: StateMachine + 'static, L: LogStore + 'static> Shared<M, L> {
    /// Requests of other processes. Each is answered when what it brought has had its effect for good: at once, if that takes no flush.
    pub fn on_envelopes(&self, burst: &mut RequestBurst<'_>) {
        if self.core(0).failure.is_some() {
            return;
        }
        // The groups of all envelopes, one after the other.
        let mut groups = Vec::new();
        let take = |i| self.on_envelope(burst.payload(i), &mut groups);
        let all: ArrayVec<Came, RX_BURST> = (0..burst.len()).map(take).collect();
        self.work_touched();
        if self.core(0).failure.is_some() {
            return;
        }
        let mut groups = &groups[..];
        for (i, came) in all.into_iter().enumerate() {
            match came {
                Came::Nothing => {}
                Came::Foreign(cluster, messages) => {
                    let sender = Sender { cluster, id: self.config.id };
                    burst.respond_written(i, envelope_len(&messages), |out| encode(out, sender, &messages));
                }
                Came::From { id, groups: count } => {
                    let (own, others) = groups.split_at(count);
                    groups = others;
                    self.answer(burst, i, id, own);
                }
            }
        }
    }

    /// Answers a request that brought something to these groups, now or when all of it is durable.
    fn answer(&self, burst: &mut RequestBurst<'_>, i: usize, from: u64, groups: &[u16]) {
        let is_open = |group: &u16| !self.core(*group).all_is_persisted();
        let needs: Vec<(u16, u64)> =
            groups.iter().filter(|group| is_open(group)).map(|group| (*group, self.core(*group).last_ready)).collect();
        let mut links = self.common.links.borrow_mut();
        if !needs.is_empty() {
            // If the endpoint holds too many, the sender gets an error, and sends anew what is not acknowledged.
            if let Ok(reply) = burst.defer_reply(i) {
                links.await_persisted(from, needs, reply);
            }
            return;
        }
        self.begin(Stage::Send);
        let messages = links.for_response(from);
        let sender = self.sender();
        burst.respond_written(i, envelope_len(&messages), |out| encode(out, sender, &messages));
        self.end(Stage::Send);
    }

    /// Takes the messages of an envelope, and adds the groups that they are for to `groups`.
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
                    // The log has it before the next is let in: beyond its limits come no more than this one, and small ones.
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

    /// Something came from a process. If nothing had for an election timeout, groups that are led here may rest without it, and have elected
    /// leaders that it never heard of.
    fn heard_of(&self, id: u64) {
        let is_back = self.common.links.borrow_mut().heard_of(id, self.config.election_ticks);
        if is_back {
            self.cores.iter().for_each(|core| core.borrow_mut().wake_for(id));
        }
    }

    /// Gives a message to its group. A group that has not begun yet answers that it needs a snapshot.
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

    /// Takes an envelope while no group has a number.
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

    /// A request of ours was answered, or was not.
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
                // One without a number has not begun yet.
                if theirs != 0 {
                    self.visit(0, |core| core.note_foreign(Some(id), theirs));
                }
                report();
            }
            Err(_) => _ = self.visit(0, |core| core.counters.bad += 1),
        }
        self.common.links.borrow_mut().reuse(sent);
    }
}
