//! Times, with their units.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Units from the longest to the shortest, with their nanoseconds.
const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
];
/// What most times may be: a wait, or the length of a run.
pub const ORDINARY: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(86_400);

/// How long a core may go on looking for work before it sleeps.
pub const SPIN: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(60);

/// Reads a time within these bounds: `500ms`, `1.5m`, `2h`. Zero needs no unit.
pub fn time(bounds: RangeInclusive<Duration>) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let time = parse(text)?;
        if bounds.contains(&time) {
            Ok(time)
        } else {
            Err(format!("give {} to {}", Human(*bounds.start()), Human(*bounds.end())))
        }
    }
}

/// Reads a time as [`time`] does, for defaults that are times.
pub fn human(bounds: RangeInclusive<Duration>) -> impl Fn(&str) -> Result<Human, String> + Clone {
    move |text| time(bounds.clone())(text).map(Human)
}

/// Reads a time as [`time`] does, with the bounds of most.
pub fn ordinary(text: &str) -> Result<Duration, String> {
    time(ORDINARY)(text)
}

fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || "give a time: 500us, 100ms, 5s, 1.5m, 2h or 7d".to_owned();
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[number.len()..];
    let value: f64 = number.parse().map_err(|_| wrong())?;
    if unit.is_empty() && value == 0.0 {
        return Ok(Duration::ZERO);
    }
    if unit.is_empty() {
        return Err(format!("{text} of what? Write {text}s or {text}ms"));
    }
    let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    // Below a microsecond nothing is meant.
    Duration::try_from_secs_f64((value * *nanos as f64 / 1e3).round() / 1e6).map_err(|_| wrong())
}

/// A time as [`time`] reads it, in the longest unit that says it in whole numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Human(pub Duration);

impl std::fmt::Display for Human {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nanos = self.0.as_nanos();
        match UNITS.iter().find(|(_, unit)| nanos > 0 && nanos.is_multiple_of(u128::from(*unit))) {
            Some((name, unit)) => write!(f, "{}{name}", nanos / u128::from(*unit)),
            None => write!(f, "{}", nanos / 1000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let all = time(Duration::ZERO..=Duration::from_secs(u64::from(u32::MAX)));
        for (text, micros) in [
            ("0", 0),
            ("0s", 0),
            ("250us", 250),
            ("500ms", 500_000),
            ("0.1ms", 100),
            ("2s", 2_000_000),
            ("1.5m", 90_000_000),
            ("1h", 3_600_000_000),
            ("7d", 604_800_000_000),
        ] {
            assert_eq!(all(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "ms", "soon", "5 s", "-1s", "NaNs", "infs", "1e300d", "5S", "5min"] {
            assert!(all(text).is_err(), "{text}");
        }
        assert_eq!(all("5"), Err("5 of what? Write 5s or 5ms".into()));
        assert_eq!(ordinary("1ms"), Err("give 10ms to 1d".into()));
        assert!(ordinary("25h").is_err() && ordinary("0").is_err());
    }

    #[test]
    fn what_is_written_is_read() {
        for (micros, text) in [(0, "0"), (1, "1us"), (1500, "1500us"), (90_000_000, "90s"), (3_600_000_000, "1h")] {
            let time = Duration::from_micros(micros);
            assert_eq!(Human(time).to_string(), text);
            assert_eq!(parse(text), Ok(time));
        }
    }
}
