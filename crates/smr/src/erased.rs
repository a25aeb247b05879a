//! State machines and logs of any type, behind dynamic calls. So a replica is compiled once, in this crate, and not
//! again in each program that has a machine of its own. A replica calls a machine a few times for each entry. It calls
//! a log more often, so a log in memory is called directly: with one on a disk, flushes take far longer than calls.

use std::any::Any;
use std::task::Waker;

use raft::eraftpb::{Entry, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage};

use crate::log::{Batch, LogError, LogStore, MemoryLog, Room, Ticket};
use crate::machine::{RestoreError, StateMachine};

/// A state machine of any type.
pub(crate) trait Machine: StateMachine + Any {
    /// As [`StateMachine::fresh`].
    fn fresh_machine(&self) -> Result<Box<dyn Machine>, RestoreError>;

    /// As [`StateMachine::discard`].
    fn discard_machine(self: Box<Self>);
}

impl<M: StateMachine + 'static> Machine for M {
    fn fresh_machine(&self) -> Result<Box<dyn Machine>, RestoreError> {
        Ok(Box::new(self.fresh()?))
    }

    fn discard_machine(self: Box<Self>) {
        self.discard();
    }
}

/// Declares [`Log`] with these functions, and implements it for every log.
macro_rules! log_functions {
    ($($trait:ident {
        &self { $(fn $read:ident($($read_arg:ident: $read_type:ty),*) -> $read_result:ty;)* }
        &mut self { $(fn $write:ident($($write_arg:ident: $write_type:ty),*) $(-> $write_result:ty)?;)* }
    })*) => {
        /// A log of any type. [`LogStore`] itself cannot be called dynamically, since [`Storage`] has a generic
        /// function.
        pub(crate) trait Log: Any {
            $($(fn $read(&self, $($read_arg: $read_type),*) -> $read_result;)*)*
            $($(fn $write(&mut self, $($write_arg: $write_type),*) $(-> $write_result)?;)*)*
        }

        impl<L: LogStore + 'static> Log for L {
            $($(fn $read(&self, $($read_arg: $read_type),*) -> $read_result {
                $trait::$read(self, $($read_arg),*)
            })*)*
            $($(fn $write(&mut self, $($write_arg: $write_type),*) $(-> $write_result)? {
                $trait::$write(self, $($write_arg),*)
            })*)*
        }

        impl AnyLog {
            $($(#[inline]
            pub fn $read(&self, $($read_arg: $read_type),*) -> $read_result {
                match self {
                    AnyLog::Memory(log) => Log::$read(log, $($read_arg),*),
                    AnyLog::Other(log) => log.$read($($read_arg),*),
                }
            })*)*
            $($(#[inline]
            pub fn $write(&mut self, $($write_arg: $write_type),*) $(-> $write_result)? {
                match self {
                    AnyLog::Memory(log) => Log::$write(log, $($write_arg),*),
                    AnyLog::Other(log) => log.$write($($write_arg),*),
                }
            })*)*
        }
    };
}

log_functions! {
    Storage {
        &self {
            fn initial_state() -> raft::Result<RaftState>;
            fn entries(low: u64, high: u64, max_size: Option<u64>, context: GetEntriesContext) -> raft::Result<Vec<Entry>>;
            fn term(index: u64) -> raft::Result<u64>;
            fn first_index() -> raft::Result<u64>;
            fn last_index() -> raft::Result<u64>;
            fn snapshot(request_index: u64, to: u64) -> raft::Result<Snapshot>;
        }
        &mut self {}
    }
    LogStore {
        &self {
            fn room() -> Room;
            fn is_staged() -> bool;
            fn under_way() -> Option<u64>;
            fn held_by() -> Option<u16>;
            fn flushes() -> bool;
            fn is_compacting() -> bool;
            fn compacting_bytes() -> u64;
            fn base() -> &Snapshot;
            fn entry_bytes() -> u64;
            fn first_within(last: u64, bytes: u64) -> u64;
        }
        &mut self {
            fn append(batch: Batch) -> Result<Ticket, LogError>;
            fn found(batch: Batch) -> Result<Ticket, LogError>;
            fn durable() -> Result<Ticket, LogError>;
            fn stage(snapshot: &Snapshot) -> Result<(), LogError>;
            fn unstage();
            fn wake_when_durable(waker: &Waker);
            fn compact(snapshot: Snapshot, keep_from: u64) -> Result<(), LogError>;
            fn forget_kept() -> Result<(), LogError>;
            fn close() -> Result<(), LogError>;
        }
    }
}

/// A log of any type, as the library takes it.
pub(crate) enum AnyLog {
    Memory(MemoryLog),
    Other(Box<dyn Log>),
}

impl AnyLog {
    pub fn new(log: impl LogStore + 'static) -> AnyLog {
        let log: Box<dyn Log> = Box::new(log);
        if !(&*log as &dyn Any).is::<MemoryLog>() {
            return AnyLog::Other(log);
        }
        AnyLog::Memory(*(log as Box<dyn Any>).downcast().expect("its type was checked above"))
    }

    /// The log itself.
    pub fn as_any(&self) -> &dyn Any {
        match self {
            AnyLog::Memory(log) => log,
            AnyLog::Other(log) => &**log,
        }
    }
}

impl Storage for AnyLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        AnyLog::initial_state(self)
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        AnyLog::entries(self, low, high, max_size.into(), context)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        AnyLog::term(self, index)
    }

    fn first_index(&self) -> raft::Result<u64> {
        AnyLog::first_index(self)
    }

    fn last_index(&self) -> raft::Result<u64> {
        AnyLog::last_index(self)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        AnyLog::snapshot(self, request_index, to)
    }
}
