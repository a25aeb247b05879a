//! `kv-native-vs-memcached`: Dunlin's own client over UDP against memcached's protocol over TCP. Either way a core for the server and a core
//! for the client, so operations per second compare as they are.
//!
//! The best client of memcached is taken to be the load of `kv-memcached`, which pipelines as far as the protocol allows and does nothing else;
//! one request at a time is what most client libraries do.

use super::kv_memcached::{self, Answers, Case};
use super::kv_runs::{self, Ask, ITEMS};
use crate::BenchError;
use crate::lab::{Lab, spread};
use crate::report::{Metric, RowBuilder, Target};
use crate::roles::{Carrier, MemcachedProcess, TextOperation, installed_version};
use crate::workload::item::VALUE_BYTES;
use crate::workload::{Mix, Popularity};

/// How much faster Dunlin must be.
const ADVANTAGE: f64 = 10.0;
const PIPELINED: Case = Case::small("pipelined, 8 connections x 64", TextOperation::Get, 8, 64);
const ONE_BY_ONE: Case = Case::small("one at a time", TextOperation::Get, 1, 1);

/// Operations per second of each, in one round.
struct Round {
    ours: f64,
    pipelined: f64,
    one_by_one: f64,
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let items = lab.items(ITEMS);
    let ask = Ask { in_flight: IN_FLIGHT, ..Ask::small(Carrier::Udp, items, Mix::gets(1.0, Popularity::Uniform)) };
    let Some(version) = installed_version() else {
        lab.note("memcached is not installed, so there is nothing to compare with: `apt install memcached`.");
        let rates = lab.case(OURS, |lab| kv_runs::filled(lab, &ask))?;
        lab.push(RowBuilder::new(OURS, Metric::Operations, spread(&rates, |run| run.rate)?));
        return Ok(());
    };
    lab.note(format!("Compared with {version}, one worker thread (-t 1), default settings."));
    let rounds = lab.case("in turn", |lab| {
        let ours = kv_runs::filled(lab, &ask)?.rate;
        let server = MemcachedProcess { memory_mib: kv_memcached::MEMORY_MIB };
        let [pipelined, one_by_one] = kv_memcached::with_items(lab, server, (items, VALUE_BYTES), |server| {
            let rate = |case: &Case| {
                let length = (items, lab.run_length());
                kv_memcached::load(lab, case, server.address, length, Answers::Verified).map(|figures| figures.rate)
            };
            Ok([rate(&PIPELINED)?, rate(&ONE_BY_ONE)?])
        })?;
        Ok(Round { ours, pipelined, one_by_one })
    })?;
    lab.push(RowBuilder::new(OURS, Metric::Operations, spread(&rounds, |round| round.ours)?));
    for (case, rate) in [(PIPELINED, (|round| round.pipelined) as fn(&Round) -> f64), (ONE_BY_ONE, |round| round.one_by_one)]
    {
        lab.push(RowBuilder::new(format!("memcached, {}", case.name), Metric::Operations, spread(&rounds, rate)?));
        let advantage = spread(&rounds, |round| round.ours / rate(round))?;
        let row = RowBuilder::new(format!("against memcached, {}", case.name), Metric::Advantage, advantage);
        lab.push(row.target(Target::Absolute(ADVANTAGE)));
    }
    Ok(())
}

const OURS: &str = "Dunlin over UDP, GET";
/// Operations in flight: as many as the pipelined load has.
const IN_FLIGHT: usize = PIPELINED.connections * PIPELINED.window;
