//! The same load with several settings in turn, in one process. This shows differences of a few percent, which other
//! differences between processes would hide.

use std::time::Duration;

use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Addr, Transport};
use dunlin_rpc::Endpoint;
use serde::{Deserialize, Serialize};

use super::load::Load;
use super::rate::open_sessions;
use super::setup::{OnTransport, Setup, Side};
use crate::BenchError;

/// Maximum length of a turn.
const TURN_MAX: Duration = Duration::from_millis(25);

/// Echoes in batches, by endpoints with several settings in turn.
#[derive(Debug, Serialize, Deserialize)]
pub struct RatesInTurn {
    /// The settings.
    pub setups: Vec<Setup>,
    /// The server's address.
    pub server: String,
    /// Sessions to open.
    pub sessions: usize,
    /// The load on them; its run is the time for each setting, over all turns.
    pub load: Load,
}

impl Role for RatesInTurn {
    const NAME: &'static str = "client with settings in turn";
    type Ready = ();
    /// Calls per second: for each round, of each setting.
    type Output = Vec<Vec<f64>>;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Vec<Vec<f64>>, BenchError> {
        let turn = self.load.run.min(TURN_MAX);
        let load = Load { run: turn, warm_up: turn / 5, ..self.load.clone() };
        let rounds = (self.load.run.as_nanos() / turn.as_nanos().max(1)).max(1) as usize;
        let mut rates = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let mut of_round = vec![0.0; self.setups.len()];
            for place in 0..self.setups.len() {
                // Each setting comes after each other one equally often.
                let index = if round % 2 == 0 { place } else { self.setups.len() - 1 - place };
                let run = Turn { client: &self, setup: &self.setups[index], load: &load };
                of_round[index] = self.setups[index].on_transport(Side::Client, run)?;
            }
            rates.push(of_round);
            if control.stopping() {
                break;
            }
        }
        Ok(rates)
    }
}

struct Turn<'a> {
    client: &'a RatesInTurn,
    setup: &'a Setup,
    load: &'a Load,
}

impl OnTransport for Turn<'_> {
    type Output = f64;

    fn run<T: Transport>(self, transport: T) -> Result<f64, BenchError> {
        let server: Addr = self.client.server.parse()?;
        let endpoint = Endpoint::new(transport, self.setup.endpoint())?;
        let sessions = open_sessions(&endpoint, &server, self.client.sessions)?;
        self.load.run(&endpoint, sessions, |_| true)
    }
}
