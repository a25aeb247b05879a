//! The answer to a multi-get, collected in one turn of the event loop or several.

use arrayvec::ArrayVec;
use dunlin_rpc::MsgBuf;
use dunlin_rpc::msgbuf::AllocError;
use dunlin_store::{Key, Store};

use crate::metrics::{CoreMetrics, Operation, Outcome};
use crate::shard::{Shard, on_device};
use crate::wire::{MultiGet, MultiGetAnswerWriter, Status};

/// Keys prefetched together: enough to use all outstanding misses of a core, few enough to stay in its first-level
/// cache.
pub(super) const PREFETCH_KEYS: usize = 32;
/// Initial room in the response for each key, in bytes.
const FIRST_BYTES_PER_KEY: usize = 48;

/// What may still be done for multi-gets in a turn of the event loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quantum {
    pub keys: usize,
    /// Bytes of the response. The value that exceeds them is whole.
    pub bytes: usize,
}

impl Quantum {
    /// That of one turn: some tens of microseconds, as long as a receive burst of single operations takes.
    pub const TURN: Quantum = Quantum { keys: 256, bytes: 128 << 10 };
    /// Enough for any multi-get.
    pub const ALL: Quantum = Quantum { keys: usize::MAX, bytes: usize::MAX };
    /// Nothing.
    pub const NONE: Quantum = Quantum { keys: 0, bytes: 0 };
    /// What costs as much as one more operation: as many bytes as for a read of the tier.
    const UNIT: Quantum = Quantum { keys: 64, bytes: 32 << 10 };

    /// Whether anything is left.
    #[inline]
    pub fn is_any(self) -> bool {
        self.keys > 0 && self.bytes > 0
    }

    /// Returns so many keys, at most as many as a turn has.
    pub fn of_keys(keys: usize) -> Quantum {
        Quantum { keys: keys.min(Quantum::TURN.keys), bytes: 0 }
    }

    /// Returns what this much work costs, in operations: five for the quantum of a turn, so that the longest answer is
    /// within the default lead of a client.
    pub fn cost(self) -> u32 {
        let units = (self.keys / Quantum::UNIT.keys).max(self.bytes / Quantum::UNIT.bytes);
        1 + u32::try_from(units).unwrap_or(u32::MAX - 1)
    }

    /// Returns what another one leaves of it.
    pub fn less(self, other: Quantum) -> Quantum {
        Quantum { keys: self.keys.saturating_sub(other.keys), bytes: self.bytes.saturating_sub(other.bytes) }
    }

    #[inline]
    fn spend(&mut self, bytes: usize) {
        self.keys -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// A growing response.
#[derive(Debug)]
pub(super) struct Collecting {
    buffer: MsgBuf,
    writer: MultiGetAnswerWriter,
    /// No more values fit.
    is_full: bool,
}

impl Collecting {
    /// Begins a response for so many keys, after so many bytes of a head.
    pub fn new(keys: usize, head: usize) -> Result<Collecting, AllocError> {
        let buffer = MsgBuf::written(head + keys * FIRST_BYTES_PER_KEY, |out| {
            out[..head].fill(0);
            head
        })?;
        Ok(Collecting { buffer, writer: MultiGetAnswerWriter::default(), is_full: false })
    }

    /// Looks up keys until none is left, or nothing of the quantum.
    pub fn go_on<S: Store>(
        &mut self,
        shard: &Shard<S>,
        metrics: &mut CoreMetrics,
        keys: &mut MultiGet<'_>,
        left: &mut Quantum,
    ) -> Result<(), AllocError> {
        let mut store = shard.store.borrow_mut();
        while left.is_any() && keys.len() > 0 {
            if self.is_full {
                // No look-up finds what fits.
                return keys.by_ref().try_for_each(|_| self.none(Status::Later));
            }
            let mut burst = ArrayVec::<Result<Key<'_>, Status>, PREFETCH_KEYS>::new();
            for key in keys.clone().take(PREFETCH_KEYS) {
                let key = match store.key(key) {
                    Ok(key) if shard.owns(key.bytes()) => Ok(key),
                    Ok(_) => Err(Status::NotOwned),
                    Err(_) => Err(Status::Malformed),
                };
                if let Ok(key) = &key {
                    store.prefetch(key);
                }
                burst.push(key);
            }
            burst.iter().flatten().for_each(|key| store.prefetch_item(key));
            for key in &burst {
                let before = self.buffer.len();
                match key {
                    Ok(key) => self.look_up(shard, &mut store, metrics, key)?,
                    Err(status) => {
                        shard.count_stray(*status == Status::NotOwned);
                        self.none(*status)?;
                    }
                }
                keys.next();
                left.spend(self.buffer.len() - before);
                if !left.is_any() {
                    break;
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn look_up<S: Store>(
        &mut self,
        shard: &Shard<S>,
        store: &mut S,
        metrics: &mut CoreMetrics,
        key: &Key<'_>,
    ) -> Result<(), AllocError> {
        // What only the device has would not have fitted, or has left memory again meanwhile.
        if self.is_full || shard.desk().is_some() && on_device(store, key, shard.now()).is_some() {
            return self.none(Status::Later);
        }
        let found = store.get(key);
        metrics.count(Operation::Get, Outcome::found(found.is_some()));
        match found {
            None => self.none(Status::NotFound),
            Some(item) => self.found(item.flags, item.value),
        }
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), AllocError> {
        if self.buffer.capacity() - self.buffer.len() < bytes {
            let room = (self.buffer.len() + bytes).max(2 * self.buffer.capacity());
            self.buffer = MsgBuf::written(room, |out| {
                out[..self.buffer.len()].copy_from_slice(&self.buffer);
                self.buffer.len()
            })?;
        }
        Ok(())
    }

    fn none(&mut self, status: Status) -> Result<(), AllocError> {
        self.reserve(1)?;
        self.buffer.append_written(1, |out| {
            out[0] = status as u8;
            1
        });
        Ok(())
    }

    fn found(&mut self, flags: u32, value: &[u8]) -> Result<(), AllocError> {
        if !self.writer.has_room(value.len()) {
            self.is_full = true;
            return self.none(Status::Later);
        }
        let most = MultiGetAnswerWriter::bytes_max(value.len());
        self.reserve(most)?;
        self.buffer.append_written(most, |out| self.writer.found(flags, value, out));
        Ok(())
    }

    /// Returns the bytes of the response so far.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Returns the response.
    pub fn finish(self) -> MsgBuf {
        self.buffer
    }
}
