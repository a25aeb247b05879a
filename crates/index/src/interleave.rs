//! Threads that take turns at each access to a word of a node, in an order that a seed decides.
//!
//! The words of nodes are plain memory, cut from chunks and used again, so a model checker cannot stand in for their
//! atomics. Instead, real threads pass a baton: the thread that has it runs up to its next access to a node, and then
//! may have to pass it on. So a seed names an interleaving of accesses, with the real epochs and the real memory. What a
//! weak memory order could show beyond that is not covered.

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dunlin_net::random::Random;

/// How much less likely an access to another word does.
const DATA_SHARE: f64 = 16.0;

/// Who runs.
#[derive(Debug)]
struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Probability that an access to a control word passes the baton on.
    share: f64,
    running: usize,
    /// Threads that have not ended.
    left: Vec<usize>,
}

thread_local! {
    static TURN: RefCell<Option<(Arc<Turns>, usize)>> = const { RefCell::new(None) };
}

/// An access to a node: other threads of the same run may go first. That is more likely at a control word, because it
/// decides what others may do.
pub(crate) fn point(is_control: bool) {
    // A thread that is ending has no turns.
    let _ = TURN.try_with(|turn| {
        if let Ok(turn) = turn.try_borrow()
            && let Some((turns, me)) = &*turn
        {
            turns.access(*me, is_control);
        }
    });
}

impl Turns {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn access(&self, me: usize, is_control: bool) {
        let mut state = self.state();
        let share = if is_control { state.share } else { state.share / DATA_SHARE };
        if state.random.chance(share) {
            self.pass_on(&mut state);
        }
        self.wait(state, me);
    }

    fn pass_on(&self, state: &mut State) {
        let count = state.left.len() as u64;
        if count > 0 {
            state.running = state.left[state.random.below(count) as usize];
            self.changed.notify_all();
        }
    }

