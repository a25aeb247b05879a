//! The roles of processes in experiments: to serve, to call in one of several ways, or to measure a floor.

mod bandwidth;
mod coord;
mod crossing;
mod floor;
mod flushes;
mod kv;
mod latency;
mod load;
mod log_flush;
mod memcached;
mod misbehaving;
mod random_reads;
mod rate;
mod rates_in_turn;
mod replica;
mod seq;
mod server;
mod sessions;
mod setup;
mod smr;
mod store_ops;
mod symmetric;
mod wakeup;
mod workers;

pub use bandwidth::BandwidthClient;
pub use coord::{CoordMembers, CoordNode, CoordWatchers, MembersFigures};
pub use crossing::{Crossing, CrossingCalls};
pub use floor::{BandwidthFloor, LatencyFloor, RateFloor, WakeFloor};
pub use flushes::{BareFlushes, MajorityFlushes};
pub use kv::{Fill, KvFigures, KvLoad, KvMemcachedServer, KvServer, KvServing, MultiGetFigures, MultiGetLoad};
pub use latency::LatencyClient;
pub use load::{Hints, Load};
pub use log_flush::{ENTRY_BYTES as LOG_ENTRY_BYTES, LogFlush};
pub use memcached::{
    BareServer, MemcachedFigures, MemcachedLoad, MemcachedProcess, Serving, TextOperation, installed_version,
};
pub use misbehaving::{
    AskCounted, BULK_BYTES, Claims, ConnectBursts, Connections, Counted, ForgedGuesses, ForgedUnreachables, Guesses,
    Hoarder, Holding, LimitedServer, LostCalls, RpcServing, Sender, ShortPath, ShortPathCalls, Stopped, Stopper,
    UNREAD_BYTES,
};
pub(crate) use rate::open_sessions;
pub use rate::{RateClient, RateFigures};
pub use rates_in_turn::RatesInTurn;
pub use replica::KvReplica;
pub use seq::{Answers, NumberFigures, SeqCallers, SeqDirectClients, SeqServer, SeqServing};
pub use server::EchoServer;
pub use sessions::{SessionFigures, SessionsClient};
pub use setup::{Carrier, Congestion, Factor, LossRecovery, Setup};
pub use smr::{Poll, PutFigures, PutLoad, ReplicaFigures, ReplicaGroup, Storage, Watch};
pub use store_ops::{CacheFigures, CacheFill, Kind, StoreCase, StoreFigures, StoreOps, System};
pub use symmetric::Symmetric;
pub use wakeup::{Alarm, IdleWatcher, Sleeper};
pub use workers::{FULL_POOL, Mode, SlowServer, Work, WorkersClient, WorkersFigures};

/// Answers with the bytes of the request.
pub const ECHO: u8 = 1;
/// Answers any request with [`SINK_RESPONSE_BYTES`].
pub const SINK: u8 = 2;
/// Answers with the resident memory of the server, a `u64` in little-endian bytes.
pub const MEMORY: u8 = 3;
/// Takes a millisecond before it answers.
pub const SLOW: u8 = 4;

/// Answers with the time at which its handler began, a `u64` of nanoseconds on the machine's clock.
pub const WAKE: u8 = 5;
/// Answers with the server's CPU time and the time of the machine, each a `u64` of nanoseconds.
pub const IDLE_TIMES: u8 = 6;

/// Answers with [`BULK_BYTES`] of the application's own memory.
pub const BULK: u8 = 7;

/// Answers with [`BULK_BYTES`] in a message buffer.
pub const BULK_IN_BUFFERS: u8 = 9;

/// Answers with the counters that a [`LimitedServer`] keeps of misbehaving clients: [`Counted`].
pub const COUNTED: u8 = 8;

/// Tells a [`Symmetric`] thread the address of the other; the answer is empty.
pub const MEET: u8 = 10;

/// Tells a [`Symmetric`] thread that the other sends no more requests.
pub const PART: u8 = 11;

/// Response of [`SINK`], as in the paper's section 6.4.
pub const SINK_RESPONSE_BYTES: usize = 32;

/// Length of the warm-up, which is not counted, as a share of the measured run.
const WARM_UP_SHARE: f64 = 0.2;
