//! Whether a history is linearizable: the search of Wing and Gong (1993) with the memory of Lowe (2017) for what was tried before.
//!
//! Of our own because the checker on the registry (`porcupine-rs`) brings a benchmark harness and a regular expression engine with it, and has no
//! operations that may never have been executed. In tests it judges beside this one (`porcupine_tests`).

use std::collections::HashSet;
use std::hash::Hash;

/// What operations do to a state.
pub trait Specification {
    /// What there is.
    type State: Clone + Eq + Hash;

    /// The state before the first operation.
    fn initial(&self) -> Self::State;

    /// What the operation of a number makes of a state; `None` if it cannot have had the answer that it had.
    fn apply(&self, state: &Self::State, operation: usize) -> Option<Self::State>;
}

/// When an operation was in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Begun then.
    pub begun: u64,
    /// Ended then; `None` if it may have been executed at any time since, or never.
    pub ended: Option<u64>,
}

/// What the search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// An order in which all answers are right.
    Linearizable,
    /// There is none. The longest order that begins right, by the numbers of operations.
    Not(Vec<usize>),
    /// It was not found out within the steps allowed.
    Undecided,
}

/// A set of operations.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Set(Box<[u64]>);

impl Set {
    fn has(&self, number: usize) -> bool {
        self.0[number / 64] & 1 << (number % 64) != 0
    }

    fn with(&self, number: usize) -> Set {
        let mut set = self.clone();
        set.0[number / 64] |= 1 << (number % 64);
        set
    }
}

/// A place in the search: these were executed, in that order, and left this state.
struct Node<S> {
    executed: Set,
    order: Vec<usize>,
    state: S,
}

