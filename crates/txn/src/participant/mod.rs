//! The server side of transactions: one core handles the requests of coordinators. No I/O and no clock: bytes come in,
//! bytes go out.
//!
//! A participant owns the copies of partitions that the configuration puts on its core, and one log. It executes a
//! request as a whole or refuses it as a whole; a refused request leaves no lock behind.
//!
//! | File | What it holds |
//! |---|---|
//! | `execute` | phases 1 and 2, and unlocking |
//! | `commit` | phases 3 to 5, and outcomes |
//! | `fence` | transactions that hold locks for too long |
//! | `scan` | range reads |
//! | `recover` | the requests of recovery |
//! | `fill` | new copies that are filled |

mod commit;
mod execute;
mod fence;
mod fill;
mod recover;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use crate::configuration::{Configuration, Member, Role, Table};
use crate::ids::{Epoch, NodeId, PartitionId, Place, TableId};
use crate::limits::Limits;
use crate::log::Log;
use crate::mutation::{Mutation, is_planted};
use crate::partition::{Donation, Partition, PartitionStats};
use crate::wire::answer::{Cause, Refusal};
use crate::wire::execute::Target;
use crate::wire::{HEADER_BYTES, Header, Kind};

pub use fill::CopyState;

/// A copy of a partition.
#[derive(Debug)]
struct Copy {
    partition: Partition,
    role: Role,
    service: Service,
    /// The epoch in which it began to be filled. It gets no older records: the pages have what they wrote.
    since: Epoch,
    /// Whether it has all items. If not, it is a backup that is being filled.
    is_complete: bool,
    /// Keys that were fetched, and keys that its primary noted.
    progress: (u64, u64),
}

impl Copy {
    /// An empty copy, which is complete.
    fn new(configuration: &Configuration, role: Role, limits: Limits) -> Box<Copy> {
        let partition = Partition::new(&configuration.tables, limits);
        Box::new(Copy { partition, role, service: Service::Open, since: 0, is_complete: true, progress: (0, 0) })
    }
}

/// Tells whether a participant may serve, by its own clock.
#[derive(Clone)]
struct Guard(Rc<dyn Fn() -> bool>);

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard")
    }
}

/// Whether a primary serves reads and locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    /// It does.
    Open,
    /// It was promoted, and may lack records that recovery finds in logs.
    Recovering,
}

/// The counters of a participant since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParticipantStats {
    /// Requests.
    pub requests: u64,
    /// Conflicts with a lock.
    pub locked: u64,
    /// Conflicts with another version.
    pub changed: u64,
    /// Requests of other epochs.
    pub other_epoch: u64,
    /// Requests refused for other reasons.
    pub refused: u64,
    /// Records that recovery read, stored, applied or dropped here, each of which counts, and locks that it released.
    /// Records that a fence brings count, too.
    pub recovered: u64,
}

/// One core's part in transactions. One thread owns it.
#[derive(Debug)]
pub struct Participant {
    place: Place,
    incarnation: u64,
    configuration: Rc<Configuration>,
    /// Indexed by partition number.
    copies: Vec<Option<Box<Copy>>>,
    log: Log,
    /// The last epoch in which all records of earlier ones were applied here.
    opened: Epoch,
    /// What was noted for copies that are filled from here.
    donations: BTreeMap<(PartitionId, NodeId), Donation>,
    guard: Option<Guard>,
    limits: Limits,
    stats: ParticipantStats,
}

