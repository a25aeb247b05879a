//! The meta commands.

use dunlin_store::KEY_BYTES_MAX;

use super::unit::{Meta, MetaOptions, MetaVerb, Unit, decode_key};
use super::{BAD_FORMAT, Behind, Step, Tokens, split_word};
use crate::memcached::limits::{META_TOKENS_MAX, OPAQUE_BYTES_MAX};
use crate::memcached::number::{data_len, signed_32, unsigned, unsigned_32};

const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
const BAD_FLAG: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";
const LONG_FLAGS: &[u8] = b"CLIENT_ERROR options flags are too long\r\n";
const LONG_OPAQUE: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";

/// What is wrong with a command's flags.
enum Wrong {
    /// They are malformed, with the answer.
    Flags(&'static [u8]),
    /// They are well-formed, but the opaque one is too long.
    Opaque,
}

/// Parses the flags of a command.
fn options(key: &[u8], flags: &[&[u8]]) -> Result<MetaOptions, Wrong> {
    let mut options = MetaOptions::default();
    let mut seen = 0u128;
    // As in memcached, the last error is reported, unless a flag is unknown or repeated.
    let mut wrong = None;
    let mut is_opaque_long = false;
    for flag in flags {
        let (&letter, token) = flag.split_first().ok_or(Wrong::Flags(BAD_FORMAT))?;
        if letter >= 127 || seen >> letter & 1 == 1 {
            return Err(Wrong::Flags(b"CLIENT_ERROR duplicate flag\r\n"));
        }
        seen |= 1 << letter;
        let mut number = |value: Option<u64>| {
            wrong = if value.is_none() { Some(BAD_TOKEN) } else { wrong };
            value
        };
        match letter {
            b'b' => {
                options.is_base64 = true;
                if decode_key(key).is_none() {
                    wrong = Some(b"CLIENT_ERROR error decoding key\r\n");
                }
            }
            b'C' => options.cas = number(unsigned(token)),
            b'E' => options.new_cas = number(unsigned(token)),
            b'T' | b'N' | b'R' => {
                let time = signed_32(token);
                wrong = if time.is_none() { Some(BAD_TOKEN) } else { wrong };
                match letter {
                    b'T' => options.ttl = time,
                    b'N' => options.vivify = time,
                    _ => options.recache = time,
                }
            }
            b'F' => match unsigned_32(token) {
                Some(flags) => options.client_flags = flags,
                None => wrong = Some(wrong.unwrap_or(BAD_FORMAT)),
            },
            // Anything after the first byte is ignored; without one, the mode is the space that follows, which is not a
            // valid mode.
            b'M' => options.mode = token.first().copied().unwrap_or(b' '),
            b'D' => match unsigned(token) {
                Some(delta) => options.delta = Some(delta),
                None => wrong = Some(b"CLIENT_ERROR invalid numeric delta value\r\n"),
            },
            b'J' => match unsigned(token) {
                Some(initial) => options.initial = initial,
                None => wrong = Some(b"CLIENT_ERROR invalid numeric initial value\r\n"),
            },
            b'u' => options.is_traceless = true,
            b'v' => options.wants_value = true,
            b'q' => options.is_quiet = true,
            b'I' => options.invalidates = true,
            b'x' => options.drops_value = true,
            b'O' => is_opaque_long = flag.len() > OPAQUE_BYTES_MAX,
            // For the answer, or for a proxy in between.
            b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' | b'P' | b'L' => {}
            _ => return Err(Wrong::Flags(b"CLIENT_ERROR invalid flag\r\n")),
        }
    }
    match wrong {
        Some(said) => Err(Wrong::Flags(said)),
        None if is_opaque_long => Err(Wrong::Opaque),
        None => Ok(options),
    }
}

/// Returns the words after the first `skipped` ones.
fn flags_of(text: &[u8], skipped: usize) -> &[u8] {
    (0..skipped).fold(text, |rest, _| split_word(rest).map_or(&[][..], |(_, rest)| rest))
}

/// Why a command is rejected before its flags are parsed.
enum Refusal {
    /// The line is not a known command.
    Line,
    /// The line is a command, but the line or its key is too long.
    Words(&'static [u8]),
}

/// Returns the key and the flags, which start at word `first`.
fn words_of<'a, 't>(tokens: &'t Tokens<'a>, first: usize) -> Result<(&'a [u8], &'t [&'a [u8]]), Refusal> {
    let flags = tokens.get(first..).ok_or(Refusal::Line)?;
    if flags.iter().any(|flag| !matches!(flag[0], b'A'..=b'z' | b'0'..=b'9')) {
        return Err(Refusal::Line);
    }
    let key = tokens[1];
    if key.len() > KEY_BYTES_MAX {
        Err(Refusal::Words(BAD_FORMAT))
    } else if tokens.len() > META_TOKENS_MAX {
        Err(Refusal::Words(LONG_FLAGS))
    } else {
        Ok((key, flags))
    }
}

/// Returns the key and options of a command without data, or the answer to a malformed one.
fn parts<'a>(tokens: &Tokens<'a>) -> Result<(&'a [u8], MetaOptions), &'static [u8]> {
    let (key, flags) = words_of(tokens, 2).map_err(|refusal| match refusal {
        Refusal::Line => BAD_FORMAT,
        Refusal::Words(said) => said,
    })?;
    match options(key, flags) {
        Ok(options) => Ok((key, options)),
        Err(Wrong::Flags(said)) => Err(said),
        Err(Wrong::Opaque) => Err(LONG_OPAQUE),
    }
}

fn single<'a>(verb: MetaVerb, key: &'a [u8], text: &'a [u8], options: MetaOptions) -> Unit<'a> {
    Unit::Meta(Meta { verb, key, flags: flags_of(text, 2), options, value: None })
}

pub(super) fn get<'a>(tokens: &Tokens<'a>, text: &'a [u8], behind: &Behind<'a>) -> Step<'a> {
    match parts(tokens) {
        Ok((key, options)) => behind.unit(single(MetaVerb::Get, key, text, options)),
        Err(said) => behind.say(said),
    }
}

pub(super) fn delete<'a>(tokens: &Tokens<'a>, text: &'a [u8], behind: &Behind<'a>) -> Step<'a> {
    match parts(tokens) {
        Ok((key, options)) => behind.unit(single(MetaVerb::Delete, key, text, options)),
        Err(said) => behind.say(said),
    }
}

