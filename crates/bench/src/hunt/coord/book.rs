//! What must come of all that was executed: a specification of the machine, apart from its code. It says what each command is answered and what happens, and
//! when nothing may end yet, by the clock of the datacenter.

use std::collections::BTreeMap;
use std::time::Duration;

use dunlin_coord::wire::{Answer, Beat, Command, Wire};
use dunlin_coord::{
    Compare, Condition, CoordError, Entry, Event, Happening, Health, Incarnation, Joined, MemberId, Members, Revision,
    Scope, Token, Transaction, Write,
};

use super::settings::Settings;
use super::testimony::{Listed, Testimony, Viewed, Watched};
use super::witness::{Executed, Witness};
use crate::hunt::cluster::CLOCK_PPM_MAX;

/// A member.
#[derive(Debug, Clone)]
struct Member {
    incarnation: Incarnation,
    is_live: bool,
    heartbeats: u64,
    /// What it was told, in milliseconds; 0 if that is to come.
    failure_timeout_ms: u64,
    /// When it was heard last.
    heard: u64,
}

/// A lease.
#[derive(Debug, Clone)]
struct Lease {
    member: MemberId,
    incarnation: Incarnation,
    token: Token,
    ttl_ms: u64,
    renewals: u64,
    /// When it was granted or renewed last.
    renewed: u64,
}

/// All that has happened.
pub struct Book {
    /// The shortest of any watchman.
    failure_timeout: Duration,
    /// The index of the last command that was gone through.
    index: u64,
    epoch: u64,
    reign: u64,
    failure_timeout_ms: u64,
    members: BTreeMap<MemberId, Member>,
    leases: BTreeMap<String, Lease>,
    /// By path: the version.
    tree: BTreeMap<String, (Revision, Vec<u8>)>,
    /// That of the last step in which something happened. The events of a step share it.
    revision: Revision,
    /// All of them, in order.
    events: Vec<Event>,
}

/// What is answered, or why it is refused.
type Answered = Result<Answer, CoordError>;

impl Book {
    pub fn new(settings: &Settings) -> Book {
        Book {
            failure_timeout: settings.watchman.failure_timeout,
            index: 0,
            epoch: 0,
            reign: 0,
            failure_timeout_ms: 0,
            members: BTreeMap::new(),
            leases: BTreeMap::new(),
            tree: BTreeMap::new(),
            revision: 0,
            events: Vec::new(),
        }
    }

