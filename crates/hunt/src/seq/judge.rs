//! Judges the numbers that clients got.
//!
//! A sequencer is an object whose only state is the last number that it gave, and whose operation draws a run above it,
//! with any gap. If runs do not overlap, only one order of the operations is possible: that of their numbers. So a
//! history is linearizable if and only if no run overlaps another, and no operation with higher numbers ended before
//! one with lower numbers began. Calls without an answer constrain nothing: numbers that they drew are gaps. So one
//! pass over the operations by number decides, where a search would try their orders. `cross_check` still lets
//! porcupine search, on pieces of a dozen operations.

use std::fmt;
use std::ops::Range;

use porcupine_rs::{Model, Operation, check_operations};

/// An answered call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drawn {
    pub client: u32,
    /// When it began and ended, in virtual time.
    pub begun: u64,
    pub ended: u64,
    pub run: Range<u64>,
}

/// A violation in a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    Twice(Drawn, Drawn),
    /// The second ended before the first began.
    Order(Drawn, Drawn),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Twice(a, b) => write!(f, "a number came twice:\n  {a:?}\n  {b:?}"),
            Wrong::Order(a, b) => write!(f, "a call ended before one with lower numbers began:\n  {b:?}\n  {a:?}"),
        }
    }
}

/// Whether a history is linearizable. Takes the time of sorting.
pub fn judge(history: &[Drawn]) -> Result<(), Wrong> {
    let mut by_number: Vec<&Drawn> = history.iter().collect();
    by_number.sort_by_key(|drawn| (drawn.run.start, drawn.run.end));
    // The operation with lower numbers that began last.
    let mut last: Option<&Drawn> = None;
    for (at, drawn) in by_number.iter().enumerate() {
        if let Some(before) =
            at.checked_sub(1).map(|before| by_number[before]).filter(|it| it.run.end > drawn.run.start)
        {
            return Err(Wrong::Twice(before.clone(), (*drawn).clone()));
        }
        if let Some(last) = last.filter(|last| drawn.ended < last.begun) {
            return Err(Wrong::Order(last.clone(), (*drawn).clone()));
        }
        if last.is_none_or(|last| last.begun < drawn.begun) {
            last = Some(drawn);
        }
    }
    Ok(())
}

/// Whether no number came twice, and the numbers of each client rise. Sorts the history.
pub fn judge_each(history: &mut [Drawn]) -> Result<(), Wrong> {
    history.sort_by_key(|drawn| (drawn.run.start, drawn.run.end));
    if let Some(two) = history.windows(2).find(|two| two[0].run.end > two[1].run.start) {
        return Err(Wrong::Twice(two[0].clone(), two[1].clone()));
    }
    history.sort_by_key(|drawn| drawn.client);
    history.chunk_by(|a, b| a.client == b.client).try_for_each(judge)
}

#[derive(Clone)]
struct Sequencer;

impl Model for Sequencer {
    /// The end of the last run.
    type State = u64;
    type Op = Range<u64>;
    type Metadata = ();

    fn init() -> u64 {
        0
    }

    fn step(state: &u64, run: &Range<u64>) -> (bool, u64) {
        (run.start >= *state, run.end)
    }
}

/// The verdict of porcupine.
pub fn is_linearizable(history: &[Drawn]) -> bool {
    let timed = |drawn: &Drawn| Operation {
        client_id: Some(drawn.client),
        call_time: drawn.begun as i64,
        return_time: drawn.ended as i64,
        op: drawn.run.clone(),
        metadata: None,
    };
    check_operations::<Sequencer>(&history.iter().map(timed).collect::<Vec<_>>())
}

/// Lets porcupine judge pieces of a history as well.
pub fn cross_check(history: &[Drawn], piece: usize) {
    let mut by_time = history.to_vec();
    by_time.sort_by_key(|drawn| drawn.begun);
    for piece in by_time.chunks(piece) {
        assert_eq!(judge(piece).is_ok(), is_linearizable(piece), "the judges disagree: {piece:?}");
    }
}

#[cfg(test)]
mod tests {
    use dunlin_trial::Random;

    use super::*;

    fn drawn(begun: u64, ended: u64, run: Range<u64>) -> Drawn {
        Drawn { client: 1, begun, ended, run }
    }

    #[test]
    fn faults_are_named() {
        assert_eq!(judge(&[]), Ok(()));
        let good = [drawn(0, 9, 5..6), drawn(2, 3, 1..4), drawn(3, 4, 9..11)];
        assert_eq!(judge(&good), Ok(()));
        assert!(matches!(judge(&[drawn(0, 9, 1..4), drawn(0, 9, 3..5)]), Err(Wrong::Twice(..))));
        assert!(matches!(judge(&[drawn(0, 9, 1..4), drawn(0, 9, 1..4)]), Err(Wrong::Twice(..))));
        assert!(matches!(judge(&[drawn(0, 1, 5..6), drawn(2, 3, 1..2)]), Err(Wrong::Order(..))));
        // The one that began last is not adjacent.
        let far = [drawn(7, 9, 1..2), drawn(0, 9, 3..4), drawn(0, 6, 5..6)];
        assert!(matches!(judge(&far), Err(Wrong::Order(..))));
        assert_eq!(judge(&[drawn(0, 2, 5..6), drawn(2, 3, 1..2)]), Ok(()), "they overlap by an instant");
    }

    #[test]
    fn each_client_is_judged_by_itself() {
        let other = |begun, ended, run| Drawn { client: 2, ..drawn(begun, ended, run) };
        assert_eq!(judge_each(&mut [drawn(0, 1, 5..6), other(2, 3, 1..2), drawn(4, 5, 8..9)]), Ok(()));
        assert!(matches!(judge_each(&mut [drawn(0, 1, 5..6), drawn(2, 3, 1..2)]), Err(Wrong::Order(..))));
        assert!(matches!(judge_each(&mut [drawn(0, 1, 5..7), other(2, 3, 6..7)]), Err(Wrong::Twice(..))));
    }

    /// Random small histories, most of them almost right.
    #[test]
    fn the_pass_and_the_search_agree() {
        let (mut random, mut right) = (Random::new(5), 0);
        for _ in 0..20_000 {
            let (mut history, mut number, mut time) = (Vec::new(), 1, 0);
            for _ in 0..random.between(1, 9) {
                let length = random.between(1, 3);
                number += random.between(0, 1);
                time += random.between(0, 3);
                // Around the moment at which it takes effect.
                let (begun, ended) = (time - random.between(0, 4).min(time), time + random.between(0, 4));
                history.push(drawn(begun, ended, number..number + length));
                number += length;
            }
            if random.chance(60) {
                let at = random.index(history.len());
                let drawn = &mut history[at];
                match random.between(0, 2) {
                    0 => drawn.begun += random.between(0, 5).min(drawn.ended - drawn.begun),
                    1 => drawn.ended -= random.between(0, 5).min(drawn.ended - drawn.begun),
                    _ => drawn.run = drawn.run.start.saturating_sub(1)..drawn.run.end,
                }
            }
            // To porcupine, operations that touch in an instant may come in either order, too.
            let is_right = judge(&history).is_ok();
            assert_eq!(is_right, is_linearizable(&history), "{history:?}");
            right += u32::from(is_right);
        }
        assert!((5_000..19_000).contains(&right), "{right}");
    }
}
