//! An index as a table, one at a time and in bursts, and its use by two threads.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arrayvec::ArrayVec;
use dunlin_index::{Index, Order, Range, Scan, pin};
use dunlin_lab::LabError;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::keys::Keys;
use super::{BURST_MAX, Op, Outcome, Table};

/// An index with keys of `KEY` bytes.
pub(super) struct Ours<'a, K, const KEY: usize> {
    pub index: &'a Index,
    pub keys: &'a K,
}

impl<K: Keys<KEY>, const KEY: usize> Table for Ours<'_, K, KEY> {
    #[inline(always)]
    fn burst(&mut self, ops: &[Op], outcome: &mut Outcome) {
        match ops {
            [op] => self.one(*op, outcome),
            ops => self.many(ops, outcome),
        }
    }
}

impl<K: Keys<KEY>, const KEY: usize> Ours<'_, K, KEY> {
    #[inline(always)]
    fn one(&self, op: Op, outcome: &mut Outcome) {
        let guard = pin();
        match op {
            Op::Get(number) => {
                let value = self.index.get(&self.keys.key(number), &guard);
                outcome.read(number, value.and_then(|value| as_number(&value)));
            }
            Op::Put(number) => {
                let put = self.index.insert(&self.keys.key(number), &number.to_le_bytes(), &guard);
                outcome.refused += u64::from(put.is_err());
            }
            Op::Delete(number) => _ = black_box(self.index.remove(&self.keys.key(number), &guard)),
            Op::Sum(number, items) => {
                let (key, mut sum) = (self.keys.key(number), 0u64);
                let add = |_: &[u8], value: &[u8]| sum = sum.wrapping_add(as_number(value).unwrap_or_default());
                let count = self.index.scan(Range::from(&key), Order::Ascending, items as usize, &guard, add);
                outcome.summed(sum, count, items as usize);
            }
        }
    }

    /// GETs and scans run together, PUTs together, and DELETEs.
    #[inline(always)]
    fn many(&self, ops: &[Op], outcome: &mut Outcome) {
        let keys: ArrayVec<[u8; KEY], BURST_MAX> = ops.iter().map(|op| self.keys.key(op.number())).collect();
        let (mut gets, mut deletes): (ArrayVec<&[u8], BURST_MAX>, ArrayVec<&[u8], BURST_MAX>) = Default::default();
        let mut scans: ArrayVec<Scan<'_>, BURST_MAX> = ArrayVec::new();
        let mut puts: ArrayVec<(&[u8], [u8; 8]), BURST_MAX> = ArrayVec::new();
        for (op, key) in ops.iter().zip(&keys) {
            match op {
                Op::Get(_) => gets.push(key),
                Op::Put(number) => puts.push((key, number.to_le_bytes())),
                Op::Delete(_) => deletes.push(key),
                Op::Sum(_, items) => {
                    scans.push(Scan { range: Range::from(key), order: Order::Ascending, limit: *items as usize });
                }
            }
        }
        let guard = pin();
        let mut values = [None; BURST_MAX];
        let (mut sum, mut count) = (0u64, 0);
        self.index.burst(&gets, &scans, &guard, &mut values[..gets.len()], |_, _, value| {
            (sum, count) = (sum.wrapping_add(as_number(value).unwrap_or_default()), count + 1);
        });
        let mut values = values.iter();
        for op in ops {
            if let Op::Get(number) = op
                && let Some(value) = values.next()
            {
                outcome.read(*number, value.as_deref().and_then(as_number));
            }
        }
        if let [scan, ..] = &scans[..] {
            outcome.summed(sum, count / scans.len(), scan.limit);
        }
        if !puts.is_empty() {
            let puts: ArrayVec<(&[u8], &[u8]), BURST_MAX> =
                puts.iter().map(|(key, value)| (*key, &value[..])).collect();
            self.index.insert_burst(&puts, &guard, |_, put| outcome.refused += u64::from(put.is_err()));
        }
        if !deletes.is_empty() {
            self.index.remove_burst(&deletes, &guard, |_, old| _ = black_box(old));
        }
    }
}

/// Two indexes, each with the items whose number is odd or even: what two servers without anything in common do.
pub(super) struct Halves<'a, K, const KEY: usize> {
    pub index: &'a Index,
    pub keys: &'a K,
    /// 0 or 1.
    pub which: u64,
}

impl<K: Keys<KEY>, const KEY: usize> Table for Halves<'_, K, KEY> {
    #[inline(always)]
    fn burst(&mut self, ops: &[Op], outcome: &mut Outcome) {
        let own: ArrayVec<Op, BURST_MAX> = ops.iter().map(|op| op.with((op.number() & !1) | self.which)).collect();
        Ours { index: self.index, keys: self.keys }.burst(&own, outcome);
    }
}

#[inline(always)]
fn as_number(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

/// Moves this thread to another processor than the one it inherited from the thread that started it.
fn move_to(core: usize) -> Result<(), LabError> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|error| LabError::io(format!("move a thread to core {core}"))(error.into()))
}

/// Runs `other` on a second thread, again and again, while `measure` runs. `other` does some work and returns how many
/// operations that was. Returns both results; the rate of `other` is in operations per second.
pub(super) fn beside<T>(
    core: usize,
    mut other: impl FnMut() -> u64 + Send,
    measure: impl FnOnce() -> T,
) -> Result<(T, f64), LabError> {
    // On a line of its own: the other thread reads it all the time.
    let is_over = Padded(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_to(core)?;
            let (begun, mut done) = (Instant::now(), 0);
            while !is_over.0.load(Ordering::Relaxed) {
                done += other();
            }
            Ok(done as f64 / begun.elapsed().as_secs_f64())
        });
        let measured = measure();
        is_over.0.store(true, Ordering::Relaxed);
        // Its panic is passed on, as that of this thread would be.
        let rate = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((measured, rate))
    })
}

/// Alone on its cache lines: processors fetch them in pairs.
#[repr(align(128))]
struct Padded<T>(T);
