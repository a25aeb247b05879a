//! The machine of a report.

use std::fs;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// Load per busy core that is tolerated, as left behind by earlier measurements and a desktop.
const LOAD_PER_SPINNING_CORE: f64 = 0.7;

/// The machine and the time of a report. Unknown values are `unknown` or 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Processors this process may run on.
    pub cores: usize,
    /// Memory of the machine, in bytes.
    pub mem: u64,
    /// Kernel release.
    pub kernel: String,
    /// Distribution.
    pub os: String,
    /// Compiler that built the benchmark.
    pub rust: String,
    /// Start of the report, UTC, RFC 3339.
    pub date: String,
    /// Load average over the minute before the start: other work on the machine.
    pub load: f64,
}

impl Machine {
    /// Reads the properties of this machine now.
    pub fn detect() -> Self {
        let unknown = || "unknown".to_owned();
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Machine {
            cpu: field(&read("/proc/cpuinfo"), "model name", ':').unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            mem: field(&read("/proc/meminfo"), "MemTotal", ':').and_then(|text| kib(&text)).unwrap_or(0),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            os: field(&read("/etc/os-release"), "PRETTY_NAME", '=').unwrap_or_else(unknown),
            rust: env!("DUNLIN_RUSTC").to_owned(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            load: read("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0),
        }
    }

    /// Whether other work used so much of the machine over the last minute that `spinning` processes, each always busy,
    /// must have shared their cores with it.
    pub fn is_busy_for(&self, spinning: usize) -> bool {
        let left_over = self.cores.saturating_sub(spinning) as f64;
        self.load > left_over.max(spinning as f64 * LOAD_PER_SPINNING_CORE)
    }
}

/// Value of the first line `key<separator>value`, without surrounding blanks and quotes.
fn field(text: &str, key: &str, separator: char) -> Option<String> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(separator));
    let (_, value) = pairs.find(|(name, _)| name.trim() == key)?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// Bytes of a text like `12345 kB`, by which the kernel means KiB.
fn kib(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_fields() {
        assert_eq!(field("a\t: 1\nmodel name\t: Fast 9000 \n", "model name", ':').unwrap(), "Fast 9000");
        assert_eq!(field("NAME=x\nPRETTY_NAME=\"Some OS 1\"", "PRETTY_NAME", '=').unwrap(), "Some OS 1");
        assert_eq!(field("", "x", ':'), None);
        assert_eq!(kib("2 kB"), Some(2048));
        assert_eq!(kib("many"), None);
    }

    #[test]
    fn knows_when_it_is_busy() {
        let busy = |cores, load| Machine { cores, load, ..Machine::detect() }.is_busy_for(2);
        assert!(!busy(2, 1.4));
        assert!(busy(2, 1.5));
        assert!(!busy(16, 13.9));
        assert!(busy(16, 14.1));
    }

    #[test]
    fn knows_this_machine() {
        let machine = Machine::detect();
        assert!(machine.cores > 0);
        assert!(machine.mem > 0);
        assert!(!machine.kernel.is_empty());
        assert!(machine.date.ends_with('Z'));
    }
}
