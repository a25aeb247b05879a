//! What the clients of a run have seen.

use dunlin_lab::measure::Latencies;
use serde::{Deserialize, Serialize};

use super::links::Counters;
use crate::BenchError;

/// Parts of a run, for what changes with time.
pub(super) const PARTS: usize = 3;

/// When a multiget should have been sent, and whether it counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub due: u64,
    /// The part of the measured run that it belongs to.
    pub part: Option<usize>,
}

/// Counters and latencies of a run.
#[derive(Default)]
pub(super) struct Seen {
    parts: [Latencies; PARTS],
    late: Latencies,
    /// Measured multigets without all of their answers.
    pub unanswered: u64,
    /// Keys, in the whole run and in its measured part.
    keys: u64,
    measured_keys: u64,
    /// When the first measured multiget was due, and when the measured part was over.
    pub measured: (u64, u64),
    pub values: u64,
    pub missing: u64,
    pub wrong: u64,
    /// Milliseconds, and keys without an answer.
    pub outstanding: Vec<(f64, f64)>,
    begun: Option<Used>,
    used: Option<f64>,
}

/// Percentiles of latencies, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

/// The figures of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MultigetFigures {
    /// From the time at which a multiget should have been sent to its last answer.
    pub latency: Quantiles,
    /// The 99th percentile of each part of the run.
    pub p99_of_parts: [f64; PARTS],
    /// How late multigets were sent, 99th percentile.
    pub late: f64,
    /// Measured multigets.
    pub multigets: u64,
    /// Keys per second of the measured part.
    pub offered: f64,
    /// Values that devices read for each key of the run: more than 1 with copies.
    pub reads_of_key: f64,
    /// Operations that servers pushed back.
    pub refused: u64,
    /// Values that were returned or missing, in the whole run with what is not measured.
    pub values: u64,
    /// Values that a server had lost.
    pub missing: u64,
    /// Busy time of all processors, also that of other programs, in percent.
    pub processors: f64,
    /// Share of requests that waited for a connection, from 0 to 1.
    pub waited: f64,
    /// Over time, in milliseconds: keys that were requested and have no answer.
    pub outstanding: Vec<(f64, f64)>,
}

impl Seen {
    /// Begins the measured run.
    pub fn begin(&mut self) -> Result<(), BenchError> {
        self.begun = Some(Used::now()?);
        Ok(())
    }

    /// Ends it; once only.
    pub fn end(&mut self) -> Result<(), BenchError> {
        if let Some(begun) = self.begun.take() {
            self.used = Some(begun.until(&Used::now()?));
        }
        Ok(())
    }

    /// Counts a multiget of so many keys that is sent now.
    pub fn sent(&mut self, sent: &Sent, now: u64, keys: u64) {
        self.keys += keys;
        if sent.part.is_some() {
            self.unanswered += 1;
            self.measured_keys += keys;
            self.late.record(now.saturating_sub(sent.due));
        }
    }

    /// Counts a multiget whose last answer has come.
    pub fn answered(&mut self, sent: &Sent, now: u64) {
        if let Some(part) = sent.part {
            self.unanswered -= 1;
            self.parts[part].record(now.saturating_sub(sent.due));
        }
    }

    /// The figures.
    pub fn figures(self, waited: f64, counted: Counters) -> Result<MultigetFigures, BenchError> {
        if self.wrong > 0 {
            return Err(BenchError::WrongAnswers { wrong: self.wrong, missing: self.missing, refused: 0 });
        }
        let mut all = Latencies::new();
        self.parts.iter().for_each(|part| all.add(part));
        if all.count() == 0 {
            return Err(BenchError::no_samples("a load of multigets"));
        }
        Ok(MultigetFigures {
            latency: Quantiles::of(&all),
            p99_of_parts: self.parts.map(|part| part.quantile(0.99)),
            late: self.late.quantile(0.99),
            multigets: all.count(),
            offered: self.measured_keys as f64 / ((self.measured.1 - self.measured.0).max(1) as f64 / 1e9),
            reads_of_key: counted.reads as f64 / self.keys.max(1) as f64,
            refused: counted.refused,
            values: self.values,
            missing: self.missing,
            processors: self.used.unwrap_or_default(),
            waited,
            outstanding: self.outstanding,
        })
    }
}

impl Quantiles {
    fn of(latencies: &Latencies) -> Quantiles {
        let [p50, p95, p99, p999] = [0.5, 0.95, 0.99, 0.999].map(|share| latencies.quantile(share));
        Quantiles { p50, p95, p99, p999 }
    }
}

/// Processor time that was used up to a moment.
pub(super) struct Used {
    /// Of all processors, in the kernel's ticks.
    busy: u64,
    total: u64,
}

impl Used {
    pub fn now() -> Result<Used, BenchError> {
        let doing = || BenchError::io("read the processors' times from /proc/stat");
        let text = std::fs::read_to_string("/proc/stat").map_err(doing())?;
        let (busy, total) = times(&text).ok_or_else(|| doing()(std::io::ErrorKind::InvalidData.into()))?;
        Ok(Used { busy, total })
    }

    /// Percent of all processors.
    pub fn until(&self, end: &Used) -> f64 {
        100.0 * end.busy.saturating_sub(self.busy) as f64 / end.total.saturating_sub(self.total).max(1) as f64
    }
}

/// Busy and total ticks of all processors together.
fn times(text: &str) -> Option<(u64, u64)> {
    let fields: Vec<u64> = text
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
    let total: u64 = fields.iter().take(8).sum();
    Some((total - fields.get(3)? - fields.get(4)?, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_processors_are_not_busy() {
        let text = "cpu  10 1 20 300 40 5 6 7 3 0\ncpu0 1 2 3\n";
        assert_eq!(times(text), Some((49, 389)));
        assert_eq!(times("cpu  10 x"), None);
        assert_eq!(times(""), None);
    }
}
