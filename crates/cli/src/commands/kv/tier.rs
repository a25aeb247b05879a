//! Options of the tier of `dunlin kv serve`, and of the queue in front of it.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dunlin_kv::tier::{READS_DEFAULT, READS_MAX, Schedule, TierSettings, VALUE_BYTES_MIN_DEFAULT};
use dunlin_schedule::{Ageing, Damping, Levels, Order, Overflow};

use crate::arguments::size::bytes;
use crate::arguments::time::{Human, human};

/// How slow a device can be made.
const DELAY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(10);
/// How many times the memory a tier has by default.
const TIMES_MEMORY: u64 = 4;

/// Where a cache puts what it evicts.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Tier: values that do not fit in memory")]
pub struct TierArguments {
    /// Keep what the cache evicts in FILE, and read it from there. What FILE holds is lost when the server starts
    #[arg(long, value_name = "FILE")]
    tier: Option<PathBuf>,
    /// Size of FILE [default: 4 times --memory]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    tier_size: Option<usize>,
    /// Memory for the index of FILE, besides --memory: 46 bytes for each item [default: an eighth of --memory]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    tier_index: Option<usize>,
    /// Values shorter than this are not kept in FILE
    #[arg(long, value_name = "BYTES", default_value_t = VALUE_BYTES_MIN_DEFAULT)]
    tier_value_min: usize,
    /// Reads that the device is given at a time
    #[arg(long, value_name = "READS", default_value_t = READS_DEFAULT, value_parser = reads)]
    tier_reads: usize,
    /// Make each read take at least this long, for experiments
    #[arg(long, value_name = "TIME", default_value_t = Human(Duration::ZERO),
        value_parser = human(DELAY))]
    tier_delay: Human,
    /// Order in which operations that wait for the tier are served
    #[arg(long, value_name = "ORDER", default_value = "learnt")]
    schedule: OrderArgument,
    /// Levels of --schedule levels and learnt [default: 4 and 8]
    #[arg(long, value_name = "LEVELS")]
    schedule_levels: Option<usize>,
    /// Weights of --schedule levels, the fastest first [default: as many as levels, down to 1]
    #[arg(long, value_name = "WEIGHTS", value_delimiter = ',')]
    schedule_weights: Vec<u32>,
    /// With --schedule levels, each level has requests up to this many times as large as the one before
    #[arg(long, value_name = "FACTOR", default_value = "3")]
    schedule_range: u64,
    /// Operations by which a client may exceed its share before its claims count for nothing; 0 to believe every claim
    #[arg(long, value_name = "OPERATIONS", default_value_t = Damping::default().burst)]
    schedule_lead: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OrderArgument {
    /// In order of arrival
    Fifo,
    /// The lowest rank first, with ageing
    Exact,
    /// Weighted levels, by deficit round robin
    Levels,
    /// Levels that are learnt from the work that waits, the fastest first, with ageing
    Learnt,
}

fn reads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(reads) if (1..=READS_MAX).contains(&reads) => Ok(reads),
        _ => Err(format!("give 1 to {READS_MAX} reads")),
    }
}

impl TierArguments {
    /// Returns the settings of the tier, if there is one, beside this much memory for items.
    pub fn settings(&self, memory: usize) -> Result<Option<TierSettings>> {
        let Some(path) = self.tier.clone() else {
            ensure!(self.tier_size.is_none() && self.tier_index.is_none(), "a size of which tier? Name it with --tier");
            return Ok(None);
        };
        let size = self.tier_size.map_or(TIMES_MEMORY.saturating_mul(memory as u64), |size| size as u64);
        let mut settings = TierSettings::new(path, size, memory);
        settings.index_bytes = self.tier_index.unwrap_or(settings.index_bytes);
        settings.value_bytes_min = self.tier_value_min;
        settings.reads = self.tier_reads;
        settings.delay = self.tier_delay.0;
        Ok(Some(settings))
    }

    /// Returns the order of what waits for it.
    pub fn schedule(&self) -> Result<Schedule> {
        let ageing = Some(Ageing::default());
        let mut schedule = match self.schedule {
            OrderArgument::Fifo => Schedule::new(Order::Fifo),
            OrderArgument::Exact => Schedule::new(Order::Exact { ageing }),
            OrderArgument::Learnt => Schedule::new(Order::Learnt { levels: self.schedule_levels.unwrap_or(8), ageing }),
            OrderArgument::Levels => {
                let count = self.schedule_levels.unwrap_or(4).min(1024) as u32;
                let weights = match &self.schedule_weights[..] {
                    [] => (1..=count).rev().collect(),
                    weights => weights.to_vec(),
                };
                let levels = Levels::new(weights, 1, self.schedule_range, Overflow::Clamped);
                Schedule::levels(levels.context("--schedule levels cannot be served")?)
            }
        };
        schedule.queue.damping = (self.schedule_lead > 0).then_some(Damping { burst: self.schedule_lead });
        Ok(schedule)
    }
}
