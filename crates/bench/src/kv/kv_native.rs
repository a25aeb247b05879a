//! `kv-native-vs-memcached`: Dunlin's own client over UDP against memcached's protocol over TCP. Both have one core for
//! the server and one for the client, so operations per second are directly comparable.
//!
//! The client of memcached is the load of `kv-memcached`, which pipelines as far as the protocol allows and does
//! nothing else; most client libraries send one request at a time, which is measured too. Both sides have the same
//! number of operations in flight.

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::{Cases, Figure};

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

/// The loads of memcached, with our number of operations in flight.
const CASES: [(Case, usize); 2] = [(PIPELINED, PIPELINED.connections * PIPELINED.window), (ONE_BY_ONE, 1)];

type Column = Figure<usize, f64>;

const FIGURES: [Column; 1] =
    [Column::new(Metric::Operations, |_, rate| *rate).rival(|place| Some(theirs_name(CASES[*place].0.name)))];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let version = installed_version();
    lab.note(match &version {
        Some(version) => format!("Compared with {version}, one worker thread (-t 1), default settings."),
        None => "memcached is not installed, so there is nothing to compare with: `apt install memcached`.".into(),
    });
    let places = 0..CASES.len();
    let ours = Cases::along("load", places.clone(), |place| format!("{OURS}, {} in flight", CASES[*place].1));
    let theirs = Cases::along("load", places.clone(), |place| theirs_name(CASES[*place].0.name));
    let rounds = lab.measure_in_turn(&ours.and(theirs.only(|_| version.is_some())), &FIGURES, |lab| {
        let mut rates = self::ours(lab)?;
        if version.is_some() {
            rates.extend(memcacheds(lab)?);
        }
        Ok(rates.into_iter().map(|rate| (rate, None)).collect())
    })?;
    for place in places.filter(|_| version.is_some()) {
        let case = format!("against memcached, {}", CASES[place].0.name);
        let advantage = rounds.spread(|rates| rates[place] / rates[CASES.len() + place])?;
        lab.push(RowBuilder::new(case, Metric::Advantage, advantage).target(Target::Absolute(ADVANTAGE)));
    }
    Ok(())
}

fn theirs_name(load: &str) -> String {
    format!("memcached, {load}")
}

fn ours(lab: &Lab) -> Result<Vec<f64>, BenchError> {
    let small = Ask::small(Carrier::Udp, lab.items(ITEMS), Mix::gets(1.0, Popularity::Uniform));
    CASES.iter().map(|(_, in_flight)| Ok(kv_runs::filled(lab, &Ask { in_flight: *in_flight, ..small })?.rate)).collect()
}

fn memcacheds(lab: &Lab) -> Result<Vec<f64>, BenchError> {
    let (items, server) = (lab.items(ITEMS), MemcachedProcess { memory_mib: kv_memcached::MEMORY_MIB });
    kv_memcached::with_items(lab, server, (items, VALUE_BYTES), |server| {
        let rate = |case| {
            let length = (items, lab.run_length());
            Ok(kv_memcached::load(lab, case, server.address, length, Answers::Verified)?.rate)
        };
        CASES.iter().map(|(case, _)| rate(case)).collect()
    })
}

const OURS: &str = "Dunlin over UDP, GET";
