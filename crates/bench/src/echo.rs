//! An echo server and its client between any two processes: `dunlin echo`.

use std::time::Duration;

use dunlin_net::{Addr, AnyTransport, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig, EndpointStats, SessionStats};

use crate::BenchError;
use crate::peer::Interrupt;
use crate::roles::{ECHO, Load, open_sessions};

/// Serves echoes at `addr` until interrupted; `ready` is told the address, with the port if the system chose it.
///
/// # Errors
/// [`BenchError::Net`] if the address cannot be had.
pub fn serve(addr: &Addr, interrupt: &Interrupt, ready: impl FnOnce(&Addr)) -> Result<EndpointStats, BenchError> {
    let endpoint = Endpoint::new(AnyTransport::bind(addr)?, EndpointConfig::default())?;
    endpoint.register(ECHO, |request| {
        let payload = request.payload();
        request.respond(payload);
    })?;
    ready(&endpoint.local_addr());
    endpoint.run_until(|| interrupt.is_set());
    Ok(endpoint.stats())
}

/// What a client is to do.
#[derive(Debug, Clone)]
pub struct Calls {
    /// Bytes of request and response.
    pub size: usize,
    /// Calls outstanding.
    pub window: usize,
    /// How long.
    pub length: Duration,
}

/// What it measured.
#[derive(Debug)]
pub struct EchoFigures {
    /// Calls per second.
    pub rate: f64,
    /// Counts and round-trip times of the endpoint.
    pub endpoint: EndpointStats,
    /// Of its first session.
    pub session: Option<SessionStats>,
}

/// Calls the echo server at `server` over `transport`; `live` is told the rate from time to time. The sessions are closed, and the
/// transport dropped, when it returns.
///
/// # Errors
/// [`BenchError::Connect`] if nobody answers there, [`BenchError::Call`] if a call fails.
pub fn call<T: Transport>(
    transport: T,
    server: &Addr,
    calls: &Calls,
    interrupt: &Interrupt,
    mut live: impl FnMut(f64),
) -> Result<EchoFigures, BenchError> {
    let config = EndpointConfig::default();
    let sessions = calls.window.div_ceil(config.slots.into());
    let endpoint = Endpoint::new(transport, config)?;
    let sessions = open_sessions(&endpoint, server, sessions)?;
    let first = sessions.first().cloned();
    if let Some(first) = &first {
        first.observe();
    }
    let load = Load { warm_up: Duration::ZERO, ..Load::uniform(1, calls.window, calls.size, calls.length) };
    let rate = load.run(&endpoint, sessions, |rate| {
        live(rate);
        !interrupt.is_set()
    })?;
    Ok(EchoFigures { rate, endpoint: endpoint.stats(), session: first.and_then(|session| session.stats()) })
}
