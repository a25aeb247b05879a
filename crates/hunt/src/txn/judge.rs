//! The history of a run, and whether it is strictly serializable.
//!
//! Every transaction on registers writes its own number, and reads each register that it writes. So the writers of a
//! register form one chain, and all dependencies between transactions are known: a read of another's write
//! (write-read), an overwrite (write-write), a read that another overwrote (read-write), and an end before another's
//! beginning (real time). If these have no cycle, their order is the serial one (Adya; Elle's method for histories
//! whose version order is known).

use std::collections::{BTreeMap, BTreeSet};

use dunlin_judge::append;
use dunlin_txn::TransactionId;

/// The known outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its client was lost while it committed, or the commit reported that it is in doubt.
    Unknown,
    Committed,
    Aborted,
}

/// A transaction on registers.
#[derive(Debug, Clone)]
pub struct Done {
    pub name: TransactionId,
    /// The number that it writes.
    pub number: u64,
    pub begun: u64,
    /// `u64::MAX` if its end was not observed.
    pub ended: u64,
    /// Registers, each with the numbers written to it, in order.
    pub reads: Vec<(u8, Vec<u64>)>,
    pub writes: Vec<u8>,
    pub fate: Fate,
}

#[derive(Debug, Default)]
pub struct History {
    pub done: Vec<Done>,
    /// The final contents of the registers.
    pub last: BTreeMap<u8, Vec<u64>>,
}

impl Done {
    /// Registers with the number written to each last; zero for none.
    fn found(&self) -> impl Iterator<Item = (u8, u64)> {
        self.reads.iter().map(|(register, list)| (*register, list.last().copied().unwrap_or(0)))
    }
}

impl History {
    /// Tells from the registers what became of transactions that logs have forgotten.
    pub fn settle_forgotten(&mut self) {
        let committed = self.done.iter().filter(|done| done.fate == Fate::Committed);
        let reads = committed.flat_map(|done| done.reads.iter().map(|(_, list)| list));
        let seen: BTreeSet<u64> = self.last.values().chain(reads).flatten().copied().collect();
        for done in self.done.iter_mut().filter(|done| done.fate == Fate::Unknown) {
            done.fate = if seen.contains(&done.number) { Fate::Committed } else { Fate::Aborted };
        }
    }

    /// # Panics
    /// If the history is not strictly serializable, or the registers contradict it.
    pub fn judge(&self) {
        let committed: Vec<&Done> = self.done.iter().filter(|done| done.fate == Fate::Committed).collect();
        assert!(
            self.done.iter().all(|done| done.fate != Fate::Unknown),
            "the fate of all transactions is known in the end"
        );
        self.judge_lists();
        let chains = Chains::new(&committed);
        let last = self.last.iter().filter_map(|(register, list)| Some((*register, *list.last()?))).collect();
        chains.check_ends(&last);
        let mut edges = chains.edges(&committed);
        real_time(&committed, &mut edges);
        assert_no_cycle(&committed, &edges);
    }
}

impl History {
    /// The same, by the judge of list-append histories: each transaction that writes a register appends its number.
    fn judge_lists(&self) {
        let mut history: Vec<append::Transaction> = self.done.iter().map(appended).collect();
        let read =
            |(register, list): (&u8, &Vec<u64>)| append::Op::Read { key: (*register).into(), list: Some(list.clone()) };
        // When all have ended, one more transaction reads everything.
        let end = (1 << 63) - 1;
        let (begun, outcome) = (end, append::Outcome::Committed(end));
        history.push(append::Transaction { client: 0, begun, outcome, ops: self.last.iter().map(read).collect() });
        let report = append::check(&history).unwrap();
        assert!(report.is_strictly_serializable(), "{report}");
    }
}

fn appended(done: &Done) -> append::Transaction {
    let read =
        |(register, list): &(u8, Vec<u64>)| append::Op::Read { key: (*register).into(), list: Some(list.clone()) };
    let append = |register: &u8| append::Op::Append { key: (*register).into(), element: done.number };
    let outcome = match done.fate {
        Fate::Aborted => append::Outcome::Aborted,
        Fate::Committed if done.ended != u64::MAX => append::Outcome::Committed(done.ended),
        Fate::Committed | Fate::Unknown => append::Outcome::Unknown,
    };
    let ops = done.reads.iter().map(read).chain(done.writes.iter().map(append)).collect();
    append::Transaction { client: done.name.coordinator as usize, begun: done.begun, outcome, ops }
}

/// The writer of each number, and the next writer. Transactions are identified by their index in the list.
struct Chains {
    /// By number.
    writer: BTreeMap<u64, usize>,
    /// By register and the number that was overwritten.
    next: BTreeMap<(u8, u64), usize>,
}

impl Chains {
    fn new(committed: &[&Done]) -> Chains {
        let writer: BTreeMap<u64, usize> = committed.iter().enumerate().map(|(at, done)| (done.number, at)).collect();
        assert_eq!(writer.len(), committed.len(), "each transaction has a number of its own");
        let mut next = BTreeMap::new();
        for (at, done) in committed.iter().enumerate() {
            for (register, found) in done.found().filter(|(register, _)| done.writes.contains(register)) {
                if let Some(other) = next.insert((register, found), at) {
                    panic!(
                        "lost update of register {register}: both overwrote {found}:\n{:?}\n{done:?}",
                        committed[other]
                    );
                }
            }
        }
        Chains { writer, next }
    }

