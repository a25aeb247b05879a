//! A core as part of a replica of a cluster: writes with versions, and how it is filled before it is read.
//!
//! The rules, argued in `docs/kv-cluster.md`:
//!
//! - **The higher version wins.** A write whose version is not above the item's changes nothing, so writes of one key
//!   may come in any order, and more than once. The version is the item's CAS token.
//! - **A deletion counts for a while after it was made** ([`Deleted`]), so that a write and a deletion of one key may
//!   come in any order, too. A write that leaves no item, or one that expires soon, counts as a deletion.
//! - **While a core is filled, it keeps in mind the versions of all keys that were written or deleted since.** An item
//!   of another replica is stored only if its version is above that, and above the item's. So a refilled value never
//!   replaces a later one, and never brings back what was deleted.
//! - **What a core held before it is filled is dropped when a source has answered,** and is never read. If there is no
//!   source, an operator can still open the core with what it holds.
//! - **Where an item is does not matter.** The index of the tier has the versions of its items: they are compared, and
//!   conditions decided, without the device ([`version`]).
//! - **A core is read only when it is open.** It closes by itself when its membership is not safe.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use dunlin_net::Transport;
use dunlin_rpc::{Endpoint, RegisterError};
use dunlin_store::{Condition, Key, KeyHash, Moment, Put, Refused, Store, UnixSeconds, Visit};

use super::copying::{self, range_bits};
use super::deleted::{Deleted, KEPT_SECONDS};
use super::scan::walk;
use super::wall;
use crate::metrics::{Operation as Kind, Outcome};
use crate::shard::{Shard, version};
use crate::wire::{
    FILL, Operation, REPLICA, REPLICATE, ReplicaInfo, ReplicaState, Replicate, SCAN_PARTITIONS, Status, TURN, Turn,
    Turned, Verdict, Version, VersionedItem, parse_fill,
};

/// Keys whose changes a core keeps in mind while it is filled, at most: about 100 MB. With more, the fill fails.
pub const CHANGED_KEYS_MAX: usize = 4 << 20;

/// Items of the time before a fill that one request drops, at least: further ones are of the same range.
const DROPPED_AT_ONCE: usize = 256;

/// How far a version may lie ahead of the server's clock: clocks of clients that are wrong by more would decide for
/// years which write is the last one.
const AHEAD_SECONDS_MAX: u64 = 600;

/// Decides in which epoch a server may serve, from its membership with a cluster manager.
pub trait Fence: Send + Sync + Debug {
    /// Returns the epoch, if the server may serve in it now. Read for every operation.
    fn epoch(&self) -> Option<u64>;

    /// Is told the epoch of a request that is later.
    fn heard_of(&self, epoch: u64);
}

/// What a core is in a cluster.
#[derive(Debug)]
pub struct Replica {
    server: String,
    fingerprint: u64,
    partitions: u32,
    fence: Option<Arc<dyn Fence>>,
    state: Cell<ReplicaState>,
    /// The number of the fill in progress, or of the last one.
    fill: Cell<u64>,
    /// By the store's hash of a key, the highest version of its changes since the fill began.
    changed: RefCell<HashMap<KeyHash, Version>>,
    /// Keys whose changes are kept in mind at most.
    changed_max: usize,
    /// More keys were changed.
    has_lost_track: Cell<bool>,
    /// The hash from which on items of the time before the fill are to be dropped; `None` if all are.
    drop_from: Cell<Option<u64>>,
    /// The state before the last fill began.
    before: Cell<ReplicaState>,
    /// Items may have been dropped for a fill, and none has been completed since.
    has_holes: Cell<bool>,
    deleted: RefCell<Deleted>,
}

impl Replica {
    /// A core of this server in a cluster with that division of keys. It is closed until it is told otherwise.
    pub fn new(server: &str, fingerprint: u64, partitions: u32) -> Replica {
        Replica {
            server: server.to_owned(),
            fingerprint,
            partitions,
            fence: None,
            state: Cell::new(ReplicaState::Closed),
            fill: Cell::new(0),
            changed: RefCell::default(),
            changed_max: CHANGED_KEYS_MAX,
            has_lost_track: Cell::new(false),
            drop_from: Cell::new(None),
            before: Cell::new(ReplicaState::Closed),
            has_holes: Cell::new(false),
            deleted: RefCell::default(),
        }
    }

    /// The same of a member, which serves only in epochs in which it may.
    #[must_use]
    pub fn fenced(self, fence: Arc<dyn Fence>) -> Replica {
        Replica { fence: Some(fence), ..self }
    }

