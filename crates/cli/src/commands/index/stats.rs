//! `dunlin index stats`: the counters of a server since it was started.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use dunlin_index::ServerStats;
use dunlin_serve::Interrupt;

use super::client::{Found, Purpose, Server, ask};
use crate::commands::top::human::{bytes, count, time, uptime};
use crate::output;

/// Show the structure of an index, and what its server counted since it was started
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin index stats --at shm:index
  dunlin index stats --at udp://127.0.0.1:7730 --json | jq .index.items

`dunlin top` shows rates; the server's --metrics gives the same to Prometheus.")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
    /// Print JSON: everything there is
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.server, interrupt, Purpose::Reads, async |client| {
        let stats = client.stats().await?;
        if arguments.json {
            output::line(serde_json::to_string(&stats)?)?;
        } else {
            output::line(text(&stats).trim_end())?;
        }
        Ok(Found::All)
    })
}

/// The figures as lines of a name and a number, then a table of the handlers.
fn text(stats: &ServerStats) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:>20}  {value}");
    };
    let (index, service) = (stats.index, stats.service());
    line("server", stats.server_version.clone());
    line("up", uptime(stats.uptime_micros));
    line("cores", format!("{}, and {} workers", stats.cores.len(), stats.workers));
    line("sessions", stats.cores.iter().map(|core| core.sessions).sum::<u64>().to_string());
    line("items", index.items.to_string());
    let held = format!("{} of {} held", bytes(index.held_bytes()), bytes(index.memory_bytes_max));
    line(
        "memory",
        format!("{} used, {} idle in free nodes: {held}", bytes(index.memory_bytes), bytes(index.idle_bytes)),
    );
    let [an_item, fill] = [format!("{:.1} B", index.bytes_per_item()), format!("{:.0} %", 100.0 * index.fill())];
    line("an item", format!("{an_item} on average; leaves are {fill} full"));
    line("levels", format!("{} in the first of {} layers", index.levels, index.layers));
    line("in blocks", bytes(index.block_bytes()));
    line(
        "nodes",
        format!(
            "{} interior, leaves: {} of 28 entries, {} of 12, {} of 4",
            index.interior_nodes, index.leaves[2], index.leaves[1], index.leaves[0]
        ),
    );
    line("look-ups", format!("{} in {} bursts", service.gets, service.get_bursts));
    let writes = format!("{} puts, {} deletes, in {} bursts", service.puts, service.deletes, service.write_bursts);
    line("writes", writes);
    let short = format!("{} short pages in {} bursts", service.short_pages, service.scan_bursts);
    let pages = format!("{short}, {} long ones, {} counts", service.long_pages, service.counts);
    line("scans", format!("{}: {pages}, {} items", service.scans, service.items));
    line("range deletes", format!("{} parts, {} items", service.range_deletes, service.range_deleted));
    line("workers busy", service.in_progress.to_string());
    line("refused", format!("{} for lack of memory, {} wrong", service.full, service.bad));
    line("snapshots", format!("{} saved, {} failed", stats.snapshots.saved, stats.snapshots.failed));
    let mut row = |cells: [String; 6]| {
        let figures: Vec<String> = cells[1..].iter().map(|cell| format!("{cell:>9}")).collect();
        let _ = writeln!(text, "{:>20} {}", cells[0], figures.join(" "));
    };
    row(["handler", "requests", "failed", "p50", "p99", "p99.9"].map(str::to_owned));
    for handler in stats.handlers() {
        let [p50, p99, p999] = [50.0, 99.0, 99.9].map(|percent| time(handler.latency.percentile(percent)));
        row([handler.name, count(handler.requests as f64), count(handler.failed as f64), p50, p99, p999]);
    }
    text
}

#[cfg(test)]
mod tests {
    use dunlin_index::ServiceStats;
    use dunlin_index::service::{CoreStats, HandlerFigures, IndexFigures};

    use super::*;

    #[test]
    fn what_is_counted_is_shown() {
        let service = ServiceStats { gets: 70, get_bursts: 7, scans: 3, in_progress: 2, ..ServiceStats::default() };
        let handler = HandlerFigures { name: "scan".into(), requests: 1234, failed: 5, ..HandlerFigures::default() };
        let core = CoreStats { core: 0, sessions: 4, service, handlers: vec![handler] };
        let index = IndexFigures {
            items: 8192,
            memory_bytes: 1 << 20,
            memory_bytes_max: 1 << 30,
            idle_bytes: 3 << 20,
            leaves: [0, 0, 512],
            layers: 1,
            levels: 3,
            ..Default::default()
        };
        let stats = ServerStats { index, workers: 3, cores: vec![core], ..ServerStats::default() };
        let text = text(&stats);
        for line in [
            "cores  1, and 3 workers",
            "sessions  4",
            "items  8192",
            "memory  1.00 MiB used, 3.00 MiB idle in free nodes: 4.00 MiB of 1.00 GiB held",
            "an item  128.0 B on average; leaves are 57 % full",
            "levels  3 in the first of 1 layers",
            "in blocks  768 KiB",
            "look-ups  70 in 7 bursts",
            "scans  3: 0 short pages",
            "workers busy  2",
            "scan     1.23k         5         -",
        ] {
            assert!(text.lines().any(|found| found.trim_start().starts_with(line)), "{line} is not in\n{text}");
        }
    }
}
