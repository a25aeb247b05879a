//! Histories with known verdicts.

use std::ops::Bound::{self, Excluded, Included, Unbounded};

use super::{Answer, Direction, End, Entry, HistoryError, Operation, Scan, check, judged};

fn entry(begun: u64, ended: u64, operation: Operation, answer: Answer) -> Entry {
    Entry { client: 0, begun, operation, end: End::Answered(ended, answer) }
}

fn put(begun: u64, ended: u64, key: &str, value: &str) -> Entry {
    entry(begun, ended, Operation::Put { key: key.into(), value: value.into() }, Answer::Done)
}

fn delete(begun: u64, ended: u64, key: &str) -> Entry {
    entry(begun, ended, Operation::Delete { key: key.into() }, Answer::Done)
}

fn get(begun: u64, ended: u64, key: &str, value: Option<&str>) -> Entry {
    entry(begun, ended, Operation::Get { key: key.into() }, Answer::Value(value.map(Into::into)))
}

fn unknown(entry: Entry) -> Entry {
    Entry { end: End::Unknown, ..entry }
}

/// A scan of everything, forward.
fn scan(begun: u64, ended: u64, items: &[(&str, &str)]) -> Entry {
    scan_of(begun, ended, Scan { from: Unbounded, to: Unbounded, direction: Direction::Forward, limit: None }, items)
}

fn scan_of(begun: u64, ended: u64, scan: Scan, items: &[(&str, &str)]) -> Entry {
    let items = items.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    entry(begun, ended, Operation::Scan(scan), Answer::Items(items))
}

fn range(from: Bound<&str>, to: Bound<&str>) -> Scan {
    let owned = |bound: Bound<&str>| bound.map(|key| key.as_bytes().to_vec());
    Scan { from: owned(from), to: owned(to), direction: Direction::Forward, limit: None }
}

fn assert_right(history: &[Entry]) {
    let report = judged(history);
    assert!(report.is_right() && report.undecided == 0, "{report}");
}

/// Asserts that there is one fault, and that its explanation contains these words.
fn assert_fault(history: &[Entry], words: &str) {
    let report = judged(history);
    assert!(report.faults.len() == 1 && report.to_string().contains(words), "not {words}: {report}");
}

fn abc() -> Vec<Entry> {
    vec![put(0, 1, "a", "1"), put(2, 3, "b", "2"), put(4, 5, "c", "3")]
}

/// Three items, then these.
fn after_abc(entries: &[Entry]) -> Vec<Entry> {
    abc().into_iter().chain(entries.iter().cloned()).collect()
}

#[test]
fn points_are_linearizable() {
    assert_right(&[]);
    assert_right(&[put(0, 10, "a", "1"), get(1, 2, "a", None), get(3, 4, "a", Some("1"))]);
    assert_fault(&[put(0, 10, "a", "1"), get(1, 2, "a", Some("1")), get(3, 4, "a", None)], "the history of key \"a\"");
    assert_fault(&[put(0, 1, "a", "1"), get(2, 3, "a", None)], "then the value is \"1\"");
    assert_fault(&[put(0, 1, "a", "1"), delete(2, 3, "a"), get(4, 5, "a", Some("1"))], "then there is no value");
    // If one ends when the other begins, they count as concurrent.
    assert_right(&[put(0, 2, "a", "1"), get(2, 3, "a", None)]);
    // One key does not excuse another.
    assert_fault(&[put(0, 1, "a", "1"), put(0, 1, "b", "1"), get(2, 3, "a", None)], "key \"a\"");
}

