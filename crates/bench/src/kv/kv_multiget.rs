//! `kv-multiget`: keys per second if one request reads many.

use dunlin_lab::report::{Metric, RowBuilder};
use dunlin_lab::spread;

use super::kv_runs::{self, Ask, ITEMS};
use crate::kv::roles::{MultiGetFigures, MultiGetLoad};
use crate::rpc::roles::{Carrier, Setup};
use crate::workload::{Mix, Popularity};
use crate::{BenchError, Lab};

/// Keys of one multi-get.
const KEYS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * KEYS.len());
    for carrier in Carrier::ALL {
        let name_of = |keys: usize| format!("{}, {keys} keys a request", carrier.name());
        let chosen: Vec<usize> = KEYS.into_iter().filter(|keys| lab.wants(&name_of(*keys))).collect();
        if chosen.is_empty() {
            continue;
        }
        let items = lab.items(ITEMS);
        let ask = Ask::small(carrier, items, Mix::gets(1.0, Popularity::Uniform));
        let time = kv_runs::fill_time(items) + lab.run_length() * (3 * KEYS.len() * lab.runs()) as u32;
        let mut figures: Vec<Vec<MultiGetFigures>> = chosen.iter().map(|_| Vec::new()).collect();
        kv_runs::with_server(lab, ask.server(), time, |server| {
            kv_runs::fill(lab, server, &ask)?;
            for _ in 0..lab.runs() {
                for (keys, figures) in chosen.iter().zip(&mut figures) {
                    let (setup, server) = (Setup::new(carrier), server.address.clone());
                    let load = MultiGetLoad { setup, server, items, keys: *keys, run: lab.run_length() };
                    figures.push(lab.once(&name_of(*keys), |lab| lab.client(load, lab.run_length())?.result())?);
                }
            }
            Ok(())
        })?;
        for (keys, figures) in chosen.iter().zip(&figures) {
            let name = name_of(*keys);
            lab.push(RowBuilder::new(&name, Metric::Keys, spread(figures, |figures| figures.keys_per_second)?));
            lab.push(RowBuilder::new(&name, Metric::LatencyP50, spread(figures, |figures| figures.latency.p50)?));
            lab.push(RowBuilder::new(&name, Metric::LatencyP99, spread(figures, |figures| figures.latency.p99)?));
        }
    }
    Ok(())
}
