//! `stats cachedump` lists every item once, whatever core it is on, and ends.

use std::collections::BTreeSet;

use super::cores::{Cores, said_by};
use super::script::check;

#[test]
fn items_with_their_length_and_expiry() {
    check(
        "> stats cachedump 1 0
         < END
         > set a 0 0 3
         > abc
         < STORED
         > stats cachedump 1 0
         < ITEM a [3 b; 0 s]
         < END
         > set a 0 100 5
         > abcde
         < STORED
         > stats cachedump 1 100
         < ITEM a [5 b; 1700000100 s]
         < END
         > stats cachedump 0 0
         < END
         > stats cachedump 63 0
         < END
         > stats cachedump 64 0
         < CLIENT_ERROR Illegal slab id
         > stats cachedump x 0
         < CLIENT_ERROR bad command line format
         > stats cachedump 1 x
         < CLIENT_ERROR bad command line format
         > stats cachedump 1
         < CLIENT_ERROR bad command line",
    );
}

#[test]
fn a_key_that_would_break_its_line_is_left_out() {
    check(
        "> ms YQoK 1 b
         > x
         < HD
         > stats cachedump 1 0
         < END",
    );
}

#[test]
fn an_expired_item_is_not_listed() {
    check(
        "> set a 0 10 1
         > x
         < STORED
         @ 10
         > stats cachedump 1 0
         < END",
    );
}

/// Stores `items` and lists them with a limit.
fn listed(cores: &Cores, items: usize, limit: usize) -> (Vec<String>, usize) {
    let mut request: String = (0..items).map(|i| format!("set key{i:06} 0 0 1 noreply\r\nx\r\n")).collect();
    request += &format!("stats cachedump 1 {limit}\r\n");
    let (answer, _) = said_by(cores, &[request.as_bytes()]);
    let answer = String::from_utf8(answer).expect("keys are text");
    let lines = answer.strip_suffix("END\r\n").expect("the list has an end");
    let keys = lines.lines().map(|line| line.split(' ').nth(1).expect("a key").to_owned()).collect();
    (keys, answer.len())
}

#[test]
fn items_of_all_cores_are_listed_once() {
    for cores in [1, 2, 3, 8] {
        let (keys, _) = listed(&Cores::new(cores), 3_000, 0);
        assert_eq!(keys.len(), 3_000);
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 3_000, "{cores} cores");
        let (keys, _) = listed(&Cores::new(cores), 3_000, 7);
        assert_eq!(keys.len(), 7, "{cores} cores");
    }
}

#[test]
fn the_list_is_as_long_as_memcacheds_at_most() {
    let (keys, bytes) = listed(&Cores::new(1), 100_000, 0);
    assert!(keys.len() < 100_000, "{} items", keys.len());
    // 2 MiB, one more line, and the end.
    assert!((2 << 20..(2 << 20) + 300).contains(&bytes), "{bytes} bytes");
}

#[test]
fn the_lists_of_all_cores_together_are_no_longer() {
    let mut request = String::new();
    for i in 0..30_000 {
        request += &format!("set {i:0>200} 0 0 1 noreply\r\nx\r\n");
    }
    request += "stats cachedump 1 0\r\n";
    let (answer, _) = said_by(&Cores::new(8), &[request.as_bytes()]);
    assert!((1 << 20..(2 << 20) + 8 * 300).contains(&answer.len()), "{} bytes", answer.len());
}
