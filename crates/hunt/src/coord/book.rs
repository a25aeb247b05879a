//! The expected results of all executed commands: a specification of the machine, independent of its code. It
//! determines the answer and the events of each command, and when nothing may end yet, by the clock of the datacenter.

use std::collections::BTreeMap;
use std::time::Duration;

use dunlin_coord::wire::{Answer, Command, Lapsed, Silent, Wire};
use dunlin_coord::{
    Compare, Condition, CoordError, Entry, Epochs, Event, Happening, Health, Incarnation, Joined, MemberId, Members,
    Revision, Scope, Token, Transaction, Write,
};

use super::testimony::{Listed, Testimony, ToldEpochs, Viewed, Watched};
use super::witness::{Executed, Witness};
use crate::cluster::CLOCK_PPM_MAX;

/// A member.
#[derive(Debug, Clone)]
struct Member {
    incarnation: Incarnation,
    is_live: bool,
    /// The timeout that it was told, in milliseconds; 0 before the first watchman.
    failure_timeout_ms: u64,
    joined: u64,
}

/// A lease.
#[derive(Debug, Clone)]
struct Lease {
    member: MemberId,
    token: Token,
    ttl_ms: u64,
    granted: u64,
}

/// How a watchman ended a member or a lease.
struct End {
    at: u64,
    /// How long it had to wait.
    wait: Duration,
    /// When the member joined, or the lease was granted.
    begun: u64,
}

impl End {
    /// # Panics
    /// If no clock can have counted that long since the beginning, or since a heartbeat or renewal was sent that was
    /// answered as heard.
    fn check(&self, revision: Revision, heard: &[u64]) {
        let least = self.wait.as_nanos() * 1_000_000 / (1_000_000 + u128::from(CLOCK_PPM_MAX));
        for since in heard.iter().chain([&self.begun]) {
            let waited = self.at.saturating_sub(*since);
            let End { at, wait, .. } = self;
            assert!(
                u128::from(waited) >= least,
                "what began at revision {revision} was ended at {at}, {waited} ns after it was heard of, not {wait:?}"
            );
        }
    }
}

/// All that has happened.
pub struct Book {
    /// By incarnation or token: those ended by a watchman.
    ends: BTreeMap<Revision, End>,
    /// By incarnation: when it stopped being live.
    gone: BTreeMap<Incarnation, u64>,
    /// By token: the incarnation that was granted the lease.
    holders: BTreeMap<Token, Incarnation>,
    /// The index of the last command that was processed.
    index: u64,
    epoch: u64,
    /// Maximum number of epochs that are kept.
    epochs_max: u64,
    /// When epochs were cut, and up to which, in order.
    cuts: Vec<(u64, u64)>,
    reign: u64,
    failure_timeout_ms: u64,
    members: BTreeMap<MemberId, Member>,
    leases: BTreeMap<String, Lease>,
    /// By path: version and value.
    tree: BTreeMap<String, (Revision, Vec<u8>)>,
    /// The revision of the last step with events. The events of a step share it.
    revision: Revision,
    /// All events, in order.
    events: Vec<Event>,
}

/// The answer, or why the command is refused.
type Answered = Result<Answer, CoordError>;

impl Book {
    pub fn new(epochs_max: usize) -> Book {
        Book {
            ends: BTreeMap::new(),
            gone: BTreeMap::new(),
            holders: BTreeMap::new(),
            index: 0,
            epoch: 0,
            epochs_max: epochs_max as u64,
            cuts: Vec::new(),
            reign: 0,
            failure_timeout_ms: 0,
            members: BTreeMap::new(),
            leases: BTreeMap::new(),
            tree: BTreeMap::new(),
            revision: 0,
            events: Vec::new(),
        }
    }

    /// Processes the commands that were executed since the last call.
    ///
    /// # Panics
    /// If a reply is wrong, or something ended too early.
    pub fn read(&mut self, witness: &Witness) {
        let from = self.index;
        witness.after(from, |index, executed| {
            self.index = index;
            let command = Command::from_bytes(&executed.command).expect("clients send commands");
            let answer = self.execute(command.clone(), executed).unwrap_or_else(Answer::from);
            self.revision = self.events.last().map_or(0, |event| event.revision);
            self.cut(self.epoch.saturating_sub(self.epochs_max), executed.at);
            let reply = Answer::from_bytes(&executed.reply);
            assert_eq!(
                reply.as_ref(),
                Ok(&answer),
                "{command:?} at index {index}, left, is not answered as it must be, right"
            );
        });
    }

