//! `dunlin kv stats`: the counters of a server since it was started.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use dunlin_kv::metrics::{EndpointSnapshot, LatencyHistogram, Operation, ServerStats};

use crate::arguments::at::At;
use crate::commands::top::human::{bytes, count, share, time, uptime};
use crate::commands::top::poll::Poller;
use crate::output;

/// Show the counters of a server since it was started
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv stats --at shm:kv
  dunlin kv stats --at udp://127.0.0.1:7700 --json | jq '.cores[].operations.get.hits'

`dunlin top` shows rates; the server's --metrics gives the same to Prometheus.")]
pub struct Arguments {
    #[command(flatten)]
    at: At,
    /// Print JSON: everything there is
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let server = arguments.at.server()?;
    let stats = Poller::<ServerStats>::new(server)?.ask().with_context(|| format!("no statistics from {server}"))?;
    if arguments.json {
        output::line(String::from_utf8_lossy(&stats.encode()))?;
    } else {
        output::line(text(&stats).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All nonzero counters, as lines of a name and a number.
fn text(stats: &ServerStats) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:>20}  {value}");
    };
    line("server", format!("{}, process {}, {}", stats.server_version, stats.process, stats.mode));
    line("up", uptime(stats.uptime_micros));
    line("cores", stats.cores.len().to_string());
    let store = stats.store();
    line("items", format!("{}, {} of keys and values", store.items, bytes(store.item_bytes)));
    let limit = if store.memory_bytes_max == u64::MAX { "no limit".into() } else { bytes(store.memory_bytes_max) };
    line("memory", format!("{} of {limit}", bytes(store.memory_bytes)));
    line("longest value", bytes(store.value_bytes_max));
    line("evicted", format!("{} for the log, {} for the index", store.evicted_log, store.evicted_index));
    line("expired", store.expired.to_string());
    line("hit ratio", share(hit_ratio(stats)));
    let connections = stats.connections();
    let told = format!("{} now, {} ever, {} refused", connections.open, connections.accepted, connections.rejected);
    line("connections", told);
    let held = format!("{} of {}", bytes(connections.memory_bytes), bytes(connections.memory_bytes_max));
    line(
        "connection memory",
        format!("{held}, {} waits, {} closed for it", connections.memory_waits, connections.memory_kicks),
    );
    let held = stats.cores.iter().map(|core| core.endpoint.held_bytes).fold(0, u64::saturating_add);
    line("sessions", format!("{}, which make it hold {}", stats.sessions(), bytes(held)));
    if let Some(tier) = stats.tier() {
        let used = format!("{} of {}", bytes(tier.count("bytes")), bytes(tier.count("bytes_max")));
        line("tier", format!("{} items, {used}, {} hits", tier.count("items"), tier.count("hits")));
        let waiting: Vec<String> = tier.lengths.iter().map(ToString::to_string).collect();
        let told = format!("{} served, {} refused, {} read now", tier.served, tier.refused, tier.reading);
        line("waiting by level", format!("{}; {told}", waiting.join("/")));
    }
    if let Some(queue) = stats.multi_gets() {
        let waiting: Vec<String> = queue.lengths.iter().map(ToString::to_string).collect();
        let told = format!("{} served, {} refused", queue.served, queue.refused);
        line("multi-gets by level", format!("{}; {told}", waiting.join("/")));
    }
    operations(stats, &mut text);
    endpoints(stats, &mut text);
    text
}

fn hit_ratio(stats: &ServerStats) -> Option<f64> {
    let mut reads = stats.operation(Operation::Get);
    reads.add(&stats.operation(Operation::GetAndTouch));
    let all = reads.hits.saturating_add(reads.misses);
    (all > 0).then(|| reads.hits as f64 / all as f64)
}

fn operations(stats: &ServerStats, text: &mut String) {
    let heading = ["operations", "total", "hit", "miss", "conflict", "refused", "p50", "p99", "p99.9"];
    let mut row = |cells: [String; 9]| {
        let figures: Vec<String> = cells[1..].iter().map(|cell| format!("{cell:>9}")).collect();
        let _ = writeln!(text, "{:>20} {}", cells[0], figures.join(" "));
    };
    let kinds: Vec<_> = Operation::ALL.into_iter().map(|operation| (operation, stats.operation(operation))).collect();
    if kinds.iter().any(|(_, stats)| stats.total() > 0) {
        row(heading.map(str::to_owned));
    }
    for (operation, stats) in kinds.into_iter().filter(|(_, stats)| stats.total() > 0) {
        let [all, hits, misses, conflicts, refused] =
            [stats.total(), stats.hits, stats.misses, stats.conflicts, stats.refused].map(|value| count(value as f64));
        let [p50, p99, p999] = percentiles(&stats.latency);
        row([operation.name().into(), all, hits, misses, conflicts, refused, p50, p99, p999]);
    }
}

fn percentiles(latency: &LatencyHistogram) -> [String; 3] {
    [50.0, 99.0, 99.9].map(|percent| time(latency.percentile(percent)))
}

fn endpoints(stats: &ServerStats, text: &mut String) {
    let sum = |counts: fn(&EndpointSnapshot) -> &BTreeMap<String, u64>| {
        let mut all = BTreeMap::<&str, u64>::new();
        for (name, value) in stats.cores.iter().flat_map(|core| counts(&core.endpoint)) {
            let sum = all.entry(name).or_default();
            *sum = sum.saturating_add(*value);
        }
        all
    };
    for (title, counts) in [("endpoints", sum(|endpoint| &endpoint.counters)), ("transports", sum(|e| &e.transport))] {
        let shown: Vec<_> = counts.into_iter().filter(|(_, value)| *value > 0).collect();
        if !shown.is_empty() {
            let _ = writeln!(text, "{title:>20}");
        }
        for (name, value) in shown {
            let _ = writeln!(text, "{name:>30}  {value}");
        }
    }
}
