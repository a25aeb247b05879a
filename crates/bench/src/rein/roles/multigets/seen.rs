//! What the clients of a run have seen.

use dunlin_lab::measure::{Latencies, cpu_nanos, shared_nanos};
use serde::{Deserialize, Serialize};

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
    pub values: u64,
    pub missing: u64,
    pub wrong: u64,
    /// Milliseconds, and keys without an answer.
    pub outstanding: Vec<(f64, f64)>,
    begun: Option<Used>,
    used: Option<(f64, f64)>,
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
    /// How late multigets were sent.
    pub late: Quantiles,
    /// Values that were returned or missing, in the whole run with what is not measured.
    pub values: u64,
    /// Values that a server had lost.
    pub missing: u64,
    /// Busy time of all processors, whoever used it, in percent.
    pub processors: f64,
    /// Busy time of this process, in percent of one core.
    pub core: f64,
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

    /// Ends it.
    pub fn end(&mut self) -> Result<(), BenchError> {
        if let Some(begun) = &self.begun {
            self.used = Some(begun.until(&Used::now()?));
        }
        Ok(())
    }

    /// Counts a multiget that is sent now.
    pub fn sent(&mut self, sent: &Sent, now: u64) {
        if sent.part.is_some() {
            self.late.record(now.saturating_sub(sent.due));
        }
    }

    /// Counts a multiget whose last answer has come.
    pub fn answered(&mut self, sent: &Sent, now: u64) {
        if let Some(part) = sent.part {
            self.parts[part].record(now.saturating_sub(sent.due));
        }
    }

    /// The figures.
    pub fn figures(self, waited: f64) -> Result<MultigetFigures, BenchError> {
        if self.wrong > 0 {
            return Err(BenchError::WrongAnswers { wrong: self.wrong, missing: self.missing, refused: 0 });
        }
        let mut all = Latencies::new();
        self.parts.iter().for_each(|part| all.add(part));
        if all.count() == 0 {
            return Err(BenchError::no_samples("a load of multigets"));
        }
        let (processors, core) = self.used.unwrap_or_default();
        Ok(MultigetFigures {
            latency: Quantiles::of(&all),
            p99_of_parts: self.parts.map(|part| part.quantile(0.99)),
            late: Quantiles::of(&self.late),
            values: self.values,
            missing: self.missing,
            processors,
            core,
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
    at: u64,
    own_nanos: u64,
    /// Of all processors, in the kernel's ticks.
    busy: u64,
    total: u64,
}

impl Used {
    pub fn now() -> Result<Used, BenchError> {
        let doing = || BenchError::io("read the processors' times from /proc/stat");
        let text = std::fs::read_to_string("/proc/stat").map_err(doing())?;
        let (busy, total) = times(&text).ok_or_else(|| doing()(std::io::ErrorKind::InvalidData.into()))?;
        Ok(Used { at: shared_nanos(), own_nanos: cpu_nanos(), busy, total })
    }

    /// Percent of all processors, and of one core by this process.
    pub fn until(&self, end: &Used) -> (f64, f64) {
        let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        let all = percent(end.busy.saturating_sub(self.busy), end.total.saturating_sub(self.total));
        (all, percent(end.own_nanos - self.own_nanos, end.at - self.at))
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