/// Why a participant rejects a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotTaken {
    /// It is older.
    #[error("configuration {given} is not newer than {ours}, which this core has")]
    Older {
        /// The epoch of the configuration.
        given: Epoch,
        /// The epoch of the participant.
        ours: Epoch,
    },
    /// It is of another cluster.
    #[error("configuration of cluster {given:016x} given to a node of cluster {ours:016x}")]
    OtherCluster {
        /// The cluster of the configuration.
        given: u64,
        /// The cluster of the participant.
        ours: u64,
    },
    /// It lists another process of the node.
    #[error("the configuration lists process {given:016x} of node {node}, this is {ours:016x}: stop it")]
    OtherIncarnation {
        /// The node.
        node: NodeId,
        /// The incarnation in the configuration.
        given: u64,
        /// The incarnation of the participant.
        ours: u64,
    },
    /// It changes or lacks a table of the participant's configuration.
    #[error("the configuration changes table {table:?}: tables can only be added, behind all others")]
    TableChanged {
        /// The name of the table.
        table: String,
    },
    /// It assigns the core a copy that the core does not have.
    #[error("partition {} is configured for {place}, which has no complete copy of it: stop it", partition.0)]
    NoCopy {
        /// The partition.
        partition: PartitionId,
        /// The core.
        place: Place,
    },
}

impl Participant {
    /// A participant of a new cluster: all its copies are empty. `incarnation` must be unique among all processes of
    /// its node, past and future. The participant answers only while the configuration names that number, so a
    /// restarted process does not answer in place of the one that had the data.
    pub fn new(place: Place, incarnation: u64, configuration: Rc<Configuration>, limits: Limits) -> Participant {
        let copy = |partition: u32| {
            let role = configuration.role(PartitionId(partition), place)?;
            Some(Copy::new(&configuration, role, limits))
        };
        let copies = (0..configuration.partitions.len() as u32).map(copy).collect();
        let (log, stats) = (Log::new(limits), ParticipantStats::default());
        let (opened, donations, guard) = (0, BTreeMap::new(), None);
        Participant { place, incarnation, configuration, copies, log, opened, donations, guard, limits, stats }
    }

    /// Has it refuse all requests while `is_safe` returns false: the node's lease has run out, so others may have
    /// replaced it.
    pub fn guard(&mut self, is_safe: Rc<dyn Fn() -> bool>) {
        self.guard = Some(Guard(is_safe));
    }

    /// Its core.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The limits of its partitions and its log.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The current epoch.
    pub fn epoch(&self) -> Epoch {
        self.configuration.epoch
    }

    /// Enters the epoch of a configuration. From now on it refuses requests of earlier epochs, and its log refuses
    /// their records. Newly promoted primaries are not served until recovery has replayed the logs ([`Kind::Open`]).
    /// Locks of earlier epochs stay until then.
    ///
    /// # Errors
    /// [`NotTaken`]; then it stays in its epoch.
    pub fn reconfigure(&mut self, next: Rc<Configuration>) -> Result<(), NotTaken> {
        self.check_next(&next)?;
        // Another primary notes other keys, in another order.
        self.donations.retain(|(partition, node), _| {
            next.filling_since(*partition, *node).is_some() && next.role(*partition, self.place) == Some(Role::Primary)
        });
        if self.copies.len() < next.partitions.len() {
            self.copies.resize_with(next.partitions.len(), || None);
        }
        for (number, slot) in self.copies.iter_mut().enumerate() {
            let partition = PartitionId(number as u32);
            let Some(role) = next.role(partition, self.place) else {
                *slot = None;
                continue;
            };
            let filling = next.filling_since(partition, self.place.node);
            // A copy that was given up and began anew in epochs that this core has not heard of.
            if slot.as_ref().is_some_and(|copy| filling.is_some_and(|since| since != copy.since)) {
                *slot = None;
            }
            let copy = slot.get_or_insert_with(|| {
                let mut copy = Copy::new(&next, role, self.limits);
                copy.is_complete = filling.is_none();
                copy.since = filling.unwrap_or(0);
                if next.epoch > next.founded {
                    // Not the first epoch: there may be records for it.
                    copy.service = Service::Recovering;
                }
                copy
            });
            if copy.role == Role::Primary && role == Role::Backup {
                copy.partition.demote();
            }
            if copy.role == Role::Backup && role == Role::Primary && !is_planted(Mutation::ServedBeforeReplay) {
                copy.service = Service::Recovering;
            }
            copy.role = role;
            copy.partition.grow_tables(&next.tables);
            if is_planted(Mutation::LocksReleasedEarly) {
                copy.partition.release_of(|owner| owner.epoch < next.epoch);
            }
        }
        self.configuration = next;
        Ok(())
    }

