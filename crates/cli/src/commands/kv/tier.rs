//! Options of the tier of `dunlin kv serve` and `dunlin kv cluster serve`, and of the order in which operations wait.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dunlin_kv::tier::{READS_MAX, Schedule, TierSettings};
use dunlin_schedule::{Ageing, Damping, Levels, Order, Overflow};

use crate::arguments::size::{bytes, human_bytes};
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
    /// Memory for the index of FILE, besides --memory: 46 bytes for each item, 56 in a cluster [default: an eighth of
    /// --memory]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    tier_index: Option<usize>,
    /// Values shorter than this are not kept in FILE [default: 128]
    #[arg(long, value_name = "BYTES")]
    tier_value_min: Option<usize>,
    /// Reads that the device is given at a time [default: 8]
    #[arg(long, value_name = "READS", value_parser = reads)]
    tier_reads: Option<usize>,
    /// Make each read take at least this long, for experiments [default: 0]
    #[arg(long, value_name = "TIME", value_parser = human(DELAY))]
    tier_delay: Option<Human>,
    /// Order in which operations that wait for the tier are served, and multi-gets that wait for their turn
    /// [default: learnt]
    #[arg(long, value_name = "ORDER", help_heading = "Order of what waits")]
    schedule: Option<OrderArgument>,
    /// Levels of --schedule levels and learnt [default: 4 and 8]
    #[arg(long, value_name = "LEVELS", help_heading = "Order of what waits")]
    schedule_levels: Option<usize>,
    /// Weights of --schedule levels, the fastest first [default: as many as levels, down to 1]
    #[arg(long, value_name = "WEIGHTS", value_delimiter = ',', help_heading = "Order of what waits")]
    schedule_weights: Vec<u32>,
    /// With --schedule levels, each level has requests up to this many times as large as the one before
    /// [default: 3]
    #[arg(long, value_name = "FACTOR", help_heading = "Order of what waits")]
    schedule_range: Option<u64>,
    /// Reads of up to 32 KiB, or 32 keys in memory, by which a client may exceed its share before its claims count for
    /// nothing; 0 to believe every claim [default: 128]
    #[arg(long, value_name = "READS", help_heading = "Order of what waits")]
    schedule_lead: Option<u32>,
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
            let idle = self.options().into_iter().find_map(|(name, is_given)| is_given.then_some(name));
            let idle = idle.map(|name| format!("{name} is for a tier, and there is none: name its file with --tier"));
            return idle.map_or(Ok(None), |idle| bail!(idle));
        };
        let size = self.tier_size.map_or(TIMES_MEMORY.saturating_mul(memory as u64), |size| size as u64);
        let mut settings = TierSettings::new(path, size, memory);
        settings.index_bytes = self.tier_index.unwrap_or(settings.index_bytes);
        settings.value_bytes_min = self.tier_value_min.unwrap_or(settings.value_bytes_min);
        settings.reads = self.tier_reads.unwrap_or(settings.reads);
        settings.delay = self.tier_delay.map_or(settings.delay, |delay| delay.0);
        Ok(Some(settings))
    }

    /// Returns what a server's ready line says of its tier: nothing if there is none.
    pub fn summary(&self, memory: usize) -> String {
        // The settings were checked before the server started.
        let tier = self.settings(memory).ok().flatten();
        tier.map_or(String::new(), |tier| {
            format!(" with a tier of {} in {}", human_bytes(tier.bytes), tier.path.display())
        })
    }

    /// Returns the options that mean nothing without a tier, and whether each is given.
    fn options(&self) -> [(&'static str, bool); 5] {
        [
            ("--tier-size", self.tier_size.is_some()),
            ("--tier-index", self.tier_index.is_some()),
            ("--tier-value-min", self.tier_value_min.is_some()),
            ("--tier-reads", self.tier_reads.is_some()),
            ("--tier-delay", self.tier_delay.is_some()),
        ]
    }

    /// Returns the order of what waits.
    pub fn schedule(&self) -> Result<Schedule> {
        let order = self.schedule.unwrap_or(OrderArgument::Learnt);
        let (has_levels, is_weighted) =
            (matches!(order, OrderArgument::Learnt | OrderArgument::Levels), order == OrderArgument::Levels);
        ensure!(self.schedule_levels.is_none() || has_levels, "--schedule-levels needs --schedule levels or learnt");
        ensure!(self.schedule_weights.is_empty() || is_weighted, "--schedule-weights needs --schedule levels");
        ensure!(self.schedule_range.is_none() || is_weighted, "--schedule-range needs --schedule levels");
        let ageing = Some(Ageing::default());
        let mut schedule = match order {
            OrderArgument::Fifo => Schedule::new(Order::Fifo),
            OrderArgument::Exact => Schedule::new(Order::Exact { ageing }),
            OrderArgument::Learnt => Schedule::new(Order::Learnt { levels: self.schedule_levels.unwrap_or(8), ageing }),
            OrderArgument::Levels => {
                let weights = self.weights()?;
                let levels = Levels::new(weights, 1, self.schedule_range.unwrap_or(3), Overflow::Clamped);
                Schedule::levels(levels.context("--schedule levels cannot be served")?)
            }
        };
        let burst = self.schedule_lead.unwrap_or(Damping::default().burst);
        schedule.queue.damping = (burst > 0).then_some(Damping { burst });
        Ok(schedule)
    }

    fn weights(&self) -> Result<Vec<u32>> {
        let weights = self.schedule_weights.clone();
        if weights.is_empty() {
            let count = self.schedule_levels.unwrap_or(4).min(1024) as u32;
            return Ok((1..=count).rev().collect());
        }
        let count = weights.len();
        ensure!(
            self.schedule_levels.is_none_or(|levels| levels == count),
            "--schedule-weights has {count} weights: give one for each of --schedule-levels, or leave one of them out"
        );
        Ok(weights)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        tier: TierArguments,
    }

    /// Returns why these options are refused, if they are.
    fn refusal(options: &str) -> Option<String> {
        let command = Command::parse_from(std::iter::once("kv").chain(options.split_whitespace()));
        let settings = command.tier.settings(1 << 30).err();
        settings.or_else(|| command.tier.schedule().err()).map(|error| error.to_string())
    }

    #[test]
    fn options_that_would_do_nothing_are_refused_with_what_to_do() {
        for option in
            ["--tier-size 1GiB", "--tier-index 1MiB", "--tier-value-min 100", "--tier-reads 4", "--tier-delay 1ms"]
        {
            let (name, _) = option.split_once(' ').unwrap();
            let why = refusal(option).unwrap();
            assert!(why.contains(name) && why.contains("--tier"), "{option}: {why}");
            assert_eq!(refusal(&format!("--tier file {option}")), None);
        }
        for option in ["", "--schedule fifo", "--schedule-levels 4", "--schedule-lead 5"] {
            assert_eq!(refusal(option), None, "multi-gets wait without a tier, too");
        }
        for option in ["--schedule-weights 2,1", "--schedule-range 3"] {
            assert!(refusal(option).unwrap().contains("needs --schedule levels"));
            assert_eq!(refusal(&format!("--schedule levels {option}")), None);
        }
        assert!(refusal("--schedule fifo --schedule-levels 3").unwrap().contains("needs --schedule"));
        let why = refusal("--schedule levels --schedule-levels 5 --schedule-weights 2,1").unwrap();
        assert!(why.contains("one for each"), "{why}");
    }
}