    /// The last revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Live members, with their incarnations.
    pub fn live(&self) -> Vec<(MemberId, Incarnation)> {
        let live = self.members.iter().filter(|(_, member)| member.is_live);
        live.map(|(id, member)| (*id, member.incarnation)).collect()
    }

    /// When an incarnation stopped being live, in nanoseconds of virtual time.
    pub fn gone(&self, incarnation: Incarnation) -> Option<u64> {
        self.gone.get(&incarnation).copied()
    }

    /// Leases that are held.
    pub fn held(&self) -> Vec<&String> {
        self.leases.keys().collect()
    }

    /// The events after a revision.
    pub fn after(&self, revision: Revision) -> &[Event] {
        &self.events[self.up_to(revision).len()..]
    }

    /// The events up to a revision.
    fn up_to(&self, revision: Revision) -> &[Event] {
        &self.events[..self.events.partition_point(|event| event.revision <= revision)]
    }

    fn happen(&mut self, happening: Happening) -> Revision {
        let revision = self.revision + 1;
        self.events.push(Event { revision, happening });
        revision
    }

    /// Begins the next epoch: the set of live members changes.
    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// Discards epochs up to one, unless they were discarded before.
    fn cut(&mut self, up_to: u64, now: u64) {
        if up_to > self.cuts.last().map_or(0, |(_, cut)| *cut) {
            self.cuts.push((now, up_to));
        }
    }

    fn live_as(&mut self, member: MemberId, incarnation: Incarnation) -> Result<&mut Member, CoordError> {
        let found = self.members.get_mut(&member).filter(|found| found.is_live && found.incarnation == incarnation);
        found.ok_or(CoordError::NotLive { member, incarnation })
    }

    fn held_with(&mut self, name: &str, token: Token) -> Result<&mut Lease, CoordError> {
        let held = self.leases.get_mut(name).filter(|held| held.token == token);
        held.ok_or_else(|| CoordError::LeaseLost { name: name.to_owned(), token })
    }

    fn end_lease(&mut self, name: &str) {
        let lease = self.leases.remove(name).expect("only leases that are held end");
        self.happen(Happening::Ended { name: name.to_owned(), token: lease.token });
    }

    /// The answer of success; the revision is that of this step, if it had any events.
    fn done(&self) -> Answered {
        Ok(Answer::Done { revision: self.events.last().map_or(0, |event| event.revision) })
    }

