//! Frees large memory outside of the event loop: the system takes 4 to 6 ms for each 100 MB.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use dunlin_serve::side;
use raft::eraftpb::Entry;

/// The thread frees memory of at least this many bytes. Smaller memory is freed at once, which takes about as long as
/// handing it over.
const LARGE_BYTES: usize = 1 << 20;
/// Blocks that may wait to be freed. Beyond that, memory is freed at once, so the amount not yet freed is bounded.
const WAITING_MAX: usize = 64;

type Garbage = Box<dyn Send>;

/// Drops a snapshot, or a part of one. If the memory is shared, the last owner frees it.
pub(crate) fn discard(memory: impl Into<Bytes>) {
    let memory: Bytes = memory.into();
    if memory.len() >= LARGE_BYTES {
        free_later(memory);
    }
}

/// Drops entries that take this many bytes together.
pub(crate) fn discard_entries(entries: VecDeque<Entry>, bytes: u64) {
    if bytes >= LARGE_BYTES as u64 {
        free_later(entries);
    }
}

/// Drops anything.
pub(crate) fn free_later(garbage: impl Send + 'static) {
    static FREEING: OnceLock<Option<SyncSender<Garbage>>> = OnceLock::new();
    let freeing = FREEING.get_or_init(|| {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let run = move || free_all(&receiver);
        side::start("free", run).is_ok().then_some(sender)
    });
    if let Some(freeing) = freeing {
        // If the queue is full, the memory comes back and is freed here.
        let _ = freeing.try_send(Box::new(garbage));
    }
}

/// The body of the thread, which runs as long as the process.
fn free_all(receiver: &Receiver<Garbage>) {
    receiver.iter().for_each(drop);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, ThreadId};

    use raft::eraftpb::Snapshot;

    use super::*;
    use crate::log::{Batch, LogStore, MemoryLog};

    /// Memory that reports which thread frees it.
    struct Told(Vec<u8>, Sender<ThreadId>);

    impl AsRef<[u8]> for Told {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.1.send(thread::current().id());
        }
    }

    /// Installs one snapshot after the other in a log.
    fn install(log: &mut MemoryLog, index: u64, data: Bytes) {
        log.append(Batch { snapshot: Some(snapshot(index, data)), ..Batch::default() }).unwrap();
    }

    fn snapshot(index: u64, data: Bytes) -> Snapshot {
        let mut snapshot = Snapshot { data, ..Snapshot::default() };
        (snapshot.mut_metadata().index, snapshot.mut_metadata().term) = (index, 1);
        snapshot
    }

    #[test]
    fn the_event_loop_frees_no_large_snapshot() {
        let (told, freed) = channel();
        let of = |bytes| Bytes::from_owner(Told(vec![7; bytes], told.clone()));
        let mut log = MemoryLog::new();
        install(&mut log, 1, of(LARGE_BYTES));
        install(&mut log, 2, of(100 * LARGE_BYTES));
        assert_ne!(freed.recv().unwrap(), thread::current().id());
        log.compact(snapshot(2, of(10)), 3).unwrap();
        assert_ne!(freed.recv().unwrap(), thread::current().id());
        install(&mut log, 3, Bytes::new());
        assert_eq!(freed.recv().unwrap(), thread::current().id(), "a small one is not worth a thread");
    }

    /// A snapshot from a leader replaces a whole log.
    #[test]
    fn the_event_loop_frees_no_long_log() {
        let (told, freed) = channel();
        let entry = |index, bytes| {
            let data = Bytes::from_owner(Told(vec![7; bytes], told.clone()));
            Entry { index, term: 1, data, ..Entry::default() }
        };
        let mut log = MemoryLog::new();
        log.append(Batch { entries: (1..=1000).map(|index| entry(index, 10_000)).collect(), ..Batch::default() })
            .unwrap();
        install(&mut log, 1000, Bytes::new());
        let threads: Vec<ThreadId> = freed.iter().take(1000).collect();
        assert!(threads.iter().all(|thread| *thread == threads[0] && *thread != thread::current().id()));
        log.append(Batch { entries: vec![entry(1001, 10)], ..Batch::default() }).unwrap();
        install(&mut log, 1001, Bytes::new());
        assert_eq!(freed.recv().unwrap(), thread::current().id(), "a short one is not worth a thread");
    }

    #[test]
    fn one_thread_frees_all() {
        let (told, freed) = channel();
        let threads = (0..100).map(|_| {
            discard(Bytes::from_owner(Told(vec![7; LARGE_BYTES], told.clone())));
            freed.recv().unwrap()
        });
        let threads: Vec<ThreadId> = threads.collect();
        assert!(threads.iter().all(|thread| *thread == threads[0] && *thread != thread::current().id()));
    }
}
