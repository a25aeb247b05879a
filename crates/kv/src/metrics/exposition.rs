//! Statistics as text for Prometheus, in the OpenMetrics format that it requests.

use std::fmt;

use dunlin_rpc::handler_stats::BOUNDS_NANOS;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::latency::LatencyHistogram;
use super::operation::{Operation, Outcome};
use super::snapshot::{CoreStats, HandlerSnapshot, OperationStats, ServerStats};
use super::tier::WaitSnapshot;

/// The content type of [`exposition`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The prefix of every name.
const PREFIX: &str = "dunlin_kv";

const NANOS_PER_SECOND: f64 = 1e9;
const MICROS_PER_SECOND: f64 = 1e6;

type Labels<'a> = [(&'static str, &'a str)];

/// Returns the text of a scrape.
pub fn exposition(stats: ServerStats) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Scrape(stats)));
    let mut text = String::new();
    text::encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}

#[derive(Debug)]
struct Scrape(ServerStats);

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let cores: Vec<String> = (0..self.0.cores.len()).map(|core| core.to_string()).collect();
        let mut text = Text { encoder, stats: &self.0, cores: &cores };
        text.process()?;
        text.operations()?;
        text.store()?;
        text.tier()?;
        text.multi_gets()?;
        text.connections()?;
        text.endpoint()?;
        text.handlers()
    }
}

struct Text<'a, 'e> {
    encoder: DescriptorEncoder<'e>,
    stats: &'a ServerStats,
    /// The numbers of the cores, as labels.
    cores: &'a [String],
}

