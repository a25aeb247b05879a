//! A cluster under a cluster manager: servers are members, clients look up who is live, and a server that comes back is
//! filled before it is read.
//!
//! Why a server that opens has every write that was acknowledged: it begins to take writes before it joins. It copies
//! items only when the epoch in which it is live is settled, that is when every live member has acknowledged it. From
//! then on no server takes a write of an earlier epoch ([`crate::service::Fence`]), and clients of this epoch write to
//! it, too. So each write is either on the source before it is copied, or is sent to the server itself.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use dunlin_coord::{
    Condition, CoordError, Coordinator, Entry, HEARTBEAT_EVERY, Health, Member, MemberId, Membership, Revision,
    Standing, Transaction, join_after_leases,
};
use dunlin_net::Transport;
use dunlin_net::clock::boot_nanos;
use futures::FutureExt as _;
use futures::future::{Either, LocalBoxFuture, select};

use super::description::{Description, DescriptionError};
use super::error::ClusterError;
use super::view::{Directory, Seen};
use super::{Fill, KvCluster, Refilled};
use crate::service::Fence;

/// Between two attempts to join, to look whether the epoch is settled, and to begin to fill.
const TRY_EVERY: Duration = Duration::from_millis(100);
/// Between two attempts to fill a server, and to look whether it is open.
const FILL_EVERY: Duration = Duration::from_secs(1);
/// The entry of a server that was started as a new one, and has not opened since. Any other value says that it has.
const NEW: &[u8] = b"new";

/// What a member says about itself, by which clients find it.
pub fn member_about(cluster: &Description, server: &str) -> String {
    format!("kv {}/{server} of {:016x}", cluster.name(), cluster.id())
}

/// Why the cluster manager does not give a description.
#[derive(Debug, thiserror::Error)]
pub enum DescribeError {
    /// It was not reached.
    #[error(transparent)]
    Coord(#[from] CoordError),
    /// It has no such entry.
    #[error("the cluster manager has no entry {0}: store the description there, with dunlin coord set")]
    NoEntry(String),
    /// The entry is no description.
    #[error("the entry {path}: {why}")]
    Description {
        /// Its path.
        path: String,
        /// The cause.
        why: DescriptionError,
    },
}

/// Reads the description of a cluster from an entry of the cluster manager, which has the text of a file.
///
/// # Errors
/// [`DescribeError`].
pub async fn description_at(coordinator: &impl Coordinator, path: &str) -> Result<Description, DescribeError> {
    let entry = coordinator.get(path).await?.ok_or_else(|| DescribeError::NoEntry(path.to_owned()))?;
    let refused = |why| DescribeError::Description { path: path.to_owned(), why };
    let text = String::from_utf8(entry.value);
    let text = text.map_err(|_| refused(DescriptionError::Syntax("it is no text".into())))?;
    Description::parse(&text).map_err(refused)
}

/// Looks up who is live with a cluster manager.
pub struct MemberDirectory<C> {
    coordinator: Rc<C>,
    about: Vec<Vec<u8>>,
}

impl<C> MemberDirectory<C> {
    /// Of the servers of a cluster.
    pub fn new(coordinator: Rc<C>, cluster: &Description) -> MemberDirectory<C> {
        let about = |server: &super::ServerPlace| member_about(cluster, &server.name).into_bytes();
        MemberDirectory { coordinator, about: cluster.servers().iter().map(about).collect() }
    }
}

impl<C: Coordinator + 'static> Directory for MemberDirectory<C> {
    fn look(self: Rc<Self>) -> LocalBoxFuture<'static, Result<Seen, String>> {
        async move {
            let members = self.coordinator.members().await.map_err(|error| error.to_string())?;
            let is_live = |about: &Vec<u8>| {
                members.members.iter().any(|member| member.health == Health::Live && member.about == *about)
            };
            Ok(Seen { epoch: members.epoch, live: self.about.iter().map(is_live).collect() })
        }
        .boxed_local()
    }
}

