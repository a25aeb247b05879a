//! Freeing large memory beside the event loop: the system takes 4 to 6 ms for each 100 MB.

use std::thread;

use bytes::Bytes;

/// Memory from so many bytes on is freed by a thread of its own. Less is freed at once, which takes about as long as to start one.
const LARGE_BYTES: usize = 1 << 20;

/// Drops a snapshot, or what was received or taken of one. If others share the memory, the last of them frees it.
pub(crate) fn discard(memory: impl Into<Bytes>) {
    let memory: Bytes = memory.into();
    if memory.len() < LARGE_BYTES {
        return;
    }
    // Without a thread it is freed here: the closure is dropped with what it has.
    let _ = thread::Builder::new().name("free".to_owned()).spawn(move || drop(memory));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::ThreadId;

    use raft::eraftpb::Snapshot;

    use super::*;
    use crate::log::{Batch, LogStore, MemoryLog};

    /// Memory that tells who frees it.
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
        let install = |log: &mut MemoryLog, index, data| {
            log.append(Batch { snapshot: Some(snapshot(index, data)), ..Batch::default() }).unwrap();
        };
        install(&mut log, 1, of(LARGE_BYTES));
        install(&mut log, 2, of(100 * LARGE_BYTES));
        assert_ne!(freed.recv().unwrap(), thread::current().id());
        log.compact(snapshot(2, of(10)), 3).unwrap();
        assert_ne!(freed.recv().unwrap(), thread::current().id());
        install(&mut log, 3, Bytes::new());
        assert_eq!(freed.recv().unwrap(), thread::current().id(), "a small one is not worth a thread");
    }
}