    fn execute(&mut self, command: Command, executed: &Executed) -> Answered {
        let now = executed.at;
        match command {
            Command::Join { member, .. } => {
                if let Some((name, _)) = self.leases.iter().find(|(_, lease)| lease.member == member) {
                    return Err(CoordError::LeasesRun { member, name: name.clone() });
                }
                if self.members.get(&member).is_some_and(|before| before.is_live) {
                    return Err(CoordError::Live { member });
                }
                let (epoch, failure_timeout_ms) = (self.next_epoch(), self.failure_timeout_ms);
                let incarnation = self.happen(Happening::Joined { member, epoch });
                let joined = Member { incarnation, is_live: true, failure_timeout_ms, joined: now };
                self.members.insert(member, joined);
                Ok(Answer::Joined { joined: Joined { incarnation, epoch, failure_timeout_ms } })
            }
            Command::Leave { member, incarnation } => {
                self.live_as(member, incarnation)?;
                let leases = self.leases.iter().filter(|(_, lease)| lease.member == member);
                let leases: Vec<String> = leases.map(|(name, _)| name.clone()).collect();
                leases.iter().for_each(|name| self.end_lease(name));
                self.members.remove(&member);
                self.gone.insert(incarnation, now);
                let epoch = self.next_epoch();
                self.happen(Happening::Left { member, epoch });
                self.done()
            }
            Command::Forget { member } => match self.members.get(&member).map(|found| found.is_live) {
                None => Err(CoordError::NotFound { what: format!("member {member}") }),
                Some(true) => Err(CoordError::Live { member }),
                Some(false) => {
                    self.members.remove(&member);
                    self.happen(Happening::Forgotten { member });
                    self.done()
                }
            },
            Command::CutEpochs { up_to } if up_to > self.epoch => {
                Err(CoordError::EpochAhead { asked: up_to, epoch: self.epoch })
            }
            Command::CutEpochs { up_to } => {
                self.cut(up_to, now);
                self.done()
            }
            Command::Acquire { name, member, incarnation, mut ttl_ms } => {
                self.live_as(member, incarnation)?;
                if let Some(Lease { member: holder, token, ttl_ms: before_ms, .. }) = self.leases.get(&name).cloned() {
                    if holder != member {
                        return Err(CoordError::Held { name, holder, token });
                    }
                    ttl_ms = ttl_ms.max(before_ms);
                    self.end_lease(&name);
                }
                let token = self.happen(Happening::Granted { name: name.clone(), member });
                self.holders.insert(token, incarnation);
                self.leases.insert(name, Lease { member, token, ttl_ms, granted: now });
                Ok(Answer::Granted { token, ttl_ms })
            }
            Command::Release { name, token } => {
                self.held_with(&name, token)?;
                self.end_lease(&name);
                self.done()
            }
            Command::Transact { transaction: Transaction { compares, writes } } => {
                compares.iter().try_for_each(|compare| self.compare(compare))?;
                let is_missing =
                    |write: &&Write| matches!(write, Write::Delete { .. }) && !self.tree.contains_key(write.path());
                if let Some(missing) = writes.iter().find(is_missing) {
                    return Err(CoordError::NotFound { what: missing.path().to_owned() });
                }
                writes.into_iter().for_each(|write| self.write(write));
                self.done()
            }
            Command::Reign { failure_timeout_ms } => {
                (self.reign, self.failure_timeout_ms) = (self.reign + 1, failure_timeout_ms);
                let untold = self.members.values_mut().filter(|member| member.failure_timeout_ms == 0);
                untold.for_each(|member| member.failure_timeout_ms = failure_timeout_ms);
                Ok(Answer::Reigns { reign: self.reign })
            }
            Command::Decide { reign, members, leases } => {
                if reign != self.reign {
                    return Err(CoordError::ReignOver { reign });
                }
                let asked = (members.len() + leases.len()) as u64;
                // One epoch for all that fail together.
                let epoch = self.epoch + 1;
                let failures = members.iter().filter(|silent| self.fail(silent, epoch, now)).count() as u64;
                let lapses = leases.iter().filter(|lapsed| self.lapse(lapsed, now)).count() as u64;
                Ok(Answer::Decided { failures, lapses, refused: asked - failures - lapses })
            }
        }
    }

    fn compare(&mut self, compare: &Compare) -> Result<(), CoordError> {
        match compare {
            Compare::Epoch { epoch } if *epoch == self.epoch => Ok(()),
            Compare::Epoch { .. } => Err(CoordError::EpochChanged { epoch: self.epoch }),
            Compare::Lease { name, token } => self.held_with(name, *token).map(|_| ()),
            Compare::Entry { path, condition } => self.check(path, *condition),
        }
    }

    fn write(&mut self, write: Write) {
        match write {
            Write::Set { path, value } => {
                let version = self.happen(Happening::Set { path: path.clone(), value: value.clone() });
                self.tree.insert(path, (version, value));
            }
            Write::Delete { path } => {
                self.tree.remove(&path);
                self.happen(Happening::Deleted { path });
            }
        }
    }

    fn check(&self, path: &str, condition: Condition) -> Result<(), CoordError> {
        match (condition, self.tree.get(path).map(|(version, _)| *version)) {
            (Condition::Absent, Some(version)) => Err(CoordError::Exists { path: path.to_owned(), version }),
            (Condition::Version { .. }, None) => Err(CoordError::NotFound { what: path.to_owned() }),
            (Condition::Version { version: wanted }, Some(version)) if version != wanted => {
                Err(CoordError::Changed { path: path.to_owned(), version })
            }
            _ => Ok(()),
        }
    }

    /// Fails a member, if it is still the one that a watchman waited for.
    fn fail(&mut self, Silent { member, incarnation }: &Silent, epoch: u64, now: u64) -> bool {
        let Ok(found) = self.live_as(*member, *incarnation) else { return false };
        found.is_live = false;
        let (told, joined) = (Duration::from_millis(found.failure_timeout_ms), found.joined);
        self.ends.insert(*incarnation, End { at: now, wait: told, begun: joined });
        self.gone.insert(*incarnation, now);
        self.epoch = epoch;
        self.happen(Happening::Failed { member: *member, epoch });
        true
    }

