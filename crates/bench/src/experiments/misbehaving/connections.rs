//! A memcached port, and connections that hold memory for commands that do not end and answers that are not read.

use dunlin_kv::server::ServerConfig;

use super::{Growth, Seen, Work, push, push_seen, sharing};
use crate::BenchError;
use crate::experiments::kv_memcached::{self, Answers, Case};
use crate::lab::{Lab, spread};
use crate::report::{Metric, RowBuilder, Target};
use crate::roles::{Carrier, Connections, Holding, KvMemcachedServer, KvServer, TextOperation, UNREAD_BYTES};

/// Memory for items, in bytes: little, so that what lies outside it shows.
const MEMORY: u64 = 64 << 20;
/// Items of the working load.
const ITEMS: u64 = 100_000;
/// Connections that begin to store a value.
const UNFINISHED: usize = 1_200;
/// Connections that do not read an answer.
const UNREAD: usize = 200;
/// What the documentation allows a connection beside the common budget (docs/memcached.md): small commands, and the connection itself.
const CONNECTION_BYTES: usize = (8 + 2) << 10;

const WORK: Case = Case { name: "GET, 4 connections x 4", operation: TextOperation::Get, connections: 4, window: 4 };

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let case = format!("memcached port, {UNFINISHED} unfinished sets and {UNREAD} unread gets of 1 MiB");
    let runs = lab.case(&case, round)?;
    let counted_max = ServerConfig::default().connection_memory_bytes + (UNFINISHED + UNREAD) * CONNECTION_BYTES;
    let seen: Vec<Seen> = runs.iter().map(|(seen, _)| *seen).collect();
    push(lab, &case, Metric::Operations, &seen, (counted_max + UNREAD_BYTES) as f64)?;
    let counted = spread(&runs, |(_, holding)| holding.counted_bytes as f64)?;
    let row = RowBuilder::new(format!("{case}, counted by the server"), Metric::Memory, counted);
    lab.push(row.target(Target::Absolute(counted_max as f64)));
    push_seen(lab, format!("{case}, open at the end"), runs.iter().map(|(_, holding)| holding.connections));
    Ok(())
}

fn round(lab: &Lab) -> Result<(Seen, Holding), BenchError> {
    let items = lab.items(ITEMS);
    let server = KvMemcachedServer(KvServer::cache(Carrier::Shm, MEMORY));
    kv_memcached::with_items(lab, server, items, |filled| {
        let work = || {
            let figures = kv_memcached::load(lab, &WORK, filled.address, items, Answers::Verified)?;
            Ok(Work { rate: figures.rate, p99: figures.latency.p99 })
        };
        let alone = work()?;
        let growth = Growth::of(filled.process)?;
        let role = Connections { server: filled.address, unfinished: UNFINISHED, unread: UNREAD };
        let mut misbehaving = lab.client(role, 4 * lab.run_length())?;
        misbehaving.ready()?;
        let (beside, taken) = sharing(&[misbehaving.id()], work)?;
        let grown = growth.most()?;
        let holding = misbehaving.stop()?;
        Ok((Seen { alone, beside, taken, grown }, holding))
    })
}
