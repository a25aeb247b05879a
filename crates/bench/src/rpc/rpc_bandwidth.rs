//! `rpc-bandwidth`: Figure 6. One outstanding request of 512 B to 8 MiB, with a 32 B response and 32 credits.

use dunlin_lab::report::{Metric, Target};

use super::{paper, runs};
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

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * SIZES.len());
    for carrier in Carrier::ALL {
        let setup = Setup { credits: runs::LARGE_CREDITS, ..Setup::new(carrier) };
        for (size, name) in SIZES {
            let case = format!("{} {name}", carrier.name());
            let measured = runs::bandwidth_case(lab, &case, &setup, size)?;
            let mut row = runs::row(&case, Metric::Bandwidth, &measured, |bandwidth| *bandwidth)?;
            if size == LARGEST {
                row = row.paper(Some(paper::BANDWIDTH_8_MIB)).target(target(carrier));
            }
            lab.push(row);
        }
    }
    Ok(())
}

fn target(carrier: Carrier) -> Target {
    match carrier {
        Carrier::Shm => Target::Absolute(40e9),
        Carrier::Udp => Target::Absolute(15e9),
    }
}
