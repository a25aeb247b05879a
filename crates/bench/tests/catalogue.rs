//! The list of experiments. These tests are not in the library: whatever refers to all experiments there has them
//! compiled a second time, which takes minutes.

use std::collections::HashSet;

use dunlin_bench::BenchError;
use dunlin_bench::experiments::{BY_FEATURE, DEMO, HIGHLIGHTS, all, find, papers, roles};
use dunlin_lab::peer::Entry;
use dunlin_lab::report::Metric;
use dunlin_lab::report::docs::Highlight;

#[test]
fn names_are_names_of_one() {
    let names: HashSet<_> = roles().iter().map(Entry::name).collect();
    assert_eq!(names.len(), roles().len());
    let experiments: HashSet<_> = all().map(|experiment| experiment.name).collect();
    assert_eq!(experiments.len(), all().count());
}

#[test]
fn experiments_are_found_by_names_and_patterns() {
    let found = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        find(&names).map(|found| found.iter().map(|experiment| experiment.name).collect::<Vec<_>>())
    };
    assert_eq!(found(&["kv-rate", "rpc-lat*", "kv-rate"]).unwrap(), ["rpc-latency", "kv-rate"]);
    assert_eq!(found(&["all"]).unwrap().len(), all().count());
    assert!(found(&["sim-*"]).unwrap().len() > 3);
    assert!(
        matches!(found(&["kv-rate", "none-*"]), Err(BenchError::UnknownExperiment { name, .. }) if name == "none-*")
    );
}

#[test]
fn highlights_are_of_experiments() {
    for Highlight { experiment, .. } in HIGHLIGHTS {
        let is_optional = BY_FEATURE.iter().any(|(optional, _)| *optional == experiment);
        assert!(is_optional || all().any(|it| it.name == experiment), "{experiment}");
    }
}

#[test]
fn the_papers_tables_are_of_experiments() {
    let papers = papers().unwrap();
    for name in papers.experiments() {
        let is_optional = BY_FEATURE.iter().any(|(optional, _)| *optional == name);
        assert!(is_optional || name == DEMO.name || all().any(|experiment| experiment.name == name), "{name}");
    }
    let figure = |case, metric| papers.figure("rpc-latency", case, metric).map(|figure| figure.value);
    assert_eq!(figure("udp 32 B", Metric::LatencyP50), Some(2300.0));
    assert_eq!(figure("udp 32 B", Metric::LatencyP99), None);
}