/// The fence of a server that is a member. Clones share one state; the cores of the server have one each.
#[derive(Debug, Clone, Default)]
pub struct MemberFence {
    standing: Arc<RwLock<Option<Standing>>>,
}

impl MemberFence {
    /// Of a server that has not joined yet: it may serve nothing.
    pub fn new() -> MemberFence {
        MemberFence::default()
    }

    fn set(&self, standing: Option<Standing>) {
        *self.standing.write().unwrap_or_else(PoisonError::into_inner) = standing;
    }
}

impl Fence for MemberFence {
    fn epoch(&self) -> Option<u64> {
        let standing = self.standing.read().unwrap_or_else(PoisonError::into_inner);
        standing.as_ref()?.check(boot_nanos()).ok()
    }

    fn heard_of(&self, epoch: u64) {
        if let Some(standing) = &*self.standing.read().unwrap_or_else(PoisonError::into_inner) {
            standing.heard_of(epoch);
        }
    }
}

/// What becomes of a member.
#[derive(Debug)]
#[non_exhaustive]
pub enum MemberEvent {
    /// It has joined, and waits until the epoch is settled.
    Joined {
        /// The epoch.
        epoch: u64,
    },
    /// It cannot be filled now. It tries again.
    Waits(ClusterError),
    /// It is filled, and open.
    Filled(Refilled),
    /// It is open, but not by this fill: an operator has opened it, for example.
    FoundOpen,
    /// It is no live member any more: it joins again, and is filled again.
    Lost(CoordError),
}

/// Why a server cannot be a member.
#[derive(Debug, thiserror::Error)]
pub enum AttendError {
    /// The cluster manager refuses it.
    #[error(transparent)]
    Coord(#[from] CoordError),
    /// A process with another id is this server.
    #[error("member {member} is {server}, too: end that process, or wait until it has failed, and start with its id")]
    Twice {
        /// The other member.
        member: MemberId,
        /// The name of the server.
        server: String,
    },
    /// A server that is to be new has opened before.
    #[error(
        "{server} was started before, and has opened: start it without --new, and it is filled from other replicas; if \
         none of them is left, open it with dunlin kv cluster open {server}"
    )]
    StartedBefore {
        /// The name of the server.
        server: String,
    },
}

/// Partitions that need no source.
#[derive(Debug, Default)]
struct Claim {
    partitions: BTreeSet<u32>,
    /// Compares that hold as long as that is so.
    on: Transaction,
}

/// A server of a cluster as a member.
pub struct Attendance<'a, C, T: Transport> {
    /// The cluster manager.
    pub coordinator: &'a C,
    /// The cluster, with the server itself. Its directory must be of the same cluster manager.
    pub cluster: &'a KvCluster<T>,
    /// The entry of the cluster manager that describes the cluster. The entries below it tell which servers have
    /// opened.
    pub path: &'a str,
    /// The name of the server.
    pub server: &'a str,
    /// The incarnation of the server's process: no other one at its address is filled.
    pub incarnation: u64,
    /// The id of the member; one process at a time may use it.
    pub member: MemberId,
    /// Whether the server starts for the first time: partitions of which no server that has opened has a replica need not
    /// be filled then, since nobody can hold any of their items.
    pub is_new: bool,
    /// The fence of the server's cores.
    pub fence: &'a MemberFence,
}

impl<C: Coordinator, T: Transport + 'static> Attendance<'_, C, T> {
    /// Records that the server starts as a new one. Returns when that was. It may be recorded again until the server has
    /// opened: the later record counts, since an earlier process held nothing that is not lost.
    async fn found(&self) -> Result<Revision, AttendError> {
        let own = self.own_entry();
        let condition = match self.coordinator.get(&own).await? {
            None => Condition::Absent,
            Some(entry) if entry.value == NEW => Condition::Version { version: entry.version },
            Some(_) => return Err(AttendError::StartedBefore { server: self.server.to_owned() }),
        };
        Ok(self.coordinator.set(&own, NEW, condition).await?)
    }

    /// Returns the path of the entries of servers. Its own entry is set whenever a server opens, so that of
    /// two that claim partitions at once one does so first.
    fn founded(&self) -> String {
        format!("{}/founded/{:016x}", self.path, self.cluster.cluster().id())
    }

