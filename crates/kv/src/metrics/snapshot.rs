//! A server's statistics: the counters of every core at one moment, and their encoding.

use std::collections::BTreeMap;
use std::fmt;

use dunlin_rpc::wire::Status;
use dunlin_rpc::{EndpointStats, HandlerStats};
use dunlin_store::StoreStats;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use super::latency::LatencyHistogram;
use super::operation::Operation;
use super::queue::QueueSnapshot;
use super::recorder::{ConnectionCounts, CoreMetrics};
use super::tier::TierSnapshot;

/// Version of the encoding. A reader accepts its own version and older ones; missing fields are zero.
const VERSION: u32 = 1;

/// Longest encoding accepted, in bytes: no message of an endpoint is longer.
pub(super) const BYTES_MAX: usize = 8 << 20;

/// Maximum number of cores accepted. Decoded histograms are far larger than their encoding, so a limit of the length
/// alone is not enough.
pub(super) const CORES_MAX: usize = 256;

/// The statistics of a server at one moment.
///
/// The encoding is JSON: a tool of another version ignores unknown fields, and `dunlin kv stats --json` prints it
/// unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Version of the encoding.
    pub version: u32,
    /// Version of the program.
    pub server_version: String,
    /// Process id.
    pub process: u32,
    /// When it was started, in seconds since 1970. Counters start then.
    pub started: u64,
    /// Uptime in microseconds: rates are computed from it, without another machine's clock.
    pub uptime_micros: u64,
    /// `cache` or `store`.
    pub mode: String,
    /// One for each core; at most 256 are read.
    #[serde(deserialize_with = "cores")]
    pub cores: Vec<CoreStats>,
}

/// The statistics of one core.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct CoreStats {
    /// The kinds of operations that occurred.
    pub operations: BTreeMap<Operation, OperationStats>,
    /// Its partition.
    pub store: StoreSnapshot,
    /// Its memcached connections.
    pub connections: ConnectionCounts,
    /// Its endpoint.
    pub endpoint: EndpointSnapshot,
    /// Its tier, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierSnapshot>,
    /// Its multi-gets that had to wait for their turn, if there ever were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multi_gets: Option<QueueSnapshot>,
}

/// Statistics of operations of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationStats {
    /// Operations done.
    pub hits: u64,
    /// Operations without the item that they need.
    pub misses: u64,
    /// Operations with an item that they exclude.
    pub conflicts: u64,
    /// Operations rejected.
    pub refused: u64,
    /// Their latency in this server, in nanoseconds.
    pub latency: LatencyHistogram,
}

impl OperationStats {
    /// Returns their number.
    pub fn total(&self) -> u64 {
        self.hits.saturating_add(self.misses).saturating_add(self.conflicts).saturating_add(self.refused)
    }

    /// Adds those of another core.
    pub fn add(&mut self, other: &OperationStats) {
        self.hits = self.hits.saturating_add(other.hits);
        self.misses = self.misses.saturating_add(other.misses);
        self.conflicts = self.conflicts.saturating_add(other.conflicts);
        self.refused = self.refused.saturating_add(other.refused);
        self.latency.add(&other.latency);
    }

    /// Returns those since an earlier moment.
    pub fn since(&self, earlier: &OperationStats) -> OperationStats {
        OperationStats {
            hits: self.hits.saturating_sub(earlier.hits),
            misses: self.misses.saturating_sub(earlier.misses),
            conflicts: self.conflicts.saturating_sub(earlier.conflicts),
            refused: self.refused.saturating_sub(earlier.refused),
            latency: self.latency.since(&earlier.latency),
        }
    }
}

/// Statistics of a partition: [`StoreStats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StoreSnapshot {
    /// Existing items.
    pub items: u64,
    /// Bytes of their keys and values.
    pub item_bytes: u64,
    /// Bytes of memory in use for them.
    pub memory_bytes: u64,
    /// Bytes of memory that may be in use.
    pub memory_bytes_max: u64,
    /// Longest value, in bytes.
    pub value_bytes_max: u64,
    /// Items stored since the start.
    pub stored: u64,
    /// Live items lost because the log needed their room.
    pub evicted_log: u64,
    /// Live items lost because their place in the index was needed.
    pub evicted_index: u64,
    /// Expired items that were found and dropped.
    pub expired: u64,
}

impl StoreSnapshot {
    /// Adds those of another core. For the longest value, takes the smaller one.
    pub fn add(&mut self, other: &StoreSnapshot) {
        self.items = self.items.saturating_add(other.items);
        self.item_bytes = self.item_bytes.saturating_add(other.item_bytes);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
        self.memory_bytes_max = self.memory_bytes_max.saturating_add(other.memory_bytes_max);
        self.value_bytes_max = self.value_bytes_max.min(other.value_bytes_max);
        self.stored = self.stored.saturating_add(other.stored);
        self.evicted_log = self.evicted_log.saturating_add(other.evicted_log);
        self.evicted_index = self.evicted_index.saturating_add(other.evicted_index);
        self.expired = self.expired.saturating_add(other.expired);
    }