    fn wait(&self, mut state: MutexGuard<'_, State>, me: usize) {
        while state.running != me {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Passes the baton on when a thread ends, also by a panic.
struct Ending(Arc<Turns>, usize);

impl Drop for Ending {
    fn drop(&mut self) {
        TURN.set(None);
        let mut state = self.0.state();
        state.left.retain(|thread| *thread != self.1);
        self.0.pass_on(&mut state);
    }
}

/// Runs `work` on so many threads, which take turns. Returns their results in order.
pub(crate) fn run<R: Send>(seed: u64, threads: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let mut random = Random::new(seed);
    let share = [0.3, 0.1, 0.03][random.below(3) as usize];
    let running = random.below(threads as u64) as usize;
    let state = Mutex::new(State { random, share, running, left: (0..threads).collect() });
    let turns = Arc::new(Turns { state, changed: Condvar::new() });
    std::thread::scope(|scope| {
        let start = |me: usize| {
            let (turns, work) = (turns.clone(), &work);
            scope.spawn(move || {
                let _ending = Ending(turns.clone(), me);
                turns.wait(turns.state(), me);
                TURN.set(Some((turns, me)));
                work(me)
            })
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Keys in a leaf that is about to split, in leaves that merge, and in layers that come and go.
#[cfg(test)]
mod tests {
    use std::ops::Bound;
    use std::sync::atomic::{AtomicU64, Ordering};

    use dunlin_judge::map::{self, Answer, Direction, End, Entry, Operation};

    use super::*;
    use crate::{Index, Order, Range, Scan, Value, pin};

    const THREADS: usize = 3;
    const STEPS: u64 = 8;

    #[derive(Debug, Clone, Copy)]
    struct Shape {
        /// Keys, of which the first are there.
        keys: u64,
        there: u64,
        /// Slices that all keys have in common.
        slices: usize,
        /// Share of removals among writes, in percent.
        removals: u64,
    }

    const SHAPES: [Shape; 4] = [
        Shape { keys: 34, there: 27, slices: 0, removals: 20 },
        Shape { keys: 36, there: 36, slices: 0, removals: 90 },
        Shape { keys: 4, there: 1, slices: 2, removals: 50 },
        Shape { keys: 14, there: 11, slices: 1, removals: 40 },
    ];

    struct World<'a> {
        index: &'a Index,
        clock: AtomicU64,
        shape: Shape,
    }

    impl World<'_> {
        fn key(&self, number: u64) -> Vec<u8> {
            let mut key = vec![b'k'; 8 * self.shape.slices];
            key.extend_from_slice(&number.to_be_bytes()[6..]);
            // Some go on behind the slice.
            key.resize(key.len() + [0, 0, 9][number as usize % 3], b'x');
            key
        }

        fn now(&self) -> u64 {
            self.clock.fetch_add(1, Ordering::Relaxed)
        }

        fn step(&self, random: &mut Random, client: usize, version: u64, history: &mut Vec<Entry>) {
            let (guard, key) = (pin(), self.key(random.below(self.shape.keys)));
            let owned = |value: Option<Value<'_>>| Answer::Value(value.map(|value| value.to_vec()));
            // Some need a block.
            let value = version.to_be_bytes().repeat(1 + random.below(2) as usize);
            let begun = self.now();
            let (operation, answer) = match random.below(100) {
                0..20 => {
                    let found = owned(self.index.get(&key, &guard));
                    (Operation::Get { key }, found)
                }
                20..25 => {
                    // The other key shares all slices, or none.
                    let other = if random.below(2) == 0 { self.key(0) } else { b"another".to_vec() };
                    let mut values = [None; 2];
                    self.index.get_burst(&[&key, &other], &guard, &mut values);
                    (Operation::Get { key }, owned(values[0]))
                }
                25..40 => {
                    let (order, direction) = match random.below(2) {
                        0 => (Order::Ascending, Direction::Forward),
                        _ => (Order::Descending, Direction::Backward),
                    };
                    let mut items = Vec::new();
                    let mut add = |key: &[u8], value: &[u8]| items.push((key.to_vec(), value.to_vec()));
                    if random.below(2) == 0 {
                        self.index.scan(Range::from(&key), order, 10, &guard, add);
                    } else {
                        // The other one is of all keys.
                        let scans = [Range::from(&key), Range::ALL].map(|range| Scan { range, order, limit: 10 });
                        self.index.scan_burst(&scans, &guard, |at, key, value| {
                            if at == 0 {
                                add(key, value)
                            }
                        });
                    }
                    let scan =
                        map::Scan { from: Bound::Included(key), to: Bound::Unbounded, direction, limit: Some(10) };
                    (Operation::Scan(scan), Answer::Items(items))
                }
                _ if random.below(100) < self.shape.removals => {
                    let old = owned(self.index.remove(&key, &guard));
                    (Operation::Delete { key }, old)
                }
                _ => {
                    let old = owned(self.index.insert(&key, &value, &guard).expect("room"));
                    (Operation::Put { key, value }, old)
                }
            };
            history.push(Entry { client, begun, operation, end: End::Answered(self.now(), answer) });
        }
    }

    /// `DUNLIN_SEEDS` runs more seeds, `DUNLIN_SEED` a single one.
    #[test]
    fn a_judge_finds_no_fault_in_any_order_of_accesses() {
        let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
        let seeds = number("DUNLIN_SEED").map_or(0..number("DUNLIN_SEEDS").unwrap_or(20), |seed: u64| seed..seed + 1);
        for (seed, shape) in seeds.flat_map(|seed| SHAPES.map(|shape| (seed, shape))) {
            let index = Index::new(1 << 20).expect("room");
            let world = World { index: &index, clock: AtomicU64::new(0), shape };
            let mut history = Vec::new();
            for number in 0..shape.there {
                let (key, value, begun) = (world.key(number), b"first".to_vec(), world.now());
                index.insert(&key, &value, &pin()).expect("room");
                let end = End::Answered(world.now(), Answer::Value(None));
                history.push(Entry { client: THREADS, begun, operation: Operation::Put { key, value }, end });
            }
            let work = |client: usize| {
                let (mut random, mut history) = (Random::new(seed << 8 | client as u64), Vec::new());
                for step in 0..STEPS {
                    world.step(&mut random, client, step << 8 | client as u64, &mut history);
                }
                history
            };
            history.extend(run(seed, THREADS, work).into_iter().flatten());
            let report = map::check(&history).expect("it is well recorded");
            assert!(report.is_right(), "seed {seed}, {shape:?}: {report}");
            index.verify(&pin()).unwrap_or_else(|wrong| panic!("seed {seed}, {shape:?}: {wrong}"));
        }
    }

    /// A removal that merges the last two leaves of a layer then replaces the layer's root by its only child, for which
    /// it locks the leaf above. It begins again if that has changed meanwhile.
    #[test]
    fn a_layer_that_has_become_empty_leaves_the_tree_although_the_leaf_above_changes() {
        const BESIDE: &[u8] = b"kkkkkkkk";
        let keys: Vec<Vec<u8>> = (0..40u16).map(|number| [BESIDE, &number.to_be_bytes()].concat()).collect();
        for seed in 0..60 {
            let index = Index::new(1 << 20).expect("room");
            for key in keys.iter().map(|key| &key[..]).chain([BESIDE]) {
                index.insert(key, b"first", &pin()).expect("room");
            }
            // Those that are left have one leaf, so some removal merges two.
            run(seed, 2, |client| {
                for key in &keys[1..] {
                    if client == 0 {
                        index.remove(key, &pin()).expect("it is there");
                    } else {
                        index.insert(BESIDE, &key[8..], &pin()).expect("room");
                    }
                }
            });
            index.verify(&pin()).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            index.remove(&keys[0], &pin()).expect("it is there");
            assert_eq!(index.statistics(&pin()).layers, 1, "seed {seed}");
        }
    }
}
