//! The roles of processes in experiments on RPC: to serve, to call in one of several ways, or to measure a floor.

mod bandwidth;
mod crossing;
mod floor;
mod latency;
mod load;
mod misbehaving;
mod rate;
mod rates_in_turn;
mod server;
mod sessions;
pub(crate) mod setup;
mod switching;
mod symmetric;
mod wakeup;
mod workers;

pub use bandwidth::BandwidthClient;
pub use crossing::{Crossing, CrossingCalls};
pub use floor::{BandwidthFloor, LatencyFloor, RateFloor, WakeFloor};
pub use latency::LatencyClient;
pub use load::{Hints, Load};
pub use misbehaving::{
    AskCounted, BULK_BYTES, Both, Claims, ConnectBursts, Connections, Counted, ForgedGuesses, ForgedUnreachables,
    Guesses, Hoarder, Holding, LimitedServer, LostCalls, Processes, RpcServing, Sender, ShortPath, ShortPathCalls,
    Slice, Sliced, SlicedEchoes, Slicing, Stopped, Stopper, UNREAD_BYTES,
};
pub(crate) use rate::open_sessions;
pub use rate::{RateClient, RateFigures};
pub use rates_in_turn::RatesInTurn;
pub use server::EchoServer;
pub use sessions::{SessionFigures, SessionsClient};
pub use setup::{Carrier, Congestion, Factor, LossRecovery, Setup};
pub use switching::Switching;
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
