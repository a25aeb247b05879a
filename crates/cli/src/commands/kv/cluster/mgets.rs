//! `dunlin kv cluster mget`.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use dunlin_kv::cluster::{Choice, ClusterConfig, Copies, MultigetTrace, PartTrace};
use serde_json::json;

use super::place::{Target, ask};
use super::policy::PolicyArgument;
use crate::commands::kv::client::Found;
use crate::output::{self, OutputError};

/// Print the values of many keys: for each one found, a line with key and value, separated by a tab
///
/// Exit code 0 if all existed, 1 if some did not, 2 if some could not be read.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv cluster mget bird fish --at file:shop.toml
  dunlin kv cluster mget bird fish --at file:shop.toml --timeline     where each part of it waited
  dunlin kv cluster mget $(cat keys.txt) --at file:shop.toml --copies speculative")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The keys
    #[arg(required = true)]
    keys: Vec<String>,
    /// How the replica to read is chosen
    #[arg(long, default_value = "least-outstanding")]
    choice: ChoiceArgument,
    /// How many replicas each part is sent to: another one only if the first is slow or fails, two at once, or another
    /// one after the 90th percentile of response times
    #[arg(long, default_value = "one")]
    copies: CopiesArgument,
    /// How its parts are ranked at servers where requests wait
    #[arg(long, default_value = "total")]
    policy: PolicyArgument,
    /// Print where each part of the request waited, instead of values
    #[arg(long)]
    timeline: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ChoiceArgument {
    RoundRobin,
    LeastOutstanding,
    C3,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum CopiesArgument {
    One,
    Two,
    Speculative,
}

impl Arguments {
    fn config(&self) -> ClusterConfig {
        let mut config = ClusterConfig::default();
        config.policy = self.policy.policy();
        config.copies = match self.copies {
            CopiesArgument::One => Copies::One,
            CopiesArgument::Two => Copies::Two,
            CopiesArgument::Speculative => Copies::Speculative,
        };
        config.choosing(match self.choice {
            ChoiceArgument::RoundRobin => Choice::RoundRobin,
            ChoiceArgument::LeastOutstanding => Choice::LeastOutstanding,
            ChoiceArgument::C3 => Choice::C3 { clients: 1 },
        })
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.target, arguments.config(), async |cluster| {
        let (values, trace) = cluster.multi_get_traced(&arguments.keys).await;
        if arguments.timeline {
            // Also of a request that failed.
            output::line(if arguments.json { trace_json(&trace).to_string() } else { drawn(&trace) })?;
        }
        let values = values?;
        let found = if values.iter().all(Option::is_some) { Found::All } else { Found::NotAll };
        if arguments.timeline {
            return Ok(found);
        }
        let items = arguments.keys.iter().zip(&values);
        if arguments.json {
            let of_value = |value: &dunlin_kv::client::Value| String::from_utf8_lossy(value).into_owned();
            let items: serde_json::Map<String, serde_json::Value> =
                items.map(|(key, value)| (key.clone(), json!(value.as_ref().map(of_value)))).collect();
            output::line(serde_json::Value::from(items))?;
            return Ok(found);
        }
        let mut out = std::io::BufWriter::new(stdout().lock());
        for (key, value) in items {
            let Some(value) = value else { continue };
            for part in [key.as_bytes(), b"\t", value, b"\n"] {
                out.write_all(part).map_err(OutputError)?;
            }
        }
        out.flush().map_err(OutputError)?;
        Ok(found)
    })
}

fn trace_json(trace: &MultigetTrace) -> serde_json::Value {
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    let part = |part: &PartTrace| {
        json!({
            "server": part.server,
            "keys": part.keys,
            "partitions": part.partitions,
            "rank": part.rank,
            "why": part.why.name(),
            "ready_us": micros(part.ready),
            "sent_us": micros(part.sent),
            "ended_us": part.ended.map(micros),
            "queued_us": micros(part.queued),
            "device_us": micros(part.device),
            "error": part.error,
        })
    };
    json!({ "total_us": micros(trace.total), "parts": trace.parts.iter().map(part).collect::<Vec<_>>() })
}

/// Columns of the drawing.
const COLUMNS: u128 = 50;

/// A line for each part: dots while it waits here; then `q` for the time in the queue of its server and `d` for that at
/// the device there, and `=` for the rest, which is the network's and the server's. The answer tells how long it waited
/// there, and not when: `q` and `d` come first.
fn drawn(trace: &MultigetTrace) -> String {
    let total = trace.total.as_nanos().max(1);
    let column = |time: Duration| (time.as_nanos() * COLUMNS / total).min(COLUMNS) as usize;
    let name_width = trace.parts.iter().map(|part| part.server.len()).max().unwrap_or(0).max("server".len());
    let mut text = format!(
        "{:name_width$} {:>6} {:>10} {:>6}  {:50}  {:>9}",
        "server",
        "keys",
        "partitions",
        "rank",
        "0",
        micros(trace.total)
    );
    for part in &trace.parts {
        let (ready, sent) = (column(part.ready), column(part.sent));
        let end = part.ended.map_or(COLUMNS as usize, column).max(sent + 1);
        let queued = column(part.sent + part.queued).clamp(sent, end);
        let device = column(part.sent + part.queued + part.device).clamp(queued, end);
        let bar: String = [(" ", ready), (".", sent), ("q", queued), ("d", device), ("=", end)]
            .iter()
            .scan(0, |at, (mark, until)| Some(mark.repeat(until - std::mem::replace(at, *until))))
            .collect();
        let outcome = match (&part.error, part.ended) {
            (Some(error), _) => format!("failed: {error}"),
            (None, Some(ended)) => micros(ended - part.sent.min(ended)),
            (None, None) => "not waited for".into(),
        };
        let why = match part.why {
            dunlin_kv::cluster::Why::First => String::new(),
            why => format!(" ({})", why.name()),
        };
        text.push_str(&format!(
            "\n{:name_width$} {:>6} {:>10} {:>6}  {bar:50}  {outcome:>9}{why}",
            part.server, part.keys, part.partitions, part.rank
        ));
    }
    text
}

fn micros(time: Duration) -> String {
    match time.as_nanos() {
        nanos if nanos < 10_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        nanos => format!("{:.1} ms", nanos as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use dunlin_kv::cluster::Why;

    use super::*;

    #[test]
    fn a_trace_is_drawn_to_scale() {
        let part = |server: &str, ready, sent, ended: Option<u64>, why| PartTrace {
            server: server.into(),
            keys: 3,
            partitions: 2,
            rank: 5,
            why,
            ready: Duration::from_micros(ready),
            sent: Duration::from_micros(sent),
            ended: ended.map(Duration::from_micros),
            queued: Duration::ZERO,
            device: Duration::ZERO,
            error: None,
        };
        let trace = MultigetTrace {
            total: Duration::from_micros(100),
            parts: vec![part("a", 0, 20, Some(60), Why::First), part("longer", 60, 60, None, Why::Slow)],
        };
        let text = drawn(&trace);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains("server") && lines[0].ends_with("100.0 us"), "{text}");
        assert!(lines[1].contains(&format!("  {}{}  ", ".".repeat(10), "=".repeat(20))), "{text}");
        assert!(lines[1].ends_with("40.0 us"), "{text}");
        assert!(lines[2].contains(&format!("{}{}", " ".repeat(30), "=".repeat(20))), "{text}");
        assert!(lines[2].ends_with("not waited for (another was slow)"), "{text}");
        assert_eq!(trace_json(&trace)["parts"][0]["ended_us"], json!(60.0));
        let mut waited = part("a", 0, 20, Some(100), Why::First);
        (waited.queued, waited.device) = (Duration::from_micros(20), Duration::from_micros(40));
        let text = drawn(&MultigetTrace { total: Duration::from_micros(100), parts: vec![waited] });
        let bar = [".".repeat(10), "q".repeat(10), "d".repeat(20), "=".repeat(10)].concat();
        assert!(text.contains(&bar), "{text}");
    }
}
