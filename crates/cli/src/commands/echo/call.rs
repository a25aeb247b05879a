//! `dunlin echo call`.

use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;
use dunlin_bench::echo::{self, Calls, EchoFigures};
use dunlin_lab::report::{Metric, human};
use dunlin_net::AnyTransport;
use dunlin_net::clock::nanos;
use dunlin_net::pcap::PcapWriter;
use dunlin_serve::Interrupt;
use serde_json::json;

use crate::arguments::at::At;
use crate::arguments::size::{bytes, human_bytes};
use crate::arguments::time::ordinary;
use crate::capture::Capture;
use crate::output::{self, OutputError};

/// Bytes of the longest message.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

fn message_bytes(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        bytes if bytes <= MESSAGE_BYTES_MAX => Ok(bytes),
        _ => Err(format!("give {} or less", human_bytes(MESSAGE_BYTES_MAX as u64))),
    }
}

/// Call an echo server and print the rate and the round-trip times
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin echo call --at shm:echo --window 1            latency
  dunlin echo call --at udp://127.0.0.1:31850 --size 32 --window 60 --for 5s --stats
  dunlin echo call --at shm:echo --window 1 --for 10ms --pcap echo.pcap
  tshark -X lua_script:docs/dunlin.lua -r echo.pcap    what was said, packet by packet")]
pub struct Arguments {
    #[command(flatten)]
    at: At,
    /// Bytes of each request and of its response
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = message_bytes)]
    size: usize,
    /// Calls outstanding
    #[arg(long, value_name = "CALLS", default_value = "60", value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    window: usize,
    /// How long to call
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = ordinary)]
    length: Duration,
    /// Print the counters of the endpoint and of its first session
    #[arg(long, conflicts_with = "json")]
    stats: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Record the packets of this side in FILE, for Wireshark; slower, and some 100 bytes for each packet
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let server = arguments.at.server()?;
    let calls = Calls { size: arguments.size, window: arguments.window, length: arguments.length };
    let show_live = stderr().is_terminal();
    let transport = AnyTransport::for_peer(server)?;
    let live = |rate| {
        if show_live {
            eprint!("\r{:<20}", human::figure(Metric::Rate, rate));
        }
    };
    let figures = match &arguments.pcap {
        None => echo::call(transport, server, &calls, interrupt, live),
        Some(path) => {
            let mut capture = Capture::create(path)?;
            let figures = echo::call(PcapWriter::new(transport, &mut capture), server, &calls, interrupt, live);
            capture.finish()?;
            figures
        }
    };
    if show_live {
        eprint!("\r{:<20}\r", "");
    }
    show(arguments, &figures.with_context(|| format!("calling {server}"))?)?;
    Ok(ExitCode::SUCCESS)
}

fn show(arguments: &Arguments, figures: &EchoFigures) -> Result<(), OutputError> {
    let rtt = |percent| human::figure(Metric::LatencyP50, figures.endpoint.rtt.percentile(percent).as_nanos() as f64);
    if arguments.json {
        let [p50, p99, p999] = [50.0, 99.0, 99.9].map(|percent| nanos(figures.endpoint.rtt.percentile(percent)));
        return output::line(json!({
            "rate": figures.rate, "window": arguments.window, "size": arguments.size,
            "rtt_ns": { "p50": p50, "p99": p99, "p99.9": p999 },
        }));
    }
    output::line(format_args!(
        "{} with {} of {} B outstanding; round trip p50 {}, p99 {}, p99.9 {}",
        human::figure(Metric::Rate, figures.rate),
        arguments.window,
        arguments.size,
        rtt(50.0),
        rtt(99.0),
        rtt(99.9)
    ))?;
    if arguments.stats {
        output::line(format_args!("\nendpoint\n{}", figures.endpoint))?;
        if let Some(session) = &figures.session {
            output::line(format_args!("\nfirst session\n{session}"))?;
        }
    }
    Ok(())
}
