//! A cost model of this machine: the CPU time of the RPC library and a real transport per packet.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use dunlin_net::{Addr, AnyTransport, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf, Session};
use dunlin_sim::CostModel;
use dunlin_sim::host::BurstTime;

use super::SINK;
use crate::BenchError;

/// Concurrent calls, and bytes of each and of its response: both number and size must vary for a fit.
const SHAPES: [(u32, u32); 6] = [(1, 32), (8, 32), (32, 32), (1, 1024), (8, 1024), (32, 1024)];
/// Measurements of each shape: the median counts.
const ROUNDS: usize = 2_001;
/// Sessions, each with eight concurrent calls.
const SESSIONS: usize = 4;
/// Iterations of the event loop within which there must be progress.
const PATIENCE: usize = 50_000_000;

/// Measures on a real transport. A client and a server take turns in this thread, so that only their work is measured
/// and no waiting. `at` is the server's address, as `shm:calibrate` or `udp://127.0.0.1:0`.
///
/// Sending and receiving cannot be separated this way; each is assumed to be half.
///
/// # Errors
/// Those of the transport and the endpoints.
pub fn calibrate(at: &Addr) -> Result<CostModel, BenchError> {
    let config = || EndpointConfig { poll: PollPolicy::Spin, ..EndpointConfig::default() };
    let server = Endpoint::new(AnyTransport::bind(at)?, config())?;
    server.register(SINK, |request| {
        let payload = request.payload();
        request.respond(payload);
    })?;
    let to = server.local_addr();
    let client = Endpoint::new(AnyTransport::for_peer(&to)?, config())?;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let mut connecting = std::pin::pin!(client.connect(&to));
        let session = (0..PATIENCE).find_map(|_| {
            server.run_once();
            client.poll_once(connecting.as_mut())
        });
        sessions.push(session.ok_or(BenchError::no_samples("a session for calibration"))??);
    }
    let poll = median(|| {
        let start = Instant::now();
        client.run_once();
        Ok(start.elapsed().as_nanos() as f64)
    })?;
    let mut bursts = Vec::new();
    for (packets, bytes) in SHAPES {
        let round = median(|| round(&client, &server, &sessions, (packets, bytes)))?;
        // Each packet is sent and received once in each direction.
        bursts.push(BurstTime { packets, bytes, nanos: round / 4.0 });
    }
    Ok(CostModel::fit(poll, &bursts, &bursts)?)
}

/// Nanoseconds of work at both ends for `packets` calls of `bytes` bytes.
fn round(
    client: &Endpoint<AnyTransport>,
    server: &Endpoint<AnyTransport>,
    sessions: &[Session],
    (packets, bytes): (u32, u32),
) -> Result<f64, BenchError> {
    let answered = Rc::new(Cell::new(0));
    let buffers: Vec<_> = (0..packets).map(|_| MsgBuf::with_len(bytes as usize)).collect::<Result<_, _>>()?;
    let start = Instant::now();
    for (number, buffer) in buffers.into_iter().enumerate() {
        let (call, answered) = (sessions[number % sessions.len()].call(SINK, buffer), answered.clone());
        client.spawn(async move {
            if call.await.is_ok() {
                answered.set(answered.get() + 1);
            }
        });
    }
    for _ in 0..PATIENCE {
        client.run_once();
        server.run_once();
        if answered.get() == packets {
            return Ok(start.elapsed().as_nanos() as f64);
        }
    }
    Err(BenchError::no_samples("a calibration"))
}

fn median(mut measure: impl FnMut() -> Result<f64, BenchError>) -> Result<f64, BenchError> {
    let mut times = (0..ROUNDS).map(|_| measure()).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_this_machine_has_costs() {
        let at: Addr = "udp://127.0.0.1:0".parse().unwrap();
        let model = calibrate(&at).unwrap();
        assert!(model.rx_packet_ns + model.rx_burst_ns > 0, "{model:?}");
    }
}
