//! Figures in readable form, never wider than a column.

use std::time::Duration;

type Unit = (f64, &'static str);

const THOUSANDS: [Unit; 5] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];
const TIMES: [Unit; 4] = [(1e9, " s"), (1e6, " ms"), (1e3, " µs"), (1.0, " ns")];
const BYTES: [Unit; 4] = [(1073741824.0, " GiB"), (1048576.0, " MiB"), (1024.0, " KiB"), (1.0, " B")];

/// A count: `1.25M`, `999`, `0`.
pub fn count(value: f64) -> String {
    show(&THOUSANDS, value)
}

/// Three significant digits of the largest unit that leaves at least 1; whole units of the smallest.
fn show(units: &[Unit], value: f64) -> String {
    let (size, unit) = units.iter().find(|(size, _)| value >= size * 0.9995).unwrap_or(&units[units.len() - 1]);
    let scaled = value / size;
    match scaled {
        scaled if *size == 1.0 && scaled == scaled.trunc() => format!("{scaled:.0}{unit}"),
        scaled if scaled < 9.995 => format!("{scaled:.2}{unit}"),
        scaled if scaled < 99.95 => format!("{scaled:.1}{unit}"),
        scaled => format!("{scaled:.0}{unit}"),
    }
}

/// A share: `99.1%`, or a dash if there is none.
pub fn share(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".into(), |ratio| format!("{:.1}%", ratio * 100.0))
}

/// A time: `1.52 µs`, or a dash for none.
pub fn time(time: Duration) -> String {
    if time.is_zero() { "-".into() } else { show(&TIMES, time.as_nanos() as f64) }
}

/// Bytes, by powers of 1024.
pub fn bytes(bytes: u64) -> String {
    show(&BYTES, bytes as f64)
}

/// An uptime: `42s`, `3h 05m`, `12d 04h`.
pub fn uptime(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h {:02}m", minutes % 60),
        _ => format!("{days}d {:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_a_column() {
        let numbers = [0.0, 7.0, 0.5, 999.0, 999.7, 1_234.0, 99_960.0, 5_230_000.0, 1.5e10];
        assert_eq!(numbers.map(count), ["0", "7", "0.50", "999", "1.00k", "1.23k", "100k", "5.23M", "15.0G"]);
        assert!(count(f64::MAX / 2.0).len() > 8, "what no server does may be long");
        assert_eq!([share(None), share(Some(1.0)), share(Some(0.0612))], ["-", "100.0%", "6.1%"]);
        assert_eq!([Duration::ZERO, Duration::from_nanos(1520)].map(time), ["-", "1.52 µs"]);
        let uptimes = [0, 59, 60, 3599, 11_100, 1_051_200].map(|seconds| uptime(seconds * 1_000_000));
        assert_eq!(uptimes, ["0s", "59s", "1m 00s", "59m 59s", "3h 05m", "12d 04h"]);
    }
}
