//! One run of a sequencer with its clients, in new processes.

use std::time::Duration;

use crate::rpc::roles::Setup;
use crate::seq::roles::{NumberFigures, PacketClient, PacketServer, SeqDirectClients, SeqServer, SeqServing};
use crate::{BenchError, Lab};

/// Additional time limit of a server, for starting and ending its clients.
const CLIENT_SLACK: Duration = Duration::from_secs(20);

/// Runs `client` with a sequencer that starts at `start`, whose address it gets. Returns also the answers of all eight
/// bytes that the sequencer sent because a guess was wrong.
pub(super) fn with_sequencer<T>(
    lab: &Lab,
    setup: &Setup,
    serving: SeqServing,
    start: u64,
    client: impl FnOnce(String) -> Result<T, BenchError>,
) -> Result<(T, u64), BenchError> {
    let server = SeqServer { setup: setup.clone(), serving, start };
    let mut server = lab.server(server, lab.run_length() + CLIENT_SLACK)?;
    let outcome = client(server.ready()?)?;
    Ok((outcome, server.stop()?))
}

/// The load of clients of Spec-S0.
pub(super) struct DirectLoad {
    pub clients: usize,
    /// Calls in progress, of each client.
    pub in_flight: usize,
    pub timed: bool,
    /// The first number of the server.
    pub start: u64,
    /// The number that the run must reach.
    pub beyond: u64,
    pub run: Duration,
}

/// Numbers by Spec-S0, and the answers of all eight bytes.
pub(super) fn direct(
    lab: &Lab,
    setup: &Setup,
    serving: SeqServing,
    load: &DirectLoad,
) -> Result<(NumberFigures, u64), BenchError> {
    let DirectLoad { clients, in_flight, timed, start, beyond, run } = *load;
    with_sequencer(lab, setup, serving, start, |server| {
        let clients = SeqDirectClients { setup: setup.clone(), server, clients, in_flight, timed, beyond, run };
        lab.client(clients, run)?.result()
    })
}

/// Packets that the transport sends back.
pub(super) fn packets(lab: &Lab, setup: &Setup, in_flight: usize) -> Result<f64, BenchError> {
    let run = lab.run_length();
    let mut server = lab.server(PacketServer { setup: setup.clone() }, run + CLIENT_SLACK)?;
    let client = PacketClient { setup: setup.clone(), server: server.ready()?, in_flight, run };
    let rate = lab.client(client, run)?.result()?;
    server.stop()?;
    Ok(rate)
}
