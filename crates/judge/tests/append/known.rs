//! Histories with known verdicts. Those of the paper are Kingsbury and Alvaro, VLDB 2020.

use super::notation::{aborted, at, t, unknown};
use super::{Name, Transaction, judged};

fn assert_names(history: &[Transaction], expected: &[Name]) {
    let report = judged(history);
    let mut names: Vec<Name> = report.anomalies.iter().map(|anomaly| anomaly.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, expected, "{report}");
}

#[test]
fn right_histories_pass() {
    assert_names(&[], &[]);
    assert_names(&[t("ax1"), t("ax2"), t("rx12"), t("rx1"), t("rx")], &[]);
    // Adya, Liskov and O'Neil (2000), figure 3, in appends.
    assert_names(&[t("az1 ax1 ay1"), t("rx1 ay2"), t("ry12 az3"), t("rz13")], &[]);
    assert_names(&[t("ax1 rx1 ax2 rx12 ry"), t("rx12 ay5 ry5")], &[]);
    // Both may be concurrent with the append.
    assert_names(&[at(0, 100, "ax1"), at(10, 20, "rx"), at(30, 40, "rx1")], &[]);
    // If one ends when the other begins, they count as concurrent.
    assert_names(&[at(0, 10, "ax1"), at(10, 20, "rx")], &[]);
    assert_names(&[at(0, 10, "ax1"), at(11, 20, "rx")], &[Name::GSingleRealTime]);
}

#[test]
fn cycles_have_the_names_of_their_edges() {
    assert_names(&[t("ax1 ay1"), t("ax2 ay2"), t("rx12 ry21")], &[Name::G0]);
    assert_names(&[t("ax1 ry1"), t("ax2 ay1"), t("rx12")], &[Name::G1c]);
    assert_names(&[t("rx ry1"), t("ax1 ay1"), t("rx1 ry1")], &[Name::GSingle]);
    assert_names(&[t("rx ay1"), t("ry ax1"), t("rx1 ry1")], &[Name::G2]);
    // No list shows the appends: they still come after both reads.
    assert_names(&[t("rx ay1"), t("ry ax1")], &[Name::G2]);
    // A long fork: two readers see two appends in different orders.
    assert_names(&[t("ax1"), t("ay1"), t("rx1 ry"), t("rx ry1")], &[Name::G2]);
    // An append torn apart by another.
    assert_names(&[t("ax1 ax2"), t("ax3"), t("rx132")], &[Name::G0]);
    // Half of a transaction is missing.
    assert_names(&[t("ax1 ax2"), t("rx2")], &[Name::GSingle]);
    assert_names(&[t("ax1 ay1"), t("rx1 ry")], &[Name::GSingle]);
}

#[test]
fn cycles_in_time_have_names_of_their_own() {
    assert_names(&[at(20, 30, "ax1"), at(0, 10, "ax2"), at(40, 50, "rx12")], &[Name::G0RealTime]);
    assert_names(&[at(0, 10, "rx1"), at(20, 30, "ax1")], &[Name::G1cRealTime]);
    assert_names(&[at(0, 10, "ax1"), at(20, 30, "rx"), at(40, 50, "rx1")], &[Name::GSingleRealTime]);
    let skew = [at(20, 30, "rx"), at(0, 40, "ax1 ry"), at(0, 10, "ay1"), at(50, 60, "rx1 ry1")];
    assert_names(&skew, &[Name::G2RealTime]);
    // A lost acknowledged append.
    assert_names(&[at(0, 10, "ax1"), at(0, 10, "ax2"), at(20, 30, "rx2")], &[Name::GSingleRealTime]);
}

#[test]
fn reads_of_what_should_not_be_read() {
    assert_names(&[aborted("ax1"), t("rx1")], &[Name::G1a]);
    assert_names(&[aborted("ax1"), t("ax2"), t("rx12"), t("rx1")], &[Name::G1a]);
    // A read between two appends of one transaction: the rest of it comes later, and that is a cycle, too.
    assert_names(&[t("ax1 ax2"), t("rx1"), t("rx12")], &[Name::G1b, Name::GSingle]);
    assert_names(&[t("rx9")], &[Name::GarbageRead]);
    assert_names(&[t("ax1"), t("rx11")], &[Name::DuplicateAppend]);
    assert_names(&[t("ax1"), t("ax2"), t("rx12"), t("rx21")], &[Name::IncompatibleOrder]);
    // The element of the list that fits no other is judged, too.
    assert_names(&[t("ax1"), aborted("ax2"), t("ax3"), t("rx13"), t("rx2")], &[Name::IncompatibleOrder, Name::G1a]);
}

