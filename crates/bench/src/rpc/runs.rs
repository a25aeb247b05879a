//! One run of each kind of measurement: its floor first, then a server and a client in new processes.

use std::time::Duration;

use dunlin_lab::Cases;
use dunlin_lab::measure::{BesideFloor, Measured, Percentiles};
use dunlin_lab::report::{Metric, RowBuilder};

use crate::rpc::roles::{
    BandwidthClient, BandwidthFloor, Carrier, EchoServer, LatencyClient, LatencyFloor, Load, RateClient, RateFigures,
    RateFloor, Setup,
};
use crate::{BenchError, Lab};

/// Bytes of a small request, and of its response, as in the paper.
pub(crate) const SMALL_BYTES: usize = 32;
/// Requests in flight when a rate is measured, as in the paper.
pub(crate) const IN_FLIGHT: usize = 60;
/// Sessions for these requests: eight slots each hold them all.
pub(crate) const SESSIONS: usize = 8;
/// Credits of a session for large requests, as in the paper.
pub(crate) const LARGE_CREDITS: u16 = 32;

/// The transports.
pub(crate) fn transports() -> Cases<Carrier> {
    Cases::along("transport", Carrier::ALL, |carrier| carrier.name())
}

/// A row of a figure, with the floor of the same runs.
pub(crate) fn row<T>(
    case: &str,
    metric: Metric,
    runs: &BesideFloor<T>,
    figure: impl Fn(&T) -> f64,
) -> Result<RowBuilder, BenchError> {
    let spread = runs.spread(figure)?;
    Ok(RowBuilder::new(case, metric, spread.ours).floor(spread.floor).repeated(runs.repeated()))
}

/// The cost of a floor of a rate or bandwidth, for [`Lab::case_beside_floor`].
pub(crate) fn time_per_unit(rate: &f64) -> f64 {
    1.0 / rate
}

/// A case of [`latency`].
pub(crate) fn latency_case(lab: &mut Lab, case: &str, setup: &Setup) -> Result<BesideFloor<Percentiles>, BenchError> {
    lab.case_beside_floor(case, |floor: &Percentiles| floor.p50, |lab| latency(lab, setup))
}

/// A case of [`rate`].
pub(crate) fn rate_case(lab: &mut Lab, case: &str, setup: &Setup, load: &Load) -> Result<BesideFloor<f64>, BenchError> {
    lab.case_beside_floor(case, time_per_unit, |lab| rate(lab, setup, load))
}

/// A case of [`bandwidth`].
pub(crate) fn bandwidth_case(
    lab: &mut Lab,
    case: &str,
    setup: &Setup,
    size: usize,
) -> Result<BesideFloor<f64>, BenchError> {
    lab.case_beside_floor(case, time_per_unit, |lab| bandwidth(lab, setup, size))
}

/// Echoes of [`SMALL_BYTES`], one outstanding.
pub(crate) fn latency(lab: &Lab, setup: &Setup) -> Result<Measured<Percentiles>, BenchError> {
    let floor = LatencyFloor { carrier: setup.carrier, size: SMALL_BYTES, cores: lab.cores()?, run: lab.run_length() };
    let floor = lab.anywhere(floor, lab.run_length())?.result()?;
    let ours = with_server(lab, setup, |server| {
        let client = LatencyClient { setup: setup.clone(), server, size: SMALL_BYTES, run: lab.run_length() };
        lab.client(client, lab.run_length())?.result()
    })?;
    Ok(Measured { ours, floor })
}

/// Echoes in batches, up to [`IN_FLIGHT`] in flight, and the rate of bare echoes.
pub(crate) fn rate(lab: &Lab, setup: &Setup, load: &Load) -> Result<Measured<f64>, BenchError> {
    let floor = rate_floor(lab, setup.carrier)?;
    Ok(Measured { ours: rate_without_floor(lab, setup, load)?, floor })
}

/// The rate of bare echoes, with the same number in flight.
pub(crate) fn rate_floor(lab: &Lab, carrier: Carrier) -> Result<f64, BenchError> {
    let floor = RateFloor { carrier, in_flight: IN_FLIGHT, cores: lab.cores()?, run: lab.run_length() };
    lab.anywhere(floor, lab.run_length())?.result()
}

/// Echoes in batches.
pub(crate) fn rate_without_floor(lab: &Lab, setup: &Setup, load: &Load) -> Result<f64, BenchError> {
    Ok(rate_figures(lab, setup, load)?.rate)
}

/// Echoes in batches, and the number of retransmissions.
pub(crate) fn rate_figures(lab: &Lab, setup: &Setup, load: &Load) -> Result<RateFigures, BenchError> {
    with_server(lab, setup, |server| {
        let client = RateClient { setup: setup.clone(), server, sessions: SESSIONS, load: load.clone() };
        lab.client(client, lab.run_length())?.result()
    })
}

/// Batches of `batch` small echoes.
pub(crate) fn small_load(lab: &Lab, batch: usize) -> Load {
    Load::uniform(batch, IN_FLIGHT, SMALL_BYTES, lab.run_length())
}

/// Requests of `size` bytes, one outstanding.
pub(crate) fn bandwidth(lab: &Lab, setup: &Setup, size: usize) -> Result<Measured<f64>, BenchError> {
    let floor = bandwidth_floor(lab, setup.carrier, size)?;
    Ok(Measured { ours: bandwidth_without_floor(lab, setup, size)?, floor })
}

/// The bandwidth of a bare copy of `size` bytes, or of bare datagrams.
fn bandwidth_floor(lab: &Lab, carrier: Carrier, size: usize) -> Result<f64, BenchError> {
    let floor = BandwidthFloor { carrier, size, cores: lab.cores()?, run: lab.run_length() };
    lab.anywhere(floor, lab.run_length())?.result()
}

/// Requests of `size` bytes, one outstanding.
pub(crate) fn bandwidth_without_floor(lab: &Lab, setup: &Setup, size: usize) -> Result<f64, BenchError> {
    with_server(lab, setup, |server| {
        let client = BandwidthClient { setup: setup.clone(), server, size, run: lab.run_length() };
        lab.client(client, lab.run_length())?.result()
    })
}

/// Runs `client` with a server, whose address it gets.
pub(crate) fn with_server<T>(
    lab: &Lab,
    setup: &Setup,
    client: impl FnOnce(String) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    with_server_for(lab, setup, lab.run_length(), client)
}

/// The same for a client that takes about `time`.
pub(crate) fn with_server_for<T>(
    lab: &Lab,
    setup: &Setup,
    time: Duration,
    client: impl FnOnce(String) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let mut server = lab.server(EchoServer { setup: setup.clone() }, time + CLIENT_SLACK)?;
    let outcome = client(server.ready()?)?;
    server.stop()?;
    Ok(outcome)
}

/// Additional time limit of a server, for starting and ending its client.
const CLIENT_SLACK: Duration = Duration::from_secs(20);
