//! Fills a server from other replicas before it is read.
//!
//! The server begins to take writes first ([`Turn::Begin`]). When each partition has a replica that is open, it drops
//! what it held before ([`Turn::Drop`]), and the items of its partitions are copied, while writes go on at both. The
//! server itself decides about each item (`service/replica.rs`): a later write or deletion wins. When all is copied, it
//! opens. If anything fails on the way, it is not read, and filling begins anew.
//!
//! Two servers that are filled at once do not both drop what they hold: each looks for open sources after it has begun
//! itself, and is no source from then on.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;

use super::config::WRITE_TIME_MAX;
use super::error::{ClusterError, Missed, ServerError};
use super::node::Node;
use super::{Inner, KvCluster};
use crate::client::{KvClient, KvError};
use crate::routing::Routing;
use crate::wire::{PartitionScan, PartitionScanAnswer, ReplicaState, Status, Turn, VersionedItem};

/// Bytes of items that are sent to a core at once.
const FILL_BYTES: usize = 256 << 10;
/// How long one request of a copy may take: longer than a tier's device may take for a read.
const COPY_PATIENCE: Duration = Duration::from_secs(30);
/// How often a server that is filled is asked to open, if its answer is lost.
const COMPLETE_TRIES: u32 = 5;
/// Between two of these requests, and between two looks whether a server is open.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// A fill that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    number: u64,
    /// Until then, writes that the server took before it began may be on their way to the sources.
    copy_from: u64,
    /// The server may have dropped what it held.
    has_dropped: bool,
}

impl Fill {
    /// The same, if the server takes part in a new epoch since: writes of the one before have reached the sources, or are
    /// refused there.
    pub(super) fn in_new_epoch(self) -> Fill {
        Fill { copy_from: 0, ..self }
    }

    /// Whether the server may have dropped what it held: then filling begins anew after an error.
    pub(super) fn has_dropped(&self) -> bool {
        self.has_dropped
    }
}

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refilled {
    /// Items that other replicas gave. Some may have been changed meanwhile.
    pub items: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Servers that they came from.
    pub sources: usize,
}

