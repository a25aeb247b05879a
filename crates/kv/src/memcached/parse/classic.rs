//! The commands that memcached always had.

use dunlin_store::{Delta, KEY_BYTES_MAX};

use super::unit::{Ask, Get, StatsKind, StoreUnit, Unit, Verb};
use super::{Behind, ERROR, Step, Tokens, split_word};
use crate::memcached::number::{data_len, signed_32, unsigned, unsigned_32};

const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const VERSION_LINE: &[u8] = concat!("VERSION 1.6.18-dunlin-", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();
const BAD_DATA: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";

/// What `rest` of a retrieval's line asks: its keys, all of them short enough, and what of each; or the answer if it is wrong.
///
/// memcached has sent some answers when it finds a key too long, and forgets them; here the whole line is looked at first.
#[inline]
pub(super) fn retrieval<'a>(verb: &[u8], rest: &'a [u8]) -> Result<(&'a [u8], Get), &'static [u8]> {
    let (first, behind) = split_word(rest).ok_or(ERROR)?;
    let (keys, touch) = match verb {
        b"gat" | b"gats" => (behind, Some(signed_32(first).ok_or(BAD_EXPTIME)?)),
        _ => (rest, None),
    };
    // A line no longer than a key has none that is too long.
    if keys.len() > KEY_BYTES_MAX && keys.split(|&byte| byte == b' ').any(|key| key.len() > KEY_BYTES_MAX) {
        return Err(BAD_FORMAT);
    }
    let is_lone_touch = touch.is_some() && split_word(keys).is_some_and(|(_, behind)| split_word(behind).is_none());
    Ok((keys, Get { with_cas: matches!(verb, b"gets" | b"gats"), touch, is_lone_touch }))
}

/// Whether no answer is wanted: the last word says so.
fn is_quiet(tokens: &Tokens<'_>) -> bool {
    tokens.len() > 1 && tokens.last() == Some(&&b"noreply"[..])
}

/// An answer, or silence.
fn unless(is_quiet: bool, said: &'static [u8]) -> &'static [u8] {
    if is_quiet { b"" } else { said }
}

pub(super) fn command<'a>(verb: &[u8], tokens: &Tokens<'a>, behind: &Behind<'a>) -> Step<'a> {
    let words = tokens.len();
    match (verb, words) {
        (b"set", 5 | 6) => store(Verb::Set, tokens, behind),
        (b"add", 5 | 6) => store(Verb::Add, tokens, behind),
        (b"replace", 5 | 6) => store(Verb::Replace, tokens, behind),
        (b"append", 5 | 6) => store(Verb::Append, tokens, behind),
        (b"prepend", 5 | 6) => store(Verb::Prepend, tokens, behind),
        (b"cas", 6 | 7) => store(Verb::Cas(0), tokens, behind),
        (b"incr", 3 | 4) => arithmetic(Delta::Up, tokens, behind),
        (b"decr", 3 | 4) => arithmetic(Delta::Down, tokens, behind),
        (b"delete", 2..=4) => delete(tokens, behind),
        (b"touch", 3 | 4) => touch(tokens, behind),
        (b"flush_all", 1..=3) => flush(tokens, behind),
        (b"verbosity", 2 | 3) => {
            let said: &[u8] = if unsigned_32(tokens[1]).is_some() { b"OK\r\n" } else { BAD_FORMAT };
            behind.say(unless(is_quiet(tokens), said))
        }
        (b"version", _) => behind.say(VERSION_LINE),
        (b"quit", _) => behind.unit(Unit::Quit),
        (b"stats", _) => stats(tokens, behind),
        (b"shutdown", _) => behind.say(b"ERROR: shutdown not enabled\r\n"),
        (b"cache_memlimit", 2 | 3) => behind.say(unless(is_quiet(tokens), memory_limit(tokens[1]))),
        (b"slabs", 4) if tokens[1] == b"reassign" => behind.say(b"CLIENT_ERROR slab reassignment disabled\r\n"),
        (b"lru_crawler", 3) if tokens[1] == b"crawl" => behind.say(b"CLIENT_ERROR lru crawler disabled\r\n"),
        (b"lru_crawler", 3) if tokens[1] == b"metadump" => behind.say(b"CLIENT_ERROR lru crawler disabled\r\n"),
        (b"watch", _) => behind.say(unless(is_quiet(tokens), b"CLIENT_ERROR watch commands not allowed\r\n")),
        _ => behind.say(ERROR),
    }
}

fn store<'a>(verb: Verb, tokens: &Tokens<'a>, behind: &Behind<'a>) -> Step<'a> {
    let is_quiet = is_quiet(tokens);
    let key = tokens[1];
    let bad = || behind.say(unless(is_quiet, BAD_FORMAT));
    let numbers = (unsigned_32(tokens[2]), signed_32(tokens[3]), data_len(tokens[4]));
    let (Some(flags), Some(exptime), Some(len)) = numbers else { return bad() };
    if key.len() > KEY_BYTES_MAX {
        return bad();
    }
    let verb = match verb {
        Verb::Cas(_) => match unsigned(tokens[5]) {
            Some(token) => Verb::Cas(token),
            None => return bad(),
        },
        other => other,
    };
    let unit = StoreUnit { verb, key, flags, exptime, value: None, is_quiet };
    if len > behind.value_bytes_max {
        return behind.swallow(Unit::Store(unit), len);
    }
    match behind.data(len) {
        Err(bytes) => Step::Need(bytes),
        Ok(None) => behind.with_data(Unit::Say(unless(is_quiet, BAD_DATA)), len),
        Ok(value) => behind.with_data(Unit::Store(StoreUnit { value, ..unit }), len),
    }
}

fn arithmetic<'a>(delta: fn(u64) -> Delta, tokens: &Tokens<'a>, behind: &Behind<'a>) -> Step<'a> {
    let is_quiet = is_quiet(tokens);
    if tokens[1].len() > KEY_BYTES_MAX {
        return behind.say(unless(is_quiet, BAD_FORMAT));
    }
    match unsigned(tokens[2]) {
        Some(by) => behind.unit(Unit::Count { key: tokens[1], delta: delta(by), is_quiet }),
        None => behind.say(unless(is_quiet, b"CLIENT_ERROR invalid numeric delta argument\r\n")),
    }
}

fn delete<'a>(tokens: &Tokens<'a>, behind: &Behind<'a>) -> Step<'a> {
    let key = tokens[1];
    let is_quiet = tokens.len() > 2 && is_quiet(tokens);
    let is_valid = match tokens.len() {
        2 => true,
        3 => tokens[2] == b"0" || is_quiet,
        _ => tokens[2] == b"0" && is_quiet,
    };
    if !is_valid {
        let usage = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
        return behind.say(unless(is_quiet, usage));
    }
    if key.len() > KEY_BYTES_MAX {
        return behind.say(unless(is_quiet, BAD_FORMAT));
    }
    behind.unit(Unit::Delete { key, is_quiet })
}

fn touch<'a>(tokens: &Tokens<'a>, behind: &Behind<'a>) -> Step<'a> {
    let is_quiet = is_quiet(tokens);
    if tokens[1].len() > KEY_BYTES_MAX {
        return behind.say(unless(is_quiet, BAD_FORMAT));
    }
    match signed_32(tokens[2]) {
        Some(exptime) => behind.unit(Unit::Touch { key: tokens[1], exptime, is_quiet }),
        None => behind.say(unless(is_quiet, BAD_EXPTIME)),
    }
}

fn flush<'a>(tokens: &Tokens<'a>, behind: &Behind<'a>) -> Step<'a> {
    let is_quiet = is_quiet(tokens);
    let exptime = if tokens.len() == 1 + usize::from(is_quiet) { Some(0) } else { signed_32(tokens[1]) };
    match exptime {
        Some(exptime) => behind.unit(Unit::Ask(Ask::Flush { exptime, is_quiet })),
        None => behind.say(unless(is_quiet, BAD_EXPTIME)),
    }
}

/// Memory is fixed when the server starts.
fn memory_limit(megabytes: &[u8]) -> &'static [u8] {
    match unsigned_32(megabytes) {
        None => ERROR,
        Some(0..8) => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n",
        Some(8..=1_000_000_000) => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
        Some(_) => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n",
    }
}

fn stats<'a>(tokens: &Tokens<'a>, behind: &Behind<'a>) -> Step<'a> {
    let kind = match tokens.get(1).copied() {
        None => StatsKind::General,
        Some(b"settings") => StatsKind::Settings,
        Some(b"items") => StatsKind::Items,
        Some(b"slabs") => StatsKind::Slabs,
        Some(b"sizes" | b"sizes_disable") => StatsKind::Sizes,
        Some(b"conns") => StatsKind::Connections,
        Some(b"reset") => StatsKind::Reset,
        Some(b"cachedump") => return behind.say(b"CLIENT_ERROR stats cachedump not allowed\r\n"),
        Some(b"detail") => match tokens.get(2).copied() {
            Some(b"off") => return behind.say(b"OK\r\n"),
            Some(b"on" | b"dump") => return behind.say(b"CLIENT_ERROR counts by prefix are not kept\r\n"),
            _ => return behind.say(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
        },
        Some(_) => return behind.say(ERROR),
    };
    behind.unit(Unit::Ask(Ask::Stats(kind)))
}
