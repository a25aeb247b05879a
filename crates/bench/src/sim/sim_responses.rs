//! `sim-responses`: section 5.1. A client asks for each packet of a response after the first one, so a large response
//! takes longer than a request of the same size: up to one round trip, and less than a fifth from four packets on.
//!
//! Beside the paper's requests for responses, one for each packet, stand ours, one for several packets.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::Latencies;
use dunlin_lab::report::{Metric, Target};
use dunlin_lab::{Cases, Figure};
use dunlin_rpc::{EndpointConfig, MsgBuf, Switch};
use dunlin_sim::{CostModel, Topology};

use crate::datacenter::{Cluster, SINK};
use crate::{BenchError, Lab, Trial};

/// Packets of the large message, and whether each is asked for on its own.
const PACKETS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const ASKING: [(Switch, &str); 2] = [(Switch::Off, "asked for one by one"), (Switch::On, "asked for together")];
/// Bytes of the small message, and of data in a packet of eRPC.
const SMALL_BYTES: usize = 32;
const PACKET_BYTES: usize = 966;
/// As in the paper.
const CREDITS: u16 = 32;
/// Virtual time for each second of the run length, and its minimum: a few calls.
const TIME: Duration = Duration::from_millis(20);
const TIME_MIN: u64 = 200_000;
/// The paper's bound: a response takes less than 1.2 times as long as a request, from four packets on.
const PACKETS_MIN: usize = 4;
const LONGER_MAX: f64 = 1.2;

type Place = (usize, (Switch, &'static str));

/// The medians of calls with a large response, and of those with a large request.
struct Seen {
    response: f64,
    request: f64,
}

type Column = Figure<Place, Seen>;

const FIGURES: [Column; 3] = [
    Column::new(Metric::LatencyP50, |_, seen| seen.response),
    Column::new(Metric::LatencyP50, |_, seen| seen.request).part(", as a request"),
    Column::new(Metric::Advantage, |_, seen| seen.request / seen.response)
        .part(", time of a request over that of a response")
        .target(|(packets, (asking, _))| {
            (*packets >= PACKETS_MIN && *asking == Switch::Off).then_some(Target::Absolute(1.0 / LONGER_MAX))
        }),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let time = lab.virtual_time(TIME).max(TIME_MIN);
    let packets = |packets: &usize| format!("response of {packets} packet{}", if *packets == 1 { "" } else { "s" });
    let cases = Cases::along("packets", PACKETS, packets).by("requests for responses", ASKING, |(_, name)| *name);
    lab.simulate_each(&cases, &FIGURES, |trial, (packets, (asking, _))| {
        let large = packets * PACKET_BYTES;
        Ok(Seen {
            response: median(trial, *asking, (SMALL_BYTES, large), time)?,
            request: median(trial, *asking, (large, SMALL_BYTES), time)?,
        })
    })
}

/// The median of calls with a request and a response of these lengths, one at a time.
fn median(trial: Trial<'_>, asking: Switch, (request, response): (usize, usize), time: u64) -> Result<f64, BenchError> {
    // Packets of eRPC's size: with its header of 16 B.
    let topology = Topology { mtu: PACKET_BYTES + 16, ..Topology::cx5() };
    let mut cluster = Cluster::of_trial(trial, &trial.topology_or(topology), CostModel::default())?;
    let mut config = EndpointConfig { credits: CREDITS, ..EndpointConfig::default() };
    config.optimizations.cumulative_requests = asking;
    let server = cluster.join(0, 0, config.clone())?;
    server.serve(response, 0)?;
    let client = cluster.join(1, 0, config)?;
    let latencies = Rc::new(RefCell::new(Latencies::new()));
    let (connecting, clock, seen) = (client.connect(server.addr()), client.clock(), latencies.clone());
    client.spawn(async move {
        let session = connecting.await?;
        let mut buffer = MsgBuf::with_len(request)?;
        loop {
            let start = clock.now();
            buffer = session.call(SINK, buffer).await.map_err(|failure| failure.error)?.request;
            seen.borrow_mut().record(clock.now() - start);
        }
    });
    trial.run_for(&mut cluster, time)?;
    Ok(latencies.borrow().percentiles()?.p50)
}
