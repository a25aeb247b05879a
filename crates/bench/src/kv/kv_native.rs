//! `kv-native-vs-memcached`: Dunlin's own client over UDP against memcached's protocol over TCP. Both have one core for
//! the server and one for the client, so operations per second are directly comparable.
//!
//! The client of memcached is the load of `kv-memcached`, which pipelines as far as the protocol allows and does
//! nothing else; most client libraries send one request at a time, which is measured too. Both sides have the same
//! number of operations in flight.

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::kv_memcached::{self, Answers, Case};
use super::kv_runs::{self, Ask, ITEMS};
use crate::kv::roles::{MemcachedProcess, TextOperation, installed_version};
use crate::rpc::roles::Carrier;
use crate::workload::item::VALUE_BYTES;
use crate::workload::{Mix, Popularity};
use crate::{BenchError, Lab};

/// Required advantage of Dunlin.
const ADVANTAGE: f64 = 10.0;
const PIPELINED: Case = Case::small("pipelined, 8 connections x 64", TextOperation::Get, 8, 64);
const ONE_BY_ONE: Case = Case::small("one at a time", TextOperation::Get, 1, 1);

/// Operations per second in one round, pipelined and one at a time.
struct Round {
    ours: [f64; 2],
    memcacheds: [f64; 2],
}

/// The loads of memcached, with our number of operations in flight.
const CASES: [(Case, usize); 2] = [(PIPELINED, PIPELINED.connections * PIPELINED.window), (ONE_BY_ONE, 1)];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let items = lab.items(ITEMS);
    let ours = |lab: &Lab| -> Result<[f64; 2], BenchError> {
        let small = Ask::small(Carrier::Udp, items, Mix::gets(1.0, Popularity::Uniform));
        let rate = |in_flight| kv_runs::filled(lab, &Ask { in_flight, ..small }).map(|run| run.rate);
        Ok([rate(CASES[0].1)?, rate(CASES[1].1)?])
    };
    let Some(version) = installed_version() else {
        lab.note("memcached is not installed, so there is nothing to compare with: `apt install memcached`.");
        let rates = lab.case(OURS, ours)?;
        for (place, (case, _)) in CASES.iter().enumerate() {
            lab.push(RowBuilder::new(
                format!("{OURS}, {}", case.name),
                Metric::Operations,
                spread(&rates, |run| run[place])?,
            ));
        }
        return Ok(());
    };
    lab.note(format!("Compared with {version}, one worker thread (-t 1), default settings."));
    let rounds = lab.case("in turn", |lab| {
        let ours = ours(lab)?;
        let server = MemcachedProcess { memory_mib: kv_memcached::MEMORY_MIB };
        let memcacheds = kv_memcached::with_items(lab, server, (items, VALUE_BYTES), |server| {
            let rate = |case: &Case| {
                let length = (items, lab.run_length());
                kv_memcached::load(lab, case, server.address, length, Answers::Verified).map(|figures| figures.rate)
            };
            Ok([rate(&PIPELINED)?, rate(&ONE_BY_ONE)?])
        })?;
        Ok(Round { ours, memcacheds })
    })?;
    for (place, (case, in_flight)) in CASES.iter().enumerate() {
        let row = |name: String, metric, figure: &dyn Fn(&Round) -> f64| {
            Ok::<_, BenchError>(RowBuilder::new(name, metric, spread(&rounds, figure)?))
        };
        lab.push(row(format!("{OURS}, {in_flight} in flight"), Metric::Operations, &|round| round.ours[place])?);
        lab.push(row(format!("memcached, {}", case.name), Metric::Operations, &|round| round.memcacheds[place])?);
        let advantage = |round: &Round| round.ours[place] / round.memcacheds[place];
        let row = row(format!("against memcached, {}", case.name), Metric::Advantage, &advantage)?;
        lab.push(row.target(Target::Absolute(ADVANTAGE)));
    }
    Ok(())
}

const OURS: &str = "Dunlin over UDP, GET";
