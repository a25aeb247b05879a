//! Two memcached ports, and connections that make one of them hold memory for unfinished commands and unread answers.

use dunlin_kv::server::ServerConfig;
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::{Cost, Growth, SLICE, Seen, push, push_seen, sharing, slicing, with_threads};
use crate::kv::kv_memcached::{self, Case, Filled};
use crate::kv::roles::{KvMemcachedServer, KvServer, SlicedMemcachedLoad, TextOperation};
use crate::rpc::roles::{Both, Carrier, Connections, Holding, Processes, Sliced, Slicing, UNREAD_BYTES};
use crate::{BenchError, Lab};

/// Memory for items, in bytes: little, so that other memory is visible.
const MEMORY: u64 = 64 << 20;
/// Connections that begin to store a value.
const UNFINISHED: usize = 1_200;
/// Connections that do not read a long answer.
const UNREAD: usize = 200;
/// Connections that do not read short answers, and the bytes of each: too short to need the common budget.
const UNREAD_SHORT: usize = 400;
const SHORT_BYTES: usize = 1_900;
/// Required share of misbehaving connections that are open at the end. The server may close some.
const OPEN_SHARE_MIN: f64 = 0.7;
/// Parts, of 32, of the budget for unfinished commands and unread answers of one host, of which it gets three quarters.
const PARTS_HELD: usize = (9 + 9) * 3 / 4;
/// A value for which a connection needs memory of the common budget, when storing or reading it.
const LARGE_BYTES: usize = 100_000;

/// Items, and the operations on them.
struct Loads {
    name: &'static str,
    items: u64,
    value_bytes: usize,
    cases: &'static [Case],
}

const SMALL: Loads = Loads {
    name: "small values",
    items: 100_000,
    value_bytes: 32,
    cases: &[Case::small("GET, 4 connections x 4", TextOperation::Get, 4, 4)],
};

const LARGE: Loads = Loads {
    name: "values of 100 kB",
    items: 200,
    value_bytes: LARGE_BYTES,
    cases: &[
        of_large("SET, 2 connections x 1", TextOperation::Set),
        of_large("GET, 2 connections x 1", TextOperation::Get),
    ],
};

const fn of_large(name: &'static str, operation: TextOperation) -> Case {
    Case { name, operation, connections: 2, window: 1, value_bytes: LARGE_BYTES }
}

/// A server, and its misbehaving connections.
struct Crowd {
    cores: u16,
    unfinished: usize,
    unread: usize,
    unread_bytes: usize,
}

impl Crowd {
    const LONG: Crowd = Crowd { cores: 1, unfinished: UNFINISHED, unread: UNREAD, unread_bytes: UNREAD_BYTES };
    const SHORT: Crowd = Crowd { cores: 2, unfinished: 0, unread: UNREAD_SHORT, unread_bytes: SHORT_BYTES };

    fn connections(&self) -> usize {
        self.unfinished + self.unread
    }

    /// The memory that the documentation allows these connections besides the common budget (docs/memcached.md): small
    /// commands, and the connections themselves.
    fn bytes_beside(&self) -> usize {
        let asking_cores = if self.cores > 1 { 16 + 4 * usize::from(self.cores) } else { 0 };
        self.connections() * ((2 + 2 + 8 + asking_cores) << 10)
    }
}

/// With a working load that needs none of the held memory.
pub(super) fn small(lab: &mut Lab) -> Result<(), BenchError> {
    run_long(lab, &SMALL)
}

/// With a working load that needs some of it.
pub(super) fn large(lab: &mut Lab) -> Result<(), BenchError> {
    run_long(lab, &LARGE)
}

fn run_long(lab: &mut Lab, loads: &Loads) -> Result<(), BenchError> {
    let case =
        format!("memcached port, {UNFINISHED} unfinished sets and {UNREAD} unread gets of 1 MiB, {}", loads.name);
    let case = with_threads(&case, 1);
    let runs = run(lab, &case, &Crowd::LONG, loads)?;
    let share = ServerConfig::default().connection_memory_bytes / 32 * PARTS_HELD / UNREAD_BYTES;
    let held = runs.iter().map(|(_, holding)| holding.counted_bytes / UNREAD_BYTES as u64);
    push_seen(lab, format!("{case}, values' worth of memory held"), share as u64 - 1, held);
    Ok(())
}

