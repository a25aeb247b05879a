//! The Prometheus text.

use std::collections::HashSet;

use dunlin_kv::metrics::exposition;
use openmetrics_parser::openmetrics::parse_openmetrics;
use openmetrics_parser::{OpenMetricsType, OpenMetricsValue};

use super::stats;

#[test]
fn a_parser_of_the_format_accepts_it() {
    let text = exposition(stats());
    let parsed = parse_openmetrics(&text).unwrap_or_else(|error| panic!("{error:?}\n{text}"));
    for (name, family) in &parsed.families {
        assert!(name.starts_with("dunlin_kv_") && !family.help.is_empty(), "{name}");
        assert!(family.family_type != OpenMetricsType::Unknown, "{name}");
        if !family.unit.is_empty() {
            assert!(name.ends_with(&format!("_{}", family.unit)), "{name} has the unit {}", family.unit);
        }
    }
    let sample = |name: &str, labels: &[&str]| {
        let family = parsed.families.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", parsed.families.keys()));
        let labels: HashSet<&str> = labels.iter().copied().collect();
        let mut found = family.iter_samples().filter(|sample| {
            let all = sample.get_labelset().unwrap();
            let values = all.iter_values().map(String::as_str).collect::<HashSet<_>>();
            labels.is_subset(&values)
        });
        found.next().unwrap_or_else(|| panic!("no {labels:?} in {name}\n{text}")).value.clone()
    };
    let counter = |name: &str, labels: &[&str]| match sample(name, labels) {
        OpenMetricsValue::Counter(counter) => counter.value.as_f64(),
        other => panic!("{name} is {other:?}"),
    };
    let gauge = |name: &str, labels: &[&str]| match sample(name, labels) {
        OpenMetricsValue::Gauge(value) => value.as_f64(),
        other => panic!("{name} is {other:?}"),
    };
    assert_eq!(counter("dunlin_kv_operations", &["1", "get", "hit"]), 200.0);
    assert_eq!(counter("dunlin_kv_operations", &["0", "get", "miss"]), 7.0);
    assert_eq!(counter("dunlin_kv_operations", &["0", "add", "conflict"]), 1.0);
    assert_eq!(counter("dunlin_kv_evictions", &["1", "log"]), 11.0);
    assert_eq!(counter("dunlin_kv_endpoint_events", &["0", "rx_packets"]), 18.0);
    assert_eq!(counter("dunlin_kv_transport_sent_bytes", &["0"]), 99.0);
    assert_eq!(gauge("dunlin_kv_items", &["1"]), u64::MAX as f64);
    assert_eq!(gauge("dunlin_kv_memory_bytes", &["0"]), 4096.0);
    assert_eq!(gauge("dunlin_kv_connections", &["0"]), 3.0);
    assert_eq!(gauge("dunlin_kv_uptime_seconds", &[]), 2.5);
    assert_eq!(counter("dunlin_kv_handler_requests", &["1", "7"]), 200.0);
    assert_eq!(counter("dunlin_kv_handler_answers", &["0", "7", "busy"]), 1.0);
    assert_eq!(gauge("dunlin_kv_endpoint_held_bytes", &["0"]), 5_000.0);
    assert_eq!(gauge("dunlin_kv_queue_length", &["1", "damped"]), 2.0);
    assert_eq!(gauge("dunlin_kv_multi_get_queue_length", &["1", "damped"]), 8.0);
    assert_eq!(counter("dunlin_kv_multi_get_queue_operations", &["1", "served"]), 200.0);
    assert_eq!(counter("dunlin_kv_multi_get_queue_operations", &["0", "abandoned"]), 4.0);
    let OpenMetricsValue::Histogram(waited) = sample("dunlin_kv_multi_get_queue_wait_seconds", &["0", "4"]) else {
        panic!("the time that multi-gets waited is no histogram")
    };
    assert_eq!(waited.count, Some(9));
    let OpenMetricsValue::Histogram(handled) = sample("dunlin_kv_handler_duration_seconds", &["0", "7"]) else {
        panic!("the time of a handler is no histogram")
    };
    assert_eq!((handled.count, handled.buckets.len()), (Some(5), 26));
    let OpenMetricsValue::Histogram(latency) = sample("dunlin_kv_operation_duration_seconds", &["1", "get"]) else {
        panic!("the latency is no histogram")
    };
    assert_eq!(latency.count, Some(202));
    let up_to = |bound: f64| latency.buckets.iter().find(|bucket| bucket.upper_bound == bound).unwrap().count.as_f64();
    assert_eq!([1e-7, 1e-6, 2e-6, 10.0, f64::INFINITY].map(up_to), [1.0, 1.0, 201.0, 201.0, 202.0]);
    let sum = latency.sum.unwrap().as_f64();
    assert!((sum / (30.0 + 200.0 * 1.5e-6) - 1.0).abs() < 0.01, "{sum}");
}

#[test]
fn the_parser_refuses_what_is_wrong() {
    // This shows that the test above can fail.
    let text = exposition(stats());
    assert!(parse_openmetrics(&text.replace("# EOF", "")).is_err());
    assert!(parse_openmetrics(&text.replace("dunlin_kv_operations_total{", "dunlin_kv_operations{")).is_err());
}
