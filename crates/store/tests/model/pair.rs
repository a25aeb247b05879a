//! A partition and its model.

use std::collections::HashMap;

use dunlin_store::{Condition, Item, KeyHash, Marks, Model, Partition, Put, Refused, Store, StoreStats, Stored, Visit};

use crate::work::{Random, Shape, Step};

/// An owned item.
#[derive(Debug, PartialEq)]
struct Seen {
    value: Vec<u8>,
    flags: u32,
    cas: u64,
    expires: Option<u32>,
    /// In minutes: the precision that a partition guarantees.
    last_access: u32,
    marks: Marks,
}

/// When the clock starts: a whole minute.
const BEGAN: u32 = 1_800_000_000;

impl Seen {
    fn new(item: &Item<'_>) -> Seen {
        let last_access = (item.last_access - BEGAN) / 60;
        Seen {
            value: item.value.to_vec(),
            flags: item.flags,
            cas: item.cas,
            expires: item.expires,
            last_access,
            marks: item.marks,
        }
    }
}

/// The answer of an operation.
#[derive(Debug, PartialEq)]
enum Answer {
    Item(Option<Seen>),
    Stored(Result<Stored, Refused>),
    Counted(Result<(u64, Stored), Refused>),
    Done(Result<(), Refused>),
}

impl Answer {
    fn is_refusal_for_room(&self) -> bool {
        let refused = match self {
            Answer::Stored(Err(refused)) | Answer::Counted(Err(refused)) | Answer::Done(Err(refused)) => *refused,
            _ => return false,
        };
        matches!(refused, Refused::Full | Refused::TooLarge { .. })
    }
}

fn apply(store: &mut impl Store, key: &[u8], step: &Step) -> Answer {
    let key = store.key(key).expect("a good key");
    store.prefetch(&key);
    store.prefetch_item(&key);
    let cas = store.peek(&key).map_or(0, |item| item.cas);
    let token_of = |is_right: bool| if is_right { cas } else { cas.wrapping_add(1) };
    match step {
        Step::Get => Answer::Item(store.get(&key).map(|item| Seen::new(&item))),
        Step::Put { value, put, is_current } => {
            let condition = match put.condition {
                Condition::Unchanged(_) => Condition::Unchanged(token_of(*is_current)),
                other => other,
            };
            Answer::Stored(store.put(&key, value, Put { condition, ..*put }))
        }
        Step::Extend { bytes, side, token } => Answer::Stored(store.extend(&key, bytes, *side, token.map(token_of))),
        Step::Count { delta, token } => Answer::Counted(store.count(&key, *delta, token.map(token_of))),
        Step::Touch { expires } => Answer::Done(store.touch(&key, *expires)),
        Step::Mark { marks, token } => Answer::Done(store.mark(&key, *marks, *token)),
        Step::Delete { token } => Answer::Done(store.delete(&key, token.map(token_of))),
    }
}

pub struct Pair {
    partition: Partition,
    model: Model,
    now: u32,
    /// Items that the partition lost, which only a cache may.
    pub lost: u64,
    /// Operations that were rejected for lack of memory.
    pub refused: u64,
}

impl Pair {
    pub fn new(partition: Partition) -> Pair {
        let mut pair = Pair { partition, model: Model::new(), now: BEGAN, lost: 0, refused: 0 };
        pair.tell_time();
        pair
    }

    pub fn stats(&self) -> StoreStats {
        self.partition.stats()
    }

    fn tell_time(&mut self) {
        self.partition.set_now(self.now);
        self.model.set_now(self.now);
    }

    fn evicted(&self) -> u64 {
        self.stats().evicted_index + self.stats().evicted_log
    }

    /// Does one random operation on both.
    pub fn step(&mut self, random: &mut Random, shape: &Shape) {
        if random.one_in(50) {
            self.now += random.below(100) as u32;
            self.tell_time();
        }
        if random.below(100_000) < shape.flushes {
            self.partition.flush();
            self.model.flush();
            assert_eq!(self.stats().items, 0);
        }
        let key = shape.key(random.below(shape.keys));
        let step = Step::random(random, shape, self.now);
        self.apply(&key, &step);
        let stats = self.stats();
        assert!(stats.memory_bytes <= stats.memory_bytes_max, "{stats:?}");
        assert!(self.lost <= self.evicted(), "{} items are missing: {stats:?}", self.lost);
    }

    fn forget_lost(&mut self, key: &[u8]) {
        let is_there = self.partition.peek(&self.partition.key(key).expect("a good key")).is_some();
        let key = self.model.key(key).expect("a good key");
        if !is_there && self.model.peek(&key).is_some() {
            self.model.delete(&key, None).expect("it is there");
            self.lost += 1;
        }
    }

    fn apply(&mut self, key: &[u8], step: &Step) {
        self.forget_lost(key);
        let answer = apply(&mut self.partition, key, step);
        if answer.is_refusal_for_room() {
            let is_full = matches!(
                answer,
                Answer::Stored(Err(Refused::Full))
                    | Answer::Counted(Err(Refused::Full))
                    | Answer::Done(Err(Refused::Full))
            );
            self.refused += u64::from(is_full);
        } else {
            let expected = apply(&mut self.model, key, step);
            assert_eq!(answer, expected, "{step:?} of {:?}", String::from_utf8_lossy(key));
        }
        let seen = self.partition.peek(&self.partition.key(key).expect("a good key")).map(|item| Seen::new(&item));
        let expected = self.model.peek(&self.model.key(key).expect("a good key")).map(|item| Seen::new(&item));
        assert!(
            seen == expected || seen.is_none() && self.evicted() > self.lost,
            "{seen:?} not {expected:?} after {step:?}"
        );
    }

    /// Compares everything visible.
    pub fn compare_all(&mut self) {
        let all = |store: &dyn Visit| {
            let mut items = HashMap::new();
            // In uneven ranges, so that their borders are anywhere.
            let mut first = 0u64;
            loop {
                let last = first.saturating_add(first / 3 + 0x0123_4567_89ab_cdef);
                store.visit(first..=last, &mut |KeyHash(hash), key, item| {
                    assert!((first..=last).contains(&hash));
                    assert!(items.insert(key.to_vec(), Seen::new(item)).is_none(), "an item was shown twice");
                });
                if last == u64::MAX {
                    return items;
                }
                first = last + 1;
            }
        };
        let (seen, mut expected) = (all(&self.partition), all(&self.model));
        for (key, item) in &seen {
            assert_eq!(expected.remove(key).as_ref(), Some(item));
            let key = self.partition.key(key).expect("a good key");
            assert_eq!(
                self.partition.peek(&key).map(|item| Seen::new(&item)).as_ref(),
                Some(item),
                "what is visited is found"
            );
        }
        for key in expected.keys() {
            self.forget_lost(key);
        }
        let stats = self.stats();
        assert!(self.lost <= self.evicted(), "{} items are missing: {stats:?}", self.lost);
        assert!(stats.items >= seen.len() as u64);
        let bytes: usize = seen.iter().map(|(key, item)| key.len() + item.value.len()).sum();
        assert!(stats.item_bytes >= bytes as u64);
    }
}