/// With a working load that needs some of the memory that short answers leave, on a server whose cores send requests to
/// each other.
pub(super) fn short_answers(lab: &mut Lab) -> Result<(), BenchError> {
    let case = format!(
        "memcached port of 2 cores, {UNREAD_SHORT} connections with unread gets of {SHORT_BYTES} B, {}",
        LARGE.name
    );
    // The cores of the server share one processor.
    let case = case + " [2 | 1 + 1]";
    let runs = run(lab, &case, &Crowd::SHORT, &LARGE)?;
    // The held memory, in answers.
    let held = runs.iter().map(|(_, holding)| holding.counted_bytes / SHORT_BYTES as u64);
    push_seen(lab, format!("{case}, answers' worth of memory held"), asked_open(&Crowd::SHORT), held);
    Ok(())
}

fn asked_open(crowd: &Crowd) -> u64 {
    (crowd.connections() as f64 * OPEN_SHARE_MIN) as u64
}

fn run(lab: &mut Lab, case: &str, crowd: &Crowd, loads: &Loads) -> Result<Vec<(Seen, Holding)>, BenchError> {
    super::check_wanted(lab, case)?;
    let runs = lab.case(case, |lab| round(lab, crowd, loads))?;
    let counted_max = ServerConfig::default().connection_memory_bytes + crowd.bytes_beside();
    let seen: Vec<Seen> = runs.iter().map(|(seen, _)| seen.clone()).collect();
    let names: Vec<&str> = loads.cases.iter().map(|case| case.name).collect();
    push(lab, case, (Metric::Operations, &names), &seen, (counted_max + UNREAD_BYTES) as f64)?;
    let counted = spread(&runs, |(_, holding)| holding.counted_bytes as f64)?;
    let row = RowBuilder::new(format!("{case}, counted by the server"), Metric::Memory, counted);
    lab.push(row.target(Target::Absolute(counted_max as f64)));
    push_seen(
        lab,
        format!("{case}, open at the end"),
        asked_open(crowd),
        runs.iter().map(|(_, holding)| holding.connections),
    );
    Ok(runs)
}

fn round(lab: &Lab, crowd: &Crowd, loads: &Loads) -> Result<(Seen, Holding), BenchError> {
    let stored = (lab.items(loads.items), loads.value_bytes);
    let server = || KvMemcachedServer(KvServer { cores: crowd.cores, ..KvServer::cache(Carrier::Shm, MEMORY) });
    kv_memcached::with_items(lab, server(), stored, |alone| {
        kv_memcached::with_items(lab, server(), stored, |beside| measure(lab, (crowd, loads), &Both { beside, alone }))
    })
}

/// One run, on servers with their items.
fn measure(
    lab: &Lab,
    (crowd, loads): (&Crowd, &Loads),
    servers: &Both<&Filled>,
) -> Result<(Seen, Holding), BenchError> {
    let Both { beside, alone } = *servers;
    let growth = Growth::of(beside.process)?;
    let Crowd { unfinished, unread, unread_bytes, .. } = *crowd;
    let role = Connections { server: beside.address, unfinished, unread, unread_bytes };
    let mut misbehaving = lab.client(role, 8 * lab.run_length())?;
    misbehaving.ready()?;
    let processes =
        Processes { beside: vec![misbehaving.id(), beside.process], led: Vec::new(), alone: vec![alone.process] };
    let slicing = slicing(lab, SLICE, processes);
    let (works, taken) = sharing(&[misbehaving.id()], || {
        loads.cases.iter().map(|case| work(lab, case, servers, (lab.items(loads.items), &slicing))).collect()
    })?;
    let grown = growth.most()?;
    Ok((Seen { works, cost: Cost { taken, grown } }, misbehaving.stop()?))
}

fn work(
    lab: &Lab,
    case: &Case,
    servers: &Both<&Filled>,
    (items, slicing): (u64, &Slicing),
) -> Result<Sliced, BenchError> {
    let load = SlicedMemcachedLoad {
        servers: Both { beside: servers.beside.address, alone: servers.alone.address },
        items,
        value_bytes: case.value_bytes,
        operation: case.operation,
        connections: (case.connections, case.window),
        slicing: slicing.clone(),
    };
    lab.client(load, slicing.length())?.result()
}