    /// The same in another state: open when a cluster is founded.
    #[must_use]
    pub fn in_state(self, state: ReplicaState) -> Replica {
        self.state.set(state);
        self
    }

    /// The same with room for the versions of so many deletions, by default 262,144.
    #[must_use]
    pub fn remembering(self, deletions: usize) -> Replica {
        self.deleted.replace(Deleted::up_to(deletions));
        self
    }

    /// The same with less patience for changes while it is filled.
    #[cfg(test)]
    pub fn losing_track_after(self, changes: usize) -> Replica {
        Replica { changed_max: changes, ..self }
    }

    /// Returns the epoch in which it may serve, 0 without a fence.
    fn epoch(&self) -> Option<u64> {
        self.fence.as_ref().map_or(Some(0), |fence| fence.epoch())
    }

    /// Returns the number of partitions of the cluster.
    pub(super) fn partitions(&self) -> u32 {
        self.partitions
    }

    fn is_readable(&self) -> bool {
        self.filled_by().is_some()
    }

    /// Returns the number of the fill whose items it has, if it may be read; 0 if it was not filled.
    pub(super) fn filled_by(&self) -> Option<u64> {
        (self.state.get() == ReplicaState::Open && self.epoch().is_some()).then(|| self.fill.get())
    }

    /// Returns why an operation that is not of the cluster's own protocol is refused.
    pub(crate) fn refusal(&self, is_read: bool) -> Option<Status> {
        match is_read {
            false => Some(Status::Unsupported),
            true => (!self.is_readable()).then_some(Status::Closed),
        }
    }

    fn info(&self, incarnation: u64) -> ReplicaInfo {
        let epoch = self.epoch();
        ReplicaInfo {
            state: self.state.get(),
            is_safe: epoch.is_some(),
            fingerprint: self.fingerprint,
            incarnation,
            epoch: epoch.unwrap_or(0),
            changed: self.changed.borrow().len() as u64,
            server: self.server.clone(),
        }
    }

    /// Returns why a write is refused whatever it is; `None` if it may be made.
    fn check(&self, head: &Replicate, moment: Moment) -> Option<Verdict> {
        if head.fingerprint != self.fingerprint {
            return Some(Verdict::OtherMap { fingerprint: self.fingerprint });
        }
        match self.epoch() {
            None => return Some(Verdict::NotSafe),
            Some(epoch) if epoch != head.epoch => {
                if let Some(fence) = self.fence.as_ref().filter(|_| head.epoch > epoch) {
                    fence.heard_of(head.epoch);
                }
                return Some(Verdict::OtherEpoch { epoch });
            }
            Some(_) => {}
        }
        if self.state.get() == ReplicaState::Closed {
            return Some(Verdict::Closed);
        }
        let seconds = u64::from(moment.to_wall(moment.now));
        // A shard that was never told the time has none.
        let is_ahead = seconds > 0 && crate::cluster::seconds_of(head.version) > seconds + AHEAD_SECONDS_MAX;
        is_ahead.then_some(Verdict::ClockAhead { seconds })
    }

    /// Keeps in mind that a key was changed, while the core is filled.
    fn note(&self, key: KeyHash, version: Version) {
        if self.state.get() != ReplicaState::Filling {
            return;
        }
        let mut changed = self.changed.borrow_mut();
        let is_full = changed.len() >= self.changed_max;
        match changed.entry(key) {
            Entry::Occupied(mut noted) => _ = noted.insert(version.max(*noted.get())),
            Entry::Vacant(_) if is_full => self.has_lost_track.set(true),
            Entry::Vacant(place) => _ = place.insert(version),
        }
    }

    /// Returns the highest version of the changes of a key that are kept in mind; 0 if there is none.
    fn noted(&self, key: KeyHash) -> Version {
        let changed = self.changed.borrow().get(&key).copied().unwrap_or(0);
        changed.max(self.deleted.borrow().version(key))
    }

    fn forget_changes(&self) {
        self.changed.replace(HashMap::new());
        self.has_lost_track.set(false);
    }

