//! Metrics text for services that count in plain numbers: OpenMetrics, written by the `prometheus-client` crate.
//!
//! A letter asks a core for its [`Family`]s; the text is built on the thread of the port.

use std::fmt;

use dunlin_rpc::handler_stats::BOUNDS_NANOS;
use dunlin_rpc::wire::Status;
use dunlin_rpc::{Durations, EndpointStats, HandlerStats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

const NANOS_PER_SECOND: f64 = 1e9;

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows. `_total` is appended to its name.
    Counter,
    /// It goes up and down.
    Gauge,
    /// A distribution of durations, in seconds.
    Histogram,
}

/// A metric, with a value for each of its labels.
#[derive(Debug, Clone)]
pub struct Family {
    /// Its name; the prefix of the service is put before it.
    pub name: &'static str,
    /// Its description, one sentence.
    pub help: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The values, with their labels.
    pub values: Vec<(Labels, u64)>,
    /// The durations of a histogram, with their labels.
    pub durations: Vec<(Labels, Durations)>,
}

/// The labels that distinguish the values of a metric.
pub type Labels = Vec<(&'static str, String)>;

impl Family {
    /// A metric with one value.
    pub fn one(kind: Kind, name: &'static str, help: &'static str, value: u64) -> Family {
        Family { name, help, kind, values: vec![(Vec::new(), value)], durations: Vec::new() }
    }

    /// Counters distinguished by a label `event`.
    pub fn events<'a>(
        name: &'static str,
        help: &'static str,
        events: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> Family {
        let values = events.into_iter().map(|(event, value)| (vec![("event", event.to_owned())], value)).collect();
        Family { name, help, kind: Kind::Counter, values, durations: Vec::new() }
    }

    /// Durations, by labels.
    pub fn histogram(name: &'static str, help: &'static str, durations: Vec<(Labels, Durations)>) -> Family {
        Family { name, help, kind: Kind::Histogram, values: Vec::new(), durations }
    }

    /// The same family with one more label on each value, such as the number of a core.
    #[must_use]
    pub fn labelled(mut self, label: &'static str, value: &str) -> Family {
        let all = self.values.iter_mut().map(|(labels, _)| labels);
        all.chain(self.durations.iter_mut().map(|(labels, _)| labels))
            .for_each(|labels| labels.insert(0, (label, value.to_owned())));
        self
    }
}

/// The counts of an endpoint.
pub fn of_endpoint(stats: &EndpointStats) -> Vec<Family> {
    let transport = &stats.transport;
    let mut families = vec![
        Family::one(Kind::Gauge, "sessions", "Sessions with other endpoints.", stats.sessions.into()),
        Family::one(Kind::Gauge, "endpoint_calls_pending", "Calls in progress or queued.", stats.calls_pending.into()),
        Family::one(
            Kind::Gauge,
            "endpoint_requests_held",
            "Requests in progress, or with a response that is kept.",
            stats.requests_held.into(),
        ),
        Family::one(
            Kind::Gauge,
            "endpoint_held_bytes",
            "Memory that peers make it hold: requests in progress, and responses that are kept.",
            stats.held_bytes,
        ),
        Family::one(
            Kind::Gauge,
            "endpoint_credits_reserved",
            "Places in the receive queue that are promised.",
            stats.credits_reserved as u64,
        ),
        Family::events(
            "endpoint_events",
            "Counts of the rpc endpoint, by their names in its documentation.",
            stats.counters.iter(),
        ),
        Family::events(
            "transport_events",
            "Counts of packet I/O, by their names in the documentation of the transport.",
            [
                ("tx_packets", transport.tx_packets),
                ("tx_dropped_full", transport.tx_dropped_full),
                ("tx_dropped_error", transport.tx_dropped_error),
                ("rx_packets", transport.rx_packets),
                ("rx_dropped_malformed", transport.rx_dropped_malformed),
                ("rx_dropped_kernel", transport.rx_dropped_kernel),
            ],
        ),
        Family::one(Kind::Counter, "transport_sent_bytes", "Bytes of packets sent.", transport.tx_bytes),
        Family::one(Kind::Counter, "transport_received_bytes", "Bytes of packets received.", transport.rx_bytes),
    ];
    families.extend(of_handlers(&stats.handlers));
    families
}

/// The counts of an endpoint's handlers.
pub fn of_handlers(handlers: &[HandlerStats]) -> [Family; 4] {
    let labels = |handler: &HandlerStats| vec![("type", handler.req_type.to_string())];
    let durations = |of: fn(&HandlerStats) -> Durations| {
        let timed = handlers.iter().filter(|handler| of(handler).count() > 0);
        timed.map(|handler| (labels(handler), of(handler))).collect()
    };
    let answers = handlers.iter().flat_map(|handler| {
        let seen = Status::ALL.into_iter().filter(|status| handler.answered(*status) > 0 || *status == Status::Ok);
        seen.map(move |status| {
            let labels = vec![("type", handler.req_type.to_string()), ("status", status.name().to_owned())];
            (labels, handler.answered(status))
        })
    });
    let counters = |name, help, values| Family { name, help, kind: Kind::Counter, values, durations: Vec::new() };
    let requests = handlers.iter().map(|handler| (labels(handler), handler.requests)).collect();
    [
        counters(
            "handler_requests",
            "Requests that arrived whole, or were rejected before, by request type.",
            requests,
        ),
        counters("handler_answers", "Answers by request type and status.", answers.collect()),
        Family::histogram(
            "handler_duration_seconds",
            "Time from a request to its answer; of those answered in their receive burst one in 16 is timed. In worker mode, the time on a thread.",
            durations(|handler| handler.in_handler),
        ),
        Family::histogram(
            "handler_queue_seconds",
            "Time that requests waited for the thread of a worker.",
            durations(|handler| handler.in_queue),
        ),
    ]
}

/// Joins the counts of several cores: one family for each name, whose values carry the number of their core as a label.
pub fn of_cores(cores: impl IntoIterator<Item = (u16, Vec<Family>)>) -> Vec<Family> {
    let mut merged: Vec<Family> = Vec::new();
    for (core, families) in cores {
        for family in families {
            let family = family.labelled("core", &core.to_string());
            match merged.iter_mut().find(|known| known.name == family.name) {
                Some(known) => {
                    known.values.extend(family.values);
                    known.durations.extend(family.durations);
                }
                None => merged.push(family),
            }
        }
    }
    merged
}

/// The text of a scrape. Every name is prefixed with `prefix` and `_`.
///
/// ```
/// use dunlin_serve::metrics::{Family, Kind, exposition};
///
/// let text = exposition("counter", vec![Family::one(Kind::Counter, "increments", "Times that it was counted.", 3)]);
/// assert!(text.contains("\ncounter_increments_total 3\n") && text.ends_with("# EOF\n"));
/// ```
pub fn exposition(prefix: &str, families: Vec<Family>) -> String {
    let mut registry = Registry::with_prefix(prefix);
    registry.register_collector(Box::new(Scrape(families)));
    let mut text = String::new();
    text::encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}

#[derive(Debug)]
struct Scrape(Vec<Family>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // A metric without a value is malformed.
        let has_values = |family: &&Family| !family.values.is_empty() || !family.durations.is_empty();
        for Family { name, help, kind, values, durations } in self.0.iter().filter(has_values) {
            let metric_type = match kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(name, help, None, metric_type)?;
            for (labels, value) in values {
                if labels.is_empty() {
                    encode(&mut metric, *kind, *value)?;
                } else {
                    encode(&mut metric.encode_family(labels)?, *kind, *value)?;
                }
            }
            for (labels, durations) in durations {
                let sum = durations.sum().as_secs_f64();
                let mut of_labels = metric.encode_family(labels)?;
                of_labels.encode_histogram::<NoLabelSet>(sum, durations.count(), &buckets(durations), None)?;
            }
        }
        Ok(())
    }
}

