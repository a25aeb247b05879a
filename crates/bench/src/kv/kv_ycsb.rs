//! `kv-ycsb`: the workloads of YCSB without scans, on ten million records of 16 B + 32 B: with memory for all, and as a
//! cache with memory for some.

use dunlin_lab::measure::{BesideFloor, Measured};
use dunlin_lab::report::Metric;

use super::kv_runs::{self, Ask, KvRun};
use crate::kv::roles::KvServer;
use crate::rpc::roles::Carrier;
use crate::workload::Mix;
use crate::workload::item::{KEY_BYTES, VALUE_BYTES};
use crate::{BenchError, Lab};

const RECORDS: u64 = 10_000_000;
/// Maximum number of records that one run inserts; there is memory for them, too.
const INSERTED_MAX: u64 = 10_000_000;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let records = lab.items(RECORDS);
    lab.expect_cases(3 * Mix::YCSB.len());
    let bare = (KEY_BYTES + VALUE_BYTES) as u64;
    for (setting, carrier, server) in [
        ("shm", Carrier::Shm, None),
        ("udp", Carrier::Udp, None),
        // Less than keys and values alone need.
        ("shm, cache with memory for less than half", Carrier::Shm, Some((records * bare / 2).max(CACHE_MIN))),
    ] {
        let server = match server {
            None => KvServer::store(carrier, kv_runs::memory_for(records + lab.items(INSERTED_MAX), VALUE_BYTES)),
            Some(memory) => KvServer::cache(carrier, memory),
        };
        measure(lab, setting, carrier, server, records)?;
    }
    Ok(())
}

/// Minimum memory of a server, in bytes.
const CACHE_MIN: u64 = 4 << 20;

/// One server with all its records, and all workloads on it, repeated for each run.
fn measure(lab: &mut Lab, setting: &str, carrier: Carrier, server: KvServer, records: u64) -> Result<(), BenchError> {
    let name_of = |name: &str| format!("{setting}, {name}");
    let chosen: Vec<(&str, Mix)> = Mix::YCSB.into_iter().filter(|(name, _)| lab.wants(&name_of(name))).collect();
    if chosen.is_empty() {
        return Ok(());
    }
    let time = kv_runs::fill_time(records) + lab.run_length() * (4 * Mix::YCSB.len() * lab.runs()) as u32;
    let first = Ask::small(carrier, records, Mix::YCSB[0].1);
    let runs = kv_runs::with_server(lab, server, time, |server| {
        kv_runs::fill(lab, server, &first)?;
        let mut runs: Vec<Vec<Measured<KvRun>>> = chosen.iter().map(|_| Vec::new()).collect();
        let mut items = records;
        for _ in 0..lab.runs() {
            for ((name, mix), runs) in chosen.iter().zip(&mut runs) {
                let ask = Ask { mix: *mix, items, ..first };
                let floor = kv_runs::floor(lab, &ask)?;
                let figures = lab.once(&name_of(name), |lab| kv_runs::load(lab, server, &ask))?;
                items = figures.items;
                runs.push(Measured { ours: figures.into(), floor });
            }
        }
        Ok(runs)
    })?;
    for ((name, _), runs) in chosen.iter().zip(runs) {
        let runs = BesideFloor::of(runs);
        let name = name_of(name);
        lab.push(kv_runs::rate_row(&name, &runs)?);
        lab.push(kv_runs::plain_row(&name, Metric::HitRatio, &runs, |run| run.hits * 100.0)?);
        lab.push(kv_runs::plain_row(&name, Metric::LatencyP99, &runs, |run| run.p99)?);
    }
    Ok(())
}