    fn check_next(&self, next: &Configuration) -> Result<(), NotTaken> {
        let ours = &self.configuration;
        if next.cluster != ours.cluster {
            return Err(NotTaken::OtherCluster { given: next.cluster, ours: ours.cluster });
        }
        if next.epoch <= ours.epoch {
            return Err(NotTaken::Older { given: next.epoch, ours: ours.epoch });
        }
        let is_kept = |(at, table): &(usize, &Table)| next.tables.get(*at) == Some(*table);
        if let Some((_, table)) = ours.tables.iter().enumerate().find(|table| !is_kept(table)) {
            return Err(NotTaken::TableChanged { table: table.name.clone() });
        }
        let node = self.place.node;
        if let Some(Member { incarnation: given, .. }) =
            next.nodes.get(&node).filter(|it| it.incarnation != self.incarnation)
        {
            return Err(NotTaken::OtherIncarnation { node, given: *given, ours: self.incarnation });
        }
        // Nothing is complete that was not filled here, but what began empty when this core was not there yet: all
        // writes since are in logs, since they are on all copies before.
        let is_founder = ours.epoch < next.founded;
        let has_copy = |partition: &PartitionId| {
            let copy = self.copies.get(partition.0 as usize).and_then(Option::as_ref);
            next.filling_since(*partition, node).is_some() || copy.map_or(is_founder, |copy| copy.is_complete)
        };
        let is_new = |partition: &PartitionId| next.role(*partition, self.place).is_some() && !has_copy(partition);
        match (0..next.partitions.len() as u32).map(PartitionId).find(is_new) {
            Some(partition) => Err(NotTaken::NoCopy { partition, place: self.place }),
            None => Ok(()),
        }
    }

    /// Looks at the first item of a request that will be handled soon, and forgets it. The loads of several requests do
    /// not depend on each other, so their cache misses overlap, and [`Participant::handle`] finds the items in the cache.
    pub fn touch(&self, kind: Kind, request: &[u8]) {
        let skipped = match kind {
            Kind::Execute | Kind::CommitBackup | Kind::CommitPrimary => HEADER_BYTES,
            // Behind the kind of the check.
            Kind::Validate => HEADER_BYTES + 1,
            _ => return,
        };
        let Some(Ok(target)) = request.get(skipped..).map(|mut rest| Target::take(&mut rest)) else { return };
        if let Some(Some(copy)) = self.copies.get(target.partition.0 as usize) {
            copy.partition.touch(target.table, target.key);
        }
    }

    /// Executes a request and writes the answer, whatever bytes the request has. `answer` is cleared first.
    pub fn handle(&mut self, kind: Kind, request: &[u8], answer: &mut Vec<u8>) {
        answer.clear();
        self.stats.requests += 1;
        if let Err(refusal) = self.serve(kind, request, answer) {
            self.count(refusal);
            refusal.encode(answer);
        }
    }

    fn count(&mut self, refusal: Refusal) {
        let stats = &mut self.stats;
        *match refusal {
            Refusal::Conflict { cause: Cause::Locked, .. } => &mut stats.locked,
            Refusal::Conflict { cause: Cause::Changed, .. } => &mut stats.changed,
            Refusal::OtherEpoch { .. } => &mut stats.other_epoch,
            _ => &mut stats.refused,
        } += 1;
    }

