//! `rpc-bandwidth`: Figure 6. One outstanding request of 512 B to 8 MiB, with a 32 B response and 32 credits.

use dunlin_lab::Figure;
use dunlin_lab::report::{Metric, Target};

use super::runs;
use crate::rpc::roles::{Carrier, Setup};
use crate::{BenchError, Lab};

/// Bytes of a request. The paper's maximum is 8 MB.
const SIZES: [(usize, &str); 8] = [
    (512, "512 B"),
    (2 << 10, "2 KiB"),
    (8 << 10, "8 KiB"),
    (32 << 10, "32 KiB"),
    (128 << 10, "128 KiB"),
    (512 << 10, "512 KiB"),
    (2 << 20, "2 MiB"),
    (LARGEST, "8 MiB"),
];
const LARGEST: usize = 8 << 20;

type Place = (Carrier, (usize, &'static str));

type Column = Figure<Place, f64>;

const FIGURES: [Column; 1] =
    [Column::with_floor(Metric::Bandwidth, |_, bandwidth| *bandwidth).target(|(carrier, (size, _))| {
        match (carrier, *size) {
            (Carrier::Shm, LARGEST) => Some(Target::Absolute(40e9)),
            (Carrier::Udp, LARGEST) => Some(Target::Absolute(15e9)),
            _ => None,
        }
    })];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = runs::transports().joined(" ").by("request", SIZES, |(_, name)| *name);
    lab.pair_each(&cases, &FIGURES, runs::time_per_unit, |lab, (carrier, (size, _))| {
        let setup = Setup { credits: runs::LARGE_CREDITS, ..Setup::new(*carrier) };
        runs::bandwidth(lab, &setup, *size)
    })
}