    /// Goes through what was executed since it was called last.
    ///
    /// # Panics
    /// If a reply is not what it must be, or something ended too early.
    pub fn read(&mut self, witness: &Witness) {
        let from = self.index;
        witness.after(from, |index, executed| {
            self.index = index;
            let command = Command::from_bytes(&executed.command).expect("clients send commands");
            let answer = self.execute(command.clone(), executed).unwrap_or_else(Answer::from);
            self.revision = self.events.last().map_or(0, |event| event.revision);
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

    /// Leases that are held.
    pub fn held(&self) -> Vec<&String> {
        self.leases.keys().collect()
    }

    /// What happened after a revision.
    pub fn after(&self, revision: Revision) -> &[Event] {
        &self.events[self.up_to(revision).len()..]
    }

    /// What happened up to a revision.
    fn up_to(&self, revision: Revision) -> &[Event] {
        &self.events[..self.events.partition_point(|event| event.revision <= revision)]
    }

    fn happen(&mut self, happening: Happening) -> Revision {
        let revision = self.revision + 1;
        self.events.push(Event { revision, happening });
        revision
    }

    /// Nobody changed the set of live members, and now it is another.
    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
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

    /// It was done; the revision is that of this step, if anything happened in it.
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
                let (epoch, failure_timeout_ms) = (self.next_epoch(), self.failure_timeout_ms);
                let incarnation = self.happen(Happening::Joined { member, epoch });
                let joined = Member { incarnation, is_live: true, heartbeats: 0, failure_timeout_ms, heard: now };
                self.members.insert(member, joined);
                Ok(Answer::Joined { joined: Joined { incarnation, epoch, failure_timeout_ms } })
            }
            Command::Heartbeat { member, incarnation } => {
                let (epoch, told) = (self.epoch, self.failure_timeout_ms);
                let found = self.live_as(member, incarnation)?;
                (found.heartbeats, found.heard) = (found.heartbeats + 1, now);
                found.failure_timeout_ms = if found.failure_timeout_ms == 0 { told } else { found.failure_timeout_ms };
                Ok(Answer::Heard { epoch, failure_timeout_ms: found.failure_timeout_ms })
            }
            Command::Leave { member, incarnation } => {
                self.live_as(member, incarnation)?;
                let leases = self.leases.iter().filter(|(_, lease)| lease.member == member);
                let leases: Vec<String> = leases.map(|(name, _)| name.clone()).collect();
                leases.iter().for_each(|name| self.end_lease(name));
                self.members.remove(&member);
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
            Command::Acquire { name, member, incarnation, ttl_ms } => {
                self.live_as(member, incarnation)?;
                if let Some(Lease { member: holder, token, .. }) = self.leases.get(&name).cloned() {
                    if holder != member {
                        return Err(CoordError::Held { name, holder, token });
                    }
                    self.end_lease(&name);
                }
                let token = self.happen(Happening::Granted { name: name.clone(), member });
                self.leases.insert(name, Lease { member, incarnation, token, ttl_ms, renewals: 0, renewed: now });
                Ok(Answer::Granted { token })
            }
            Command::Renew { name, token } => {
                let Lease { member, incarnation, .. } = *self.held_with(&name, token)?;
                self.live_as(member, incarnation)?;
                let lease = self.held_with(&name, token)?;
                (lease.renewals, lease.renewed) = (lease.renewals + 1, now);
                self.done()
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
                Ok(Answer::Reigns { reign: self.reign })
            }
            Command::Decide { reign, over } => {
                if reign != self.reign {
                    return Err(CoordError::ReignOver { reign });
                }
                let asked = (over.members.len() + over.leases.len()) as u64;
                // One for all that fail together.
                let epoch = self.epoch + 1;
                let failures = over.members.iter().filter(|beat| self.fail(beat, epoch, now)).count() as u64;
                let lapses =
                    over.leases.iter().filter(|tenure| self.lapse(&tenure.name, tenure.token, tenure.renewals, now));
                let lapses = lapses.count() as u64;
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

    /// A member has failed, if it is as a watchman saw it.
    fn fail(&mut self, beat: &Beat, epoch: u64, now: u64) -> bool {
        let (shortest, Beat { member, incarnation, heartbeats, .. }) = (self.failure_timeout, beat.clone());
        let Ok(found) = self.live_as(member, incarnation) else { return false };
        if found.heartbeats != heartbeats {
            return false;
        }
        let told = Duration::from_millis(found.failure_timeout_ms);
        check_wait(&format!("member {member}"), if told.is_zero() { shortest } else { told }, now - found.heard);
        found.is_live = false;
        self.epoch = epoch;
        self.happen(Happening::Failed { member, epoch });
        true
    }

    /// A lease is over, if it is as a watchman saw it.
    fn lapse(&mut self, name: &str, token: Token, renewals: u64, now: u64) -> bool {
        let Ok(lease) = self.held_with(name, token) else { return false };
        if lease.renewals != renewals {
            return false;
        }
        check_wait(&format!("lease {name}"), Duration::from_millis(lease.ttl_ms), now - lease.renewed);
        self.end_lease(name);
        true
    }

    /// Compares what clients were told with what has happened.
    ///
    /// # Panics
    /// If it is something else.
    pub fn judge(&self, testimony: &Testimony) {
        testimony.members.borrow().iter().for_each(|members| self.judge_members(members));
        testimony.listed.borrow().iter().for_each(|listed| self.judge_listed(listed));
        testimony.viewed.borrow().iter().for_each(|viewed| self.judge_viewed(viewed));
        testimony.watched.borrow().iter().for_each(|watched| self.judge_watched(watched));
    }

    fn judge_members(&self, told: &Members) {
        let mut epoch = 0;
        let mut members = BTreeMap::new();
        for Event { revision, happening } in self.up_to(told.revision) {
            match happening {
                Happening::Joined { member, epoch: next } => {
                    members.insert(*member, (*revision, Health::Live));
                    epoch = *next;
                }
                Happening::Failed { member, epoch: next } => {
                    members.get_mut(member).expect("it was live").1 = Health::Failed;
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
        let told_members = told.members.iter().map(|member| (member.id, (member.incarnation, member.health))).collect();
        assert_eq!(
            (told.epoch, told_members),
            (epoch, members),
            "a client, left, was told of other members than there were"
        );
    }

    /// The members, leases and entries of a view are all of its one revision.
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

    /// The tree as it was.
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
        assert!(listing.entries == expected, "a client was told that below {root} there is {listing:?}, not {expected:?}");
    }

    /// Returns the clients and scopes of watchers that go on and have not seen the last event of their scope.
    pub fn late(&self, testimony: &Testimony) -> Vec<(usize, Scope)> {
        let watched = testimony.watched.borrow();
        let late = watched.iter().filter(|watched| {
            let last = watched.events.last().map_or(watched.after, |event| event.revision);
            watched.goes_on && self.after(last).iter().any(|event| holds(&watched.scope, &event.happening))
        });
        late.map(|watched| (watched.client, watched.scope.clone())).collect()
    }

    /// A watcher that goes on has seen everything.
    fn judge_watched(&self, Watched { client, scope, after, events, goes_on }: &Watched) {
        // One that stopped may have seen the first events of a step.
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

/// Whether a watcher of a scope is told of something.
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

/// # Panics
/// If nobody's clock can have counted so long.
fn check_wait(what: &str, wait: Duration, waited: u64) {
    let least = wait.as_nanos() as u64 / (1_000_000 + u64::from(CLOCK_PPM_MAX)) * 1_000_000;
    assert!(waited >= least, "{what} was ended {waited} ns after it was heard of, not {wait:?}");
}
