//! The order of each key's elements, from the lists that were read; and the transactions that must have committed.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};

use super::history::{HistoryError, List, Op, Outcome, Transaction};
use super::report::{Name, Report};
use super::touch::{Touch, touches};

/// An append of the history.
#[derive(Debug)]
pub struct Append {
    /// Its transaction.
    pub by: usize,
    /// Its index among the appends of its transaction to its key.
    place: usize,
    /// Whether no later append of its transaction is to its key.
    is_last: bool,
    /// The element's position in the longest list.
    pub position: Option<usize>,
}

/// The versions of a key: the longest list that was read, and the readers of each prefix.
#[derive(Debug)]
pub struct Versions<'a> {
    pub key: u64,
    /// The longest list. Every prefix of it was the value of the key at some time.
    pub order: &'a [u64],
    /// A reader of the longest list.
    pub witness: usize,
    /// Lengths of the lists that were read, with their readers. The last step sorts them.
    pub reads: Vec<(usize, usize)>,
    /// Transactions that count and appended to the key, once for each append, with the elements.
    pub appended: Vec<(usize, u64)>,
}

/// Everything that the transactions that count show of all keys.
#[derive(Debug)]
pub struct Observations<'a> {
    pub history: &'a [Transaction],
    /// By key and element.
    pub appends: HashMap<(u64, u64), Append>,
    /// In the order of first use.
    pub keys: Vec<Versions<'a>>,
    numbers: HashMap<u64, usize>,
    /// Which transactions committed, or must have.
    pub counts: Vec<bool>,
    /// Transactions whose reads are still to be processed.
    queue: VecDeque<usize>,
}

impl<'a> Observations<'a> {
    /// Reads all lists, and reports all anomalies that are not cycles.
    pub fn of(history: &'a [Transaction], report: &mut Report) -> Result<Observations<'a>, HistoryError> {
        let mut observations = Observations {
            history,
            appends: appends(history)?,
            keys: Vec::new(),
            numbers: HashMap::new(),
            counts: vec![false; history.len()],
            queue: VecDeque::new(),
        };
        let mut read = Vec::new();
        let mut all_touches = Vec::new();
        for by in (0..history.len()).filter(|by| history[*by].committed_at().is_some()) {
            observations.counts[by] = true;
            let touches = observations.enter(by, report);
            read.extend(touches.iter().filter_map(|touch| touch.seen.map(|list| (by, touch.key, list))));
            all_touches.push((by, touches));
        }
        // Longest first, so that if a list fits no other, the shorter one is reported.
        read.sort_by_key(|(_, _, list)| Reverse(list.len()));
        read.into_iter().for_each(|(by, key, list)| observations.absorb(by, key, list, report));
        while let Some(by) = observations.queue.pop_front() {
            report.must_have_committed += 1;
            let touches = observations.enter(by, report);
            for touch in &touches {
                touch.seen.into_iter().for_each(|list| observations.absorb(by, touch.key, list, report));
            }
            all_touches.push((by, touches));
        }
        all_touches.iter().for_each(|(by, touches)| observations.check_own(*by, touches, report));
        observations.keys.iter_mut().for_each(|versions| versions.reads.sort_unstable());
        observations.keys.iter().for_each(|versions| observations.check_versions(versions, report));
        Ok(observations)
    }

    /// Adds the operations of a transaction that counts from now on.
    fn enter(&mut self, by: usize, report: &mut Report) -> Vec<Touch<'a>> {
        let transaction = &self.history[by];
        let touches = touches(transaction, |why| {
            report.add(Name::InternalInconsistency, &[by], || format!("T{by}, {transaction}:\n{why}"));
        });
        for touch in &touches {
            let number = self.number(touch.key);
            self.keys[number].appended.extend(touch.appended.iter().map(|element| (by, *element)));
        }
        touches
    }

    fn number(&mut self, key: u64) -> usize {
        *self.numbers.entry(key).or_insert_with(|| {
            self.keys.push(Versions { key, order: &[], witness: 0, reads: Vec::new(), appended: Vec::new() });
            self.keys.len() - 1
        })
    }

    /// Merges a list with the others of its key.
    fn absorb(&mut self, by: usize, key: u64, list: &'a [u64], report: &mut Report) {
        let number = self.number(key);
        let versions = &mut self.keys[number];
        if versions.order.starts_with(list) {
            versions.reads.push((list.len(), by));
            return;
        }
        let (order, witness) = (versions.order, versions.witness);
        if list.starts_with(order) {
            (versions.order, versions.witness) = (list, by);
            versions.reads.push((list.len(), by));
            self.place(by, key, list, order.len(), report);
            return self.meet(by, key, list, order.len(), report);
        }
        let common = order.iter().zip(list).take_while(|(one, other)| one == other).count();
        report.add(Name::IncompatibleOrder, &[witness, by], || {
            let (one, other) = (List(order), List(list));
            format!(
                "T{witness} read key {key} as {one},\nT{by} read it as {other}:\n\
                 they agree on the first {common} elements, and neither list begins with the other"
            )
        });
        self.meet(by, key, list, common, report);
    }

    /// Records the positions of the longest list's elements, from an index on.
    fn place(&mut self, by: usize, key: u64, list: &[u64], from: usize, report: &mut Report) {
        for (position, element) in list.iter().enumerate().skip(from) {
            let Some(append) = self.appends.get_mut(&(key, *element)) else { continue };
            let before = *append.position.get_or_insert(position);
            if before != position {
                let writer = append.by;
                report.add(Name::DuplicateAppend, &[writer, by], || {
                    let list = List(list);
                    format!(
                        "T{writer} appended {element} to key {key} once,\n\
                         T{by} read the key as {list}, with {element} at {before} and at {position}"
                    )
                });
            }
        }
    }