    /// Ends a lease, if it is still the one that a watchman waited for.
    fn lapse(&mut self, Lapsed { name, token }: &Lapsed, now: u64) -> bool {
        let Ok(lease) = self.held_with(name, *token) else { return false };
        let end = End { at: now, wait: Duration::from_millis(lease.ttl_ms), begun: lease.granted };
        self.ends.insert(*token, end);
        self.end_lease(name);
        true
    }

    /// Compares what clients were told with the events.
    ///
    /// # Panics
    /// If they differ.
    pub fn judge(&self, testimony: &Testimony) {
        let heard = testimony.heard.borrow();
        for (revision, end) in &self.ends {
            end.check(*revision, heard.get(revision).map_or(&[], Vec::as_slice));
        }
        for (revision, sent) in &*heard {
            let incarnation = self.holders.get(revision).unwrap_or(revision);
            let late = self.gone.get(incarnation).and_then(|gone| sent.iter().find(|sent| *sent > gone));
            assert_eq!(
                late, None,
                "incarnation {incarnation} was heard for revision {revision} when it was not live any more"
            );
        }
        testimony.members.borrow().iter().for_each(|members| self.judge_members(members));
        testimony.listed.borrow().iter().for_each(|listed| self.judge_listed(listed));
        testimony.viewed.borrow().iter().for_each(|viewed| self.judge_viewed(viewed));
        testimony.epochs.borrow().iter().for_each(|told| self.judge_epochs(told));
        testimony.watched.borrow().iter().for_each(|watched| self.judge_watched(watched));
    }

    fn judge_members(&self, told: &Members) {
        let mut epoch = 0;
        let mut members = BTreeMap::new();
        for Event { revision, happening } in self.up_to(told.revision) {
            match happening {
                Happening::Joined { member, epoch: next } => {
                    members.insert(*member, (*revision, Health::Live, *next));
                    epoch = *next;
                }
                Happening::Failed { member, epoch: next } => {
                    let found = members.get_mut(member).expect("it was live");
                    (found.1, found.2) = (Health::Failed, *next);
                    epoch = *next;
                }
                Happening::Left { member, epoch: next } => {
                    members.remove(member);
                    epoch = *next;
                }
                Happening::Forgotten { member } => _ = members.remove(member),
                _ => {}
            }
        }
        let as_told = |member: &dunlin_coord::Member| (member.id, (member.incarnation, member.health, member.epoch));
        let told_members = told.members.iter().map(as_told).collect();
        assert_eq!(
            (told.epoch, told_members),
            (epoch, members),
            "a client, left, was told of other members than there were"
        );
    }

    /// The epochs that clients were told match the events, unless they were cut by then.
    fn judge_epochs(&self, ToldEpochs { after, begun, ended, answer }: &ToldEpochs) {
        let before = self.cuts.iter().take_while(|(at, _)| at < begun).last().map_or(0, |(_, cut)| *cut);
        match answer {
            Ok(page) => {
                assert!(
                    before <= *after,
                    "a client was told of epochs after {after}, and those up to {before} were cut"
                );
                self.judge_page(*after, page);
            }
            Err(told) => {
                let mut meanwhile = self.cuts.iter().filter(|(at, _)| at >= begun && at <= ended);
                let is_so = *told == before || meanwhile.any(|(_, cut)| cut == told);
                assert!(
                    is_so && told > after,
                    "a client that asked for the epochs after {after} was told that those up to {told} are cut, and it is {before}"
                );
            }
        }
    }

    /// No epoch is missing.
    fn judge_page(&self, after: u64, told: &Epochs) {
        let last = told.epochs.last().map_or(after, |change| change.epoch);
        let is_told = |event: &&Event| event.happening.epoch().is_some_and(|epoch| epoch > after && epoch <= last);
        let expected = self.events.iter().filter(is_told).map(|event| (event.revision, &event.happening));
        let told =
            told.epochs.iter().flat_map(|change| change.changes.iter().map(|happening| (change.revision, happening)));
        assert!(
            told.clone().eq(expected),
            "a client was told of other epochs after {after} than there were: {:?}",
            told.collect::<Vec<_>>()
        );
    }

