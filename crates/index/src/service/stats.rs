//! What a server tells about itself: for `dunlin top`, and for metrics.

use std::time::Duration;

use dunlin_rpc::handler_stats::BOUNDS_NANOS;
use dunlin_rpc::wire::Status;
use dunlin_rpc::{Durations, EndpointStats};
use dunlin_serve::metrics::{Family, Kind, of_cores, of_endpoint};
use serde::{Deserialize, Serialize};

use super::{ServiceStats, SharedIndex};
use crate::guard::pin;
use crate::node::Shape;
use crate::wire::{COUNT, DELETE_RANGE, LONG_SCAN, OPERATE, SAVE, SCAN, STATS};

/// Version of the JSON.
const VERSION: u32 = 1;
/// Longest accepted JSON, in bytes: far more than 1024 cores need.
const JSON_BYTES_MAX: usize = 16 << 20;

/// A server at one moment. Unknown fields are skipped and missing ones are zero, so a client reads what servers of other
/// versions of Dunlin tell.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStats {
    /// Version of this layout.
    pub version: u32,
    /// Version of Dunlin.
    pub server_version: String,
    /// The random number that the server drew when it was started.
    pub incarnation: u64,
    /// When it was started, in seconds since 1970.
    pub started: u64,
    /// How long it has run, in microseconds.
    pub uptime_micros: u64,
    /// Threads that make long pages and counts.
    pub workers: u16,
    /// The index.
    pub index: IndexFigures,
    /// Snapshots.
    pub snapshots: SnapshotFigures,
    /// Each core.
    pub cores: Vec<CoreStats>,
}

/// An index at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexFigures {
    /// Items.
    pub items: u64,
    /// Bytes of nodes, keys and values, and of what waits to be freed.
    pub memory_bytes: u64,
    /// The memory budget in bytes.
    pub memory_bytes_max: u64,
    /// Bytes of free nodes. They count against the budget, too, but only nodes of the same size can use them, unless all
    /// nodes of their page are free.
    pub idle_bytes: u64,
    /// Interior nodes, and those that wait to be freed.
    pub interior_nodes: u64,
    /// Leaves of 4, 12 and 28 entries, and those that wait to be freed.
    pub leaves: [u64; 3],
    /// Trees: the first layer, and one for each slice of eight bytes that several long keys share.
    pub layers: u64,
    /// Levels of nodes of the first layer.
    pub levels: u64,
}

impl IndexFigures {
    /// Nodes of all kinds.
    pub fn nodes(&self) -> u64 {
        self.leaves.iter().fold(self.interior_nodes, |sum, leaves| sum.saturating_add(*leaves))
    }

    /// Bytes that count against the memory budget.
    pub fn held_bytes(&self) -> u64 {
        self.memory_bytes.saturating_add(self.idle_bytes)
    }

    /// The share of the places in leaves that have an entry: an item, or the layer of several. Leaves that wait to be
    /// freed have places, too. 0 without leaves.
    pub fn fill(&self) -> f64 {
        let capacities = [Shape::Leaf4, Shape::Leaf12, Shape::Leaf28].map(Shape::capacity);
        let places: f64 =
            self.leaves.iter().zip(capacities).map(|(leaves, places)| *leaves as f64 * places as f64).sum();
        let entries = self.items as f64 + self.layers.saturating_sub(1) as f64;
        if places == 0.0 { 0.0 } else { entries / places }
    }

    /// Bytes of nodes, keys and values for each item; 0 without items.
    pub fn bytes_per_item(&self) -> f64 {
        if self.items == 0 { 0.0 } else { self.memory_bytes as f64 / self.items as f64 }
    }

    /// Bytes of keys and values that do not fit into a leaf.
    pub fn block_bytes(&self) -> u64 {
        let [small, middle, large] = self.leaves;
        let shapes = [Shape::Leaf4, Shape::Leaf12, Shape::Leaf28, Shape::Interior];
        // One more: the anchor stands above the tree.
        let nodes = [small.saturating_add(1), middle, large, self.interior_nodes].into_iter().zip(shapes);
        let in_nodes = nodes.map(|(nodes, shape)| nodes.saturating_mul(shape.bytes() as u64));
        in_nodes.fold(self.memory_bytes, u64::saturating_sub)
    }

    /// Reads counters, and a node for the levels: however many items there are, it takes the same time.
    pub(super) fn of(shared: &SharedIndex) -> IndexFigures {
        let index = shared.index();
        let outline = index.outline(&pin());
        IndexFigures {
            items: index.len() as u64,
            memory_bytes: index.memory_bytes() as u64,
            memory_bytes_max: index.budget() as u64,
            idle_bytes: index.idle_bytes() as u64,
            interior_nodes: outline.interior_nodes as u64,
            leaves: outline.leaves.map(|leaves| leaves as u64),
            layers: outline.layers as u64,
            levels: outline.levels as u64,
        }
    }
}