    fn turn(&self, turn: Turn, store: &mut (impl Store + Visit)) -> Status {
        match turn {
            Turn::Begin { fill } => {
                self.forget_changes();
                self.fill.set(fill);
                self.drop_from.set(Some(0));
                self.before.set(self.state.replace(ReplicaState::Filling));
            }
            Turn::Drop { fill } => {
                if !self.is_filled_by(fill) {
                    return Status::Changed;
                }
                // Also if this core has nothing to drop: another one may. All cores are told in the same order, so if one
                // has holes, the first one refuses to open. What was closed is empty on all cores.
                self.has_holes.set(self.has_holes.get() || self.before.get() != ReplicaState::Closed);
                return self.drop_some(store);
            }
            Turn::Complete { fill } if self.state.get() == ReplicaState::Open && self.fill.get() == fill => {}
            Turn::Complete { fill } => {
                if !self.is_filled_by(fill) || self.drop_from.get().is_some() {
                    return Status::Changed;
                }
                if self.has_lost_track.get() {
                    return Status::Full;
                }
                self.has_holes.set(false);
                self.open();
            }
            // The fill that has opened this core may not have heard of it yet, and other cores may have holes.
            Turn::Open if self.state.get() == ReplicaState::Open => {}
            Turn::Open if self.has_holes.get() => return Status::Closed,
            Turn::Open => {
                // Nobody else opens it.
                self.fill.set(0);
                self.open();
            }
        }
        Status::Done
    }

    fn is_filled_by(&self, fill: u64) -> bool {
        self.state.get() == ReplicaState::Filling && self.fill.get() == fill
    }

    /// Drops some of the items that were there before the fill.
    fn drop_some(&self, store: &mut (impl Store + Visit)) -> Status {
        let Some(from) = self.drop_from.get() else { return Status::Done };
        let (mut dropped, mut behind) = (Vec::new(), Vec::new());
        let changed = self.changed.borrow();
        let next = walk(range_bits(store), from, |range| {
            if let Some(tier) = store.tier() {
                let hashes = &mut behind;
                tier.visit(&range, |record| hashes.push(record.ticket.hash()));
                behind.retain(|hash| !changed.contains_key(hash));
            }
            store.visit(range, &mut |hash, key, _| {
                if !changed.contains_key(&hash) {
                    dropped.push(key.to_vec());
                }
            });
            dropped.len() + behind.len() >= DROPPED_AT_ONCE
        });
        for key in &dropped {
            if let Ok(key) = store.key(key) {
                // It is there: it was just visited.
                let _ = store.delete(&key, None);
            }
        }
        if let Some(tier) = store.tier_mut() {
            behind.into_iter().for_each(|hash| _ = tier.remove(hash, 0));
        }
        self.drop_from.set(next);
        if next.is_some() { Status::Later } else { Status::Done }
    }

    fn open(&self) {
        self.state.set(ReplicaState::Open);
        self.forget_changes();
    }
}

/// Registers the handlers of a replica.
pub(super) fn register<S: Store + Visit + 'static, T: Transport + 'static>(
    shard: &Rc<Shard<S>>,
    replica: &Rc<Replica>,
    incarnation: u64,
    endpoint: &Rc<Endpoint<T>>,
) -> Result<(), RegisterError> {
    let this = replica.clone();
    endpoint.register(REPLICA, move |request| request.respond(&this.info(incarnation).encode()))?;
    let (shard, this) = (shard.clone(), replica.clone());
    let of = shard.clone();
    endpoint.register(REPLICATE, move |request| {
        let verdict = replicate(&of, &this, request.payload());
        request.respond(&verdict.encode());
        of.write_tier();
    })?;
    let (of, this) = (shard.clone(), replica.clone());
    endpoint.register(FILL, move |request| {
        match fill(&of, &this, request.payload()) {
            Some(status) => request.respond(&[status as u8]),
            None => request.push_back(),
        }
        of.write_tier();
    })?;
    let (of, this) = (shard.clone(), replica.clone());
    endpoint.register(TURN, move |request| {
        let before = this.state.get();
        let status = match Turn::parse(request.payload()) {
            Some(turn) => this.turn(turn, &mut *of.store.borrow_mut()),
            None => Status::Malformed,
        };
        request.respond(&Turned { status, before }.encode());
    })?;
    let this = replica.clone();
    endpoint.register(SCAN_PARTITIONS, move |request| copying::scan(&shard, &this, request))
}