impl<T: Transport + 'static> KvCluster<T> {
    /// Has a server take writes, but no reads, until [`KvCluster::fill`] has filled it. It keeps what it holds until a
    /// source is found. A member begins before it joins, so that it takes writes as soon as it is live.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub async fn begin_fill(&self, server: &str) -> Result<Fill, ClusterError> {
        let (node, client) = self.inner.reach(server).await?;
        self.inner.begin_fill(&node, &client).await
    }

    /// The same, if the server is the process with this incarnation.
    pub(super) async fn begin_fill_of(&self, server: &str, incarnation: u64) -> Result<Fill, ClusterError> {
        let (node, client) = self.inner.reach(server).await?;
        let map = client.map().await.map_err(|error| failed(&node, &client, error))?;
        if map.incarnation != incarnation {
            let missed = Missed { server: server.to_owned(), error: ServerError::OtherProcess };
            return Err(ClusterError::Server(missed));
        }
        self.inner.begin_fill(&node, &client).await
    }

    /// Copies the items of all partitions of a server from other replicas, and opens it. If the server took writes when
    /// the fill began, waits until these have reached the other replicas: [`super::WRITE_TIME_MAX`].
    ///
    /// # Errors
    /// [`ClusterError::NoSource`] if a partition has no other replica that is open, [`ClusterError::Directory`] if the
    /// cluster manager does not say who is live: try again. After any other [`ClusterError`] the server is not open, and
    /// may have lost what it held: begin anew.
    pub async fn fill(&self, server: &str, mut fill: Fill) -> Result<Refilled, ClusterError> {
        self.fill_besides(server, &mut fill, &BTreeSet::new(), ready(Ok(()))).await
    }

    /// The same, besides partitions that are new: these need no source. Awaits `open` when there are all sources, before
    /// the server changes.
    pub(super) async fn fill_besides(
        &self,
        server: &str,
        fill: &mut Fill,
        new: &BTreeSet<u32>,
        open: impl Future<Output = Result<(), ClusterError>>,
    ) -> Result<Refilled, ClusterError> {
        let inner = &self.inner;
        inner.endpoint.timers().sleep_until(fill.copy_from).await;
        let (node, client) = inner.reach(server).await?;
        let client = client.with_deadline(Some(COPY_PATIENCE));
        let number = inner.number(server)?;
        let mut refilled = Refilled::default();
        let sources = inner.sources(number, new).await?;
        open.await?;
        fill.has_dropped = true;
        let fill = fill.number;
        inner.turn(&node, &client, Turn::Drop { fill }).await?;
        for (source, partitions) in sources {
            let from = inner.nodes[source as usize].clone();
            inner.copy(&from, &node, &client, fill, &partitions, &mut refilled).await?;
            refilled.sources += 1;
        }
        inner.complete(server, fill).await?;
        Ok(refilled)
    }

    /// Begins to fill a server, fills it, and opens it. The sources are looked for first: if there is none, the server
    /// keeps what it has. A member fills itself as soon as it notices that it has begun: then this returns nothing, and
    /// [`KvCluster::until_open`] waits for it.
    ///
    /// # Errors
    /// As [`KvCluster::fill`].
    pub async fn refill(&self, server: &str) -> Result<Option<Refilled>, ClusterError> {
        let number = self.inner.number(server)?;
        self.inner.sources(number, &BTreeSet::new()).await?;
        let fill = self.begin_fill(server).await?;
        if self.inner.directory.is_none() {
            return self.fill(server, fill).await.map(Some);
        }
        Ok(None)
    }

    /// Waits until all cores of a server are open, for `patience` and one more answer at most.
    ///
    /// # Errors
    /// [`ClusterError::NotOpenYet`]; as [`KvCluster::is_open`].
    pub async fn until_open(&self, server: &str, patience: Duration) -> Result<(), ClusterError> {
        let timers = self.inner.endpoint.timers();
        let begun = timers.now();
        while !self.is_open(server).await? {
            let waited = Duration::from_nanos(timers.now().saturating_sub(begun));
            let left = patience.checked_sub(waited).filter(|left| !left.is_zero());
            let Some(left) = left else { return Err(ClusterError::NotOpenYet { server: server.to_owned(), patience }) };
            timers.sleep(left.min(ASK_EVERY)).await;
        }
        Ok(())
    }

    /// Whether all cores of a server are open.
    ///
    /// # Errors
    /// [`ClusterError::Server`], [`ClusterError::NoServer`].
    pub async fn is_open(&self, server: &str) -> Result<bool, ClusterError> {
        let number = self.inner.number(server)?;
        let infos = self.inner.nodes[number as usize].infos().await;
        let infos = infos.map_err(|error| ClusterError::Server(self.inner.missed(number, error)))?;
        Ok(infos.iter().all(|info| info.state == ReplicaState::Open))
    }

    /// Opens a server with what it holds, by an operator's word that nothing is missing, or that it is lost.
    ///
    /// # Errors
    /// [`ClusterError::HasHoles`] if it has dropped items to be filled, and was not filled since: no core opens. After any
    /// other [`ClusterError`] some cores may be open; opening the server again is safe.
    pub async fn open(&self, server: &str) -> Result<(), ClusterError> {
        let (node, client) = self.inner.reach(server).await?;
        self.inner.turn(&node, &client, Turn::Open).await.map(|_| ())
    }
}

