//! Commands are counted by kind and outcome, and timed, like operations of Dunlin's own clients.

use std::collections::BTreeMap;

use dunlin_kv::memcached::{Backend, Conversation};
use dunlin_kv::metrics::{Operation, Outcome};

use super::script::{core, settings};

/// Returns the counters after a conversation with a new server.
fn counted(request: &str) -> BTreeMap<(&'static str, &'static str), u64> {
    let (core, settings) = (core(), settings());
    let mut answer = Vec::new();
    Conversation::new(&core, &settings).say(request.replace('\n', "\r\n").as_bytes(), &mut answer);
    let metrics = core.metrics().borrow();
    let all = Operation::ALL.into_iter().flat_map(|operation| Outcome::ALL.map(|outcome| (operation, outcome)));
    let counts =
        all.map(|(operation, outcome)| ((operation.name(), outcome.name()), metrics.counted(operation, outcome)));
    counts.filter(|(_, count)| *count > 0).collect()
}

fn check(request: &str, expected: &[(&'static str, &'static str, u64)]) {
    let expected = expected.iter().map(|&(operation, outcome, count)| ((operation, outcome), count)).collect();
    assert_eq!(counted(request), expected, "{request}");
}

#[test]
fn retrievals() {
    check(
        "set a 0 0 1\nx\nget a b a\ngets b\nget a\ngat 100 a b\nmg a v\nmg b v\nmg a T9\nmg b N9\nme a\nget \n",
        &[("set", "hit", 1), ("get", "hit", 4), ("get", "miss", 4), ("gat", "hit", 2), ("gat", "miss", 1)],
    );
}

#[test]
fn each_way_to_store() {
    check(
        "replace a 0 0 1\nx\nadd a 0 0 1\nx\nadd a 0 0 1\nx\nreplace a 0 0 1\nx\nappend a 0 0 1\nx\nappend b 0 0 1\nx\n\
         prepend a 0 0 1 noreply\nx\nprepend b 0 0 1\nx\ncas a 0 0 1 4\nx\ncas a 0 0 1 4\nx\ncas b 0 0 1 4\nx\nset c 0 0 1048577\n",
        &[
            ("add", "hit", 1),
            ("add", "conflict", 1),
            ("replace", "hit", 1),
            ("replace", "miss", 1),
            ("append", "hit", 1),
            ("append", "miss", 1),
            ("prepend", "hit", 1),
            ("prepend", "miss", 1),
            ("cas", "hit", 1),
            ("cas", "miss", 1),
            ("cas", "conflict", 1),
            ("set", "refused", 1),
        ],
    );
    check(
        "ms a 1\nx\nms a 1 ME\nx\nms a 1 MA\nx\nms a 1 MP q\nx\nms b 1 MR\nx\nms a 1 MR\nx\nms a 1 C99\nx\nms b 1 MA\nx\n\
         ms b 1 MA N0\nx\n",
        &[
            ("set", "hit", 1),
            ("add", "conflict", 1),
            ("append", "hit", 2),
            ("append", "miss", 1),
            ("prepend", "hit", 1),
            ("replace", "hit", 1),
            ("replace", "miss", 1),
            ("cas", "conflict", 1),
        ],
    );
}

#[test]
fn everything_else() {
    check(
        "set n 0 0 1\n5\nset s 0 0 1\nx\nincr n 1\ndecr n 1\nincr s 1\ndecr none 1\nma n\nma n MD\nma s\nma none\nma new N0 MI\nma n C99\n\
         touch n 100\ntouch none 100\ndelete none\ndelete s\nmd none\nmd n C99\nmd n I\nmd n\nversion\nstats\nflush_all\n",
        &[
            ("set", "hit", 2),
            ("incr", "hit", 3),
            ("incr", "refused", 2),
            ("incr", "miss", 1),
            ("incr", "conflict", 1),
            ("decr", "hit", 2),
            ("decr", "miss", 1),
            ("touch", "hit", 1),
            ("touch", "miss", 1),
            ("delete", "hit", 3),
            ("delete", "miss", 2),
            ("delete", "conflict", 1),
            ("flush", "hit", 1),
        ],
    );
}

#[test]
fn bursts_are_timed_for_each_kind_in_them() {
    let (core, settings) = (core(), settings());
    let mut client = Conversation::new(&core, &settings);
    let mut answer = Vec::new();
    client.say(b"set a 0 0 1\r\nx\r\nget a a\r\nappend a 0 0 1\r\ny\r\nversion\r\n", &mut answer);
    let timed = |operation: Operation| {
        let metrics = core.metrics().borrow();
        let latency = metrics.operations().find(|(kind, _)| *kind == operation).map(|(_, stats)| stats.latency);
        latency.map_or(0, |latency| latency.count())
    };
    assert_eq!([Operation::Set, Operation::Get, Operation::Append, Operation::Delete].map(timed), [1, 2, 1, 0]);
    // Not each of many is timed, but the timed ones count for the others.
    const DELETES: u64 = 10_000;
    for _ in 0..DELETES {
        client.say(b"delete a\r\n", &mut answer);
    }
    assert!(timed(Operation::Delete).abs_diff(DELETES) <= 16, "{}", timed(Operation::Delete));
}

#[test]
fn a_reset_of_memcacheds_statistics_leaves_these_alone() {
    assert_eq!(counted("get a\nstats reset\nget a\n")[&("get", "miss")], 2);
}
