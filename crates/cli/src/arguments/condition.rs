//! Conditions, as `--if` has them.

use std::str::FromStr;

/// What must be so, or nothing is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// There is none.
    Absent,
    /// There is one.
    Present,
    /// There is one with this version.
    Version(u64),
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Condition, String> {
        match (text, text.strip_prefix("version=")) {
            ("absent", _) => Ok(Condition::Absent),
            ("present", _) => Ok(Condition::Present),
            (_, Some(version)) => {
                version.parse().map(Condition::Version).map_err(|_| format!("{version} is no version"))
            }
            _ => Err("give absent, present or version=NUMBER".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read() {
        assert_eq!("absent".parse(), Ok(Condition::Absent));
        assert_eq!("present".parse(), Ok(Condition::Present));
        assert_eq!("version=17".parse(), Ok(Condition::Version(17)));
        for text in ["", "17", "version=", "version=-1", "Absent"] {
            assert!(text.parse::<Condition>().is_err(), "{text}");
        }
    }
}