impl<T: Transport + 'static> Inner<T> {
    fn number(&self, server: &str) -> Result<u32, ClusterError> {
        self.cluster.server(server).ok_or_else(|| ClusterError::NoServer(server.to_owned()))
    }

    async fn begin_fill(&self, node: &Node<T>, client: &KvClient<T>) -> Result<Fill, ClusterError> {
        // 0 is none.
        let number = self.random.borrow_mut().next() | 1;
        let took_writes = self.turn(node, client, Turn::Begin { fill: number }).await?;
        let wait = if took_writes { WRITE_TIME_MAX.as_nanos() as u64 } else { 0 };
        Ok(Fill { number, copy_from: self.endpoint.now().saturating_add(wait), has_dropped: false })
    }

    /// Opens a server that is filled. If an answer is lost, some of its cores may be open by then, so it is asked again.
    async fn complete(self: &Rc<Self>, server: &str, fill: u64) -> Result<(), ClusterError> {
        let mut tries = 1;
        loop {
            let done = match self.reach(server).await {
                Ok((node, client)) => self.turn(&node, &client, Turn::Complete { fill }).await.map(|_| ()),
                Err(error) => Err(error),
            };
            if tries >= COMPLETE_TRIES || !matches!(done, Err(ClusterError::Server(_))) {
                return done;
            }
            tries += 1;
            self.endpoint.timers().sleep(ASK_EVERY).await;
        }
    }

    async fn reach(&self, server: &str) -> Result<(Rc<Node<T>>, KvClient<T>), ClusterError> {
        let number = self.number(server)?;
        let node = self.nodes[number as usize].clone();
        match node.fresh_client().await {
            Ok(client) => Ok((node, client)),
            Err(error) => Err(ClusterError::Server(self.missed(number, error))),
        }
    }

    /// Has a server change its state. Returns whether it took writes until then.
    async fn turn(&self, node: &Node<T>, client: &KvClient<T>, turn: Turn) -> Result<bool, ClusterError> {
        let server = node.name.clone();
        let (status, took_writes) = client.turn(turn).await.map_err(|error| failed(node, client, error))?;
        match status {
            Status::Done => Ok(took_writes),
            Status::Closed => Err(ClusterError::HasHoles { server }),
            Status::Changed => Err(ClusterError::Superseded { server }),
            Status::Full => Err(ClusterError::TooManyChanges { server }),
            _ => Err(failed(node, client, KvError::BadAnswer)),
        }
    }

    /// Returns replicas that are open, with the partitions of a server that each is to give. New partitions need none.
    async fn sources(
        self: &Rc<Self>,
        server: u32,
        new: &BTreeSet<u32>,
    ) -> Result<BTreeMap<u32, Vec<u32>>, ClusterError> {
        let seen = self.look().await?;
        let mut states: BTreeMap<u32, Result<(), ServerError>> = BTreeMap::new();
        let mut sources: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for partition in self.cluster.partitions_of(server) {
            let mut missed = Vec::new();
            let mut found = None;
            let others = self.cluster.replicas_of(partition).iter().filter(|other| **other != server);
            for &other in others.filter(|other| seen.is_live(**other)) {
                let state = match states.get(&other) {
                    Some(state) => state.clone(),
                    None => {
                        let state = self.is_source(other).await;
                        states.insert(other, state.clone());
                        state
                    }
                };
                match state {
                    // Of several, the one that gives least so far.
                    Ok(()) => {
                        let load = |source: u32| sources.get(&source).map_or(0, Vec::len);
                        if found.is_none_or(|source| load(other) < load(source)) {
                            found = Some(other);
                        }
                    }
                    Err(error) => missed.push(self.missed(other, error)),
                }
            }
            match found {
                Some(source) => sources.entry(source).or_default().push(partition),
                None if new.contains(&partition) => {}
                None => return Err(ClusterError::NoSource { partition, missed }),
            }
        }
        Ok(sources)
    }

    /// Checks that a server may be read.
    async fn is_source(&self, server: u32) -> Result<(), ServerError> {
        let infos = self.nodes[server as usize].infos().await?;
        if infos.iter().any(|info| info.state != ReplicaState::Open) {
            return Err(ServerError::NotOpen);
        }
        if infos.iter().all(|info| info.is_safe) { Ok(()) } else { Err(ServerError::NotSafe) }
    }

    /// Copies the items of some partitions.
    async fn copy(
        &self,
        from: &Rc<Node<T>>,
        to: &Node<T>,
        client: &KvClient<T>,
        fill: u64,
        partitions: &[u32],
        refilled: &mut Refilled,
    ) -> Result<(), ClusterError> {
        let mut wanted = vec![0; (self.cluster.partitions() as usize).div_ceil(8)];
        partitions.iter().for_each(|partition| wanted[*partition as usize / 8] |= 1 << (partition % 8));
        let gone = |error: ServerError| ClusterError::Server(Missed { server: from.name.clone(), error });
        let source = from.client().await.map_err(gone)?.with_deadline(Some(COPY_PATIENCE));
        let cores = source.map().await.map_err(|error| failed(from, &source, error))?.routing.cores();
        for core in 0..cores {
            let mut next = Some(0);
            while let Some(at) = next {
                let scan = PartitionScan { from: at, partitions: &wanted };
                let answer = match source.scan_partitions(core, &scan).await {
                    Err(KvError::Closed { .. }) => return Err(gone(ServerError::Closed)),
                    answer => answer.map_err(|error| failed(from, &source, error))?,
                };
                let malformed = || failed(from, &source, KvError::BadAnswer);
                let answer = PartitionScanAnswer::parse(&answer).ok_or_else(malformed)?;
                // With a server that goes backwards, it would never end.
                if answer.next.is_some_and(|next| next <= at) {
                    return Err(malformed());
                }
                next = answer.next;
                let routing = client.map().await.map_err(|error| failed(to, client, error))?.routing;
                let mut pour = Pour { to, client, routing, fill, batches: BTreeMap::new() };
                for item in answer.items {
                    let item = item.ok_or_else(malformed)?;
                    refilled.items += 1;
                    refilled.bytes += item.key.len() as u64;
                    if let Some(value) = item.value {
                        refilled.bytes += value.len() as u64;
                        pour.add(&item).await?;
                        continue;
                    }
                    // It is too long for a scan. If it is gone by now, it was deleted, and the deletion reached the
                    // server, too.
                    let found = source.read(item.key).await.map_err(|error| failed(from, &source, error))?;
                    let Some((facts, value)) = found else { continue };
                    refilled.bytes += value.len() as u64;
                    let (value, version) = (Some(&value[..]), facts.cas);
                    let item =
                        VersionedItem { key: item.key, value, flags: facts.flags, expires: facts.expires, version };
                    pour.add(&item).await?;
                }
                pour.finish().await?;
            }
        }
        Ok(())
    }
}

