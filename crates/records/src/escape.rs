//! Escapes of tab-separated fields, as in PostgreSQL's text format.

use crate::error::Fault;

/// Appends a field of a tab-separated line to `line`. Valid UTF-8 stays readable.
///
/// ```
/// let mut line = Vec::new();
/// dunlin_records::escape(b"a\tb\xff", &mut line);
/// assert_eq!(line, br"a\tb\xff");
/// ```
pub fn escape(field: &[u8], line: &mut Vec<u8>) {
    for chunk in field.utf8_chunks() {
        for byte in chunk.valid().bytes() {
            match byte {
                b'\t' => line.extend(b"\\t"),
                b'\n' => line.extend(b"\\n"),
                b'\r' => line.extend(b"\\r"),
                b'\\' => line.extend(b"\\\\"),
                0..=31 | 127 => hex(byte, line),
                _ => line.push(byte),
            }
        }
        chunk.invalid().iter().for_each(|byte| hex(*byte, line));
    }
}

fn hex(byte: u8, line: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    line.extend([b'\\', b'x', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

/// Decodes a field.
pub(crate) fn unescape(field: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        bytes.extend_from_slice(&rest[..at]);
        let (byte, len) = match &rest[at + 1..] {
            [b't', ..] => (b'\t', 1),
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', high, low, ..] => (hex_byte(*high, *low).ok_or_else(|| bad(&rest[at + 1..at + 4]))?, 3),
            other => return Err(bad(&other[..other.len().min(3)])),
        };
        bytes.push(byte);
        rest = &rest[at + 1 + len..];
    }
    bytes.extend_from_slice(rest);
    Ok(bytes)
}

fn bad(what: &[u8]) -> Fault {
    Fault::BadEscape(String::from_utf8_lossy(what).into_owned())
}

fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |digit: u8| (digit as char).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives() {
        let all: Vec<u8> = (0..=255).chain("é漢\u{7f}".bytes()).chain([0xC3]).collect();
        let mut line = Vec::new();
        escape(&all, &mut line);
        assert!(
            std::str::from_utf8(&line).is_ok_and(|line| line.contains("é漢") && !line.contains(['\t', '\n', '\r']))
        );
        assert_eq!(unescape(&line).unwrap(), all);
    }

    #[test]
    fn what_is_no_escape_is_named() {
        for (field, what) in [(r"a\", ""), (r"\q", "q"), (r"\x1", "x1"), (r"\xzz", "xzz"), (r"c:\dir", "dir")] {
            assert!(matches!(unescape(field.as_bytes()), Err(Fault::BadEscape(found)) if found == what), "{field}");
        }
    }
}