    /// Each register must hold its last write, and all writes must be on the chain to it.
    fn check_ends(&self, last: &BTreeMap<u8, u64>) {
        let registers: BTreeSet<u8> = self.next.keys().map(|(register, _)| *register).collect();
        let mut reached = 0;
        for register in registers {
            let mut number = 0;
            while let Some(at) = self.next.get(&(register, number)) {
                number = *self.writer.iter().find(|(_, writer)| *writer == at).unwrap().0;
                reached += 1;
            }
            assert_eq!(last.get(&register).copied().unwrap_or(0), number, "what register {register} holds at the end");
        }
        assert_eq!(reached, self.next.len(), "a write that was overwritten was never written");
    }

    fn edges(&self, committed: &[&Done]) -> Vec<Vec<usize>> {
        let mut edges = vec![Vec::new(); committed.len()];
        for (at, done) in committed.iter().enumerate() {
            for (register, found) in done.found() {
                if found != 0 {
                    let writer = self.writer.get(&found);
                    let writer =
                        *writer.unwrap_or_else(|| panic!("read from one that did not commit: {found} in {done:?}"));
                    assert!(
                        committed[writer].writes.contains(&register),
                        "{found} was never in register {register}: {done:?}"
                    );
                    // Write-read; also write-write if this transaction writes the register.
                    edges[writer].push(at);
                }
                // Read-write.
                edges[at].extend(self.next.get(&(register, found)).filter(|next| **next != at));
            }
        }
        edges
    }
}

/// Adds a node for each end: a transaction leads to its own end, an end to the next one, and to all transactions that
/// begin after it.
fn real_time(committed: &[&Done], edges: &mut Vec<Vec<usize>>) {
    let mut ends: Vec<(u64, usize)> = committed
        .iter()
        .enumerate()
        .filter(|(_, done)| done.ended != u64::MAX)
        .map(|(at, done)| (done.ended, at))
        .collect();
    ends.sort_unstable();
    let first = edges.len();
    for (order, (_, at)) in ends.iter().enumerate() {
        edges.push(if order + 1 < ends.len() { vec![first + order + 1] } else { Vec::new() });
        edges[*at].push(first + order);
    }
    for (at, done) in committed.iter().enumerate() {
        let before = ends.partition_point(|(ended, _)| *ended < done.begun);
        if before > 0 {
            edges[first + before - 1].push(at);
        }
    }
}

fn assert_no_cycle(committed: &[&Done], edges: &[Vec<usize>]) {
    let mut incoming = vec![0; edges.len()];
    edges.iter().flatten().for_each(|to| incoming[*to] += 1);
    let mut ready: Vec<usize> = (0..edges.len()).filter(|at| incoming[*at] == 0).collect();
    while let Some(at) = ready.pop() {
        for to in &edges[at] {
            incoming[*to] -= 1;
            if incoming[*to] == 0 {
                ready.push(*to);
            }
        }
    }
    let left: Vec<&&Done> =
        committed.iter().enumerate().filter(|(at, _)| incoming[*at] > 0).map(|(_, done)| done).collect();
    assert!(left.is_empty(), "no serial order: a cycle is among these, in order of time: {left:#?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(number: u64, time: (u64, u64), reads: &[(u8, u64)], writes: &[u8]) -> Done {
        let name = TransactionId { epoch: 1, coordinator: 1, sequence: number };
        let (begun, ended) = time;
        // In these histories, lower numbers were written first.
        let list = |number: u64| (1..=number).collect();
        let reads = reads.iter().map(|(register, found)| (*register, list(*found))).collect();
        Done { name, number, begun, ended, reads, writes: writes.to_vec(), fate: Fate::Committed }
    }

    fn is_accepted(done: Vec<Done>, last: &[(u8, u64)]) -> bool {
        let last = last.iter().map(|(register, number)| (*register, (1..=*number).collect())).collect();
        let history = History { done, last };
        std::panic::catch_unwind(|| history.judge()).is_ok()
    }

    #[test]
    fn verdicts_are_right() {
        let first = done(1, (0, 10), &[(7, 0)], &[7]);
        assert!(is_accepted(vec![first.clone(), done(2, (20, 30), &[(7, 1)], &[7])], &[(7, 2)]));
        // A lost update.
        assert!(!is_accepted(vec![first.clone(), done(2, (5, 15), &[(7, 0)], &[7])], &[(7, 2)]));
        // A lost acknowledged write.
        assert!(!is_accepted(vec![first.clone()], &[]));
        // A stale read: serializable, but not strictly.
        assert!(!is_accepted(vec![first.clone(), done(2, (20, 30), &[(7, 0)], &[])], &[(7, 1)]));
        assert!(is_accepted(vec![first.clone(), done(2, (5, 30), &[(7, 0)], &[])], &[(7, 1)]));
        // Write skew.
        let skewed = vec![done(1, (0, 10), &[(7, 0), (8, 0)], &[7]), done(2, (0, 10), &[(7, 0), (8, 0)], &[8])];
        assert!(!is_accepted(skewed, &[(7, 1), (8, 2)]));
        // A torn read: half of a transaction.
        let torn = vec![done(1, (0, 10), &[(7, 0), (8, 0)], &[7, 8]), done(2, (0, 10), &[(7, 1), (8, 0)], &[])];
        assert!(!is_accepted(torn, &[(7, 1), (8, 1)]));
    }
}
