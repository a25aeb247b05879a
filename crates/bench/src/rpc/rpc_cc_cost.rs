//! `rpc-cc-cost`: section 6.2 and Table 3. The cost of congestion control without congestion: the load of `rpc-rate`
//! with B = 3 over shared memory, with each algorithm and without, in turns of milliseconds within one process. The
//! paper's share is shown with ours; its rates are of threads that are client and server at once (`rpc-rate` has
//! those). The paper's row without bypasses also reads the clock for each packet, which ours does not.

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::runs;
use crate::rpc::roles::{Carrier, Congestion, Factor, RatesInTurn, Setup};
use crate::{BenchError, Lab};

/// Requests in a batch, as in the paper's section.
const BATCH: usize = 3;
/// The share of the rate that the paper's control leaves (5.44 M/s without, 4.96 M/s with), and so the required minimum
/// here.
const LEFT_MIN: f64 = 0.91;
/// The required share for the default algorithm of networks.
const LEFT_AIM: f64 = 0.97;

/// A setting of the clients.
struct Variant {
    name: &'static str,
    congestion: Congestion,
    without: &'static [Factor],
    target: Option<f64>,
}

const BYPASSES: &[Factor] = &[Factor::RateUpdateBypass, Factor::RateLimiterBypass];

/// The others are compared with the first.
const VARIANTS: [Variant; 6] = [
    Variant { name: "off", congestion: Congestion::Off, without: &[], target: None },
    Variant { name: "swift", congestion: Congestion::Swift, without: &[], target: Some(LEFT_AIM) },
    Variant { name: "timely", congestion: Congestion::Timely, without: &[], target: Some(LEFT_MIN) },
    Variant { name: "dcqcn", congestion: Congestion::Dcqcn, without: &[], target: Some(LEFT_MIN) },
    Variant { name: "swift, no bypasses", congestion: Congestion::Swift, without: BYPASSES, target: None },
    Variant { name: "timely, no bypasses", congestion: Congestion::Timely, without: BYPASSES, target: None },
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(1);
    let server = Setup::new(Carrier::Shm);
    let setups: Vec<_> = VARIANTS
        .iter()
        .map(|variant| Setup { congestion: variant.congestion, without: variant.without.to_vec(), ..server.clone() })
        .collect();
    let load = runs::small_load(lab, BATCH);
    let time = lab.run_length() * 2 * VARIANTS.len() as u32;
    let measured = lab.case("shm B=3, in turns", |lab| {
        runs::with_server_for(lab, &server, time, |server| {
            let client = RatesInTurn { setups: setups.clone(), server, sessions: runs::SESSIONS, load: load.clone() };
            lab.client(client, time)?.result()
        })
    })?;
    for (index, variant) in VARIANTS.iter().enumerate() {
        let rate = spread(&measured, |rounds| median(rounds.iter().map(|rates| rates[index])))?;
        lab.push(RowBuilder::new(format!("shm, {}", variant.name), Metric::Rate, rate));
    }
    for (index, variant) in VARIANTS.iter().enumerate().skip(1) {
        // Computed within each round: disturbances of the machine affect both.
        let left = spread(&measured, |rounds| median(rounds.iter().map(|rates| rates[index] / rates[0])))?;
        let mut row = RowBuilder::new(format!("shm, {} over off", variant.name), Metric::Advantage, left);
        if let Some(target) = variant.target {
            row = row.target(Target::Absolute(target));
        }
        lab.push(row);
    }
    Ok(())
}

/// The median of one or more numbers.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