    fn serve(&mut self, kind: Kind, request: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let mut rest = request;
        let header = Header::take(kind, &mut rest)?;
        let ours = &self.configuration;
        if header.cluster != ours.cluster {
            return Err(Refusal::OtherCluster { ours: ours.cluster });
        }
        if self.guard.as_ref().is_some_and(|Guard(is_safe)| !is_safe()) {
            return Err(Refusal::NotSafe);
        }
        if header.incarnation != self.incarnation && !is_planted(Mutation::IncarnationIgnored) {
            return Err(Refusal::OtherIncarnation { ours: self.incarnation });
        }
        let is_earlier = header.transaction.epoch < ours.epoch;
        if header.transaction.epoch != ours.epoch && !(is_earlier && is_planted(Mutation::EpochIgnored)) {
            return Err(Refusal::OtherEpoch { ours: ours.epoch });
        }
        match kind {
            Kind::Execute => self.execute(&header, rest, answer),
            Kind::Validate => self.validate(&header, rest, answer),
            Kind::Abort => self.abort(&header, rest, answer),
            Kind::Log => self.append(&header, rest, answer),
            Kind::CommitBackup => self.commit_backup(&header, rest, answer),
            Kind::CommitPrimary => self.commit_primary(&header, rest, answer),
            Kind::Outcome => self.outcome(rest, answer),
            Kind::Collect => self.collect(&header, rest, answer),
            Kind::Spread => self.spread(&header, rest, answer),
            Kind::Replay => self.replay(rest, answer),
            Kind::Open => self.open(rest, answer),
            Kind::Fence => self.fence(rest, answer),
            Kind::End => self.end(rest, answer),
            Kind::Scan => self.scan(&header, rest, answer),
            Kind::Fill => self.give_page(&header, rest, answer),
        }
    }

    fn copy(&mut self, partition: PartitionId, role: Role, table: TableId) -> Result<&mut Copy, Refusal> {
        let copy = self.copies.get_mut(partition.0 as usize).and_then(Option::as_mut);
        let copy = copy.filter(|copy| copy.role == role).ok_or(Refusal::NotHere(partition))?;
        if usize::from(table.0) >= copy.partition.tables() {
            return Err(Refusal::NoTable(table));
        }
        Ok(copy)
    }

    /// The same for all of its tables.
    fn whole_primary(&mut self, partition: PartitionId) -> Result<&mut Partition, Refusal> {
        self.primary(partition, TableId(0))
    }

    /// A partition whose primary is here.
    fn primary(&mut self, partition: PartitionId, table: TableId) -> Result<&mut Partition, Refusal> {
        let copy = self.copy(partition, Role::Primary, table)?;
        match copy.service {
            Service::Open => Ok(&mut copy.partition),
            Service::Recovering => Err(Refusal::Recovering(partition)),
        }
    }

    /// The counters.
    pub fn stats(&self) -> ParticipantStats {
        self.stats
    }

    /// The process that it is.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The configuration of its epoch.
    pub fn configuration(&self) -> &Rc<Configuration> {
        &self.configuration
    }

    /// The last epoch in which all records of earlier ones were applied here, and promoted partitions were opened.
    pub fn opened(&self) -> Epoch {
        self.opened
    }

    /// Records in its log.
    pub fn log_records(&self) -> usize {
        self.log.len()
    }

    /// The contents of each partition, in numbers.
    pub fn partitions(&self) -> impl Iterator<Item = (PartitionId, Role, PartitionStats)> {
        self.copies.iter().enumerate().filter_map(|(number, copy)| {
            let copy = copy.as_ref()?;
            Some((PartitionId(number as u32), copy.role, copy.partition.stats()))
        })
    }

    /// All items of its copy of a partition, in no order: table, key, version, value.
    pub fn items(&self, partition: PartitionId) -> impl Iterator<Item = (TableId, &[u8], u64, &[u8])> {
        let copy = self.copies.get(partition.0 as usize).and_then(Option::as_ref);
        copy.into_iter().flat_map(|copy| copy.partition.items())
    }
}
