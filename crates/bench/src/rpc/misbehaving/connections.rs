//! A memcached port, and connections that make it hold memory for unfinished commands and unread answers.

use dunlin_kv::server::ServerConfig;
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::{Cost, Growth, Seen, length, push, push_seen, sharing, slicing, with_threads};
use crate::kv::kv_memcached::{self, Case, Filled};
use crate::kv::roles::{KvMemcachedServer, KvServer, SlicedMemcachedLoad, TextOperation};
use crate::rpc::roles::{Carrier, Connections, Holding, Pause, Sliced, Slicing, UNREAD_BYTES};
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
    /// Passes through the cases before the one that counts. After connections have made the system allocate memory,
    /// other sockets are slow for a while: a bare TCP server sent answers of 100 kB at 12 to 19 k/s instead of 40 k/s
    /// for three seconds after unrelated sockets had grown to 875 MB, and at 28 k/s for about one second after 273 MB.
    passes_before: usize,
}

const SMALL: Loads = Loads {
    name: "small values",
    items: 100_000,
    value_bytes: 32,
    cases: &[Case::small("GET, 4 connections x 4", TextOperation::Get, 4, 4)],
    passes_before: 0,
};

const LARGE: Loads = Loads {
    name: "values of 100 kB",
    items: 200,
    value_bytes: LARGE_BYTES,
    cases: &[
        of_large("SET, 2 connections x 1", TextOperation::Set),
        of_large("GET, 2 connections x 1", TextOperation::Get),
    ],
    passes_before: 1,
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
    let items = lab.items(loads.items);
    let server = KvMemcachedServer(KvServer { cores: crowd.cores, ..KvServer::cache(Carrier::Shm, MEMORY) });
    kv_memcached::with_items(lab, server, (items, loads.value_bytes), |filled| {
        let growth = Growth::of(filled.process)?;
        let Crowd { unfinished, unread, unread_bytes, .. } = *crowd;
        let role = Connections { server: filled.address, unfinished, unread, unread_bytes };
        let mut misbehaving = lab.client(role, 8 * lab.run_length())?;
        misbehaving.ready()?;
        let slicing = slicing(lab, Pause::Processes(vec![misbehaving.id()]));
        let pass = || loads.cases.iter().map(|case| work(lab, case, filled, (items, &slicing))).collect();
        for _ in 0..loads.passes_before {
            let _: Vec<Sliced> = pass()?;
        }
        let (works, taken) = sharing(&[misbehaving.id()], pass)?;
        let grown = growth.most()?;
        Ok((Seen { works, cost: Cost { taken, grown } }, misbehaving.stop()?))
    })
}

fn work(lab: &Lab, case: &Case, server: &Filled, (items, slicing): (u64, &Slicing)) -> Result<Sliced, BenchError> {
    let load = SlicedMemcachedLoad {
        server: server.address,
        items,
        value_bytes: case.value_bytes,
        operation: case.operation,
        connections: (case.connections, case.window),
        slicing: slicing.clone(),
    };
    lab.client(load, length(slicing))?.result()
}