#[test]
fn answers_tell_what_was_there_before() {
    let put = |begun, answer| entry(begun, begun + 1, Operation::Put { key: b"a".into(), value: b"1".into() }, answer);
    let delete = |begun, answer| entry(begun, begun + 1, Operation::Delete { key: b"a".into() }, answer);
    let is_there = |begun, answer| entry(begun, begun + 1, Operation::Get { key: b"a".into() }, answer);
    assert_right(&[
        put(0, Answer::Existed(false)),
        put(2, Answer::Value(Some(b"1".into()))),
        delete(4, Answer::Existed(true)),
    ]);
    assert_right(&[is_there(0, Answer::Existed(false)), put(2, Answer::Done), is_there(4, Answer::Existed(true))]);
    assert_fault(&[put(0, Answer::Existed(true))], "there was a value");
    assert_fault(&[put(0, Answer::Done), delete(2, Answer::Value(Some(b"2".into())))], "delete \"a\": \"2\"");
    assert_fault(&[put(0, Answer::Done), delete(2, Answer::Done), delete(4, Answer::Existed(true))], "none of these");
}

#[test]
fn scans_miss_nothing_that_was_there_all_the_time() {
    assert_right(&after_abc(&[scan(6, 7, &[("a", "1"), ("b", "2"), ("c", "3")])]));
    assert_fault(&after_abc(&[scan(6, 7, &[("a", "1"), ("c", "3")])]), "key \"b\"");
    // If it is put or deleted during the scan, the scan may miss it.
    assert_right(&after_abc(&[scan(6, 20, &[("a", "1"), ("c", "3")]), delete(10, 11, "b")]));
    assert_right(&[put(0, 1, "a", "1"), scan(2, 10, &[("a", "1")]), put(4, 5, "b", "2")]);
    // If it is overwritten during the scan, it exists all the time.
    assert_fault(&after_abc(&[scan(6, 20, &[("a", "1"), ("c", "3")]), put(10, 11, "b", "9")]), "key \"b\"");
    // Keys that a later operation names are judged in earlier scans.
    assert_right(&[scan(0, 1, &[]), put(2, 3, "a", "1")]);
}

#[test]
fn scans_show_nothing_that_never_was() {
    assert_fault(&after_abc(&[scan(6, 7, &[("a", "1"), ("b", "2"), ("bb", "2"), ("c", "3")])]), "key \"bb\"");
    assert_fault(&after_abc(&[scan(6, 7, &[("a", "1"), ("b", "3"), ("c", "3")])]), "key \"b\"");
    // Deleted before the scan began, or put after it ended.
    assert_fault(&after_abc(&[delete(6, 7, "b"), scan(8, 9, &[("a", "1"), ("b", "2"), ("c", "3")])]), "key \"b\"");
    assert_fault(&[scan(0, 1, &[("a", "1")]), put(2, 3, "a", "1")], "key \"a\"");
    // A scan after a get cannot see an older value.
    let overwrite = put(6, 100, "b", "9");
    let stale = scan(20, 30, &[("a", "1"), ("b", "2"), ("c", "3")]);
    assert_right(&after_abc(&[overwrite.clone(), stale.clone()]));
    assert_fault(&after_abc(&[overwrite, get(7, 8, "b", Some("9")), stale]), "key \"b\"");
    // A scan need not be atomic: of two puts, one after the other, it saw only the second.
    assert_right(&[put(1, 2, "a", "1"), put(3, 4, "b", "2"), scan(0, 5, &[("b", "2")])]);
}

