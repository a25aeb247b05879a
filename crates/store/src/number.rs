//! Values that are decimal numbers.

use crate::error::Refused;
use crate::item::Delta;

/// Returns the number that a value begins with, as `strtoull` reads it and memcached checks it.
pub(crate) fn number(value: &[u8]) -> Result<u64, Refused> {
    let is_space = |byte: u8| byte == b' ' || (b'\t'..=b'\r').contains(&byte);
    let text = &value[value.iter().take_while(|&&byte| is_space(byte)).count()..];
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if len == 0 || text.get(len).is_some_and(|&byte| !is_space(byte)) {
        return Err(Refused::NotANumber);
    }
    let digit = |sum: u64, &byte: &u8| sum.checked_mul(10)?.checked_add(u64::from(byte - b'0'));
    text[..len].iter().try_fold(0, digit).ok_or(Refused::NotANumber)
}

/// Returns the changed number.
pub(crate) fn count(before: u64, delta: Delta) -> u64 {
    match delta {
        Delta::Up(by) => before.wrapping_add(by),
        Delta::Down(by) => before.saturating_sub(by),
    }
}
