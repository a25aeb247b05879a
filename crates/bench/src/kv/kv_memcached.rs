//! `kv-memcached`: memcached with one thread, and Dunlin's memcached port with one core, in turn, under the same load
//! over the same number of connections. The floor is TCP alone with the same number of bytes.

use std::net::SocketAddr;
use std::time::Duration;

use dunlin_lab::measure::{BesideFloor, Measured, Spread, resident_bytes_of};
use dunlin_lab::peer::Role;
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use crate::kv::roles::{
    BareServer, KvMemcachedServer, KvServer, MemcachedFigures, MemcachedLoad, MemcachedProcess, Serving, TextOperation,
    installed_version,
};
use crate::rpc::roles::Carrier;
use crate::workload::item::{KEY_BYTES, VALUE_BYTES};
use crate::{BenchError, Lab};

/// Items to store.
const ITEMS: u64 = 1_000_000;
/// Memory of each server, in MiB.
pub(crate) const MEMORY_MIB: u64 = 1024;
/// Required advantage of Dunlin with pipelined requests.
const PIPELINED_ADVANTAGE: f64 = 1.3;
/// Additional time limit of a server, for starting and ending clients.
const CLIENT_SLACK: Duration = Duration::from_secs(60);
/// Maximum average time of storing one item over TCP.
const FILL_MAX: Duration = Duration::from_micros(100);

/// One load.
pub(crate) struct Case {
    pub name: &'static str,
    pub operation: TextOperation,
    pub connections: usize,
    pub window: usize,
    pub value_bytes: usize,
}

impl Case {
    /// With values of [`VALUE_BYTES`].
    pub const fn small(name: &'static str, operation: TextOperation, connections: usize, window: usize) -> Self {
        Case { name, operation, connections, window, value_bytes: VALUE_BYTES }
    }
}

const CASES: [Case; 3] = [
    Case::small("GET, 8 connections x 64", TextOperation::Get, 8, 64),
    Case::small("SET, 8 connections x 64", TextOperation::Set, 8, 64),
    Case::small("GET, 1 connection x 1", TextOperation::Get, 1, 1),
];

/// The name of a server's row.
fn row_name(server: &str, case: &Case) -> String {
    format!("{server}, {}", case.name)
}

/// The results of one server in one round.
struct Round {
    /// For each case.
    loads: Vec<Measured<MemcachedFigures>>,
    bytes_per_item: f64,
}

pub(crate) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let items = lab.items(ITEMS);
    let memcached = installed_version();
    let chosen: Vec<&Case> = CASES
        .iter()
        .filter(|case| lab.wants_any(["Dunlin", "memcached"].map(|it| row_name(it, case)).iter().map(String::as_str)))
        .collect();
    if chosen.is_empty() {
        return Ok(());
    }
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    lab.expect_cases(if memcached.is_some() { 2 } else { 1 });
    for _ in 0..lab.runs() {
        if memcached.is_some() {
            theirs.push(
                lab.once("memcached", |lab| round(lab, MemcachedProcess { memory_mib: MEMORY_MIB }, items, &chosen))?,
            );
        }
        ours.push(lab.once("Dunlin", |lab| {
            round(lab, KvMemcachedServer(KvServer::cache(Carrier::Shm, MEMORY_MIB << 20)), items, &chosen)
        })?);
    }
    match memcached {
        Some(version) => {
            lab.note(format!("Compared with {version}, one worker thread (-t 1), default settings."));
            push(lab, "memcached", &theirs, &chosen, None)?;
            push(lab, "Dunlin", &ours, &chosen, Some("memcached"))
        }
        None => {
            lab.note("memcached is not installed, so there is nothing to compare with: `apt install memcached`.");
            push(lab, "Dunlin", &ours, &chosen, None)
        }
    }
}

/// Starts a server, stores the items, and runs each load on it, each after its floor.
fn round<S: Role<Ready = Serving, Output = (), Error = BenchError>>(
    lab: &Lab,
    server: S,
    items: u64,
    cases: &[&Case],
) -> Result<Round, BenchError> {
    with_items(lab, server, (items, VALUE_BYTES), |serving| {
        let bytes_per_item = serving.filled_bytes as f64 / items as f64;
        let mut loads = Vec::new();
        for case in cases {
            let bare = BareServer { operation: case.operation, value_bytes: case.value_bytes };
            let mut bare = lab.server(bare, lab.run_length())?;
            let floor = load(lab, case, bare.ready()?.address, (items, lab.run_length()), Answers::Bare)?;
            bare.stop()?;
            let ours = load(lab, case, serving.address, (items, lab.run_length()), Answers::Verified)?;
            loads.push(Measured { ours, floor });
        }
        Ok(Round { loads, bytes_per_item })
    })
}

