//! Messages that would make a replica search its whole log, one entry at a time.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Waker;

use dunlin_smr::log::{Batch, LogError, Ticket};
use dunlin_smr::raft::eraftpb::{Entry, Snapshot};
use dunlin_smr::raft::{GetEntriesContext as Context, RaftState, Result, Storage as RaftStorage};
use dunlin_smr::wire::response::Status;
use dunlin_smr::{LogStore, MemoryLog};

use super::forged::{ANSWER, APPEND, Forged, LONG, send_all};
use super::harness::{ClusterOf, config};
use super::storage::Storage;

/// A log in memory that counts how often the term of an entry is looked up.
pub struct Counted {
    log: MemoryLog,
    asked: Rc<Cell<u64>>,
}

impl RaftStorage for Counted {
    fn initial_state(&self) -> Result<RaftState> {
        self.log.initial_state()
    }

    fn entries(&self, low: u64, high: u64, max: impl Into<Option<u64>>, context: Context) -> Result<Vec<Entry>> {
        self.log.entries(low, high, max, context)
    }

    fn term(&self, index: u64) -> Result<u64> {
        self.asked.set(self.asked.get() + 1);
        self.log.term(index)
    }

    fn first_index(&self) -> Result<u64> {
        self.log.first_index()
    }

    fn last_index(&self) -> Result<u64> {
        self.log.last_index()
    }

    fn snapshot(&self, request_index: u64, to: u64) -> Result<Snapshot> {
        RaftStorage::snapshot(&self.log, request_index, to)
    }
}

impl LogStore for Counted {
    fn append(&mut self, batch: Batch) -> std::result::Result<Ticket, LogError> {
        self.log.append(batch)
    }

    fn durable(&mut self) -> std::result::Result<Ticket, LogError> {
        self.log.durable()
    }

    fn flushes(&self) -> bool {
        self.log.flushes()
    }

    fn wake_when_durable(&mut self, waker: &Waker) {
        self.log.wake_when_durable(waker);
    }

    fn compact(&mut self, snapshot: Snapshot, keep_from: u64) -> std::result::Result<(), LogError> {
        self.log.compact(snapshot, keep_from)
    }

    fn is_compacting(&self) -> bool {
        self.log.is_compacting()
    }

    fn close(&mut self) -> std::result::Result<(), LogError> {
        self.log.close()
    }

    fn base(&self) -> &Snapshot {
        self.log.base()
    }

    fn entry_bytes(&self) -> u64 {
        self.log.entry_bytes()
    }

    fn first_within(&self, last: u64, bytes: u64) -> u64 {
        self.log.first_within(last, bytes)
    }
}

/// Logs in memory that share one counter.
#[derive(Default)]
struct Counting(Rc<Cell<u64>>);

impl Storage for Counting {
    type Log = Counted;
    type Left = ();
    type Device = ();

    fn empty(&self, _id: u64) {}

    fn open(&self, _id: u64, _left: ()) -> (Counted, ()) {
        (Counted { log: MemoryLog::new(), asked: self.0.clone() }, ())
    }

    fn leave(_log: &Counted, _device: &()) {}
}

/// Entries of the log, and messages in an envelope.
const ENTRIES: u64 = 500;
const MESSAGES: u64 = 200;

/// All of them name an entry of the first term, far after the last one.
#[test]
fn no_envelope_has_a_replica_search_its_log_again_and_again() {
    let cluster = ClusterOf::of(Counting::default(), 3, config());
    (0..ENTRIES).for_each(|_| _ = cluster.put("a", b"1").unwrap());
    cluster.turns(LONG);
    let leader = cluster.leader();
    let [one, other] = [leader % 3 + 1, (leader + 1) % 3 + 1];
    for (kind, to, from) in [(ANSWER, leader, one), (APPEND, one, leader), (APPEND, other, leader)] {
        let Status { cluster: number, term, last, .. } = cluster.status(to);
        let message = Forged { kind, reject: kind == ANSWER, to, from, term, log_term: 1, ..Forged::default() };
        let all: Vec<Forged> =
            (0..MESSAGES).map(|_| Forged { index: last, reject_hint: last, ..message.clone() }).collect();
        let before = cluster.storage.0.get();
        send_all(&cluster, number.unwrap().bits(), &all);
        let asked = cluster.storage.0.get() - before;
        assert!(asked < MESSAGES * 20, "{MESSAGES} messages of kind {kind} had terms looked up {asked} times");
    }
    cluster.put("a", b"2").unwrap();
    assert_eq!(cluster.leader(), leader);
}
