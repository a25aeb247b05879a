//! Patterns for names: `*` stands for any text.

/// Whether a text has the form of a pattern.
///
/// ```
/// use dunlin_lab::matches;
///
/// assert!(matches("rpc-*", "rpc-rate") && matches("*, 8 in *", "udp, 8 in flight") && !matches("rpc-", "rpc-rate"));
/// ```
pub fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    // The shortest text first; what follows the last star is compared with the end alone.
    let Some(text) = text.strip_prefix(start) else { return false };
    match rest.split_once('*') {
        None => text.ends_with(rest),
        Some((next, _)) => text.find(next).is_some_and(|at| matches(rest, &text[at..])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_and_end_of_a_pattern_do_not_overlap() {
        assert!(matches("a*a", "aa") && matches("a*a", "aba") && matches("*", ""));
        assert!(!matches("a*a", "a") && !matches("", "a") && !matches("a", ""));
    }

    #[test]
    fn several_stars_stand_for_any_texts() {
        for text in ["abc", "xaybzc", "abcabc", "µaµbµcµc"] {
            assert!(matches("*a*b*c", text) && matches("**a*b*c*", text), "{text}");
        }
        assert!(!matches("*a*b*c", "acb") && !matches("*ab*ab*", "xab") && !matches("a*b*c", "xabc"));
        // Many stars cost no more than the length of both.
        assert!(!matches(&"a*".repeat(60), &"a".repeat(59)));
        assert!(!matches(&format!("{}b", "a*".repeat(60)), &"a".repeat(5_000)));
    }
}
