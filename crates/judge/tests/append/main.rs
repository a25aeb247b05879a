//! The judge of list-append histories: known verdicts, all orders of small histories, and long ones.

mod known;
mod notation;
mod orders;
mod rules;
mod spoil;
mod store;

use dunlin_judge::append::{HistoryError, Name, Op, Outcome, Report, Transaction, check};
use dunlin_net::random::Random;
use spoil::{spoil, spoil_badly};
use store::Workload;

/// Seeds of the comparison with all orders; `DUNLIN_SEEDS` runs more.
const SEEDS: u64 = 20_000;

fn seeds(default: u64) -> u64 {
    std::env::var("DUNLIN_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn judged(history: &[Transaction]) -> Report {
    check(history).unwrap_or_else(|error| panic!("{error}: {history:#?}"))
}

fn told(history: &[Transaction]) -> String {
    let line = |(number, transaction)| format!("T{number}, {transaction}\n");
    history.iter().enumerate().map(line).collect()
}

/// Both directions: a reported history has no order, and an unreported one has one.
#[test]
fn verdicts_agree_with_all_orders_of_small_histories() {
    let mut counts = [0; 2];
    for seed in 0..seeds(SEEDS) {
        let mut random = Random::new(seed);
        let mut history = store::small(&mut random);
        for _ in 0..random.below(3) {
            spoil(&mut history, &mut random);
        }
        let report = judged(&history);
        let exists = orders::exists(&history);
        assert_eq!(report.is_strictly_serializable(), exists, "seed {seed}: {report}\n{}", told(&history));
        counts[usize::from(exists)] += 1;
    }
    assert!(counts.iter().all(|count| *count > counts.iter().sum::<u64>() / 10), "wrong and right: {counts:?}");
}

/// The names of cycles say whether real time is part of them: without it, all other histories stay wrong.
#[test]
fn names_say_whether_time_is_part_of_a_cycle() {
    let mut counts = [0; 2];
    for seed in 0..seeds(SEEDS) {
        let mut random = Random::new(seed);
        let mut history = store::small(&mut random);
        spoil(&mut history, &mut random);
        let report = judged(&history);
        if report.is_strictly_serializable() {
            continue;
        }
        let has_other = report.anomalies.iter().any(|anomaly| anomaly.name < Name::G0RealTime);
        let timeless = history.iter().map(|transaction| match transaction.outcome {
            Outcome::Committed(_) => Transaction { begun: 0, outcome: Outcome::Committed(0), ..transaction.clone() },
            _ => Transaction { begun: 0, ..transaction.clone() },
        });
        let timeless: Vec<Transaction> = timeless.collect();
        assert_eq!(orders::exists(&timeless), !has_other, "seed {seed}: {report}\n{}", told(&history));
        counts[usize::from(has_other)] += 1;
    }
    assert!(counts.iter().all(|count| *count > counts.iter().sum::<u64>() / 10), "time only, and others: {counts:?}");
}

/// The same comparison with lists that no store would return.
#[test]
fn verdicts_agree_with_all_orders_of_random_lists() {
    let mut counts = [0; 2];
    for seed in 0..seeds(SEEDS) {
        let history = store::scribbled(&mut Random::new(seed));
        let (report, exists) = (judged(&history), orders::exists(&history));
        assert_eq!(report.is_strictly_serializable(), exists, "seed {seed}: {report}\n{}", told(&history));
        counts[usize::from(exists)] += 1;
    }
    assert!(counts.iter().all(|count| *count > counts.iter().sum::<u64>() / 50), "wrong and right: {counts:?}");
}

#[test]
fn what_a_serial_store_did_is_strictly_serializable() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let workload =
            Workload { transactions: 1_000, keys: 1 + random.below(40), clients: 1 + random.below(30) as usize };
        let report = judged(&store::run(&workload, &mut random));
        assert!(report.is_strictly_serializable(), "seed {seed}: {report}");
        assert!(report.committed > 500 && report.edges > 500, "seed {seed}: {report:?}");
    }
}

