//! Histories that cannot be judged, and limits.

use super::notation::{at, t, unknown};
use super::{HistoryError, Name, Op, Transaction, check, judged};

#[test]
fn broken_rules_are_errors() {
    let key = u64::from(b'x');
    let twice = check(&[t("ax1"), unknown("ax1")]).unwrap_err();
    assert_eq!(twice, HistoryError::AppendedTwice { key, element: 1, first: 0, second: 1 });
    assert!(twice.to_string().contains("T0 and T1 append 1 to key 120: let a workload"), "{twice}");
    let within = check(&[t("ax1 ax1")]).unwrap_err();
    assert_eq!(within, HistoryError::AppendedTwice { key, element: 1, first: 0, second: 0 });
    assert!(check(&[t("ax1 ay1")]).is_ok());
    let read = Op::Read { key, list: None };
    let missing = Transaction { ops: vec![read.clone()], ..t("") };
    assert_eq!(check(&[missing]), Err(HistoryError::ListMissing { transaction: 0, key }));
    assert!(check(&[Transaction { ops: vec![read], ..unknown("") }]).is_ok());
    assert_eq!(check(&[at(5, 4, "")]), Err(HistoryError::EndsBeforeItBegan { transaction: 0 }));
}

#[test]
fn of_many_anomalies_some_are_told_and_all_are_counted() {
    let history: Vec<Transaction> = (0..50).map(|_| t("rx9")).collect();
    assert_eq!(judged(&history).anomalies.len(), 1, "the element is looked up once");
    let keys = ('a'..='z').map(|key| t(&format!("r{key}9")));
    let report = judged(&keys.collect::<Vec<_>>());
    assert!(report.anomalies.iter().all(|anomaly| anomaly.name == Name::GarbageRead));
    assert_eq!(report.anomalies.len() + report.omitted, 26);
    assert!(report.omitted > 0 && report.to_string().contains("not strictly serializable: 26 anomalies"));
}

/// As many reads as unseen appends: their edges are pairs, but cost no more than their sum.
#[test]
fn appends_that_nobody_read_cost_no_pairs() {
    const COUNT: u64 = 20_000;
    let key = 7;
    let reads = (0..COUNT).map(|_| Op::Read { key, list: Some(Vec::new()) });
    let appends = (0..COUNT).map(|element| Op::Append { key, element });
    let history: Vec<Transaction> = reads.chain(appends).map(|op| Transaction { ops: vec![op], ..t("") }).collect();
    let report = judged(&history);
    assert!(report.is_strictly_serializable() && report.edges <= 2 * COUNT as usize, "{report:?}");
    let mut stale = history;
    let late = Transaction { begun: 2_000, ops: vec![Op::Read { key, list: Some(Vec::new()) }], ..at(0, 3_000, "") };
    stale.push(late);
    let report = judged(&stale);
    let [anomaly] = &report.anomalies[..] else { panic!("{report}") };
    assert_eq!((anomaly.name, anomaly.transactions.len()), (Name::GSingleRealTime, 2));
}
