//! What the cores of a server share: how they are built, and what is done when they end.

use std::sync::Arc;

use dunlin_net::Transport;
use dunlin_serve::{Failed, Service, Site};
use dunlin_store::snapshot::{Misfit, NoRoom, Origin, Progress, Report, SnapshotError, load_file};
use dunlin_store::tier::Label;
use dunlin_store::{Mode, PartitionConfig, Shape, Sweep};

use super::clock::moment;
use super::config::ServerConfig;
use super::core::{KvCore, Plan, Ready};
use super::error::ServerError;
use super::mail::{Mail, Mailboxes};
use super::memcached::Memcached;
use super::partitions::MakePartition;
use super::saving::Saving;
use crate::cluster::label_of;
use crate::routing::Routing;
use crate::service::Identity;
use crate::shard::Shard;
use crate::tier::{Desk, Pool, TierError, TierFile};
use crate::wire::{Limits, ServerMap};

/// The cores of a server.
pub(super) struct Cores<P> {
    pub config: Arc<ServerConfig>,
    pub make: Box<MakePartition<P>>,
    /// The origin recorded in the snapshot, if there is one.
    pub origin: Option<Origin>,
    /// Whether there is a snapshot to load.
    pub has_snapshot: bool,
    /// Is told the progress of loading a snapshot.
    pub loading: Box<dyn Fn(Progress) + Send + Sync>,
    pub routing: Routing,
    pub incarnation: u64,
    pub identity: Identity,
    pub saving: Saving,
    /// The tier's file, and the threads that read and write it.
    pub tier: Option<(Arc<TierFile>, Pool)>,
}

impl<T: Transport + 'static, P: Sweep + 'static> Service<T> for Cores<P> {
    type Core = KvCore<T, P>;
    type Ready = Ready;
    /// The last snapshot, if there is a file for it.
    type Finish = Option<Report>;

    fn build(&self, site: Site<T, Mail>) -> Result<(KvCore<T, P>, Ready), ServerError> {
        let memcached = if site.core == 0 { Memcached::bind(&self.config)? } else { Memcached::default() };
        let mut partition = self.fill(site.core)?;
        let ready = Ready {
            addresses: site.endpoint.local_addrs().to_vec(),
            memcached: memcached.addresses(),
            value_bytes_max: partition.stats().value_bytes_max,
        };
        let desk = self.attach_tier(&mut partition, site.core)?;
        let shard = Shard::new(partition, self.routing, site.core);
        let mut shard = shard.with_schedule(self.config.schedule.clone()).map_err(TierError::from)?;
        if let Some(desk) = desk {
            shard = shard.with_desk(desk);
        }
        shard.set_moment(moment());
        if let Some(replica) = &self.config.replica {
            shard.join_cluster(replica.of_core());
        }
        let core = KvCore {
            endpoint: site.endpoint,
            shard: shard.into(),
            memcached,
            config: self.config.clone(),
            identity: self.identity.clone(),
            saving: self.saving.clone(),
            mailboxes: site.mailboxes,
            health: site.health,
            ticking: None,
        };
        Ok((core, ready))
    }

    fn plan(&self, cores: Vec<Ready>) -> Result<Plan, ServerError> {
        let value_bytes_max = cores.iter().map(|core| core.value_bytes_max).min().unwrap_or(0);
        let limits = Limits { value_bytes_max: value_bytes_max.try_into().unwrap_or(u32::MAX) };
        let addresses = cores.iter().map(|core| core.addresses.iter().map(ToString::to_string).collect()).collect();
        let map = ServerMap { incarnation: self.incarnation, routing: self.routing, limits, addresses };
        let memcached = cores.into_iter().flat_map(|core| core.memcached).collect();
        Ok(Plan { map, memcached, flushing: Arc::default() })
    }

    /// Each core knows what does not fit in it: all of that is reported.
    fn join_errors(&self, before: Option<ServerError>, error: ServerError) -> Result<ServerError, ServerError> {
        let ServerError::Load { path, source: SnapshotError::NoRoom(more) } = error else { return Err(error) };
        let joined = match before {
            Some(ServerError::Load { source: SnapshotError::NoRoom(before), .. }) => together(&before, &more),
            _ => more,
        };
        Ok(ServerError::Load { path, source: SnapshotError::NoRoom(joined) })
    }

    async fn finish(&self, mailboxes: &Mailboxes) -> Result<Option<Report>, ServerError> {
        self.saving.has_file().then(|| self.saving.of(mailboxes).save_last()).transpose()
    }

    async fn rescue(&self, mailboxes: &Mailboxes, _: &Failed) -> Option<String> {
        Some(self.saving.of(mailboxes).save_after_failure())
    }

    fn give_up(&self, hung: &[u16]) {
        self.saving.give_up(hung);
    }
}

impl<P: Sweep + 'static> Cores<P> {
    /// Creates the partition of a core, and loads its items.
    fn fill(&self, core: u16) -> Result<P, ServerError> {
        let memory = self.config.memory_bytes / usize::from(self.routing.cores());
        let mut config = PartitionConfig::new(self.config.mode, memory);
        config.key_function = self.config.key_function;
        let mut partition = (self.make)(config, self.shape(core))?;
        let Some(path) = self.config.snapshot.as_deref().filter(|_| self.has_snapshot) else { return Ok(partition) };
        let cannot_load = |source| ServerError::Load { path: path.to_owned(), source };
        let misfit = if self.config.mode == Mode::Cache { Misfit::Count } else { Misfit::Refuse };
        let route = |key: &[u8]| (self.routing.owner(key) == core).then_some(0);
        let progress = |progress| {
            // Every core reads the whole file; one of them reports.
            if core == 0 {
                (self.loading)(progress);
            }
        };
        let partitions = std::slice::from_mut(&mut partition);
        let loaded = load_file(path, moment(), partitions, route, misfit, progress).map_err(cannot_load)?;
        let items = loaded.misfits + loaded.evicted;
        if items > 0 {
            tracing::warn!(core, items, "the snapshot has more than the cache has room for; these items were left out");
        }
        Ok(partition)
    }

    /// Puts the tier behind the partition of a core, if there is one, and returns where operations wait for it.
    fn attach_tier(&self, partition: &mut P, core: u16) -> Result<Option<Desk>, TierError> {
        let (Some((file, pool)), Some(settings)) = (&self.tier, &self.config.tier) else { return Ok(None) };
        let cores = self.routing.cores();
        let label = self.config.replica.as_ref().map(|_| label_of as Label);
        if !partition.attach_tier(file.config(settings, core, cores, label)) {
            return Err(TierError::NoCache);
        }
        let slots = pool.width() / usize::from(cores);
        Ok(Some(Desk::new(pool.clone(), file.part(core), slots, self.config.schedule.clone())?))
    }

    /// Returns the shape of a core's partition when the snapshot was taken: a partition of the same shape has room for
    /// all of its items. With another number of cores, a core has other items.
    fn shape(&self, core: u16) -> Option<&Shape> {
        let origin = self.origin.as_ref()?;
        let is_same = origin.partitions.len() == usize::from(self.routing.cores());
        origin.partitions.get(usize::from(core)).filter(|_| is_same)
    }
}

/// Adds up what does not fit in two cores.
fn together(one: &NoRoom, other: &NoRoom) -> NoRoom {
    NoRoom {
        items: one.items + other.items,
        of: one.of + other.of,
        bytes: one.bytes + other.bytes,
        memory: one.memory + other.memory,
        taken_of: one.taken_of,
    }
}