    fn own_entry(&self) -> String {
        format!("{}/{}", self.founded(), self.server)
    }

    /// Returns the value of the entry once this process opens.
    fn opened(&self) -> Vec<u8> {
        format!("opened {:016x}", self.incarnation).into_bytes()
    }

    /// Is a member until the future is dropped: joins, has the server filled, sends heartbeats. `report` is
    /// told what happens.
    ///
    /// # Errors
    /// [`AttendError`]: a retry does not help.
    pub async fn serve(&self, mut report: impl FnMut(MemberEvent)) -> AttendError {
        let mut founded = None;
        loop {
            // It may miss writes from now on. What it holds is kept until there is a source.
            self.fence.set(None);
            let fill = self.begin(&mut report).await.in_new_epoch();
            let membership = match self.join(&mut founded).await {
                Ok(membership) => membership,
                Err(AttendError::Coord(error)) if error.is_of_the_moment() => {
                    self.sleep(TRY_EVERY).await;
                    continue;
                }
                Err(error) => return error,
            };
            let standing = Standing::new(&membership);
            self.fence.set(Some(standing.clone()));
            report(MemberEvent::Joined { epoch: membership.epoch });
            let work = Box::pin(self.fill_and_watch(fill, founded, &standing, &mut report));
            let attending = Box::pin(standing.attend(self.coordinator, HEARTBEAT_EVERY));
            let lost = match select(attending, work).await {
                Either::Left((lost, _)) => lost,
                Either::Right((never, _)) => match never {},
            };
            standing.end();
            report(MemberEvent::Lost(lost));
            self.sleep(TRY_EVERY).await;
        }
    }

    /// Leaves, so that nobody waits for the server any more: it serves nothing from now on. An error of the cluster
    /// manager does no harm: the membership then ends by itself.
    pub async fn leave(&self) {
        let standing = self.fence.standing.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(standing) = standing {
            standing.end();
            let _ = self.coordinator.leave(standing.membership()).await;
        }
    }

    /// Joins, unless another member is this server. A new one is recorded before, once.
    async fn join(&self, founded: &mut Option<Revision>) -> Result<Membership, AttendError> {
        let about = member_about(self.cluster.cluster(), self.server);
        let members = self.coordinator.members().await?.members;
        let is_other = |member: &&Member| {
            member.id != self.member && member.health == Health::Live && member.about == about.as_bytes()
        };
        if let Some(other) = members.iter().find(is_other) {
            return Err(AttendError::Twice { member: other.id, server: self.server.to_owned() });
        }
        if self.is_new && founded.is_none() {
            *founded = Some(self.found().await?);
        }
        Ok(join_after_leases(self.coordinator, self.member, about.as_bytes(), TRY_EVERY).await?)
    }

    /// Has the server take writes from now on.
    async fn begin(&self, report: &mut impl FnMut(MemberEvent)) -> Fill {
        loop {
            match self.cluster.begin_fill_of(self.server, self.incarnation).await {
                Ok(fill) => return fill,
                Err(error) => report(MemberEvent::Waits(error)),
            }
            self.sleep(FILL_EVERY).await;
        }
    }

    /// Fills the server once its epoch is settled, and again if it is not open any more.
    async fn fill_and_watch(
        &self,
        mut fill: Fill,
        founded: Option<Revision>,
        standing: &Standing,
        report: &mut impl FnMut(MemberEvent),
    ) -> std::convert::Infallible {
        while standing.check(self.coordinator.now()).is_err() {
            self.sleep(TRY_EVERY / 4).await;
        }
        let mut claimed = BTreeSet::new();
        loop {
            match self.try_fill(&mut fill, founded, &mut claimed).await {
                Ok(event) => {
                    report(event);
                    claimed.clear();
                    // An operator may have begun to fill it, and given up.
                    while self.cluster.is_open(self.server).await.unwrap_or(true) {
                        self.sleep(FILL_EVERY).await;
                    }
                    fill = self.begin(report).await;
                }
                Err(error) => {
                    report(MemberEvent::Waits(error));
                    // Otherwise what it holds is still there, and another fill would wait for writes under way.
                    if fill.has_dropped() {
                        fill = self.begin(report).await;
                    }
                }
            }
            self.sleep(FILL_EVERY).await;
        }
    }