/// Snapshots since the server was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotFigures {
    /// Those that were saved.
    pub saved: u64,
    /// Those that were not.
    pub failed: u64,
}

/// A core at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CoreStats {
    /// Its number.
    pub core: u16,
    /// Sessions now.
    pub sessions: u64,
    /// What it served.
    pub service: ServiceStats,
    /// Its handlers that had requests.
    pub handlers: Vec<HandlerFigures>,
}

/// The handler of one request type.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HandlerFigures {
    /// `operate`, `scan`, `long-scan`, `count`, `delete-range`, `stats`, `save`, or the number of the type.
    pub name: String,
    /// Requests.
    pub requests: u64,
    /// Answers that are errors, and requests that were pushed back.
    pub failed: u64,
    /// Time in the handler. Of the requests that are answered in their receive burst, one in 16 is timed.
    pub latency: Latency,
    /// Time that requests waited for a worker's thread.
    pub queued: Latency,
}

/// How many durations were within which bounds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// By bucket: those of [`BOUNDS_NANOS`], then one for all longer ones.
    pub counts: Vec<u64>,
    /// Their sum in nanoseconds.
    pub sum_nanos: u64,
}

impl From<Durations> for Latency {
    fn from(durations: Durations) -> Latency {
        let sum_nanos = durations.sum().as_nanos().try_into().unwrap_or(u64::MAX);
        Latency { counts: durations.counts().to_vec(), sum_nanos }
    }
}

impl Latency {
    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds the durations of another one.
    pub fn add(&mut self, other: &Latency) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.sum_nanos = self.sum_nanos.saturating_add(other.sum_nanos);
    }

    /// The durations that were counted since `earlier`, an older state of this one.
    #[must_use]
    pub fn since(&self, earlier: &Latency) -> Latency {
        let before = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect();
        Latency { counts, sum_nanos: self.sum_nanos.saturating_sub(earlier.sum_nanos) }
    }

    /// The time that `percent` of them did not exceed, with those of a bucket spread evenly over it; zero if there are
    /// none. Times above 10 s count as 10 s.
    pub fn percentile(&self, percent: f64) -> Duration {
        let rank = self.count() as f64 * percent / 100.0;
        let mut below = 0.0;
        for (at, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = count as f64;
            if below + count >= rank {
                let bound = |at: usize| BOUNDS_NANOS.get(at).or(BOUNDS_NANOS.last()).map_or(0.0, |nanos| *nanos as f64);
                let low = at.checked_sub(1).map_or(0.0, bound);
                let share = ((rank - below) / count).clamp(0.0, 1.0);
                return Duration::from_nanos((low + share * (bound(at) - low)) as u64);
            }
            below += count;
        }
        Duration::ZERO
    }
}

fn name_of(req_type: u8) -> String {
    match req_type {
        OPERATE => "operate",
        SCAN => "scan",
        LONG_SCAN => "long-scan",
        COUNT => "count",
        DELETE_RANGE => "delete-range",
        STATS => "stats",
        SAVE => "save",
        other => return other.to_string(),
    }
    .into()
}

/// What a core counts.
#[derive(Debug)]
pub(super) struct Counts {
    pub core: u16,
    pub service: ServiceStats,
    pub endpoint: EndpointStats,
}

impl From<Counts> for CoreStats {
    fn from(Counts { core, service, endpoint }: Counts) -> CoreStats {
        let handlers = endpoint.handlers.iter().map(|handler| HandlerFigures {
            name: name_of(handler.req_type),
            requests: handler.requests,
            failed: handler.answers.iter().sum::<u64>() - handler.answered(Status::Ok),
            latency: handler.in_handler.into(),
            queued: handler.in_queue.into(),
        });
        CoreStats { core, sessions: endpoint.sessions.into(), service, handlers: handlers.collect() }
    }
}

impl ServerStats {
    pub(super) fn encode(&self) -> Vec<u8> {
        let stats = ServerStats { version: VERSION, ..self.clone() };
        serde_json::to_vec(&stats).expect("numbers and strings are JSON")
    }

    /// Parses what a server answered.
    ///
    /// # Errors
    /// Why it is no statistics of an index.
    pub fn decode(json: &[u8]) -> Result<ServerStats, String> {
        if json.len() > JSON_BYTES_MAX {
            return Err(format!("statistics of {} bytes are too long", json.len()));
        }
        let stats: ServerStats = serde_json::from_slice(json).map_err(|why| format!("no statistics: {why}"))?;
        if stats.version == VERSION {
            Ok(stats)
        } else {
            Err(format!("statistics of version {}, and this program reads version {VERSION}", stats.version))
        }
    }

