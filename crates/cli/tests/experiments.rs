//! Every experiment runs to completion and fills its report. Those named `sim-` do so in `simulations.rs`, and `smr-etcd`
//! in `smr_etcd.rs`.

use std::time::{Duration, Instant};

use dunlin_bench::experiments::{Experiment, all};
use dunlin_lab::Settings;
use dunlin_lab::peer::Launcher;
use dunlin_serve::Interrupt;

/// Items of key-value experiments: enough for every case, and quick without optimization.
const ITEMS_MAX: u64 = 5000;

fn runs_to_its_end(experiment: &Experiment) {
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
}

#[test]
fn every_experiment_runs_to_its_end() {
    let is_elsewhere = |name: &str| name.starts_with("sim-") || name == "smr-etcd";
    all().filter(|experiment| !is_elsewhere(experiment.name)).for_each(runs_to_its_end);
}

#[test]
fn a_busy_core_is_kept_busy() {
    let launcher = Launcher::of_program(env!("CARGO_BIN_EXE_dunlin"), Interrupt::default());
    let settings =
        Settings { run: Duration::from_millis(20), runs: 1, repeats: 0, busy_core: Some(0), ..Settings::default() };
    let outcome = all().next().unwrap().run(settings, launcher).unwrap();
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
}