    /// The members, leases and entries of a view are all of its revision.
    fn judge_viewed(&self, Viewed { root, view }: &Viewed) {
        self.judge_members(&view.members);
        let mut leases = BTreeMap::new();
        for Event { revision, happening } in self.up_to(view.members.revision) {
            match happening {
                Happening::Granted { name, member } => _ = leases.insert(name, (*member, *revision)),
                Happening::Ended { name, .. } => _ = leases.remove(name),
                _ => {}
            }
        }
        let told = view.leases.iter().map(|lease| (&lease.name, (lease.holder.member, lease.holder.token)));
        let is_within = |name: &str| name == root || is_below(name, root);
        let expected = leases.into_iter().filter(|(name, _)| is_within(name));
        assert!(told.eq(expected), "a client was told of other leases than were held: {view:?}");
        let entries = self.tree_at(view.members.revision).into_iter().filter(|entry| is_within(&entry.path));
        assert!(view.entries.iter().eq(&entries.collect::<Vec<_>>()), "a client was told of another tree: {view:?}");
    }

    /// The tree at a revision.
    fn tree_at(&self, revision: Revision) -> Vec<Entry> {
        let mut tree = BTreeMap::new();
        for Event { revision, happening } in self.up_to(revision) {
            match happening {
                Happening::Set { path, value } => _ = tree.insert(path, (*revision, value)),
                Happening::Deleted { path } => _ = tree.remove(path),
                _ => {}
            }
        }
        let entry = |(path, (version, value)): (&String, (Revision, &Vec<u8>))| Entry {
            path: path.clone(),
            version,
            value: value.clone(),
        };
        tree.into_iter().map(entry).collect()
    }

    fn judge_listed(&self, Listed { root, listing }: &Listed) {
        let is_told = |path: &str| listing.more_after.as_deref().is_none_or(|last| path <= last);
        let tree = self.tree_at(listing.revision).into_iter();
        let expected: Vec<Entry> = tree.filter(|entry| is_below(&entry.path, root) && is_told(&entry.path)).collect();
        assert!(
            listing.entries == expected,
            "a client was told that below {root} there is {listing:?}, not {expected:?}"
        );
    }

    /// Returns the clients and scopes of those of the first watchers that are still running and have not seen the last
    /// event of their scope.
    pub fn late(&self, testimony: &Testimony, first: usize) -> Vec<(usize, Scope)> {
        let watched = testimony.watched.borrow();
        let late = watched.iter().take(first).filter(|watched| {
            let last = watched.events.last().map_or(watched.after, |event| event.revision);
            watched.goes_on && self.after(last).iter().any(|event| holds(&watched.scope, &event.happening))
        });
        late.map(|watched| (watched.client, watched.scope.clone())).collect()
    }

    /// A running watcher has seen everything.
    fn judge_watched(&self, Watched { client, scope, after, events, goes_on }: &Watched) {
        // A watcher that stopped may have seen only the first events of a step.
        let up_to = if *goes_on { usize::MAX } else { events.len() };
        let happened = self.after(*after).iter().filter(|event| holds(scope, &event.happening)).take(up_to);
        let mut seen = events.iter();
        for event in happened {
            let next = seen.next();
            let what = || next.map_or("nothing more".to_owned(), ToString::to_string);
            assert!(
                next == Some(event),
                "{event} happened, and a watcher of client {client}, of {scope:?} after {after}, saw {}",
                what()
            );
        }
        let invented = seen.next();
        assert_eq!(invented, None, "a watcher of client {client} saw what did not happen");
    }
}

fn is_below(path: &str, root: &str) -> bool {
    root == "/" || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether an event is in a scope.
fn holds(scope: &Scope, happening: &Happening) -> bool {
    match happening {
        Happening::Set { path, .. } | Happening::Deleted { path } => match scope {
            Scope::All => true,
            Scope::Tree { root } => root == "/" || path == root || path.starts_with(&format!("{root}/")),
            _ => false,
        },
        Happening::Granted { .. } | Happening::Ended { .. } => matches!(scope, Scope::All | Scope::Leases),
        _ => matches!(scope, Scope::All | Scope::Members),
    }
}
