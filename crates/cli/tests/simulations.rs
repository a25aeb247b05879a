//! Experiments in virtual time run to completion, and are exact: the same seed gives the same rows.

use std::time::Duration;

use dunlin_bench::experiments::{Experiment, all};
use dunlin_lab::peer::Launcher;
use dunlin_lab::{Settings, Simulations};
use dunlin_serve::Interrupt;

fn rows(experiment: &Experiment, seed: u64, seeds: u32) -> serde_json::Value {
    let launcher = Launcher::of_program(env!("CARGO_BIN_EXE_dunlin"), Interrupt::default());
    let simulations = Simulations { seed, seeds, cost: None };
    let settings = Settings { run: Duration::from_millis(10), simulations, ..Settings::default() };
    let outcome = experiment.run(settings, launcher).unwrap();
    assert!(outcome.error.is_none(), "{}: {:?}", experiment.name, outcome.error);
    assert!(!outcome.report.rows.is_empty());
    for row in &outcome.report.rows {
        assert!(row.value.is_finite() && row.value >= 0.0, "{row:?}");
    }
    serde_json::to_value(&outcome.report.rows).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_rows() {
    let simulations = all().filter(|experiment| experiment.name.starts_with("sim-"));
    for experiment in simulations {
        assert_eq!(rows(experiment, 7, 1), rows(experiment, 7, 1), "{}", experiment.name);
    }
}

#[test]
fn several_seeds_give_a_range_and_one_gives_none() {
    let latency = all().find(|experiment| experiment.name == "sim-latency").unwrap();
    assert!(rows(latency, 1, 1)[0]["min"].is_null());
    assert!(rows(latency, 1, 2)[0]["min"].is_number());
}