/// The error of a request to a server.
fn failed<T: Transport + 'static>(node: &Node<T>, client: &KvClient<T>, error: KvError) -> ClusterError {
    node.failed(client, &error);
    ClusterError::Server(Missed { server: node.name.clone(), error: error.into() })
}

/// Items on their way to the cores of a server.
struct Pour<'a, T: Transport + 'static> {
    to: &'a Node<T>,
    client: &'a KvClient<T>,
    routing: Routing,
    fill: u64,
    batches: BTreeMap<u16, Vec<u8>>,
}

impl<T: Transport + 'static> Pour<'_, T> {
    async fn add(&mut self, item: &VersionedItem<'_>) -> Result<(), ClusterError> {
        let core = self.routing.owner(item.key);
        let head = || self.fill.to_le_bytes().to_vec();
        let batch = self.batches.entry(core).or_insert_with(head);
        item.encode(batch);
        if batch.len() >= FILL_BYTES
            && let Some(batch) = self.batches.remove(&core)
        {
            self.send(core, &batch).await?;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<(), ClusterError> {
        for (core, batch) in std::mem::take(&mut self.batches) {
            self.send(core, &batch).await?;
        }
        Ok(())
    }

    async fn send(&self, core: u16, batch: &[u8]) -> Result<(), ClusterError> {
        let server = || self.to.name.clone();
        match self.client.fill(core, batch).await.map_err(|error| failed(self.to, self.client, error))? {
            Status::Done => Ok(()),
            Status::Changed => Err(ClusterError::Superseded { server: server() }),
            Status::Full => Err(ClusterError::TooManyChanges { server: server() }),
            Status::TooLarge => Err(ClusterError::NoRoom { server: server() }),
            _ => Err(failed(self.to, self.client, KvError::BadAnswer)),
        }
    }
}