/// Looks for an order of all operations that ended, and any of the others, in which each comes after all that had ended before it was begun, and has
/// the answer that it had. Takes at most `steps_max` steps.
pub fn check<S: Specification>(specification: &S, intervals: &[Interval], steps_max: usize) -> Verdict {
    let mut by_begin: Vec<usize> = (0..intervals.len()).collect();
    by_begin.sort_by_key(|number| intervals[*number].begun);
    let none = Set(vec![0; intervals.len().div_ceil(64)].into());
    let mut longest = Vec::new();
    let mut seen = HashSet::new();
    let mut open = vec![Node { executed: none, order: Vec::new(), state: specification.initial() }];
    let mut steps = 0;
    while let Some(node) = open.pop() {
        let left = || by_begin.iter().copied().filter(|number| !node.executed.has(*number));
        // One of those that are left must be first: none that was begun after another of them had ended.
        let Some(first_end) = left().filter_map(|number| intervals[number].ended).min() else {
            return Verdict::Linearizable;
        };
        if node.order.len() > longest.len() {
            longest.clone_from(&node.order);
        }
        let before = open.len();
        for number in left().take_while(|number| intervals[*number].begun <= first_end) {
            steps += 1;
            if steps > steps_max {
                return Verdict::Undecided;
            }
            let Some(state) = specification.apply(&node.state, number) else { continue };
            let executed = node.executed.with(number);
            if seen.insert((executed.clone(), state.clone())) {
                let order = node.order.iter().copied().chain([number]).collect();
                open.push(Node { executed, order, state });
            }
        }
        // The likeliest is looked at first, so it goes last: those that end soon, and last of all those that may never have been executed.
        open[before..].sort_by_key(|node| {
            let end = node.order.last().and_then(|number| intervals[*number].ended);
            std::cmp::Reverse(end.unwrap_or(u64::MAX))
        });
    }
    Verdict::Not(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register; an operation writes or reads a number.
    #[derive(Clone, Copy)]
    enum Do {
        Write(u32),
        Read(u32),
    }

    struct Register(Vec<Do>);

    impl Specification for Register {
        type State = u32;

        fn initial(&self) -> u32 {
            0
        }

        fn apply(&self, state: &u32, operation: usize) -> Option<u32> {
            match self.0[operation] {
                Do::Write(value) => Some(value),
                Do::Read(value) => (value == *state).then_some(value),
            }
        }
    }

    fn verdict(history: &[(u64, Option<u64>, Do)]) -> Verdict {
        let intervals: Vec<Interval> = history.iter().map(|&(begun, ended, _)| Interval { begun, ended }).collect();
        check(&Register(history.iter().map(|operation| operation.2).collect()), &intervals, 10_000)
    }

    #[test]
    fn orders_that_agree_with_time_are_found() {
        use Do::{Read, Write};
        assert_eq!(verdict(&[]), Verdict::Linearizable);
        // Both reads are during the write.
        assert_eq!(verdict(&[(0, Some(10), Write(1)), (1, Some(2), Read(0)), (3, Some(4), Read(1))]), Verdict::Linearizable);
        // The second may not see less than the first.
        let back = [(0, Some(10), Write(1)), (1, Some(2), Read(1)), (3, Some(4), Read(0))];
        assert_eq!(verdict(&back), Verdict::Not(vec![0, 1]));
        // A stale read.
        assert_eq!(verdict(&[(0, Some(1), Write(1)), (2, Some(3), Read(0))]), Verdict::Not(vec![0]));
        // Ends and begins at the same time count as concurrent.
        assert_eq!(verdict(&[(0, Some(2), Write(1)), (2, Some(3), Read(0))]), Verdict::Linearizable);
    }

    #[test]
    fn what_never_ended_may_have_been_executed_late_or_never() {
        use Do::{Read, Write};
        let write = (0, None, Write(1));
        assert_eq!(verdict(&[write, (5, Some(6), Read(0))]), Verdict::Linearizable);
        assert_eq!(verdict(&[write, (5, Some(6), Read(0)), (7, Some(8), Read(1))]), Verdict::Linearizable);
        assert_eq!(verdict(&[write, (5, Some(6), Read(1)), (7, Some(8), Read(0))]), Verdict::Not(vec![0, 1]));
        // Not before it was begun.
        assert_eq!(verdict(&[(5, None, Write(1)), (0, Some(1), Read(1))]), Verdict::Not(vec![]));
    }

    #[test]
    fn a_search_that_takes_too_long_is_undecided() {
        let history: Vec<_> =
            (0..12).map(|number| (0, Some(100), Do::Write(number))).chain([(0, Some(100), Do::Read(99))]).collect();
        assert_eq!(verdict(&history), Verdict::Undecided);
    }

    /// All orders of a few random operations, tried one by one, agree with the search.
    #[test]
    fn it_agrees_with_trying_all_orders() {
        fn exists(history: &[(u64, Option<u64>, Do)], executed: &mut Vec<usize>, state: u32) -> bool {
            let left: Vec<usize> = (0..history.len()).filter(|number| !executed.contains(number)).collect();
            if left.iter().all(|number| history[*number].1.is_none()) {
                return true;
            }
            left.iter().any(|&number| {
                let (begun, _, operation) = history[number];
                if left.iter().any(|other| history[*other].1.is_some_and(|ended| ended < begun)) {
                    return false;
                }
                let next = match operation {
                    Do::Write(value) => value,
                    Do::Read(value) if value == state => state,
                    Do::Read(_) => return false,
                };
                executed.push(number);
                let found = exists(history, executed, next);
                executed.pop();
                found
            })
        }
        let mut random = dunlin_trial::Random::new(7);
        let mut counts = [0; 2];
        for _ in 0..3_000 {
            let history: Vec<(u64, Option<u64>, Do)> = (0..6)
                .map(|_| {
                    let begun = random.between(0, 20);
                    let value = random.between(0, 2) as u32;
                    let operation = if random.chance(50) { Do::Write(value) } else { Do::Read(value) };
                    (begun, (!random.chance(15)).then(|| begun + random.between(0, 8)), operation)
                })
                .collect();
            let expected = exists(&history, &mut Vec::new(), 0);
            assert_eq!(verdict(&history) == Verdict::Linearizable, expected);
            counts[usize::from(expected)] += 1;
        }
        assert!(counts.iter().all(|count| *count > 300), "{counts:?}");
    }
}
