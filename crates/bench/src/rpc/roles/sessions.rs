//! A very large number of sessions between two endpoints.

use dunlin_lab::measure::resident_bytes;
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Endpoint, MsgBuf, Session};
use serde::{Deserialize, Serialize};

use super::load::Load;
use super::rate::open_sessions;
use super::setup::{OnTransport, Setup, Side};
use super::{ECHO, MEMORY};
use crate::BenchError;

/// Concurrent calls while each session is used once.
const USED_AT_A_TIME: usize = 32;

/// Opens sessions, uses each once, measures their idle memory, then makes calls on some of them at random.
#[derive(Debug, Serialize, Deserialize)]
pub struct SessionsClient {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Sessions to open.
    pub sessions: usize,
    /// Number of sessions with calls; the others are idle once each was used.
    pub active: usize,
    /// The load on them.
    pub load: Load,
}

/// The result.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct SessionFigures {
    /// Calls per second.
    pub rate: f64,
    /// Resident bytes per idle session, of the client.
    pub client_bytes: f64,
    /// Resident bytes per idle session, of the server.
    pub server_bytes: f64,
}

impl Role for SessionsClient {
    const NAME: &'static str = "client with many sessions";
    type Ready = ();
    type Output = SessionFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<SessionFigures, BenchError> {
        self.setup.on_transport(Side::Client, Call { client: &self, control })
    }
}

struct Call<'a> {
    client: &'a SessionsClient,
    control: &'a Control<SessionsClient>,
}

impl OnTransport for Call<'_> {
    type Output = SessionFigures;

    fn run<T: Transport>(self, transport: T) -> Result<SessionFigures, BenchError> {
        let server: Addr = self.client.server.parse()?;
        let endpoint = Endpoint::new(transport, self.client.setup.endpoint())?;
        // Opens one session first: memory that both sides need once is not counted.
        let first = endpoint.block_on(endpoint.connect(&server))?;
        let before = (resident_bytes()?, server_resident_bytes(&endpoint, &first)?);
        let sessions = open_sessions(&endpoint, &server, self.client.sessions)?;
        use_once(&endpoint, &sessions, &self.client.load)?;
        let after = (resident_bytes()?, server_resident_bytes(&endpoint, &first)?);
        let per_session = |before: u64, after: u64| after.saturating_sub(before) as f64 / self.client.sessions as f64;
        let (active, _idle) = sessions.split_at(self.client.active.min(sessions.len()));
        let rate = self.client.load.run(&endpoint, active.to_vec(), |rate| {
            self.control.live(Metric::Rate, rate);
            !self.control.stopping()
        })?;
        Ok(SessionFigures {
            rate,
            client_bytes: per_session(before.0, after.0),
            server_bytes: per_session(before.1, after.1),
        })
    }
}

/// One call on each session, a few at a time: after that a session keeps the memory for its next call.
fn use_once<T: Transport>(endpoint: &Endpoint<T>, sessions: &[Session], load: &Load) -> Result<(), BenchError> {
    let size = load.sizes.first().copied().unwrap_or(0);
    for some in sessions.chunks(USED_AT_A_TIME) {
        let mut calls = Vec::with_capacity(some.len());
        for session in some {
            calls.push(session.call(ECHO, MsgBuf::with_len(size)?));
        }
        for call in calls {
            endpoint.block_on(call).map_err(|failure| failure.error)?;
        }
    }
    Ok(())
}

fn server_resident_bytes<T: Transport>(endpoint: &Endpoint<T>, session: &Session) -> Result<u64, BenchError> {
    let call = session.call(MEMORY, MsgBuf::with_len(0)?);
    let response = endpoint.block_on(call).map_err(|failure| failure.error)?.response;
    let bytes = response[..].try_into().map_err(|_| BenchError::WrongEcho)?;
    Ok(u64::from_le_bytes(bytes))
}
