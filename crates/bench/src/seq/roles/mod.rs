//! A sequencer, and the clients that ask it for numbers: by RPC, and by datagrams (Spec-S0). Beside them, packets that
//! are sent back without a sequencer.

mod callers;
mod direct;
mod packets;
mod server;
pub(crate) mod window;

use std::time::Duration;

use dunlin_lab::measure::Percentiles;
use serde::{Deserialize, Serialize};

pub use callers::SeqCallers;
pub use direct::SeqDirectClients;
pub use packets::{PacketClient, PacketServer};
pub use server::{Answers, SeqServer, SeqServing};

/// Timeout of a call. On a busy machine the server may wait for a processor for a while; a run that gets no number for
/// longer fails.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What clients of a sequencer measured.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct NumberFigures {
    /// Numbers per second in the measured run.
    pub rate: f64,
    /// From the call to its number, if latencies were requested.
    pub latency: Option<Percentiles>,
}
