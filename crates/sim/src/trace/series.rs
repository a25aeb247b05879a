//! Queues and rates of ports over time.

use std::io::{self, Write};

use serde::Serialize;

use crate::engine::time::{Picos, from_nanos, to_nanos};
use crate::error::SimError;
use crate::fabric::link::Link;
use crate::fabric::port::Port;

/// Maximum number of samples in a series: later ones are not recorded.
pub const SAMPLES_MAX: usize = 1 << 22;

/// One port at one time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Sample {
    /// Virtual time, in nanoseconds.
    pub time_ns: u64,
    /// Index of the port in [`Series::ports`].
    pub port: u16,
    /// Bytes in its queue at that time.
    pub queued_bytes: u64,
    /// Rate at which it sent since the previous sample, overhead on the wire included.
    pub gbit_per_s: f64,
    /// Packets dropped since the previous sample because the buffer was full.
    pub dropped: u64,
    /// Packets lost to faults since the previous sample.
    pub lost: u64,
    /// Packets marked (ECN) since the previous sample.
    pub marked: u64,
}

/// Samples of some ports at fixed intervals of virtual time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Series {
    /// Time between samples of one port, in nanoseconds.
    pub interval_ns: u64,
    /// The ports that were watched.
    pub ports: Vec<Port>,
    /// Samples by time, and by port for each time.
    pub samples: Vec<Sample>,
}

impl Series {
    /// Writes the samples as CSV, with a line of names first.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write_csv(&self, mut output: impl Write) -> io::Result<()> {
        writeln!(output, "time_ns,port,queued_bytes,gbit_per_s,dropped,lost,marked")?;
        for sample in &self.samples {
            let Sample { time_ns, port, queued_bytes, gbit_per_s, dropped, lost, marked } = sample;
            let port = &self.ports[*port as usize];
            writeln!(output, "{time_ns},{port},{queued_bytes},{gbit_per_s:.3},{dropped},{lost},{marked}")?;
        }
        output.flush()
    }
}

/// A series being recorded.
#[derive(Debug)]
pub(crate) struct Sampler {
    series: Series,
    links: Vec<u16>,
    interval: Picos,
    pub next: Picos,
    /// By port, the counters at the last sample.
    before: Vec<Counts>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    sent: u64,
    dropped: u64,
    lost: u64,
    marked: u64,
}

impl Counts {
    fn of(link: &Link, now: Picos) -> Self {
        let queued = link.queued(now);
        Counts {
            sent: link.bytes - queued.min(link.bytes),
            dropped: link.dropped,
            lost: link.lost,
            marked: link.marked,
        }
    }
}

impl Sampler {
    /// Watches `ports`, which are `links`, from `now` on.
    pub fn new(
        interval_ns: u64,
        ports: Vec<Port>,
        links: Vec<u16>,
        all: &[Link],
        now: Picos,
    ) -> Result<Self, SimError> {
        if interval_ns == 0 {
            return Err(SimError::setting("interval_ns", "it must be at least 1 ns"));
        }
        let before = links.iter().map(|link| Counts::of(&all[*link as usize], now)).collect();
        let interval = from_nanos(interval_ns);
        let series = Series { interval_ns, ports, samples: Vec::new() };
        Ok(Sampler { series, links, interval, next: now + interval, before })
    }

    /// Takes the samples that are due at `self.next`.
    pub fn sample(&mut self, links: &[Link]) {
        let now = self.next;
        self.next = self.next.saturating_add(self.interval);
        for (place, link) in self.links.iter().enumerate() {
            if self.series.samples.len() == SAMPLES_MAX {
                return;
            }
            let link = &links[*link as usize];
            let counts = Counts::of(link, now);
            let before = std::mem::replace(&mut self.before[place], counts);
            let sent = counts.sent.saturating_sub(before.sent);
            self.series.samples.push(Sample {
                time_ns: to_nanos(now),
                port: place as u16,
                queued_bytes: link.queued(now),
                gbit_per_s: sent as f64 * 8.0 / self.series.interval_ns as f64,
                dropped: counts.dropped - before.dropped,
                lost: counts.lost - before.lost,
                marked: counts.marked - before.marked,
            });
        }
    }

    pub fn finish(self) -> Series {
        self.series
    }
}
