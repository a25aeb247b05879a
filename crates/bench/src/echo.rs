//! The client of an echo server: `dunlin echo call`.

use std::time::Duration;

use dunlin_lab::LabError;
use dunlin_net::{Addr, Transport, TransportCounters};
use dunlin_rpc::{Counters, Endpoint, EndpointConfig, EndpointStats, SessionStats};
use dunlin_serve::Interrupt;

use crate::BenchError;
pub use crate::rpc::roles::ECHO;
use crate::rpc::roles::{Load, open_sessions};

/// The work of a client.
#[derive(Debug, Clone)]
pub struct Calls {
    /// Bytes of request and response.
    pub size: usize,
    /// Calls outstanding.
    pub window: usize,
    /// Length of the run.
    pub length: Duration,
}

/// The result.
#[derive(Debug)]
pub struct EchoFigures {
    /// Calls per second.
    pub rate: f64,
    /// Counters and round-trip times of the endpoint.
    pub endpoint: EndpointStats,
    /// Statistics of its first session.
    pub session: Option<SessionStats>,
}

/// Calls the echo server at `server` over `transport`; `live` gets the rate periodically. On return the sessions are
/// closed and the transport is dropped.
///
/// # Errors
/// [`BenchError::Connect`] if there is no server, [`BenchError::Call`] if a call fails, [`BenchError::NoAnswer`] if no
/// call is answered.
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
    let begun = endpoint.now();
    let rate = load.run(&endpoint, sessions, |rate| {
        live(rate);
        !interrupt.is_set()
    });
    let rate = rate.map_err(|error| match error {
        BenchError::Lab(LabError::NoSamples { .. }) => {
            let time = Duration::from_nanos(endpoint.now().saturating_sub(begun));
            BenchError::NoAnswer { time, why: silence(&endpoint.stats(), calls.size) }
        }
        other => other,
    })?;
    Ok(EchoFigures { rate, endpoint: endpoint.stats(), session: first.and_then(|session| session.stats()) })
}

/// Explains calls without an answer, as far as this end knows, and suggests what to check.
fn silence(stats: &EndpointStats, size: usize) -> String {
    let ours = &stats.counters;
    let seen = format!(
        "{} calls of {size} B are outstanding, {} packets were sent, {} of them again, and {} received",
        stats.calls_pending,
        ours.tx_packets,
        ours.retransmissions.max(ours.tx_packets_again),
        ours.rx_packets
    );
    format!("{seen}; {}", advice(ours, &stats.transport))
}

/// Suggests what to check, most specific first.
fn advice(ours: &Counters, transport: &TransportCounters) -> String {
    if transport.tx_dropped_no_memory > 0 {
        format!(
            "{} were dropped because the file system of shared memory is full; look at `df /dev/shm` and make room there, \
             in a container with a larger --shm-size",
            transport.tx_dropped_no_memory
        )
    } else if transport.tx_dropped_error > 0 {
        format!("{} could not be sent; look at the server's log and the route to it", transport.tx_dropped_error)
    } else if transport.tx_dropped_full > 0 {
        format!("{} found the server's queue full; look whether it is overloaded", transport.tx_dropped_full)
    } else if ours.dropped_malformed > 0 {
        format!("{} were malformed; check that both ends have the same version", ours.dropped_malformed)
    } else {
        "look whether the server's event loop is stuck, and call with fewer bytes (--size) in case the path swallows long packets"
            .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_follows_from_what_was_counted() {
        type Count = fn(&mut Counters, &mut TransportCounters);
        let cases: [(Count, &[&str]); 5] = [
            (|_, transport| transport.tx_dropped_no_memory = 12, &["12 were", "df /dev/shm", "--shm-size"]),
            (|_, transport| transport.tx_dropped_error = 12, &["12 could not", "route"]),
            (|_, transport| transport.tx_dropped_full = 12, &["12 found", "overloaded"]),
            (|ours, _| ours.dropped_malformed = 12, &["12 were malformed", "version"]),
            (|_, _| {}, &["event loop", "(--size)"]),
        ];
        for (count, expected) in cases {
            let (mut ours, mut transport) = (Counters::default(), TransportCounters::default());
            count(&mut ours, &mut transport);
            let advice = advice(&ours, &transport);
            assert!(expected.iter().all(|text| advice.contains(text)), "{advice}");
            let is_about_memory = transport.tx_dropped_no_memory > 0;
            assert_eq!(advice.contains("/dev/shm"), is_about_memory, "{advice}");
        }
    }
}
