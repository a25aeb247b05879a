//! Histories from seeds: of a map that executes one small step at a time for overlapping clients. A scan takes several
//! steps.

use std::collections::BTreeMap;
use std::ops::Bound;

use dunlin_net::random::Random;

use super::{Answer, Direction, End, Entry, Operation, Scan};

/// The work of clients.
pub struct Load {
    pub operations: usize,
    pub clients: usize,
    pub keys: u64,
    pub values: u64,
}

/// Keys with common prefixes, zero bytes and no bytes; then others.
const KEYS: [&[u8]; 6] = [b"", b"a", b"a\0", b"a\0\0b", b"ab", b"b"];
/// Maximum number of items that a scan reads at once.
const STRIDE_MAX: u64 = 3;

/// The state of a client.
enum State {
    Idle,
    /// It has begun the operation with this number.
    Begun(usize),
    /// The map has executed it.
    Executed(usize, End),
    /// It is scanning, and has these items.
    Scanning(usize, Scan, Vec<(Vec<u8>, Vec<u8>)>),
}

/// Runs a load; a few operations have unknown outcomes, or are not executed.
pub fn run(load: &Load, random: &mut Random) -> Vec<Entry> {
    let mut map = BTreeMap::new();
    let mut clients: Vec<State> = (0..load.clients).map(|_| State::Idle).collect();
    let mut history: Vec<Entry> = Vec::new();
    let mut now = 0;
    while history.len() < load.operations || clients.iter().any(|state| !matches!(state, State::Idle)) {
        now += random.below(3);
        let client = random.below(load.clients as u64) as usize;
        let state = std::mem::replace(&mut clients[client], State::Idle);
        clients[client] = match state {
            State::Idle if history.len() == load.operations => State::Idle,
            State::Idle => {
                let operation = operation(load, random);
                history.push(Entry { client, begun: now, operation, end: End::Unknown });
                State::Begun(history.len() - 1)
            }
            State::Begun(number) => match &history[number].operation {
                Operation::Scan(scan) => State::Scanning(number, scan.clone(), Vec::new()),
                operation => State::Executed(number, execute(&mut map, operation, random)),
            },
            State::Executed(number, end) => {
                history[number].end = if let End::Answered(_, answer) = end { End::Answered(now, answer) } else { end };
                State::Idle
            }
            State::Scanning(number, scan, mut items) => {
                if advance(&map, &scan, &mut items, random.between(1, STRIDE_MAX)) {
                    State::Scanning(number, scan, items)
                } else {
                    State::Executed(number, fate(Answer::Items(items), random))
                }
            }
        };
    }
    history
}

/// A key by number.
pub fn key(number: u64) -> Vec<u8> {
    KEYS.get(number as usize).map_or_else(|| format!("key {number:04}").into_bytes(), |key| key.to_vec())
}

fn operation(load: &Load, random: &mut Random) -> Operation {
    let any_key = |random: &mut Random| key(random.below(load.keys));
    match random.below(10) {
        0..=3 => Operation::Put { key: any_key(random), value: random.below(load.values).to_string().into_bytes() },
        4 => Operation::Delete { key: any_key(random) },
        5 | 6 => Operation::Get { key: any_key(random) },
        _ => {
            let mut bound = || match random.below(4) {
                0 => Bound::Included(any_key(random)),
                1 => Bound::Excluded(any_key(random)),
                _ => Bound::Unbounded,
            };
            let (from, to) = (bound(), bound());
            let direction = if random.chance(0.5) { Direction::Forward } else { Direction::Backward };
            let limit = random.chance(0.5).then(|| random.below(load.keys + 2) as usize);
            Operation::Scan(Scan { from, to, direction, limit })
        }
    }
}

fn execute(map: &mut BTreeMap<Vec<u8>, Vec<u8>>, operation: &Operation, random: &mut Random) -> End {
    let is_executed = !random.chance(0.05);
    let (Operation::Put { key, .. } | Operation::Delete { key } | Operation::Get { key }) = operation else {
        unreachable!("scans take several steps")
    };
    let before = map.get(key).cloned();
    match operation {
        _ if !is_executed => return if random.chance(0.5) { End::NotExecuted } else { End::Unknown },
        Operation::Put { key, value } => drop(map.insert(key.clone(), value.clone())),
        Operation::Delete { key } => drop(map.remove(key)),
        _ => {}
    }
    let is_get = matches!(operation, Operation::Get { .. });
    let answer = match random.below(3) {
        0 if !is_get => Answer::Done,
        1 => Answer::Existed(before.is_some()),
        _ => Answer::Value(before),
    };
    fate(answer, random)
}

/// Some answers are lost.
fn fate(answer: Answer, random: &mut Random) -> End {
    if random.chance(0.05) { End::Unknown } else { End::Answered(0, answer) }
}

/// Reads a few more items; returns whether there may be more.
fn advance(map: &BTreeMap<Vec<u8>, Vec<u8>>, scan: &Scan, items: &mut Vec<(Vec<u8>, Vec<u8>)>, stride: u64) -> bool {
    for _ in 0..stride {
        if scan.limit == Some(items.len()) {
            return false;
        }
        let cursor = items.last().map(|(key, _)| key.clone());
        let is_next =
            |key: &[u8]| is_within(scan, key) && cursor.as_ref().is_none_or(|cursor| is_beyond(scan, key, cursor));
        let mut left = map.iter().filter(|(key, _)| is_next(key));
        let next = if scan.direction == Direction::Forward { left.next() } else { left.next_back() };
        let Some((key, value)) = next else { return false };
        items.push((key.clone(), value.clone()));
    }
    true
}

/// Whether a key is within the bounds of a scan.
pub fn is_within(scan: &Scan, key: &[u8]) -> bool {
    let is_above = match &scan.from {
        Bound::Included(from) => key >= &from[..],
        Bound::Excluded(from) => key > &from[..],
        Bound::Unbounded => true,
    };
    let is_below = match &scan.to {
        Bound::Included(to) => key <= &to[..],
        Bound::Excluded(to) => key < &to[..],
        Bound::Unbounded => true,
    };
    is_above && is_below
}

/// Whether a scan reaches a key only after another.
pub fn is_beyond(scan: &Scan, key: &[u8], other: &[u8]) -> bool {
    if scan.direction == Direction::Forward { key > other } else { key < other }
}
