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
    Condition, CoordError, Coordinator, HEARTBEAT_EVERY, Health, Member, MemberId, Membership, Revision, Standing,
    join_after_leases,
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
}

/// A server of a cluster as a member.
pub struct Attendance<'a, C, T: Transport> {
    /// The cluster manager.
    pub coordinator: &'a C,
    /// The cluster, with the server itself. Its directory must be of the same cluster manager.
    pub cluster: &'a KvCluster<T>,
    /// The entry of the cluster manager that describes the cluster. The entries below it tell which servers were started.
    pub path: &'a str,
    /// The name of the server.
    pub server: &'a str,
    /// The incarnation of the server's process: no other one at its address is filled.
    pub incarnation: u64,
    /// The id of the member; one process at a time may use it.
    pub member: MemberId,
    /// The fence of the server's cores.
    pub fence: &'a MemberFence,
}

impl<C: Coordinator, T: Transport + 'static> Attendance<'_, C, T> {
    /// Records that a server starts for the first time, in an entry below [`Attendance::path`]. Returns when that was:
    /// partitions of which no server that was started earlier has a replica need not be filled, since nobody can hold
    /// any of their items.
    ///
    /// # Errors
    /// [`CoordError`]; `Exists` if it was started before.
    pub async fn found(&self) -> Result<Revision, CoordError> {
        let entry = format!("{}/{}", self.founded(), self.server);
        self.coordinator.set(&entry, b"", Condition::Absent).await
    }

    /// Returns the path of the entries of servers that were started, live or not.
    fn founded(&self) -> String {
        format!("{}/founded", self.path)
    }

    /// Is a member until the future is dropped: joins, has the server filled, sends heartbeats. `founded` is the result
    /// of [`Attendance::found`] if the server starts for the first time. `report` is told what happens.
    ///
    /// # Errors
    /// [`AttendError`]: a retry does not help.
    pub async fn serve(&self, founded: Option<Revision>, mut report: impl FnMut(MemberEvent)) -> AttendError {
        let mut founded = founded;
        loop {
            // It may miss writes from now on. What it holds is kept until there is a source.
            self.fence.set(None);
            let fill = self.begin(&mut report).await.in_new_epoch();
            let membership = match self.join().await {
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
            founded = None;
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

    /// Joins, unless another member is this server.
    async fn join(&self) -> Result<Membership, AttendError> {
        // Others that start for the first time wait for it from now on.
        match self.found().await {
            Ok(_) | Err(CoordError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let about = member_about(self.cluster.cluster(), self.server);
        let members = self.coordinator.members().await?.members;
        let is_other = |member: &&Member| {
            member.id != self.member && member.health == Health::Live && member.about == about.as_bytes()
        };
        if let Some(other) = members.iter().find(is_other) {
            return Err(AttendError::Twice { member: other.id, server: self.server.to_owned() });
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
        mut founded: Option<Revision>,
        standing: &Standing,
        report: &mut impl FnMut(MemberEvent),
    ) -> std::convert::Infallible {
        while standing.check(self.coordinator.now()).is_err() {
            self.sleep(TRY_EVERY / 4).await;
        }
        loop {
            match self.try_fill(fill, founded).await {
                Ok(event) => {
                    report(event);
                    founded = None;
                    // An operator may have begun to fill it, and given up.
                    while self.cluster.is_open(self.server).await.unwrap_or(true) {
                        self.sleep(FILL_EVERY).await;
                    }
                    fill = self.begin(report).await;
                }
                // What it holds is still there.
                Err(error @ ClusterError::NoSource { .. }) => report(MemberEvent::Waits(error)),
                Err(error) => {
                    report(MemberEvent::Waits(error));
                    fill = self.begin(report).await;
                }
            }
            self.sleep(FILL_EVERY).await;
        }
    }

    async fn try_fill(&self, fill: Fill, founded: Option<Revision>) -> Result<MemberEvent, ClusterError> {
        if self.cluster.is_open(self.server).await? {
            return Ok(MemberEvent::FoundOpen);
        }
        let new = match founded {
            Some(founded) => self.new_partitions(founded).await?,
            None => BTreeSet::new(),
        };
        self.cluster.fill_besides(self.server, fill, &new).await.map(MemberEvent::Filled)
    }

    /// Returns the partitions of the server of which no server that was started before has a replica.
    async fn new_partitions(&self, founded: Revision) -> Result<BTreeSet<u32>, ClusterError> {
        let earlier = self.started_before(founded).await;
        let earlier = earlier.map_err(|error| ClusterError::Directory(error.to_string()))?;
        let cluster = self.cluster.cluster();
        let own = cluster.server(self.server).map(|server| cluster.partitions_of(server)).unwrap_or_default();
        let is_new = |partition: &u32| cluster.replicas_of(*partition).iter().all(|server| !earlier.contains(server));
        Ok(own.into_iter().filter(is_new).collect())
    }

    /// Returns the servers that were started for the first time before this one.
    async fn started_before(&self, founded: Revision) -> Result<BTreeSet<u32>, CoordError> {
        let (path, mut servers, mut after) = (self.founded(), BTreeSet::new(), None);
        loop {
            let page = self.coordinator.list(&path, after.as_deref()).await?;
            let earlier = page.entries.iter().filter(|entry| entry.version < founded);
            let names = earlier.filter_map(|entry| entry.path.rsplit('/').next());
            servers.extend(names.filter_map(|name| self.cluster.cluster().server(name)));
            after = page.more_after;
            if after.is_none() {
                return Ok(servers);
            }
        }
    }

    async fn sleep(&self, time: Duration) {
        self.coordinator.sleep_until(self.coordinator.now().saturating_add(time.as_nanos() as u64)).await;
    }
}
