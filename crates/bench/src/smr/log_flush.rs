//! `log-flush`: beyond the paper, whose replicas keep their logs in memory. The share of the disk's flush rate that
//! remains for entries appended to a log that is flushed for many at a time.

use dunlin_lab::measure::Measured;
use dunlin_lab::report::{Metric, Target};

use crate::rpc::runs;
use crate::smr::roles::{LOG_ENTRY_BYTES, LogFlush};
use crate::{BenchError, Lab};

/// Entries that share one flush.
const WINDOWS: [usize; 5] = [1, 4, 16, 64, 256];
/// Required share of the rate that bare flushes would allow.
const SHARE_MIN: f64 = 0.8;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(WINDOWS.len());
    for window in WINDOWS {
        let case = format!("{window} entries of {LOG_ENTRY_BYTES} B at a time");
        let measured = lab.case_beside_floor(&case, |floor: &f64| 1.0 / floor, |lab| one(lab, window))?;
        let row = runs::row(&case, Metric::Operations, &measured, |rate| *rate)?;
        lab.push(row.target(Target::FloorTimes(SHARE_MIN)));
    }
    lab.note(format!(
        "Operations are durable entries. The floor is the rate of bare flushes of a file with as many bytes, times the entries. The disk is that of {}.",
        std::env::temp_dir().display()
    ));
    Ok(())
}

fn one(lab: &Lab, window: usize) -> Result<Measured<f64>, BenchError> {
    let run = lab.run_length();
    let (ours, floor) = lab.anywhere(LogFlush { window, run }, 2 * run)?.result()?;
    Ok(Measured { ours, floor })
}