    /// Whether both are of one run of a server.
    pub fn is_same_process(&self, other: &ServerStats) -> bool {
        self.incarnation == other.incarnation
    }

    /// The counters of all cores together.
    pub fn service(&self) -> ServiceStats {
        self.cores.iter().fold(ServiceStats::default(), |sum, core| sum.plus(core.service))
    }

    /// The handlers of all cores together, in the order of the request types.
    pub fn handlers(&self) -> Vec<HandlerFigures> {
        let mut all: Vec<HandlerFigures> = Vec::new();
        for handler in self.cores.iter().flat_map(|core| &core.handlers) {
            match all.iter_mut().find(|known| known.name == handler.name) {
                Some(known) => known.add(handler),
                None => all.push(handler.clone()),
            }
        }
        all
    }
}

impl HandlerFigures {
    fn add(&mut self, other: &HandlerFigures) {
        self.requests = self.requests.saturating_add(other.requests);
        self.failed = self.failed.saturating_add(other.failed);
        self.latency.add(&other.latency);
        self.queued.add(&other.queued);
    }

    /// What was counted since `earlier`, an older state of this one.
    #[must_use]
    pub fn since(&self, earlier: &HandlerFigures) -> HandlerFigures {
        HandlerFigures {
            name: self.name.clone(),
            requests: self.requests.saturating_sub(earlier.requests),
            failed: self.failed.saturating_sub(earlier.failed),
            latency: self.latency.since(&earlier.latency),
            queued: self.queued.since(&earlier.queued),
        }
    }
}

/// The metrics of a server.
pub(super) fn families(cores: &[Counts], index: IndexFigures, snapshots: SnapshotFigures, workers: u16) -> Vec<Family> {
    let gauge = |name, help, value| Family::one(Kind::Gauge, name, help, value);
    let nodes = [
        ("leaf4", index.leaves[0]),
        ("leaf12", index.leaves[1]),
        ("leaf28", index.leaves[2]),
        ("interior", index.interior_nodes),
    ];
    let nodes = nodes.map(|(shape, nodes)| (vec![("shape", shape.to_owned())], nodes)).to_vec();
    let mut families = vec![
        gauge("items", "Items in the index.", index.items),
        gauge("memory_bytes", "Bytes of nodes, keys and values, and of what waits to be freed.", index.memory_bytes),
        gauge("memory_bytes_max", "The memory budget.", index.memory_bytes_max),
        gauge("memory_idle_bytes", "Bytes of free nodes, which count against the budget, too.", index.idle_bytes),
        gauge(
            "layers",
            "Trees of nodes: the first, and one for each slice that several long keys share.",
            index.layers,
        ),
        gauge("levels", "Levels of nodes of the first layer.", index.levels),
        Family {
            name: "nodes",
            help: "Nodes of the index, and those that wait to be freed.",
            kind: Kind::Gauge,
            values: nodes,
            durations: Vec::new(),
        },
        gauge("workers", "Threads that make long pages and counts.", workers.into()),
        Family::events(
            "snapshots",
            "Snapshots that were saved, and that were not.",
            [("saved", snapshots.saved), ("failed", snapshots.failed)],
        ),
    ];
    families.extend(of_cores(cores.iter().map(|counts| (counts.core, of_core(counts)))));
    families
}