#[test]
fn faults_in_long_histories_are_found() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let workload = Workload { transactions: 1_000, keys: 10, clients: 8 };
        let mut history = store::run(&workload, &mut random);
        let what = spoil_badly(&mut history, &mut random);
        let report = judged(&history);
        assert!(!report.is_strictly_serializable(), "seed {seed}: {what} was not found");
    }
}

/// A cycle has one edge for each of its transactions, and no transaction twice.
#[test]
fn cycles_are_simple() {
    let mut cycles = 0;
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let mut history = store::small(&mut random);
        spoil(&mut history, &mut random);
        for anomaly in judged(&history).anomalies.iter().filter(|anomaly| anomaly.name >= Name::G0) {
            cycles += 1;
            let edges = anomaly.explanation.lines().filter(|line| line.starts_with("- ")).count();
            assert_eq!(edges, anomaly.transactions.len(), "seed {seed}: {anomaly}");
            let mut distinct = anomaly.transactions.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert!(edges >= 2 && distinct.len() == edges, "seed {seed}: {anomaly}");
        }
    }
    assert!(cycles > 100, "{cycles}");
}

#[test]
fn a_hundred_thousand_transactions_cost_edges_in_proportion() {
    let workload = Workload { transactions: 100_000, keys: 500, clients: 50 };
    let mut history = store::run(&workload, &mut Random::new(1));
    let ops: usize = history.iter().map(|transaction| transaction.ops.len()).sum();
    let report = judged(&history);
    assert!(report.is_strictly_serializable(), "{report}");
    assert!(report.edges < 2 * ops, "{} edges of {ops} operations", report.edges);
    // One commit with a much too early end ties most of the history together, and is still explained.
    let last = history.iter().rposition(|transaction| matches!(transaction.ops[0], Op::Append { .. })).unwrap();
    history[last].begun = 1;
    history[last].outcome = Outcome::Committed(2);
    let report = judged(&history);
    assert!(!report.anomalies.is_empty(), "{report}");
    assert!(report.anomalies.iter().all(|anomaly| anomaly.transactions.len() <= 4), "{report}");
}

/// Every stale reader of `x` may be before every append to it, which closes no cycle; that of `y` is after one.
#[test]
fn a_cycle_among_many_that_are_on_none_by_their_own_reads_is_found() {
    const MANY: u64 = 2_300;
    let (x, y) = (1, 2);
    let at = |begun, ended, op| Transaction { client: 0, begun, outcome: Outcome::Committed(ended), ops: vec![op] };
    let empty = |key| Op::Read { key, list: Some(Vec::new()) };
    let mut history = vec![at(0, 10, Op::Append { key: y, element: 1 })];
    history.extend((0..MANY).map(|_| at(20, 30, empty(x))));
    history.extend((0..MANY).map(|element| at(0, 100, Op::Append { key: x, element })));
    history.push(at(40, 50, empty(y)));
    let report = judged(&history);
    let [anomaly] = &report.anomalies[..] else { panic!("{report}") };
    assert_eq!((anomaly.name, anomaly.transactions.len()), (Name::GSingleRealTime, 2), "{report}");
}

/// Each pair is on its own cycle. The work for one must not depend on their number: otherwise this takes minutes.
#[test]
fn a_hundred_thousand_cycles_of_two() {
    const PAIRS: u64 = 100_000;
    let pair = |key| {
        let [one, two] = [10 * key, 10 * key + 2];
        let at = |begun, op| Transaction { client: 0, begun, outcome: Outcome::Committed(begun + 1), ops: vec![op] };
        [at(one, Op::Append { key, element: 1 }), at(two, Op::Read { key, list: Some(Vec::new()) })]
    };
    let history: Vec<Transaction> = (0..PAIRS).flat_map(pair).collect();
    let report = judged(&history);
    assert_eq!((report.anomalies.len() + report.omitted) as u64, PAIRS);
}
