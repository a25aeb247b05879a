//! Every experiment runs to completion and fills its report. Those named `sim-` do so in `simulations.rs`, and `smr-etcd`
//! in `smr_etcd.rs`.

use std::time::{Duration, Instant};

use dunlin_bench::experiments::{Experiment, all};
use dunlin_lab::Settings;
use dunlin_lab::peer::Launcher;
use dunlin_lab::report::{Metric, Report, Verdict};
use dunlin_serve::Interrupt;

/// Items of key-value experiments: enough for every case, and quick without optimization.
const ITEMS_MAX: u64 = 5000;

/// The experiment whose rows also have to meet their targets, as far as these do not depend on speed.
const MISBEHAVING: &str = "misbehaving";

fn runs_to_its_end(experiment: &Experiment) -> Report {
    let launcher = Launcher::of_program(env!("CARGO_BIN_EXE_dunlin"), Interrupt::default());
    let settings =
        Settings { run: Duration::from_millis(20), runs: 1, repeats: 0, items_max: ITEMS_MAX, ..Settings::default() };
    let begun = Instant::now();
    let outcome = experiment.run(settings, launcher).unwrap();
    println!("{}: {:.1} s", experiment.name, begun.elapsed().as_secs_f64());
    assert!(outcome.error.is_none(), "{}: {:?}", experiment.name, outcome.error);
    assert!(!outcome.report.rows.is_empty());
    for row in &outcome.report.rows {
        assert!(row.value.is_finite() && row.value >= 0.0, "{row:?}");
        assert!(row.floor.is_none_or(|floor| floor.is_finite() && floor > 0.0), "{row:?}");
    }
    outcome.report
}

#[test]
fn every_experiment_runs_to_its_end() {
    let is_elsewhere = |name: &str| name.starts_with("sim-") || name == "smr-etcd" || name == MISBEHAVING;
    all().filter(|experiment| !is_elsewhere(experiment.name)).for_each(|experiment| _ = runs_to_its_end(experiment));
}

/// Clients that misbehave do so, and get no more memory, sessions and calls than they may.
#[test]
fn misbehaving_clients_stay_within_their_limits() {
    let experiment = all().find(|experiment| experiment.name == MISBEHAVING).unwrap();
    let mut missed = Vec::new();
    for _ in 0..3 {
        let report = runs_to_its_end(experiment);
        for metric in [Metric::Memory, Metric::Sessions, Metric::Calls] {
            let rows: Vec<_> = report.rows.iter().filter(|row| row.metric == metric).collect();
            assert!(!rows.is_empty(), "no row of {metric:?}");
            rows.iter().for_each(|row| assert_eq!(row.verdict(), Some(Verdict::Met), "{row:?}"));
        }
        // Whether they misbehaved: a busy machine may keep them from it, but not each time.
        let events: Vec<_> = report.rows.into_iter().filter(|row| row.metric == Metric::Events).collect();
        assert!(!events.is_empty(), "no row of events");
        missed = events.into_iter().filter(|row| row.verdict() != Some(Verdict::Met)).collect();
        if missed.is_empty() {
            return;
        }
    }
    panic!("they do not misbehave: {missed:?}");
}

#[test]
fn a_busy_core_is_kept_busy() {
    let launcher = Launcher::of_program(env!("CARGO_BIN_EXE_dunlin"), Interrupt::default());
    let settings =
        Settings { run: Duration::from_millis(20), runs: 1, repeats: 0, busy_core: Some(0), ..Settings::default() };
    let outcome = all().next().unwrap().run(settings, launcher).unwrap();
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
}