impl<'a> Text<'a, '_> {
    fn process(&mut self) -> fmt::Result {
        let stats = self.stats;
        let mut info =
            self.encoder.encode_descriptor("build", "Version and mode of the server.", None, MetricType::Info)?;
        info.encode_info(&vec![("version", stats.server_version.as_str()), ("mode", stats.mode.as_str())])?;
        let uptime = stats.uptime_micros as f64 / MICROS_PER_SECOND;
        for (name, help, value) in [
            ("start_time", "When the server was started, since 1970. Counters begin then.", stats.started as f64),
            ("uptime", "For how long the server has run.", uptime),
        ] {
            self.encoder
                .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?
                .encode_gauge(&value)?;
        }
        Ok(())
    }

    fn operations(&mut self) -> fmt::Result {
        type Count = fn(&OperationStats) -> u64;
        let counts: [(Outcome, Count); 4] = [
            (Outcome::Hit, |stats| stats.hits),
            (Outcome::Miss, |stats| stats.misses),
            (Outcome::Conflict, |stats| stats.conflicts),
            (Outcome::Refused, |stats| stats.refused),
        ];
        let all = self.stats.cores.iter().zip(self.cores);
        let of_kinds = |(core, number): (&'a CoreStats, &'a String)| {
            core.operations.iter().map(move |(operation, stats)| (number.as_str(), *operation, stats))
        };
        let kinds: Vec<(&str, Operation, &OperationStats)> = all.flat_map(of_kinds).collect();
        let help = "Operations by kind and by what became of them: hit (done), miss (no such item), conflict (exists or changed), refused.";
        let mut metric = self.encoder.encode_descriptor("operations", help, None, MetricType::Counter)?;
        for (core, operation, stats) in &kinds {
            for (outcome, count) in counts {
                let labels = vec![("core", *core), ("operation", operation.name()), ("outcome", outcome.name())];
                metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&count(stats), None)?;
            }
        }
        let help = "Time from when requests were received until their responses were written.";
        // The unit is only in the name: not every parser accepts a separate unit line for a histogram.
        let name = "operation_duration_seconds";
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (core, operation, OperationStats { latency, .. }) in &kinds {
            let labels = vec![("core", *core), ("operation", operation.name())];
            let sum = latency.sum_nanos() / NANOS_PER_SECOND;
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                sum,
                latency.count(),
                &buckets(latency),
                None,
            )?;
        }
        Ok(())
    }

    fn store(&mut self) -> fmt::Result {
        self.gauge("items", "Items that can be found.", None, |core| core.store.items)?;
        self.gauge("item", "Bytes of keys and values.", Some(Unit::Bytes), |core| core.store.item_bytes)?;
        self.gauge("memory", "Memory in use for items.", Some(Unit::Bytes), |core| core.store.memory_bytes)?;
        self.gauge("memory_limit", "Memory that may be in use for items.", Some(Unit::Bytes), |c| {
            c.store.memory_bytes_max
        })?;
        self.counter("items_stored", "Items stored.", None, |core| core.store.stored)?;
        self.counter("items_expired", "Items that were met after their time.", None, |core| core.store.expired)?;
        let help = "Live items lost because the log or the index needed their place.";
        self.counters("evictions", help, "reason", |core| {
            vec![("log".into(), core.store.evicted_log), ("index".into(), core.store.evicted_index)]
        })
    }

    /// The tier, if there is one.
    fn tier(&mut self) -> fmt::Result {
        if self.stats.cores.iter().all(|core| core.tier.is_none()) {
            return Ok(());
        }
        let count = |name: &'static str| move |core: &CoreStats| core.tier.as_ref().map_or(0, |tier| tier.count(name));
        let bytes = || Some(Unit::Bytes);
        self.gauge("tier_items", "Items in the tier.", None, count("items"))?;
        self.gauge("tier_used", "Bytes of live records in the tier.", bytes(), count("bytes"))?;
        self.gauge("tier_limit", "Bytes of the tier's file.", bytes(), count("bytes_max"))?;
        let help = "Memory for the index of the tier, blocks that are not written, and records that are waited for.";
        self.gauge("tier_memory", help, bytes(), count("memory_bytes"))?;
        self.counter("tier_hits", "Reads of items that were served from the tier.", None, count("hits"))?;
        self.counter("tier_read", "Bytes of records read from the device.", bytes(), count("read_bytes"))?;
        self.counter("tier_written", "Bytes of blocks written to the device.", bytes(), count("write_bytes"))?;
        let help = "What became of items at the tier, by the names in the documentation.";
        let events = ["reads", "writes", "stored", "recalled", "dropped", "unsuited", "evicted", "lost"];
        self.counters("tier_events", help, "event", |core| {
            let Some(tier) = &core.tier else { return Vec::new() };
            events.iter().map(|event| ((*event).to_owned(), tier.count(event))).collect()
        })?;
        let help = "Reads and writes of the tier that failed, and records that had changed on the device.";
        self.counters("tier_errors", help, "error", |core| {
            let Some(tier) = &core.tier else { return Vec::new() };
            ["read_errors", "write_errors", "corrupt"].map(|error| (error.to_owned(), tier.count(error))).into()
        })?;
        let help = "Operations that waited for the tier: served, refused for lack of room, abandoned by their client.";
        self.counters("queue_operations", help, "outcome", |core| {
            let Some(tier) = &core.tier else { return Vec::new() };
            let outcomes = [("served", tier.served), ("refused", tier.refused), ("abandoned", tier.abandoned)];
            outcomes.map(|(outcome, count)| (outcome.to_owned(), count)).into()
        })?;
        self.gauge("queue_reading", "Reads of the tier in progress.", None, |core| {
            core.tier.as_ref().map_or(0, |tier| tier.reading)
        })?;
        self.queue()
    }

    /// What waits for the tier, and for how long.
    fn queue(&mut self) -> fmt::Result {
        let help = "Operations that wait for the tier, by level; those above the share of their client are damped.";
        self.lengths("queue_length", help, |core| core.tier.as_ref().map_or(&[], |tier| &tier.lengths))?;
        type Wait = fn(&WaitSnapshot) -> &LatencyHistogram;
        let waits: [(&str, &str, Wait); 2] = [
            ("queue_wait_seconds", "How long operations waited in the queue, by the least rank of a class.", |waits| {
                &waits.queued
            }),
            (
                "queue_read_seconds",
                "How long operations waited for the device, by the least rank of a class.",
                |waits| &waits.read,
            ),
        ];
        for (name, help, of) in waits {
            self.waits(name, help, |core| core.tier.iter().flat_map(|tier| &tier.waits).map(of).collect())?;
        }
        Ok(())
    }

    /// Multi-gets that wait for their turn, if any ever had to.
    fn multi_gets(&mut self) -> fmt::Result {
        if self.stats.cores.iter().all(|core| core.multi_gets.is_none()) {
            return Ok(());
        }
        let help = "Multi-gets that wait for their turn, by level; those above the share of their client are damped.";
        self.lengths("multi_get_queue_length", help, |core| {
            core.multi_gets.as_ref().map_or(&[], |queue| &queue.lengths)
        })?;
        let help =
            "Multi-gets that waited for their turn: served, refused for lack of room, abandoned by their client.";
        self.counters("multi_get_queue_operations", help, "outcome", |core| {
            let Some(queue) = &core.multi_gets else { return Vec::new() };
            let outcomes = [("served", queue.served), ("refused", queue.refused), ("abandoned", queue.abandoned)];
            outcomes.map(|(outcome, count)| (outcome.to_owned(), count)).into()
        })?;
        let help = "How long multi-gets waited for their turns, by the least rank of a class.";
        self.waits("multi_get_queue_wait_seconds", help, |core| {
            core.multi_gets.iter().flat_map(|queue| &queue.waits).collect()
        })
    }

    /// The lengths of queues, by level.
    fn lengths(&mut self, name: &str, help: &str, of: impl Fn(&CoreStats) -> &[u64]) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (core, number) in self.stats.cores.iter().zip(self.cores) {
            let Some((damped, levels)) = of(core).split_last() else { continue };
            let levels = levels.iter().enumerate().map(|(level, length)| (level.to_string(), length));
            for (level, length) in levels.chain([("damped".to_owned(), damped)]) {
                let labels: &Labels<'_> = &[("core", number), ("level", &level)];
                metric.encode_family(&labels)?.encode_gauge(&Whole(*length))?;
            }
        }
        Ok(())
    }

    /// Times that operations waited, by class of rank.
    fn waits(&mut self, name: &str, help: &str, of: impl Fn(&CoreStats) -> Vec<&LatencyHistogram>) -> fmt::Result {
        if self.stats.cores.iter().all(|core| of(core).is_empty()) {
            // A metric without a value is malformed.
            return Ok(());
        }
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (core, number) in self.stats.cores.iter().zip(self.cores) {
            for (class, latency) in of(core).into_iter().enumerate().take(u64::BITS as usize) {
                let rank = (1u64 << class).to_string();
                let labels: &Labels<'_> = &[("core", number), ("rank", &rank)];
                let sum = latency.sum_nanos() / NANOS_PER_SECOND;
                let (count, buckets) = (latency.count(), buckets(latency));
                metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
            }
        }
        Ok(())
    }

    fn connections(&mut self) -> fmt::Result {
        self.gauge("connections", "Memcached connections that are open.", None, |core| core.connections.open)?;
        let bytes = Some(Unit::Bytes);
        let help = "Memory that memcached connections hold while they wait.";
        self.gauge("connection_memory", help, bytes.clone(), |core| core.connections.memory_bytes)?;
        let help = "Memory that memcached connections may hold while they wait.";
        self.gauge("connection_memory_limit", help, bytes.clone(), |core| core.connections.memory_bytes_max)?;
        let help = "Times that a memcached connection waited for memory that others held.";
        self.counter("connection_memory_waits", help, None, |core| core.connections.memory_waits)?;
        let help = "Memcached connections by how they began and ended.";
        self.counters("connection_events", help, "event", |core| {
            let connections = &core.connections;
            vec![
                ("accepted".into(), connections.accepted),
                ("rejected".into(), connections.rejected),
                ("timed_out".into(), connections.timed_out),
                ("out_of_memory".into(), connections.memory_kicks),
            ]
        })?;
        self.counter("connections_read", "Received on memcached connections.", bytes.clone(), |c| {
            c.connections.read_bytes
        })?;
        self.counter("connections_written", "Sent on memcached connections.", bytes, |c| c.connections.written_bytes)
    }

    fn endpoint(&mut self) -> fmt::Result {
        self.gauge("sessions", "Sessions of clients.", None, |core| core.endpoint.sessions)?;
        self.gauge("endpoint_calls_pending", "Calls in progress or queued.", None, |core| core.endpoint.calls_pending)?;
        self.gauge("endpoint_requests_held", "Requests in progress, or with a response that is kept.", None, |core| {
            core.endpoint.requests_held
        })?;
        let help = "Memory that peers make it hold: requests in progress, and responses that are kept.";
        self.gauge("endpoint_held", help, Some(Unit::Bytes), |core| core.endpoint.held_bytes)?;
        self.gauge("endpoint_credits_reserved", "Places in the receive queue that are promised.", None, |core| {
            core.endpoint.credits_reserved
        })?;
        self.counters(
            "endpoint_events",
            "Counts of the rpc endpoint, by their names in its documentation.",
            "event",
            |core| core.endpoint.counters.iter().map(|(name, value)| (name.clone(), *value)).collect(),
        )?;
        // Counts and bytes have different units, so they are different metrics.
        let of_unit = |core: &CoreStats, is_bytes: bool| -> Vec<(String, u64)> {
            let counts = core.endpoint.transport.iter().filter(|(name, _)| name.ends_with("_bytes") == is_bytes);
            counts.map(|(name, value)| (name.clone(), *value)).collect()
        };
        let help = "Counts of packet I/O, by their names in the documentation of the transport.";
        self.counters("transport_events", help, "event", |core| of_unit(core, false))?;
        self.counter("transport_received", "Bytes of packets received.", Some(Unit::Bytes), |core| {
            core.endpoint.transport.get("rx_bytes").copied().unwrap_or(0)
        })?;
        self.counter("transport_sent", "Bytes of packets sent.", Some(Unit::Bytes), |core| {
            core.endpoint.transport.get("tx_bytes").copied().unwrap_or(0)
        })
    }

    fn handlers(&mut self) -> fmt::Result {
        let all = self.stats.cores.iter().zip(self.cores);
        let of_types = |(core, number): (&'a CoreStats, &'a String)| {
            let handlers = core.endpoint.handlers.iter();
            handlers.map(move |(req_type, handler)| (number.as_str(), req_type.to_string(), handler))
        };
        let handlers: Vec<(&str, String, &HandlerSnapshot)> = all.flat_map(of_types).collect();
        if handlers.is_empty() {
            // A metric without a value is malformed.
            return Ok(());
        }
        let help = "Requests that arrived whole or were rejected before, by request type.";
        let mut metric = self.encoder.encode_descriptor("handler_requests", help, None, MetricType::Counter)?;
        for (core, req_type, handler) in &handlers {
            let labels: &Labels<'_> = &[("core", core), ("type", req_type)];
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&handler.requests, None)?;
        }
        let help = "Answers by request type and status.";
        let mut metric = self.encoder.encode_descriptor("handler_answers", help, None, MetricType::Counter)?;
        for (core, req_type, handler) in &handlers {
            for (status, count) in &handler.answers {
                let labels: &Labels<'_> = &[("core", core), ("type", req_type), ("status", status)];
                metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(count, None)?;
            }
        }
        let help = "Time from a request to its answer. Of those answered in their receive burst, one in 16 is timed.";
        let mut metric =
            self.encoder.encode_descriptor("handler_duration_seconds", help, None, MetricType::Histogram)?;
        for (core, req_type, HandlerSnapshot { duration_counts, duration_sum_nanos, .. }) in &handlers {
            let labels: &Labels<'_> = &[("core", core), ("type", req_type)];
            let bounds = BOUNDS_NANOS.iter().map(|bound| *bound as f64 / NANOS_PER_SECOND).chain([f64::INFINITY]);
            // Counts from a server of another version with different buckets are left out.
            let counted = duration_counts.iter().copied().chain(std::iter::repeat(0));
            let counts: Vec<(f64, u64)> = bounds.zip(counted).collect();
            let count = counts.iter().map(|(_, count)| count).fold(0, |sum: u64, count| sum.saturating_add(*count));
            let sum = *duration_sum_nanos as f64 / NANOS_PER_SECOND;
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &counts, None)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, value: impl Fn(&CoreStats) -> u64) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (core, number) in self.stats.cores.iter().zip(self.cores) {
            let labels: &Labels<'_> = &[("core", number)];
            metric.encode_family(&labels)?.encode_gauge(&Whole(value(core)))?;
        }
        Ok(())
    }

    fn counter(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        value: impl Fn(&CoreStats) -> u64,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (core, number) in self.stats.cores.iter().zip(self.cores) {
            let labels: &Labels<'_> = &[("core", number)];
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value(core), None)?;
        }
        Ok(())
    }

    /// Writes several counters of each core, distinguished by one more label.
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl Fn(&CoreStats) -> Vec<(String, u64)>,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (core, number) in self.stats.cores.iter().zip(self.cores) {
            for (what, value) in values(core) {
                let labels: &Labels<'_> = &[("core", number), (label, &what)];
                metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
            }
        }
        Ok(())
    }
}

/// A gauge of up to 2^64: the library has only a signed and a floating-point one.
struct Whole(u64);

impl EncodeGaugeValue for Whole {
    fn encode(&self, encoder: &mut prometheus_client::encoding::GaugeValueEncoder<'_>) -> fmt::Result {
        match i64::try_from(self.0) {
            Ok(value) => value.encode(encoder),
            Err(_) => (self.0 as f64).encode(encoder),
        }
    }
}

/// Returns the counts of the buckets, not cumulative, with their bounds in seconds.
fn buckets(latency: &LatencyHistogram) -> Vec<(f64, u64)> {
    let mut counts = [0u64; BOUNDS_NANOS.len() + 1];
    for (nanos, count) in latency.buckets() {
        counts[BOUNDS_NANOS.partition_point(|bound| *bound < nanos)] += count;
    }
    let bounds = BOUNDS_NANOS.iter().map(|bound| *bound as f64 / NANOS_PER_SECOND).chain([f64::INFINITY]);
    bounds.zip(counts).collect()
}