#[test]
fn transactions_that_contradict_themselves() {
    let wrong = [
        // FaunaDB, section 7.3 of the paper: its own append is missing.
        "ax6 rx",
        "ax1 rx1 rx",
        "rx ax1 rx",
        "rx rx1",
        "ax1 rx1 ax2 rx1",
        "ax1 ax2 rx21",
        // It reads its own later append.
        "rx1 ax1",
        "ax1 rx21 ax2",
    ];
    for words in wrong {
        let report = judged(&[t(words), t("ax9"), t("rx9")]);
        let has_it = report.anomalies.iter().any(|anomaly| anomaly.name == Name::InternalInconsistency);
        assert!(has_it, "{words}: {report}");
    }
    // Its appends are in the wrong order.
    assert_names(&[t("ax1 ax2"), t("rx21")], &[Name::InternalInconsistency, Name::G1b]);
    assert_names(&[t("ax1 rx1 ry ax2 rx12 ry")], &[]);
}

#[test]
fn lost_updates() {
    assert_names(&[t("rx ax1"), t("rx ax2")], &[Name::LostUpdate, Name::G2]);
    assert_names(&[t("rx ax1"), t("rx ax2"), t("rx12")], &[Name::LostUpdate, Name::GSingle]);
    // TiDB, section 7.1 of the paper: the first reader saw no 5, and its 4 comes after the 5.
    let tidb = [t("ax2"), t("ax1"), t("rx21 ay5 ax4"), t("ax5"), t("rx2154")];
    assert_names(&tidb, &[Name::GSingle]);
    // One after the other, no update is lost.
    assert_names(&[t("rx ax1"), t("rx1 ax2"), t("rx12 ax3")], &[]);
}

#[test]
fn unknown_outcomes_may_be_either() {
    assert_names(&[unknown("ax1"), t("rx")], &[]);
    assert_names(&[unknown("ax1"), t("rx1")], &[]);
    // It may commit long after it began, but not before.
    assert_names(&[unknown("ax1"), at(2_000, 2_001, "rx"), at(2_010, 2_011, "rx1")], &[]);
    let early = Transaction { begun: 50, ..unknown("ax1") };
    assert_names(&[at(0, 10, "rx1"), early], &[Name::G1cRealTime]);
    // If it is unseen, it is not judged; if it is seen, it must have committed, and so must those that it read from.
    assert_names(&[unknown("rz9 ax1"), t("rx")], &[]);
    assert_names(&[unknown("rz9 ax1"), t("rx1")], &[Name::GarbageRead]);
    assert_names(&[unknown("ry1 ax1"), unknown("ay1 rz7"), t("rx1")], &[Name::GarbageRead]);
    let report = judged(&[unknown("ry1 ax1"), unknown("ay1"), unknown("az1"), t("rx1")]);
    assert_eq!((report.committed, report.must_have_committed, report.unseen), (3, 2, 1));
    // It is visible as a whole or not at all.
    assert_names(&[unknown("ax1 ay1"), t("rx1 ry")], &[Name::GSingle]);
}

#[test]
fn a_cycle_is_a_short_one_and_is_told_in_words() {
    // A read of one key that is stale compared with the other key, by all but two of seven transactions.
    let chain = (1..8).map(|n| at(20 * n, 20 * n + 10, &format!("ax{n} ay{n}")));
    let stale = at(200, 210, "rx12 ry1234567");
    let last = at(220, 230, "rx1234567");
    let history: Vec<Transaction> = chain.chain([stale, last]).collect();
    let report = judged(&history);
    let [anomaly] = &report.anomalies[..] else { panic!("{report}") };
    assert_eq!((anomaly.name, anomaly.transactions.len()), (Name::GSingle, 2), "{report}");
    let text = report.to_string();
    for line in [
        "not strictly serializable: 1 anomalies",
        "T7, client 0 at 0.200 us to 0.210 us: read key 120 as [1 2], read key 121 as [1 2 3 4 5 6 7]; committed",
        "- T7 comes before T6: T7 read key 120 up to 2, and T6 appended 7 later: T8 read it as element 6, from 0",
        "- T6 comes before T7: T6 appended 7 to key 121, and T7 read it",
        "so T7 would come before itself",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let report = judged(&[at(0, 10, "ax1"), at(20, 30, "rx")]);
    let text = report.to_string();
    assert!(text.contains("T0 had ended at 0.010 us, and T1 began at 0.020 us"), "{text}");
    assert!(text.contains("T1 read key 120 as empty, and T0 appended 1 later: nobody read the key other"), "{text}");
}