    /// Looks up the appends of a list's elements, from an index on: their transactions must have committed.
    fn meet(&mut self, by: usize, key: u64, list: &[u64], from: usize, report: &mut Report) {
        for element in &list[from..] {
            let list = List(list);
            let Some(append) = self.appends.get(&(key, *element)) else {
                report.add(Name::GarbageRead, &[by], || {
                    format!("T{by} read key {key} as {list}: no transaction appended {element}")
                });
                continue;
            };
            let writer = append.by;
            match self.history[writer].outcome {
                Outcome::Committed(_) => {}
                Outcome::Aborted => report.add(Name::G1a, &[writer, by], || {
                    format!(
                        "T{writer} appended {element} to key {key} and aborted:\n{}\nT{by} read the key as {list}",
                        self.history[writer]
                    )
                }),
                Outcome::Unknown if self.counts[writer] => {}
                Outcome::Unknown => {
                    self.counts[writer] = true;
                    self.queue.push_back(writer);
                }
            }
        }
    }

    /// Checks the reads of a transaction against its own appends, where their positions are known.
    fn check_own(&self, by: usize, touches: &[Touch<'_>], report: &mut Report) {
        for Touch { key, seen, appended } in touches {
            let Some(seen) = seen else { continue };
            let future = appended.iter().find(|element| {
                self.appends[&(*key, **element)].position.is_some_and(|at| seen.get(at) == Some(*element))
            });
            if let Some(element) = future {
                report.add(Name::InternalInconsistency, &[by], || {
                    let seen = List(seen);
                    format!("T{by} read key {key} as {seen} before it appended {element} itself:\n{}", self.history[by])
                });
            }
        }
    }

    /// Checks the versions of a key one by one.
    fn check_versions(&self, versions: &Versions<'_>, report: &mut Report) {
        let Versions { key, order, witness, .. } = versions;
        for position in 1..order.len() {
            let pair = (self.append_at(versions, position - 1), self.append_at(versions, position));
            let (Some(one), Some(next)) = pair else { continue };
            if one.by == next.by && one.place > next.place {
                report.add(Name::InternalInconsistency, &[one.by, *witness], || {
                    let (first, second, by) = (order[position], order[position - 1], one.by);
                    format!(
                        "T{by} appended {first} to key {key} before {second}:\n{}\nT{witness} read the key with {second} \
                         before {first}, as {}",
                        self.history[by],
                        List(order)
                    )
                });
            }
        }
        let appenders: HashSet<usize> = versions.appended.iter().map(|(by, _)| *by).collect();
        for read in versions.reads.chunk_by(|one, other| one.0 == other.0) {
            self.check_end(versions, read[0], report);
            self.check_updates(versions, read, &appenders, report);
        }
    }

    /// Checks that a list of this length does not end in the middle of a transaction's appends.
    fn check_end(&self, versions: &Versions<'_>, (len, by): (usize, usize), report: &mut Report) {
        let Some(last) = len.checked_sub(1).and_then(|position| self.append_at(versions, position)) else { return };
        if last.is_last || !self.counts[last.by] {
            return;
        }
        report.add(Name::G1b, &[last.by, by], || {
            let (writer, list) = (last.by, &versions.order[..len]);
            format!(
                "T{writer} appended {} to key {}, and then more:\n{}\nT{by} read the key in between, as {}",
                list[len - 1],
                versions.key,
                self.history[writer],
                List(list)
            )
        });
    }

    /// Returns the append of an element of the longest list, if this is its first position there and it was appended at
    /// all.
    pub fn append_at(&self, versions: &Versions<'_>, position: usize) -> Option<&Append> {
        let append = self.appends.get(&(versions.key, versions.order[position]))?;
        (append.position == Some(position)).then_some(append)
    }

    /// Checks that of the transactions that read one version of a key, at most one appended to it.
    fn check_updates(
        &self,
        versions: &Versions<'_>,
        read: &[(usize, usize)],
        appenders: &HashSet<usize>,
        report: &mut Report,
    ) {
        let key = versions.key;
        let updaters: Vec<usize> = read.iter().map(|(_, by)| *by).filter(|by| appenders.contains(by)).collect();
        let [first, second, ..] = updaters[..] else { return };
        report.add(Name::LostUpdate, &updaters, || {
            let (seen, transactions) = (List(&versions.order[..read[0].0]), updaters.len());
            format!(
                "{transactions} transactions read key {key} as {seen} and appended to it, so each but one missed another:\n\
                 T{first}, {}\nT{second}, {}",
                self.history[first], self.history[second]
            )
        });
    }
}

/// Returns all appends of a history by key and element.
fn appends(history: &[Transaction]) -> Result<HashMap<(u64, u64), Append>, HistoryError> {
    let mut appends: HashMap<(u64, u64), Append> = HashMap::new();
    for (by, transaction) in history.iter().enumerate() {
        transaction.check(by)?;
        let mut last: HashMap<u64, u64> = HashMap::new();
        for (place, op) in transaction.ops.iter().enumerate() {
            let Op::Append { key, element } = *op else { continue };
            let append = Append { by, place, is_last: true, position: None };
            if let Some(first) = appends.insert((key, element), append) {
                return Err(HistoryError::AppendedTwice { key, element, first: first.by, second: by });
            }
            if let Some(earlier) = last.insert(key, element) {
                appends.get_mut(&(key, earlier)).expect("it was inserted").is_last = false;
            }
        }
    }
    Ok(appends)
}