pub(super) fn arithmetic<'a>(tokens: &Tokens<'a>, text: &'a [u8], behind: &Behind<'a>) -> Step<'a> {
    match parts(tokens) {
        Ok((_, MetaOptions { mode, .. })) if !matches!(mode, 0 | b'I' | b'+' | b'D' | b'-') => {
            behind.say(b"CLIENT_ERROR invalid mode for ma M token\r\n")
        }
        Ok((key, options)) => behind.unit(single(MetaVerb::Arithmetic, key, text, options)),
        Err(LONG_OPAQUE) => behind.say(LONG_OPAQUE),
        Err(_) if words_of(tokens, 2).is_err_and(|refusal| matches!(refusal, Refusal::Line)) => behind.say(BAD_FORMAT),
        Err(_) => behind.say(BAD_FLAG),
    }
}

pub(super) fn debug<'a>(tokens: &Tokens<'a>, behind: &Behind<'a>) -> Step<'a> {
    let key = match words_of(tokens, 2) {
        Ok((key, _)) => key,
        Err(_) => return behind.say(BAD_FORMAT),
    };
    let is_base64 = tokens.get(2) == Some(&&b"b"[..]);
    if is_base64 && decode_key(key).is_none() {
        return behind.say(BAD_FORMAT);
    }
    let options = MetaOptions { is_base64, ..MetaOptions::default() };
    behind.unit(Unit::Meta(Meta { verb: MetaVerb::Debug, key, flags: &[], options, value: None }))
}

pub(super) fn set<'a>(tokens: &Tokens<'a>, text: &'a [u8], behind: &Behind<'a>) -> Step<'a> {
    let Some(len) = tokens.get(2).and_then(|word| data_len(word)) else { return behind.say(BAD_FORMAT) };
    // Whatever is wrong: what follows is data.
    let refuse = |said| behind.swallow(Unit::Say(said), len);
    let (key, flags) = match words_of(tokens, 3) {
        Ok(words) => words,
        Err(Refusal::Words(said)) => return refuse(said),
        Err(Refusal::Line) => return refuse(BAD_FORMAT),
    };
    let options = match options(key, flags) {
        Ok(options) => options,
        Err(Wrong::Flags(said)) => return refuse(said),
        Err(Wrong::Opaque) => return refuse(LONG_OPAQUE),
    };
    if !matches!(options.mode, 0 | b'E' | b'A' | b'P' | b'R' | b'S') {
        return refuse(b"CLIENT_ERROR invalid mode for ms M token\r\n");
    }
    let unit = Meta { verb: MetaVerb::Set, key, flags: flags_of(text, 3), options, value: None };
    if len > behind.value_bytes_max {
        return behind.swallow(Unit::Meta(unit), len);
    }
    match behind.data(len) {
        Err(bytes) => Step::Need(bytes),
        Ok(None) => behind.with_data(Unit::Say(b"CLIENT_ERROR bad data chunk\r\n"), len),
        Ok(value) => behind.with_data(Unit::Meta(Meta { value, ..unit }), len),
    }
}