    async fn try_fill(
        &self,
        fill: &mut Fill,
        founded: Option<Revision>,
        claimed: &mut BTreeSet<u32>,
    ) -> Result<MemberEvent, ClusterError> {
        let of_manager = |error: CoordError| ClusterError::Directory(error.to_string());
        if self.cluster.is_open(self.server).await? {
            self.record_open(Transaction::new()).await.map_err(of_manager)?;
            return Ok(MemberEvent::FoundOpen);
        }
        let claim = match founded {
            Some(founded) => self.claim(founded, claimed).await.map_err(of_manager)?,
            None => Claim::default(),
        };
        let open = async {
            claimed.clone_from(&claim.partitions);
            self.record_open(claim.on).await.map(drop).map_err(of_manager)
        };
        self.cluster.fill_besides(self.server, fill, &claim.partitions, open).await.map(MemberEvent::Filled)
    }

    /// Records that the server opens, if the compares of `on` hold.
    async fn record_open(&self, on: Transaction) -> Result<Revision, CoordError> {
        self.coordinator.transact(&on.set(&self.founded(), "").set(&self.own_entry(), self.opened())).await
    }

    /// Returns the partitions of the server whose items nobody can hold: those without a replica on a server that has
    /// ever opened. For new servers that were recorded before this one, it waits while they are live. `claimed` is what
    /// this process has claimed, or has tried to, without having opened.
    async fn claim(&self, founded: Revision, claimed: &BTreeSet<u32>) -> Result<Claim, CoordError> {
        let (root, own) = (self.founded(), self.own_entry());
        // Before the entries are read: if another server opens after that, its claim fails, or this one.
        let opened_last = self.coordinator.get(&root).await?;
        let opened_last = opened_last.map_or(Condition::Absent, |entry| Condition::Version { version: entry.version });
        let entries = self.entries().await?;
        match entries.iter().find(|entry| entry.path == own) {
            Some(entry) if entry.version == founded => {}
            Some(entry) if entry.value == self.opened() => {
                return Ok(Claim { partitions: claimed.clone(), on: Transaction::new() });
            }
            _ => return Ok(Claim::default()),
        }
        let members = self.coordinator.members().await?.members;
        let cluster = self.cluster.cluster();
        let is_live = |name: &str| {
            let about = member_about(cluster, name).into_bytes();
            members.iter().any(|member| member.health == Health::Live && member.about == about)
        };
        let holder = |entry: &Entry| {
            let name = entry.path.rsplit('/').next()?;
            let counts = entry.value != NEW || entry.version < founded && is_live(name);
            cluster.server(name).filter(|_| counts)
        };
        let holders: BTreeSet<u32> = entries.iter().filter_map(holder).collect();
        let is_new = |partition: &u32| cluster.replicas_of(*partition).iter().all(|server| !holders.contains(server));
        let partitions = cluster.server(self.server).map(|server| cluster.partitions_of(server)).unwrap_or_default();
        let partitions = partitions.into_iter().filter(is_new).collect();
        let on = Transaction::new().if_entry(&root, opened_last);
        Ok(Claim { partitions, on: on.if_entry(&own, Condition::Version { version: founded }) })
    }

    /// Returns the entries of all servers.
    async fn entries(&self) -> Result<Vec<Entry>, CoordError> {
        let (path, mut entries, mut after) = (self.founded(), Vec::new(), None);
        loop {
            let page = self.coordinator.list(&path, after.as_deref()).await?;
            entries.extend(page.entries);
            after = page.more_after;
            if after.is_none() {
                return Ok(entries);
            }
        }
    }

    async fn sleep(&self, time: Duration) {
        self.coordinator.sleep_until(self.coordinator.now().saturating_add(time.as_nanos() as u64)).await;
    }
}