fn encode(metric: &mut MetricEncoder<'_>, kind: Kind, value: u64) -> fmt::Result {
    match kind {
        Kind::Counter => metric.encode_counter::<NoLabelSet, _, f64>(&value, None),
        // The library has no gauge of unsigned 64-bit numbers. A histogram has no single values.
        Kind::Gauge | Kind::Histogram => metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX)),
    }
}

/// Counts of the buckets, not cumulative, with their bounds in seconds.
fn buckets(durations: &Durations) -> Vec<(f64, u64)> {
    let bounds = BOUNDS_NANOS.iter().map(|bound| *bound as f64 / NANOS_PER_SECOND).chain([f64::INFINITY]);
    bounds.zip(durations.counts().iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
    use dunlin_rpc::{Endpoint, EndpointConfig};

    use super::*;

    #[test]
    fn a_scrape_names_every_value() {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let endpoint = Endpoint::new(network.endpoint(1).unwrap(), EndpointConfig::default()).unwrap();
        endpoint.register_async(7, |_| async { b"done".to_vec() }).unwrap();
        let client = Endpoint::new(network.endpoint(2).unwrap(), EndpointConfig::default()).unwrap();
        let work = async {
            let session = client.connect(&endpoint.local_addr()).await.unwrap();
            session.call(7, vec![1]).await.unwrap();
        };
        let mut work = Box::pin(work);
        while client.poll_once(work.as_mut()).is_none() {
            endpoint.run_once();
            network.advance(std::time::Duration::from_micros(10));
        }
        let stats = endpoint.stats();
        let text = exposition("test", of_cores([1, 3].map(|core| (core, of_endpoint(&stats)))));
        for line in [
            "# TYPE test_sessions gauge",
            "test_sessions{core=\"3\"} 1",
            "test_handler_requests_total{core=\"3\",type=\"7\"} 1",
            "test_handler_answers_total{core=\"3\",type=\"7\",status=\"ok\"} 1",
            "# TYPE test_handler_duration_seconds histogram",
            "test_handler_duration_seconds_count{core=\"3\",type=\"7\"} 1",
            "test_handler_duration_seconds_bucket{le=\"+Inf\",core=\"3\",type=\"7\"} 1",
            "# TYPE test_endpoint_events counter",
            "test_endpoint_events_total{core=\"3\",event=\"requests_handled\"} 1",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let none = exposition("test", of_handlers(&[]).into());
        assert_eq!(none, "# EOF\n");
        assert_eq!(text.matches("# TYPE test_sessions gauge").count(), 1, "a name is introduced once: {text}");
        let large = exposition("test", vec![Family::one(Kind::Gauge, "large", "A large one.", u64::MAX)]);
        assert!(large.contains(&i64::MAX.to_string()), "{large}");
    }
}