/// Executes a write.
fn replicate<S: Store>(shard: &Shard<S>, replica: &Replica, request: &[u8]) -> Verdict {
    let Some((head, operation)) = Replicate::parse(request) else {
        shard.count_stray(false);
        return Verdict::Malformed;
    };
    let Some(operation) = Operation::parse(operation) else {
        shard.count_stray(false);
        return Verdict::Malformed;
    };
    if let Some(refused) = replica.check(&head, shard.moment()) {
        return refused;
    }
    let store = &mut *shard.store.borrow_mut();
    let Ok(key) = store.key(operation.key()) else {
        shard.count_stray(false);
        return Verdict::Malformed;
    };
    if !shard.owns(key.bytes()) {
        shard.count_stray(true);
        return Verdict::NotOwned;
    }
    if operation.condition() != Condition::Always && replica.state.get() != ReplicaState::Open {
        // What it holds may be old.
        return Verdict::Closed;
    }
    let is_filling = replica.state.get() == ReplicaState::Filling;
    spare_writes(store, if is_filling { WRITES_SPARED } else { 0 });
    let now = shard.now();
    let hash = key.hash();
    let present = version(store, &key, now);
    // What is there while it is filled may be from before.
    let has_item = present.is_some() && replica.state.get() == ReplicaState::Open;
    let newest = present.unwrap_or(0).max(replica.noted(hash));
    if newest >= head.version {
        if newest == head.version {
            // The writer counts it as made here: a fill that has begun since must not drop it.
            replica.note(hash, head.version);
        }
        return Verdict::Newer { version: newest, has_item };
    }
    let (kind, done) = match operation {
        Operation::Put { value, put, .. } => {
            if let Err(refused) = put.condition.check(present) {
                shard.metrics.borrow_mut().count(Kind::Set, Outcome::of(&Err::<(), _>(refused)));
                return Verdict::Refused(refused);
            }
            let floor = replica.deleted.borrow().floor(now);
            if present.is_none() && floor >= head.version {
                return Verdict::Forgotten { floor };
            }
            let expires = wall::in_partition_time(put.expires, shard.moment());
            // The condition was checked above: the store does not know of an item that only the device has.
            let put = Put { expires, cas: Some(head.version), condition: Condition::Always, ..put };
            (Kind::Set, store.put(&key, value, put).map(|_| ()))
        }
        Operation::Delete { unchanged: None, .. } => (
            Kind::Delete,
            match store.delete(&key, None) {
                Err(Refused::NotFound) => Ok(()),
                done => done,
            },
        ),
        _ => return Verdict::Unsupported,
    };
    shard.metrics.borrow_mut().count(kind, Outcome::of(&done));
    match done {
        Ok(()) => {
            replica.note(hash, head.version);
            let is_soon = |at: UnixSeconds| at <= now.saturating_add(KEPT_SECONDS);
            if store.peek(&key).is_none_or(|item| item.expires.is_some_and(is_soon)) {
                replica.deleted.borrow_mut().note(hash, head.version, now);
            }
            Verdict::Done { had_item: has_item }
        }
        Err(refused) => Verdict::Refused(refused),
    }
}

/// Blocks of the tier that may wait for the device, and that writes leave to a fill: otherwise they would keep it out
/// for as long as they outrun the device.
const WRITES_SPARED: usize = 1;

/// Stores items of another replica, unless they were changed here since the fill began. `None` if the tier's device is
/// behind, so that items would be lost: then the same items come again, and those that are stored by now change nothing.
fn fill<S: Store>(shard: &Shard<S>, replica: &Replica, request: &[u8]) -> Option<Status> {
    let Some((number, items)) = parse_fill(request) else { return Some(Status::Malformed) };
    if !replica.is_filled_by(number) || replica.drop_from.get().is_some() {
        return Some(Status::Changed);
    }
    if replica.has_lost_track.get() {
        return Some(Status::Full);
    }
    let store = &mut *shard.store.borrow_mut();
    spare_writes(store, 0);
    for item in items {
        let Some(item) = item else { return Some(Status::Malformed) };
        let Ok(key) = store.key(item.key) else { return Some(Status::Malformed) };
        if !shard.owns(key.bytes()) {
            return Some(Status::NotOwned);
        }
        if store.tier().is_some_and(|tier| !tier.has_room()) {
            return None;
        }
        if store_older(shard, replica, store, &key, &item).is_err() {
            return Some(Status::TooLarge);
        }
    }
    Some(Status::Done)
}

fn spare_writes(store: &mut impl Store, blocks: usize) {
    if let Some(tier) = store.tier_mut() {
        tier.spare_writes(blocks);
    }
}

fn store_older<S: Store>(
    shard: &Shard<S>,
    replica: &Replica,
    store: &mut S,
    key: &Key<'_>,
    item: &VersionedItem<'_>,
) -> Result<(), Refused> {
    let present = version(store, key, shard.now()).unwrap_or(0);
    let Some(value) = item.value else { return Ok(()) };
    // A change of the same version is the write of this item, which was lost here since.
    if present >= item.version || replica.noted(key.hash()) > item.version {
        return Ok(());
    }
    let expires = wall::in_partition_time(item.expires, shard.moment());
    let put = Put { flags: item.flags, expires, cas: Some(item.version), ..Put::default() };
    store.put(key, value, put).map(|_| ())
}
