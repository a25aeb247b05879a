//! `log-flush`: beyond the paper, whose replicas keep their logs in memory. The share of the disk's flush rate that
//! remains for entries appended to a log that is flushed for many at a time.

use dunlin_lab::measure::Measured;
use dunlin_lab::report::{Metric, Target};
use dunlin_lab::{Cases, Figure};

use crate::rpc::runs::time_per_unit;
use crate::smr::roles::{LOG_ENTRY_BYTES, LogFlush};
use crate::{BenchError, Lab};

/// Entries that share one flush.
const WINDOWS: [usize; 5] = [1, 4, 16, 64, 256];
/// Required share of the rate that bare flushes would allow.
const SHARE_MIN: f64 = 0.8;

type Column = Figure<usize, f64>;

const FIGURES: [Column; 1] =
    [Column::with_floor(Metric::Operations, |_, rate| *rate).target(|_| Some(Target::FloorTimes(SHARE_MIN)))];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let cases = Cases::along("window", WINDOWS, |window| format!("{window} entries of {LOG_ENTRY_BYTES} B at a time"));
    lab.pair_each(&cases, &FIGURES, time_per_unit, |lab, window| {
        let run = lab.run_length();
        let (ours, floor) = lab.anywhere(LogFlush { window: *window, run }, 2 * run)?.result()?;
        Ok(Measured { ours, floor })
    })?;
    lab.note(format!(
        "Operations are durable entries. The floor is the rate of bare flushes of a file with as many bytes, times the entries. The disk is that of {}.",
        std::env::temp_dir().display()
    ));
    Ok(())
}
