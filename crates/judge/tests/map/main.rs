//! The judge of ordered maps: known verdicts, all orders of small histories, and long ones.

mod known;
mod orders;
mod run;
mod spoil;

use dunlin_judge::map::{Answer, Direction, End, Entry, HistoryError, Operation, Report, Scan, check};
use dunlin_net::random::Random;
use run::Load;
use spoil::spoil;

/// Seeds of the comparison with all orders; `DUNLIN_SEEDS` runs more.
const SEEDS: u64 = 10_000;

fn judged(history: &[Entry]) -> Report {
    check(history).unwrap_or_else(|error| panic!("{error}: {history:#?}"))
}

fn told(history: &[Entry]) -> String {
    history.iter().map(|entry| format!("{entry}\n")).collect()
}

/// Both directions: a reported history has no order, and an unreported one has one.
#[test]
fn verdicts_agree_with_all_orders_of_small_histories() {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let mut counts = [0; 2];
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let load = Load { operations: random.between(2, 9) as usize, clients: 4, keys: 3, values: 2 };
        let mut history = run::run(&load, &mut random);
        for _ in 0..random.below(3) {
            spoil(&mut history, &mut random);
        }
        let (report, exists) = (judged(&history), orders::exist(&history));
        assert_eq!(report.undecided, 0, "seed {seed}");
        assert_eq!(report.is_right(), exists, "seed {seed}: {report}\n{}", told(&history));
        counts[usize::from(exists)] += 1;
    }
    assert!(counts.iter().all(|count| *count > counts.iter().sum::<u64>() / 10), "wrong and right: {counts:?}");
}

#[test]
fn what_a_map_did_is_right() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let load = Load { operations: 2_000, clients: 1 + random.below(12) as usize, keys: 40, values: 1_000 };
        let report = judged(&run::run(&load, &mut random));
        assert!(report.is_right() && report.undecided == 0, "seed {seed}: {report}");
        assert!(report.observations > 5_000, "seed {seed}: {report}");
    }
}

/// Items that were never put are found among two thousand operations.
#[test]
fn ghosts_in_long_histories_are_found() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let mut history = run::run(&Load { operations: 2_000, clients: 6, keys: 40, values: 1_000 }, &mut random);
        let shown = history.iter_mut().filter_map(|entry| match &mut entry.end {
            End::Answered(_, Answer::Items(items)) if !items.is_empty() => Some(items),
            _ => None,
        });
        let mut shown: Vec<_> = shown.collect();
        let place = random.below(shown.len() as u64) as usize;
        shown[place][0].1 = b"from nowhere".to_vec();
        let report = judged(&history);
        assert!(report.faults.len() == 1 && report.to_string().contains("from nowhere"), "seed {seed}: {report}");
    }
}
