//! The files written for a run, for finding the cause of a failure.

use std::cell::RefCell;
use std::fmt::Debug;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use dunlin_rpc::stats::RttHistogram;
use dunlin_sim::trace::CapturePoint;
use dunlin_sim::{CostModel, Datacenter, FaultPlan, Topology};
use dunlin_trial::Event;

use crate::TraceError;

/// Samples of queues until the network has healed.
const SAMPLES: u64 = 5000;
/// Minimum interval of samples, in nanoseconds.
const SAMPLE_EVERY_MIN: u64 = 10_000;

/// A directory with the files of one run.
pub struct Trace {
    directory: PathBuf,
    packets: File,
    series: File,
    log: Rc<RefCell<Log>>,
}

/// Round trips of the calls of each endpoint over time.
pub struct RoundTrips {
    file: BufWriter<File>,
    /// By endpoint, at the previous sample.
    before: Vec<RttHistogram>,
}

impl RoundTrips {
    /// Adds a line for each endpoint that sampled round trips since the last call. If an endpoint restarted since, some
    /// samples are missing.
    pub fn sample(&mut self, now: u64, endpoints: impl Iterator<Item = (usize, RttHistogram)>) {
        for (endpoint, rtt) in endpoints {
            if self.before.len() <= endpoint {
                self.before.resize_with(endpoint + 1, RttHistogram::default);
            }
            let since = rtt.since(&self.before[endpoint]);
            self.before[endpoint] = rtt;
            if since.samples() > 0 {
                let at = |percent| since.percentile(percent).as_nanos();
                self.write(format_args!("{now},{endpoint},{},{},{}", since.samples(), at(50.0), at(99.0)));
            }
        }
    }

    /// A failed write leaves a gap: the run goes on.
    fn write(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.file, "{line}");
    }
}

/// The outcomes of calls, one per line.
pub struct Log(BufWriter<File>);

impl Log {
    /// Adds a line. A failed write leaves a gap: the run goes on.
    pub fn write(&mut self, now: u64, event: &Event) {
        let _ = writeln!(self.0, "{now:>14} {event:?}");
    }

    /// Adds a line that contains its own time.
    pub fn write_line(&mut self, line: &impl std::fmt::Display) {
        let _ = writeln!(self.0, "{line}");
    }
}

impl Trace {
    /// Makes the directory, and writes everything known before the run.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn create(
        directory: &Path,
        scenario: &impl Debug,
        topology: &Topology,
        plan: &FaultPlan,
    ) -> Result<Trace, TraceError> {
        let io = |name: &str| TraceError::of(directory.join(name));
        std::fs::create_dir_all(directory).map_err(io(""))?;
        let create = |name: &str| File::create(directory.join(name)).map_err(io(name));
        std::fs::write(directory.join("scenario.txt"), format!("{scenario:#?}\n")).map_err(io("scenario.txt"))?;
        std::fs::write(directory.join("topology.toml"), topology.to_toml()).map_err(io("topology.toml"))?;
        std::fs::write(directory.join("faults.toml"), plan.to_toml()).map_err(io("faults.toml"))?;
        let log = Rc::new(RefCell::new(Log(BufWriter::new(create("calls.txt")?))));
        Ok(Trace {
            directory: directory.to_owned(),
            packets: create("packets.pcap")?,
            series: create("queues.csv")?,
            log,
        })
    }

    /// The log of lines.
    pub fn log(&self) -> Rc<RefCell<Log>> {
        self.log.clone()
    }

    /// Starts to record the packets and queues of a datacenter, as described at [`Recorded::new`]. Returns the file for
    /// samples of queues.
    fn attach(&self, datacenter: &mut Datacenter, end_ns: u64) -> Option<File> {
        let (packets, series) = (self.packets.try_clone().ok()?, self.series.try_clone().ok()?);
        datacenter.capture(CapturePoint::Sent, BufWriter::new(packets));
        datacenter.watch((end_ns / SAMPLES).max(SAMPLE_EVERY_MIN), datacenter.ports()).ok()?;
        Some(series)
    }

    /// The file for samples of round trips, which is created now; `None` if that fails.
    pub fn round_trips(&self) -> Option<RoundTrips> {
        let file = File::create(self.directory.join("rtts.csv")).ok()?;
        let mut round_trips = RoundTrips { file: BufWriter::new(file), before: Vec::new() };
        round_trips.write(format_args!("time_ns,endpoint,calls,p50_ns,p99_ns"));
        Some(round_trips)
    }

    /// Writes out what is still buffered.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn finish(self) -> Result<(), TraceError> {
        self.log.borrow_mut().0.flush().map_err(TraceError::of(self.directory.join("calls.txt")))
    }
}

/// A datacenter that writes its samples of queues when it is dropped, even if the run fails.
pub struct Recorded {
    datacenter: Datacenter,
    /// The file for the samples.
    series: Option<File>,
}

impl Recorded {
    /// A datacenter for a run that mostly ends by `end_ns`; records its packets and queues if there is a trace.
    ///
    /// # Panics
    /// If the topology is invalid.
    pub fn new(topology: &Topology, cost: CostModel, seed: u64, trace: Option<&Trace>, end_ns: u64) -> Recorded {
        let mut datacenter = Datacenter::new(topology, cost, seed).expect("a drawn topology is valid");
        let series = trace.and_then(|trace| trace.attach(&mut datacenter, end_ns));
        Recorded { datacenter, series }
    }
}

impl Deref for Recorded {
    type Target = Datacenter;

    fn deref(&self) -> &Datacenter {
        &self.datacenter
    }
}

impl DerefMut for Recorded {
    fn deref_mut(&mut self) -> &mut Datacenter {
        &mut self.datacenter
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Some(file) = self.series.take() {
            // A reader can see that the file is incomplete.
            let _ = self.datacenter.take_series().write_csv(BufWriter::new(file));
        }
    }
}