#[test]
fn scans_keep_order_bounds_and_limits() {
    let items = [("a", "1"), ("b", "2"), ("c", "3")];
    let backward = Scan { direction: Direction::Backward, ..range(Unbounded, Unbounded) };
    let limited = |limit| Scan { limit: Some(limit), ..range(Unbounded, Unbounded) };
    let is_right =
        |scan: &Scan, items: &[(&str, &str)]| assert_right(&after_abc(&[scan_of(6, 7, scan.clone(), items)]));
    let is_wrong = |scan: &Scan, items: &[(&str, &str)], words| {
        assert_fault(&after_abc(&[scan_of(6, 7, scan.clone(), items)]), words)
    };
    is_right(&backward, &[("c", "3"), ("b", "2"), ("a", "1")]);
    is_wrong(&backward, &items, "\"a\" is in front of \"b\"");
    is_wrong(&range(Unbounded, Unbounded), &[("b", "2"), ("a", "1"), ("c", "3")], "\"b\" is in front of \"a\"");
    is_wrong(&range(Unbounded, Unbounded), &[("a", "1"), ("b", "2"), ("b", "2"), ("c", "3")], "\"b\" is there twice");
    is_right(&range(Included("a"), Excluded("c")), &items[..2]);
    is_right(&range(Excluded("a"), Included("c")), &items[1..]);
    is_wrong(&range(Excluded("a"), Unbounded), &items, "\"a\" is out of bounds");
    is_wrong(&range(Unbounded, Excluded("c")), &items, "\"c\" is out of bounds");
    is_wrong(&range(Included("b"), Unbounded), &items[2..], "key \"b\"");
    // Inverted and empty ranges.
    for empty in
        [range(Included("c"), Included("a")), range(Excluded("b"), Excluded("b")), range(Included("b"), Excluded("b"))]
    {
        is_right(&empty, &[]);
        is_wrong(&empty, &items[1..2], "out of bounds");
    }
    // A limit cuts off the end, but only if it is reached.
    is_right(&limited(2), &items[..2]);
    is_right(&limited(0), &[]);
    is_right(&limited(4), &items);
    is_wrong(&limited(2), &items, "3 items, with a limit of 2");
    is_wrong(&Scan { limit: Some(2), ..range(Unbounded, Excluded("c")) }, &items[..1], "limit 2: of this key, nothing");
    is_wrong(&limited(2), &[items[0], items[2]], "key \"b\"");
    is_right(&Scan { limit: Some(2), ..backward.clone() }, &[("c", "3"), ("b", "2")]);
    is_wrong(&Scan { limit: Some(1), ..backward }, &[("b", "2")], "key \"c\"");
}

#[test]
fn unknown_outcomes_may_be_either() {
    let lost = || unknown(put(0, 0, "a", "1"));
    assert_right(&[lost(), get(5, 6, "a", None)]);
    assert_right(&[lost(), scan(5, 6, &[]), scan(7, 8, &[("a", "1")])]);
    assert_fault(&[lost(), scan(5, 6, &[("a", "1")]), scan(7, 8, &[])], "key \"a\"");
    let late = Entry { begun: 5, ..lost() };
    assert_fault(&[late, get(0, 1, "a", Some("1"))], "perhaps executed");
    let refused = Entry { end: End::NotExecuted, ..lost() };
    assert_fault(&[refused, get(5, 6, "a", Some("1"))], "key \"a\"");
    // Reads without an answer are ignored.
    assert_right(&[unknown(get(0, 0, "a", Some("1"))), unknown(scan(0, 0, &[("a", "1")]))]);
}

#[test]
fn broken_rules_are_errors() {
    let backward_time = put(5, 4, "a", "1");
    assert_eq!(check(&[backward_time]), Err(HistoryError::EndsBeforeItBegan { entry: 0 }));
    let get = |answer| entry(0, 1, Operation::Get { key: b"a".into() }, answer);
    let wrong = [get(Answer::Done), get(Answer::Items(Vec::new()))];
    let scan = entry(0, 1, Operation::Scan(range(Unbounded, Unbounded)), Answer::Value(None));
    for wrong in wrong.into_iter().chain([scan]) {
        let error = check(&[wrong]).unwrap_err();
        assert_eq!(error, HistoryError::WrongAnswer { entry: 0 });
        assert!(error.to_string().contains("record what was answered"), "{error}");
    }
}

#[test]
fn of_many_faults_some_are_told_and_all_are_counted() {
    let history: Vec<Entry> = (0..20).map(|number| get(0, 1, &format!("key {number:02}\0"), Some("x"))).collect();
    let report = judged(&history);
    assert!(report.omitted > 0 && report.faults.len() + report.omitted == 20, "{report}");
    assert!(report.to_string().starts_with("20 keys, 20 observations: 20 faults, 0 keys undecided"), "{report}");
    assert!(report.to_string().contains("\"key 00\\x00\""), "{report}");
}
