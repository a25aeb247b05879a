//! Figures in readable form: three significant digits and a suitable unit.

use super::metric::Metric;

type Unit = (f64, &'static str);

const TIMES: [Unit; 4] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
const RATES: [Unit; 3] = [(1e6, "M RPC/s"), (1e3, "k RPC/s"), (1.0, "RPC/s")];
const OPERATIONS: [Unit; 3] = [(1e6, "M op/s"), (1e3, "k op/s"), (1.0, "op/s")];
const KEYS: [Unit; 3] = [(1e6, "M key/s"), (1e3, "k key/s"), (1.0, "key/s")];
const BITS: [Unit; 4] = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")];
const BYTES: [Unit; 4] = [(1073741824.0, "GiB"), (1048576.0, "MiB"), (1024.0, "KiB"), (1.0, "B")];
const PERCENT: [Unit; 1] = [(1.0, "%")];
const PER_SECOND: [Unit; 3] = [(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")];
const CALLS: [Unit; 1] = [(1.0, "calls")];
const EVENTS: [Unit; 1] = [(1.0, "events")];
const SESSIONS: [Unit; 1] = [(1.0, "sessions")];
const TIMES_OVER: [Unit; 1] = [(1.0, "x")];
const COUNT: [Unit; 1] = [(1.0, "")];

/// Units of a metric, from large to small.
fn units(metric: Metric) -> &'static [Unit] {
    match metric {
        Metric::LatencyP50 | Metric::LatencyP95 | Metric::LatencyP99 | Metric::LatencyP999 => &TIMES,
        Metric::LatencyP9999 | Metric::LatencyMax | Metric::RttP50 | Metric::RttP99 => &TIMES,
        Metric::CpuTime | Metric::Saving => &TIMES,
        Metric::Retransmissions => &PER_SECOND,
        Metric::Rate => &RATES,
        Metric::Bandwidth => &BITS,
        Metric::SessionMemory | Metric::Memory | Metric::ItemMemory | Metric::ItemOverhead => &BYTES,
        Metric::IdleShare | Metric::HitRatio | Metric::Lost | Metric::CoreShare | Metric::Share => &PERCENT,
        Metric::Portion => &PERCENT,
        Metric::Count | Metric::Backlog => &COUNT,
        Metric::Operations => &OPERATIONS,
        Metric::Keys => &KEYS,
        Metric::Calls => &CALLS,
        Metric::Events => &EVENTS,
        Metric::Sessions => &SESSIONS,
        Metric::Advantage => &TIMES_OVER,
    }
}

/// A figure of a metric, such as `312 ns`, `11.2 M RPC/s` or `43.1 Gbit/s`.
pub fn figure(metric: Metric, value: f64) -> String {
    show(units(metric), value)
}

/// The lowest and the highest run of a metric, without a unit: in the unit that [`figure`] chooses for `value`.
pub fn range(metric: Metric, value: f64, min: f64, max: f64) -> String {
    let (size, _) = suitable(units(metric), value);
    format!("{}..{}", digits(min / size), digits(max / size))
}

/// Bytes, by powers of 1024.
pub fn bytes(bytes: f64) -> String {
    show(&BYTES, bytes)
}

/// A ratio, such as `2.31x`.
pub fn ratio(ratio: f64) -> String {
    format!("{}x", digits(ratio))
}

fn show(units: &[Unit], value: f64) -> String {
    let (size, name) = suitable(units, value);
    format!("{} {name}", digits(value / size)).trim_end().to_owned()
}

/// The largest unit in which the rounded figure is at least 1; `units` are in descending order.
fn suitable(units: &[Unit], value: f64) -> Unit {
    // 999.7 would print as 1000: use 1.00 of the next unit instead.
    let fits = |unit: &&Unit| value.abs() >= unit.0 * 0.9995;
    *units.iter().find(fits).unwrap_or(&units[units.len() - 1])
}

/// Three significant digits, never in exponent form.
fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v < 0.0995 => format!("{value:.3}"),
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_the_unit() {
        let time = |ns| figure(Metric::LatencyP50, ns);
        assert_eq!([312.4, 4_712.0, 999_700.0, 2.5e9].map(time), ["312 ns", "4.71 µs", "1.00 ms", "2.50 s"]);
        assert_eq!(figure(Metric::Rate, 1.12e7), "11.2 M RPC/s");
        assert_eq!(figure(Metric::Rate, 0.0), "0 RPC/s");
        assert_eq!(figure(Metric::Bandwidth, 4.31e10), "43.1 Gbit/s");
        assert_eq!(figure(Metric::SessionMemory, 712.0), "712 B");
        assert_eq!(bytes(8.0 * 1024.0 * 1024.0), "8.00 MiB");
        assert_eq!(ratio(0.0512), "0.051x");
        assert_eq!(ratio(99.99), "100x");
    }

    #[test]
    fn range_keeps_the_unit_of_the_median() {
        assert_eq!(range(Metric::LatencyP50, 1_010.0, 950.0, 12_345.0), "0.95..12.3");
        assert_eq!(range(Metric::Rate, 1.1e7, 9e6, 1.25e7), "9.00..12.5");
    }
}