/// A server with its items.
pub(crate) struct Filled {
    pub address: SocketAddr,
    /// Its process id.
    pub process: u32,
    /// Resident memory by which the server grew.
    filled_bytes: u64,
}

/// Starts a server, stores this many items with values of this size, and passes the server on.
pub(crate) fn with_items<S: Role<Ready = Serving, Output = (), Error = BenchError>, T>(
    lab: &Lab,
    server: S,
    (items, value_bytes): (u64, usize),
    then: impl FnOnce(&Filled) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let time = fill_time(items) + lab.run_length() * 4 * CASES.len() as u32 + CLIENT_SLACK;
    let mut server = lab.server(server, time)?;
    let Serving { address, process } = server.ready()?;
    let before = resident_bytes_of(process)?;
    lab.client(MemcachedLoad::Fill { server: address, items, value_bytes }, fill_time(items))?.result()?;
    let filled_bytes = resident_bytes_of(process)?.saturating_sub(before);
    let outcome = then(&Filled { address, process, filled_bytes })?;
    server.stop()?;
    Ok(outcome)
}

/// Whether the bytes of answers are meaningful.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    Verified,
    Bare,
}

/// Runs one load, of this length.
pub(crate) fn load(
    lab: &Lab,
    case: &Case,
    server: SocketAddr,
    (items, run): (u64, Duration),
    answers: Answers,
) -> Result<MemcachedFigures, BenchError> {
    let load = MemcachedLoad::Run {
        server,
        items,
        value_bytes: case.value_bytes,
        operation: case.operation,
        connections: case.connections,
        window: case.window,
        run,
        bare: answers == Answers::Bare,
    };
    lab.client(load, run)?.result()
}

/// Time limit for storing items.
fn fill_time(items: u64) -> Duration {
    FILL_MAX * items as u32
}

/// The rows of one server, with targets if it must be better than another.
fn push(lab: &mut Lab, server: &str, rounds: &[Round], cases: &[&Case], rival: Option<&str>) -> Result<(), BenchError> {
    for (place, case) in cases.iter().enumerate() {
        let name = |server: &str| row_name(server, case);
        let beside = |figure: fn(&MemcachedFigures) -> f64| {
            let pair = |round: &Round| Measured {
                ours: figure(&round.loads[place].ours),
                floor: figure(&round.loads[place].floor),
            };
            BesideFloor::of(rounds.iter().map(pair).collect()).spread(|figure| *figure)
        };
        let rate = beside(|figures| figures.rate)?;
        let mut row = RowBuilder::new(name(server), Metric::Operations, rate.ours).floor(rate.floor);
        if let Some(rival) = rival {
            let factor = if case.window > 1 { PIPELINED_ADVANTAGE } else { 1.0 };
            row = row.target(Target::CaseTimes { case: name(rival), factor }).rival(name(rival));
        }
        lab.push(row);
        for (metric, figure) in [
            (Metric::LatencyP50, (|figures| figures.latency.p50) as fn(&MemcachedFigures) -> f64),
            (Metric::LatencyP99, |figures| figures.latency.p99),
        ] {
            let latency = beside(figure)?;
            let row = RowBuilder::new(name(server), metric, latency.ours).floor(latency.floor);
            lab.push(rival.into_iter().fold(row, |row, rival| row.rival(name(rival))));
        }
        let cpu = spread(rounds, |round| round.loads[place].ours.cpu * 100.0)?;
        lab.push(RowBuilder::new(format!("{}, the load itself", name(server)), Metric::CoreShare, cpu));
        if let Some(missed) = rounds.iter().map(|round| 1.0 - round.loads[place].ours.hits).find(|missed| *missed > 0.0)
        {
            lab.note(format!("{}: {:.3} % of the reads found nothing that was stored.", name(server), missed * 100.0));
        }
    }
    let name = |server: &str| format!("{server}, after storing {KEY_BYTES} B + {VALUE_BYTES} B");
    let memory: Spread = spread(rounds, |round| round.bytes_per_item)?;
    let mut row = RowBuilder::new(name(server), Metric::ItemMemory, memory);
    if let Some(rival) = rival {
        row = row.target(Target::CaseTimes { case: name(rival), factor: 1.0 }).rival(name(rival));
    }
    lab.push(row);
    Ok(())
}
