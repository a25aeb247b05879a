//! Sizes of memory in readable form.

/// Bytes: `1GiB`, `512MiB`, `64KiB`, `1000000`.
pub fn bytes(text: &str) -> Result<usize, String> {
    let wrong = || "give bytes, or a number of KiB, MiB, GiB or TiB: 1GiB".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" | "K" | "k" => 10,
        "MiB" | "M" | "m" => 20,
        "GiB" | "G" | "g" => 30,
        "TiB" | "T" | "t" => 40,
        _ => return Err(wrong()),
    };
    let number: usize = digits.trim_end().parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Bytes for people.
pub fn human_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if value.fract() == 0.0 { format!("{value} {unit}") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, expected) in
            [("1GiB", 1 << 30), ("512MiB", 512 << 20), ("64 KiB", 64 << 10), ("1000", 1000), ("2T", 2 << 40)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "GiB", "1GB", "-1", "1.5GiB", "99999999999TiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(human_bytes(1 << 30), "1 GiB");
        assert_eq!(human_bytes(1536), "1.5 KiB");
    }
}