fn of_core(Counts { service, endpoint, .. }: &Counts) -> Vec<Family> {
    let counter = |name, help, value| Family::one(Kind::Counter, name, help, value);
    let mut families = vec![
        Family::events(
            "operations",
            "Operations that were done.",
            [
                ("get", service.gets),
                ("put", service.puts),
                ("delete", service.deletes),
                ("short_page", service.short_pages),
                ("long_page", service.long_pages),
                ("count", service.counts),
                ("delete_range", service.range_deletes),
            ],
        ),
        Family::events(
            "bursts",
            "Bursts in which GETs, PUTs and DELETEs, and short pages, were done.",
            [("get", service.get_bursts), ("write", service.write_bursts), ("scan", service.scan_bursts)],
        ),
        counter("scans", "Scans and counts that began.", service.scans),
        counter("scanned_items", "Items in pages, and counted ones.", service.items),
        counter("range_deleted_items", "Items that removals of ranges removed.", service.range_deleted),
        Family::one(
            Kind::Gauge,
            "pages_in_progress",
            "Pages, counts and removals of ranges that worker threads are making.",
            service.in_progress,
        ),
        Family::events("refused", "Requests that were refused.", [("full", service.full), ("bad", service.bad)]),
    ];
    families.extend(of_endpoint(endpoint));
    families
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Index;

    fn latency(counts: &[(usize, u64)]) -> Latency {
        let mut all = vec![0; BOUNDS_NANOS.len() + 1];
        counts.iter().for_each(|&(at, count)| all[at] = count);
        Latency { counts: all, sum_nanos: 1 }
    }

    #[test]
    fn percentiles_are_within_their_bucket() {
        // 100 of up to 100 ns, and 100 of 500 ns to 1 us.
        let spread = latency(&[(0, 100), (3, 100)]);
        let nanos = |percent| spread.percentile(percent).as_nanos();
        assert_eq!([0.0, 25.0, 50.0, 75.0, 100.0].map(nanos), [0, 50, 100, 750, 1000]);
        assert_eq!(latency(&[(25, 1)]).percentile(99.0), Duration::from_secs(10), "the last has no upper bound");
        assert_eq!(Latency::default().percentile(50.0), Duration::ZERO);
        let later = latency(&[(0, 150), (3, 100), (4, 7)]);
        assert_eq!(later.since(&spread).counts[..5], [50, 0, 0, 0, 7]);
        assert_eq!(later.since(&Latency::default()).count(), 257);
        let mut sum = Latency::default();
        sum.add(&later);
        sum.add(&spread);
        assert_eq!((sum.count(), sum.sum_nanos), (457, 2));
    }

    /// What `dunlin index stats` shows of the structure agrees with a walk over all nodes.
    #[test]
    fn the_figures_of_an_index_are_those_of_its_nodes() {
        let shared = SharedIndex::with_incarnation(Index::new(8 << 20).unwrap(), 1);
        for number in 0..5000u64 {
            let short = number.to_be_bytes();
            let long = [&b"a prefix of many keys: "[..], &short[..]].concat();
            for (key, value) in [(&short[..], &b"value"[..]), (&long, b"a value of its own block")] {
                shared.index().insert(key, value, &pin()).unwrap();
            }
        }
        let (figures, all) = (IndexFigures::of(&shared), shared.index().statistics(&pin()));
        assert_eq!((figures.items, figures.layers), (10_000, all.layers as u64));
        assert_eq!(figures.levels, 3);
        // Replaced leaves may wait to be freed.
        assert!((figures.fill() - all.leaf_fill).abs() < 0.05, "{} {}", figures.fill(), all.leaf_fill);
        assert!((figures.bytes_per_item() - all.bytes_per_item()).abs() < 5.0);
        let blocks = figures.block_bytes() / 5000;
        assert!((40..100).contains(&blocks), "{blocks} bytes a block");
        assert_eq!(figures.held_bytes(), figures.memory_bytes + figures.idle_bytes);
        assert_eq!((IndexFigures::default().fill(), IndexFigures::default().bytes_per_item()), (0.0, 0.0));
        assert_eq!(IndexFigures::default().block_bytes(), 0);
    }

    #[test]
    fn statistics_are_read_back_and_other_bytes_are_refused() {
        let handler =
            HandlerFigures { name: "operate".into(), requests: 5, latency: latency(&[(3, 2)]), ..Default::default() };
        let service = ServiceStats { gets: 5, in_progress: 1, ..ServiceStats::default() };
        let core = CoreStats { core: 1, sessions: 2, service, handlers: vec![handler.clone()] };
        let index = IndexFigures { items: 1, leaves: [1, 2, 3], interior_nodes: 4, ..IndexFigures::default() };
        let stats = ServerStats {
            version: VERSION,
            incarnation: 9,
            index,
            cores: vec![core.clone(), core],
            ..Default::default()
        };
        assert_eq!(ServerStats::decode(&stats.encode()), Ok(stats.clone()));
        assert_eq!((stats.service().gets, stats.service().in_progress, stats.index.nodes()), (10, 2, 10));
        let both = stats.handlers();
        assert_eq!((both.len(), both[0].requests, both[0].latency.count()), (1, 10, 4));
        assert_eq!(both[0].since(&handler).requests, 5);
        for (wrong, why) in [
            (&b""[..], "no statistics"),
            (b"[]", "statistics"),
            (b"{}", "version 0"),
            (b"{\"version\":2}", "version 2"),
            (b"{\"version\":1,\"cores\":7}", "no statistics"),
        ] {
            let refused = ServerStats::decode(wrong).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        assert!(ServerStats::decode(br#"{"version":1,"news":[1]}"#).is_ok(), "of a later version of Dunlin");
        assert!(ServerStats::decode(&vec![b' '; JSON_BYTES_MAX + 1]).unwrap_err().contains("too long"));
    }
}