    /// Returns the number of live items lost.
    pub fn evicted(&self) -> u64 {
        self.evicted_log.saturating_add(self.evicted_index)
    }
}

impl From<StoreStats> for StoreSnapshot {
    fn from(stats: StoreStats) -> Self {
        StoreSnapshot {
            items: stats.items,
            item_bytes: stats.item_bytes,
            memory_bytes: stats.memory_bytes,
            memory_bytes_max: stats.memory_bytes_max,
            value_bytes_max: stats.value_bytes_max,
            stored: stats.stored,
            evicted_log: stats.evicted_log,
            evicted_index: stats.evicted_index,
            expired: stats.expired,
        }
    }
}

/// Statistics of an endpoint: [`EndpointStats`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct EndpointSnapshot {
    /// Counters of the protocol, by the names of [`dunlin_rpc::Counters`].
    pub counters: BTreeMap<String, u64>,
    /// Counters of the transport, by the names of [`dunlin_net::TransportCounters`].
    pub transport: BTreeMap<String, u64>,
    /// Sessions now.
    pub sessions: u64,
    /// Calls in progress or queued now.
    pub calls_pending: u64,
    /// Requests that handlers are processing, or whose responses are kept.
    pub requests_held: u64,
    /// Bytes that peers make it hold now: requests in progress, and responses that are kept.
    pub held_bytes: u64,
    /// Receive-queue slots reserved for credits now.
    pub credits_reserved: u64,
    /// Tasks of its executor now.
    pub tasks: u64,
    /// Its handlers, by request type.
    pub handlers: BTreeMap<u8, HandlerSnapshot>,
}

/// Statistics of a handler: [`HandlerStats`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct HandlerSnapshot {
    /// Complete requests received.
    pub requests: u64,
    /// Responses by status, by the names of [`dunlin_rpc::wire::Status`].
    pub answers: BTreeMap<String, u64>,
    /// Sampled times from request to response, as counts of the buckets of [`dunlin_rpc::handler_stats::BOUNDS_NANOS`].
    pub duration_counts: Vec<u64>,
    /// The sum of these times.
    pub duration_sum_nanos: u64,
}

impl From<&HandlerStats> for HandlerSnapshot {
    fn from(stats: &HandlerStats) -> Self {
        let seen = Status::ALL.into_iter().filter(|status| stats.answered(*status) > 0 || *status == Status::Ok);
        HandlerSnapshot {
            requests: stats.requests,
            answers: seen.map(|status| (status.name().to_owned(), stats.answered(status))).collect(),
            duration_counts: stats.in_handler.counts().to_vec(),
            duration_sum_nanos: stats.in_handler.sum().as_nanos().try_into().unwrap_or(u64::MAX),
        }
    }
}

impl From<&EndpointStats> for EndpointSnapshot {
    fn from(stats: &EndpointStats) -> Self {
        let t = &stats.transport;
        let transport = [
            ("tx_packets", t.tx_packets),
            ("tx_bytes", t.tx_bytes),
            ("tx_batches", t.tx_batches),
            ("tx_dropped_full", t.tx_dropped_full),
            ("tx_dropped_no_memory", t.tx_dropped_no_memory),
            ("tx_dropped_error", t.tx_dropped_error),
            ("tx_refused", t.tx_refused),
            ("rx_packets", t.rx_packets),
            ("rx_bytes", t.rx_bytes),
            ("rx_batches", t.rx_batches),
            ("rx_dropped_malformed", t.rx_dropped_malformed),
            ("rx_dropped_kernel", t.rx_dropped_kernel),
            ("rx_set_aside", t.rx_set_aside),
            ("rx_late", t.rx_late),
            ("rx_reclaimed", t.rx_reclaimed),
            ("waits", t.waits),
        ];
        EndpointSnapshot {
            counters: stats.counters.iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            transport: transport.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            sessions: u64::from(stats.sessions),
            calls_pending: u64::from(stats.calls_pending),
            requests_held: u64::from(stats.requests_held),
            held_bytes: stats.held_bytes,
            credits_reserved: stats.credits_reserved as u64,
            tasks: stats.tasks as u64,
            handlers: stats.handlers.iter().map(|handler| (handler.req_type, handler.into())).collect(),
        }
    }
}

