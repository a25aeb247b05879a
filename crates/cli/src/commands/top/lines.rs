//! One line per interval, for pipes: columns of plain numbers under a heading.

use dunlin_kv::metrics::Operation;
use serde_json::Value;

use super::Watched;
use super::figures::Figures;

/// A column: its heading, and its content.
pub type Column<F> = (&'static str, fn(&F) -> String);

/// Operations that store a value under some condition.
const STORES: [Operation; 6] = [
    Operation::Set,
    Operation::Add,
    Operation::Replace,
    Operation::CompareAndSwap,
    Operation::Append,
    Operation::Prepend,
];

/// The columns of a key-value server.
pub const COLUMNS: [Column<Figures>; 12] = [
    ("ops/s", |figures| whole(figures.rate())),
    ("get/s", |figures| whole(figures.rate_of(Operation::Get) + figures.rate_of(Operation::GetAndTouch))),
    ("set/s", |figures| whole(STORES.into_iter().map(|operation| figures.rate_of(operation)).sum())),
    ("hit%", |figures| figures.hit_ratio().map_or_else(|| "-".into(), |ratio| format!("{:.2}", ratio * 100.0))),
    ("p50_us", |figures| micros(figures, 50.0)),
    ("p99_us", |figures| micros(figures, 99.0)),
    ("p99.9_us", |figures| micros(figures, 99.9)),
    ("mem_MiB", |figures| format!("{:.1}", figures.store.memory_bytes as f64 / f64::from(1 << 20))),
    ("items", |figures| figures.store.items.to_string()),
    ("evict/s", |figures| whole(figures.eviction_rate())),
    ("sessions", |figures| figures.sessions.to_string()),
    ("conns", |figures| figures.connections.open.to_string()),
];

/// Minimum width of a column.
const WIDTH_MIN: usize = 9;

/// The heading.
pub fn heading<W: Watched>() -> String {
    line(W::columns().iter().map(|(name, _)| (*name).to_owned()))
}

/// One interval.
pub fn interval<W: Watched>(figures: &W::Figures) -> String {
    line(W::columns().iter().map(|(_, value)| value(figures)))
}

/// One interval for programs: the columns by name; null where there is nothing to tell.
pub fn as_json<W: Watched>(figures: &W::Figures) -> Value {
    let cells = W::columns()
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value(figures).parse::<f64>().map_or(Value::Null, Value::from)));
    Value::Object(cells.collect())
}

fn line(cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<String> = cells.map(|cell| format!("{cell:>WIDTH_MIN$}")).collect();
    cells.join(" ")
}

/// A rate as a whole number.
pub fn whole(rate: f64) -> String {
    format!("{rate:.0}")
}

fn micros(figures: &Figures, percent: f64) -> String {
    let latency = figures.latency();
    if latency.count() == 0 {
        return "-".into();
    }
    format!("{:.2}", latency.percentile(percent).as_nanos() as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use dunlin_kv::metrics::ServerStats;

    use super::super::tests::server;
    use super::*;

    #[test]
    fn every_heading_has_a_number() {
        let figures = Figures::of_server(&server(3_000_000, 700), &server(1_000_000, 100)).unwrap();
        let (heading, line) = (heading::<ServerStats>(), interval::<ServerStats>(&figures));
        let numbers: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(heading.split_whitespace().count(), numbers.len());
        assert_eq!(numbers[..4], ["600", "600", "0", "90.00"]);
        assert!(numbers[4].parse::<f64>().is_ok_and(|p50| (1.4..1.6).contains(&p50)), "{line}");
        assert_eq!(numbers[7..], ["8.0", "1400", "0", "4", "6"]);
        assert_eq!(heading.len(), line.len(), "columns stay below their headings");
    }
}
