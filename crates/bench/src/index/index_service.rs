//! `index-service`: section 7.2 of the eRPC paper on two cores. Look-ups of a server with one core and one worker: without
//! scans, of items that are in the cache, beside as many writes, beside scans in the worker, and beside scans in the
//! event loop.
//!
//! The floor of a rate is the rate of RPC echoes of the same size, with as many in flight, in the same run: the index
//! should cost little beside RPC. One operation in a hundred is a scan of 128 items, as in the paper, where the server
//! adds up their values; here it sends them.

use std::time::Duration;

use dunlin_lab::Figure;
use dunlin_lab::measure::{Measured, Percentiles};
use dunlin_lab::report::{Metric, Target};

use super::roles::{IndexFigures, IndexLoad, IndexServer, Scanning};
use crate::rpc::roles::{Carrier, Load, RateClient, Setup};
use crate::rpc::runs;
use crate::rpc::runs::transports;
use crate::{BenchError, Lab};

/// As in the paper.
const ITEMS: u64 = 1_000_000;
/// Operations in flight, and sessions for them: each has eight slots, and half of them stay free for scans.
const IN_FLIGHT: usize = 64;
const SESSIONS: usize = 16;
/// Bytes of an echo: those of a look-up of 8 B, and of its answer.
const ECHO_BYTES: usize = 9;
/// The required rate of look-ups, as a share of echoes.
const SHARE_OF_RPC: f64 = 0.8;
/// The limit of the latency beside scans in workers, against that without scans.
const BESIDE_SCANS: f64 = 1.3;
/// Maximum average time of storing one item.
const STORE_MAX: Duration = Duration::from_micros(20);
/// Additional time limit of a server, for starting and ending its client.
const CLIENT_SLACK: Duration = Duration::from_secs(20);

type Place = (Carrier, Case);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    name: &'static str,
    scanning: Scanning,
    has_puts: bool,
    in_flight: usize,
    items: u64,
}

const ALONE: &str = "GETs without scans";
const GETS: Case = Case { name: ALONE, scanning: Scanning::None, has_puts: false, in_flight: IN_FLIGHT, items: ITEMS };
const CASES: [Case; 6] = [
    GETS,
    // What the cache misses of a million items cost.
    Case { name: "GETs of 1,000 items", items: 1000, ..GETS },
    Case { name: "50 % GET, 50 % PUT", has_puts: true, ..GETS },
    Case { name: "99 % GET, 1 % scans in a worker", scanning: Scanning::Workers, ..GETS },
    Case { name: "99 % GET, 1 % scans in the event loop", scanning: Scanning::Dispatch, ..GETS },
    Case { name: "GETs one at a time", in_flight: 1, ..GETS },
];

type Column = Figure<Place, Seen>;

const FIGURES: [Column; 8] = [
    Column::with_floor(Metric::Operations, |_, seen| seen.0.operations)
        .floor_if(|(_, case)| case.in_flight == IN_FLIGHT)
        .target(|(_, case)| (case.name == ALONE).then_some(Target::FloorTimes(SHARE_OF_RPC)))
        .limit(|_| Some("the look-up beside RPC: the row of 1,000 items shows it without cache misses")),
    Column::new(Metric::LatencyP50, |_, seen| seen.0.latency.p50),
    Column::new(Metric::LatencyP99, |_, seen| seen.0.latency.p99).target(|place| beside_scans(place, "")).limit(|_| {
        Some(
            "the worker has no core of its own: the row of the handler shows the server without that, and index-sim \
             workers with cores",
        )
    }),
    Column::new(Metric::LatencyP50, |_, seen| seen.0.handler_p50).part(IN_HANDLER),
    Column::new(Metric::LatencyP99, |_, seen| seen.0.handler_p99)
        .part(IN_HANDLER)
        .target(|place| beside_scans(place, IN_HANDLER)),
    Column::new(Metric::Count, |_, seen| seen.0.burst)
        .part(", GETs in a burst")
        .only_if(|(_, case)| case.name == ALONE || case.has_puts),
    Column::new(Metric::Count, |_, seen| seen.0.write_burst)
        .part(", PUTs in a burst")
        .only_if(|(_, case)| case.has_puts),
    Column::new(Metric::Operations, |_, seen| seen.0.scans)
        .part(", scans")
        .only_if(|(_, case)| case.scanning != Scanning::None),
];
const IN_HANDLER: &str = ", in the server's handler";

/// The limit of a case with scans in workers, for a part of its latency.
fn beside_scans((carrier, case): &Place, part: &str) -> Option<Target> {
    let alone = format!("{} {ALONE}{part}", carrier.name());
    (case.scanning == Scanning::Workers).then_some(Target::CaseTimes { case: alone, factor: BESIDE_SCANS })
}

/// Figures, or a floor, which has a rate only.
#[derive(Debug, Clone, Copy)]
struct Seen(IndexFigures);

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = transports().joined(" ").by("scans", CASES, |case| case.name);
    lab.pair_each(
        &cases,
        &FIGURES,
        |floor| 1.0 / floor.0.operations,
        |lab, (carrier, case)| {
            let floor = echoes(lab, *carrier, case.in_flight)?;
            Ok(Measured { ours: Seen(measure(lab, *carrier, case)?), floor: Seen(floor) })
        },
    )?;
    lab.note(
        "The floor of these rates is that of RPC echoes of 9 B with as many in flight. On two cores the worker takes \
         its time from the server's core or from the client's. Latencies at the client are exact and have the time in \
         all queues; those in the handler are interpolated between the bounds of the server's buckets, and have no \
         time in a queue. A scan in the worker is one page of 128 items, a scan in the event loop two of 64, with a round \
         trip between them: it holds the loop for half as long at a time.",
    );
    Ok(())
}

/// RPC echoes.
fn echoes(lab: &Lab, carrier: Carrier, in_flight: usize) -> Result<IndexFigures, BenchError> {
    let (setup, run) = (Setup::new(carrier), lab.run_length());
    let load = Load::uniform(1, in_flight, ECHO_BYTES, run);
    let operations = runs::with_server(lab, &setup, |server| {
        let client = RateClient { setup: setup.clone(), server, sessions: SESSIONS.min(in_flight), load };
        Ok(lab.client(client, run)?.result()?.rate)
    })?;
    let latency = Percentiles { p50: f64::NAN, p99: f64::NAN, p999: f64::NAN, count: 0 };
    let none = f64::NAN;
    Ok(IndexFigures {
        operations,
        scans: none,
        latency,
        handler_p50: none,
        handler_p99: none,
        burst: none,
        write_burst: none,
    })
}

/// A new server, and the load.
fn measure(lab: &Lab, carrier: Carrier, case: &Case) -> Result<IndexFigures, BenchError> {
    let (items, run) = (lab.items(case.items), lab.run_length());
    let server = IndexServer { carrier, items, core: lab.cores()?.server };
    let time = STORE_MAX * items as u32 + run * 2 + CLIENT_SLACK;
    let mut server = lab.anywhere(server, time)?;
    let load = IndexLoad {
        setup: Setup::new(carrier),
        server: server.ready()?,
        items,
        sessions: SESSIONS.min(case.in_flight),
        in_flight: case.in_flight,
        scanning: case.scanning,
        has_puts: case.has_puts,
        run,
    };
    let figures = lab.client(load, run)?.result()?;
    server.stop()?;
    Ok(figures)
}