impl CoreStats {
    /// Reads all counters of a core. Takes some microseconds for each kind of operation that occurred.
    pub fn take(metrics: &CoreMetrics, store: StoreStats, endpoint: &EndpointStats) -> CoreStats {
        CoreStats {
            operations: metrics.operations().collect(),
            store: store.into(),
            connections: metrics.connections,
            endpoint: endpoint.into(),
            tier: None,
            multi_gets: None,
        }
    }

    /// Returns the operations of one kind; zero if there were none.
    pub fn operation(&self, operation: Operation) -> OperationStats {
        self.operations.get(&operation).cloned().unwrap_or_default()
    }
}

impl ServerStats {
    /// Creates the statistics of a process that has run for `uptime_micros` since `started` (seconds since 1970).
    pub fn new(mode: &str, started: u64, uptime_micros: u64, cores: Vec<CoreStats>) -> ServerStats {
        ServerStats {
            version: VERSION,
            server_version: env!("CARGO_PKG_VERSION").into(),
            process: std::process::id(),
            started,
            uptime_micros,
            mode: mode.into(),
            cores,
        }
    }

    /// Whether both are of one process: otherwise counters were reset in between.
    pub fn is_same_process(&self, other: &ServerStats) -> bool {
        (self.process, self.started) == (other.process, other.started)
    }

    /// Returns the operations of one kind on all cores.
    pub fn operation(&self, operation: Operation) -> OperationStats {
        let mut all = OperationStats::default();
        self.cores.iter().filter_map(|core| core.operations.get(&operation)).for_each(|stats| all.add(stats));
        all
    }

    /// Returns the sum of all partitions.
    pub fn store(&self) -> StoreSnapshot {
        let mut cores = self.cores.iter().map(|core| &core.store);
        let mut all = cores.next().copied().unwrap_or_default();
        cores.for_each(|store| all.add(store));
        all
    }

    /// Returns the sum of all queues of multi-gets; `None` if none had to wait.
    pub fn multi_gets(&self) -> Option<QueueSnapshot> {
        let mut cores = self.cores.iter().filter_map(|core| core.multi_gets.as_ref());
        let mut all = cores.next()?.clone();
        cores.for_each(|queue| all.add(queue));
        Some(all)
    }

    /// Returns the sum of all tiers; `None` if there is none.
    pub fn tier(&self) -> Option<TierSnapshot> {
        let mut cores = self.cores.iter().filter_map(|core| core.tier.as_ref());
        let mut all = cores.next()?.clone();
        cores.for_each(|tier| all.add(tier));
        Some(all)
    }

    /// Returns the sum of all cores' connections.
    pub fn connections(&self) -> ConnectionCounts {
        let mut all = ConnectionCounts::default();
        self.cores.iter().for_each(|core| all.add(&core.connections));
        all
    }

    /// Returns the number of sessions of all endpoints.
    pub fn sessions(&self) -> u64 {
        self.cores.iter().fold(0, |all, core| all.saturating_add(core.endpoint.sessions))
    }

    /// Encodes them for a message.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("maps with text for keys and finite numbers, which JSON can hold")
    }

    /// Decodes the bytes of a message.
    ///
    /// # Errors
    /// [`StatsError`] for anything that [`ServerStats::encode`] does not produce.
    pub fn decode(bytes: &[u8]) -> Result<ServerStats, StatsError> {
        if bytes.len() > BYTES_MAX {
            return Err(StatsError::TooLong { len: bytes.len() });
        }
        let stats: ServerStats =
            serde_json::from_slice(bytes).map_err(|error| StatsError::Malformed(error.to_string()))?;
        if stats.version == 0 || stats.version > VERSION {
            return Err(StatsError::Version { theirs: stats.version });
        }
        Ok(stats)
    }
}

/// Accepts at most [`CORES_MAX`] cores.
fn cores<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CoreStats>, D::Error> {
    struct Cores;

    impl<'de> Visitor<'de> for Cores {
        type Value = Vec<CoreStats>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {CORES_MAX} cores")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut cores = Vec::new();
            while let Some(core) = list.next_element()? {
                if cores.len() == CORES_MAX {
                    return Err(A::Error::invalid_length(CORES_MAX + 1, &self));
                }
                cores.push(core);
            }
            Ok(cores)
        }
    }

    deserializer.deserialize_seq(Cores)
}

/// Why statistics cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StatsError {
    /// They are longer than any server's.
    #[error("statistics of {len} bytes are longer than {BYTES_MAX}")]
    TooLong {
        /// Their length.
        len: usize,
    },
    /// They are malformed.
    #[error("statistics that cannot be read: {0}")]
    Malformed(String),
    /// They are from a newer program.
    #[error("the server sends statistics of version {theirs}, newer than {VERSION}: use the dunlin that it runs")]
    Version {
        /// Its version.
        theirs: u32,
    },
}
