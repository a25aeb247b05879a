//! The classic commands of memcached.

use dunlin_store::{Delta, KEY_BYTES_MAX};

use super::unit::{Ask, Get, StatsKind, StoreUnit, Unit, Verb};
use super::{BAD_FORMAT, Behind, ERROR, Step, Tokens, split_word};
use crate::memcached::number::{data_len, loose_signed_32, loose_unsigned_32, signed_32, unsigned, unsigned_32};

const VERSION_LINE: &[u8] = concat!("VERSION 1.6.45-dunlin-", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();
const BAD_DATA: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";

/// Parses the `rest` of a retrieval's line: returns its keys, all of them short enough, and what is requested of each;
/// or the answer to a malformed line.
///
/// When memcached finds a key too long, it discards the answers made so far; here the whole line is checked first.
#[inline]
pub(super) fn retrieval<'a>(verb: &[u8], rest: &'a [u8]) -> Result<(&'a [u8], Get), &'static [u8]> {
    let (first, behind) = split_word(rest).ok_or(BAD_FORMAT)?;
    let (keys, touch) = match verb {
        b"gat" | b"gats" => {
            split_word(behind).ok_or(BAD_FORMAT)?;
            (behind, Some(signed_32(first).ok_or(BAD_EXPTIME)?))
        }
        _ => (rest, None),
    };
    // In a line no longer than a key, no key is too long.
    if keys.len() > KEY_BYTES_MAX && keys.split(|&byte| byte == b' ').any(|key| key.len() > KEY_BYTES_MAX) {
        return Err(BAD_FORMAT);
    }
    let is_lone_touch = touch.is_some() && split_word(keys).is_some_and(|(_, behind)| split_word(behind).is_none());
    Ok((keys, Get { with_cas: matches!(verb, b"gets" | b"gats"), touch, is_lone_touch }))
}

/// Whether the last word says that no answer is wanted.
fn is_quiet(tokens: &Tokens<'_>) -> bool {
    tokens.last() == Some(&&b"noreply"[..])
}

/// Returns an answer, or silence.
fn unless(is_quiet: bool, said: &'static [u8]) -> &'static [u8] {
    if is_quiet { b"" } else { said }
}

/// Returns the minimum number of words of a command, including its name; excess words are ignored.
fn words_min(verb: &[u8]) -> usize {
    match verb {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => 5,
        b"incr" | b"decr" | b"touch" => 3,
        b"delete" => 2,
        _ => 0,
    }
}

pub(super) fn command<'a>(verb: &[u8], tokens: &Tokens<'a>, behind: &Behind<'a>) -> Step<'a> {
    if tokens.len() < words_min(verb) {
        return behind.say(BAD_FORMAT);
    }
    match verb {
        b"set" => store(Verb::Set, tokens, behind),
        b"add" => store(Verb::Add, tokens, behind),
        b"replace" => store(Verb::Replace, tokens, behind),
        b"append" => store(Verb::Append, tokens, behind),
        b"prepend" => store(Verb::Prepend, tokens, behind),
        b"cas" => store(Verb::Cas(0), tokens, behind),
        b"incr" => arithmetic(Delta::Up, tokens, behind),
        b"decr" => arithmetic(Delta::Down, tokens, behind),
        b"delete" => delete(tokens, behind),
        b"touch" => touch(tokens, behind),
        b"version" => behind.say(VERSION_LINE),
        b"quit" => behind.unit(Unit::Quit),
        b"stats" => stats(tokens, behind),
        b"watch" => behind.say(b"CLIENT_ERROR watch commands not allowed\r\n"),
        _ => rare(tokens, behind),
    }
}

/// Parses the commands that memcached checks last, by the first word of the line, which spaces may precede.
fn rare<'a>(tokens: &Tokens<'a>, behind: &Behind<'a>) -> Step<'a> {
    let word = |at: usize| tokens.get(at).copied().unwrap_or_default();
    let said: &[u8] = match (word(0), tokens.len()) {
        (b"flush_all", _) => return flush(tokens, behind),
        (b"verbosity", _) => unsigned_32(word(1)).map_or(BAD_FORMAT, |_| b"OK\r\n"),
        (b"shutdown", _) => b"SERVER_ERROR: shutdown not enabled\r\n",
        (b"cache_memlimit", _) => memory_limit(word(1)),
        (b"slabs", 4) if word(1) == b"reassign" => b"CLIENT_ERROR slab reassignment disabled\r\n",
        (b"slabs", 2 | 3) if word(1) == b"automove" && unsigned_32(word(2)).is_none() => BAD_FORMAT,
        (b"lru_crawler", 3) if matches!(word(1), b"crawl" | b"metadump" | b"mgdump") => {
            b"CLIENT_ERROR lru crawler disabled\r\n"
        }
        // A web page can make a browser send this, followed by arbitrary text, which must not be parsed as commands.
        (_, 2..) if tokens.last().is_some_and(|last| last.starts_with(b"HTTP/")) => return Step::Close,
        _ => ERROR,
    };
    behind.say(unless(is_quiet(tokens), said))
}

fn store<'a>(verb: Verb, tokens: &Tokens<'a>, behind: &Behind<'a>) -> Step<'a> {
    let is_quiet = is_quiet(tokens);
    // Without a length, it is unknown where the next command begins. With one, the data is never taken for commands,
    // whatever else is wrong.
    let Some(len) = data_len(tokens[4]) else { return behind.say(BAD_FORMAT) };
    let Some(verb) = with_token(verb, tokens) else {
        return behind.swallow(Unit::Say(unless(is_quiet, BAD_FORMAT)), len);
    };
    let (key, numbers) = (tokens[1], (loose_unsigned_32(tokens[2]), loose_signed_32(tokens[3])));
    let ((Some(flags), Some(exptime)), ..=KEY_BYTES_MAX) = (numbers, key.len()) else {
        return behind.swallow(Unit::Say(unless(is_quiet, BAD_FORMAT)), len);
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

/// Returns a storage command with the CAS token that it names, if it needs one.
fn with_token(verb: Verb, tokens: &Tokens<'_>) -> Option<Verb> {
    match verb {
        Verb::Cas(_) => Some(Verb::Cas(unsigned(tokens.get(5)?)?)),
        other => Some(other),
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
    let (key, is_quiet) = (tokens[1], is_quiet(tokens));
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

/// The server's memory is fixed at its start.
fn memory_limit(megabytes: &[u8]) -> &'static [u8] {
    match unsigned_32(megabytes) {
        None => ERROR,
        Some(0..8) => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n",
        Some(8..=1_000_000_000) => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
        Some(_) => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n",
    }
}

/// `stats cachedump CLASS ITEMS`.
fn dump(tokens: &Tokens<'_>) -> Result<StatsKind, &'static [u8]> {
    /// The number of memcached's slab classes. All items here are of class 1.
    const CLASSES_MAX: u32 = 64;
    let [_, _, class, items_max, ..] = tokens[..] else { return Err(b"CLIENT_ERROR bad command line\r\n") };
    match (unsigned_32(class).ok_or(BAD_FORMAT)?, unsigned_32(items_max).ok_or(BAD_FORMAT)?) {
        (1, items_max) => Ok(StatsKind::Dump { items_max }),
        (CLASSES_MAX.., _) => Err(b"CLIENT_ERROR Illegal slab id\r\n"),
        _ => Ok(StatsKind::DumpNothing),
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
        Some(b"cachedump") => match dump(tokens) {
            Ok(kind) => kind,
            Err(said) => return behind.say(said),
        },
        Some(b"detail") => match tokens.get(2).copied() {
            Some(b"off") => return behind.say(b"OK\r\n"),
            Some(b"on" | b"dump") => return behind.say(b"CLIENT_ERROR counts by prefix are not kept\r\n"),
            _ => return behind.say(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
        },
        Some(_) => return behind.say(ERROR),
    };
    behind.unit(Unit::Ask(Ask::Stats(kind)))
}
