//! A memcached port, and connections that hold memory for commands that do not end and answers that are not read.

use dunlin_kv::server::ServerConfig;

use super::{Cost, Growth, Order, Seen, Work, load_length, push, push_seen, sharing, with_threads};
use crate::BenchError;
use crate::experiments::kv_memcached::{self, Answers, Case, Filled};
use crate::lab::{Lab, spread};
use crate::report::{Metric, RowBuilder, Target};
use crate::roles::{Carrier, Connections, Holding, KvMemcachedServer, KvServer, TextOperation, UNREAD_BYTES};

/// Memory for items, in bytes: little, so that what lies outside it shows.
const MEMORY: u64 = 64 << 20;
/// Connections that begin to store a value.
const UNFINISHED: usize = 1_200;
/// Connections that do not read an answer.
const UNREAD: usize = 200;
/// What the documentation allows a connection beside the common budget (docs/memcached.md): small commands, and the connection itself.
const CONNECTION_BYTES: usize = (8 + 2) << 10;
/// A value for which a connection needs memory of the common budget, whether it is stored or read.
const LARGE_BYTES: usize = 100_000;

/// Items, and what is done with them.
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
    cases: &[of_large("SET, 2 connections x 1", TextOperation::Set), of_large("GET, 2 connections x 1", TextOperation::Get)],
};

const fn of_large(name: &'static str, operation: TextOperation) -> Case {
    Case { name, operation, connections: 2, window: 1, value_bytes: LARGE_BYTES }
}

/// Beside work that needs none of the memory that they hold.
pub(super) fn small(lab: &mut Lab) -> Result<(), BenchError> {
    run(lab, &SMALL)
}

/// Beside work that needs some of it.
pub(super) fn large(lab: &mut Lab) -> Result<(), BenchError> {
    run(lab, &LARGE)
}

fn run(lab: &mut Lab, loads: &Loads) -> Result<(), BenchError> {
    let case = format!("memcached port, {UNFINISHED} unfinished sets and {UNREAD} unread gets of 1 MiB, {}", loads.name);
    let case = with_threads(&case, 1);
    let mut order = Order::AloneFirst;
    let runs = lab.case(&case, |lab| round(lab, order.next(), loads))?;
    let counted_max = ServerConfig::default().connection_memory_bytes + (UNFINISHED + UNREAD) * CONNECTION_BYTES;
    let seen: Vec<Seen> = runs.iter().map(|(seen, _)| seen.clone()).collect();
    let names: Vec<&str> = loads.cases.iter().map(|case| case.name).collect();
    push(lab, &case, (Metric::Operations, &names), &seen, (counted_max + UNREAD_BYTES) as f64)?;
    let counted = spread(&runs, |(_, holding)| holding.counted_bytes as f64)?;
    let row = RowBuilder::new(format!("{case}, counted by the server"), Metric::Memory, counted);
    lab.push(row.target(Target::Absolute(counted_max as f64)));
    push_seen(lab, format!("{case}, open at the end"), runs.iter().map(|(_, holding)| holding.connections));
    let held = runs.iter().map(|(_, holding)| holding.counted_bytes / UNREAD_BYTES as u64);
    push_seen(lab, format!("{case}, values' worth of memory held"), held);
    Ok(())
}

fn round(lab: &Lab, order: Order, loads: &Loads) -> Result<(Seen, Holding), BenchError> {
    let items = lab.items(loads.items);
    let server = KvMemcachedServer(KvServer::cache(Carrier::Shm, MEMORY));
    kv_memcached::with_items(lab, server, (items, loads.value_bytes), |filled| {
        let works = || loads.cases.iter().map(|case| work(lab, case, filled, items)).collect::<Result<Vec<_>, _>>();
        let growth = Growth::of(filled.process)?;
        let (alone, (beside, holding, cost)) = order.take(works, || {
            let role = Connections { server: filled.address, unfinished: UNFINISHED, unread: UNREAD };
            let mut misbehaving = lab.client(role, 4 * lab.run_length())?;
            misbehaving.ready()?;
            let (beside, taken) = sharing(&[misbehaving.id()], works)?;
            let grown = growth.most()?;
            Ok((beside, misbehaving.stop()?, Cost { taken, grown }))
        })?;
        Ok((Seen::new(alone, beside, cost), holding))
    })
}

fn work(lab: &Lab, case: &Case, server: &Filled, items: u64) -> Result<Work, BenchError> {
    let figures = kv_memcached::load(lab, case, server.address, (items, load_length(lab)), Answers::Verified)?;
    Ok(Work { rate: figures.rate, p99: figures.latency.p99 })
}
