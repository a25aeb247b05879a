//! The meta commands. Each returns its outcome.

use dunlin_store::{Condition, Delta, Item, Key, Marks, Put, Refused, Side, Store, Stored, Token, UnixSeconds};

use super::classic::{NO_MEMORY, NOT_NUMERIC, OUT_OF_MEMORY, TOO_LARGE, count_of, forget};
use super::{Context, expiry};
use crate::memcached::counters::Count;
use crate::memcached::number;
use crate::memcached::parse::Meta;
use crate::metrics::Outcome;

fn flag(out: &mut Vec<u8>, letter: u8, value: u64) {
    out.extend_from_slice(&[b' ', letter]);
    number::write(out, value);
}

/// Writes the time left, or -1 for an item that never expires.
fn time_left(out: &mut Vec<u8>, expires: Option<UnixSeconds>, now: UnixSeconds) {
    match expires {
        None => out.extend_from_slice(b" t-1"),
        Some(at) => flag(out, b't', u64::from(at.saturating_sub(now))),
    }
}

/// Writes a flag that is echoed: the opaque flag, or the key.
fn echo(out: &mut Vec<u8>, meta: &Meta<'_>, word: &[u8]) {
    match word[0] {
        b'O' => {
            out.push(b' ');
            out.extend_from_slice(word);
        }
        b'k' => {
            out.extend_from_slice(b" k");
            out.extend_from_slice(meta.key);
            if meta.options.is_base64 {
                out.extend_from_slice(b" b");
            }
        }
        _ => {}
    }
}

/// Writes an answer without a value.
fn answer(meta: &Meta<'_>, code: &[u8], context: &mut Context<'_>) {
    context.say(code);
    meta.flags().for_each(|word| echo(context.out, meta, word));
    context.say(b"\r\n");
}

/// The item that an `mg` found or created, as its answer shows it.
struct Found<'a> {
    item: Item<'a>,
    is_made: bool,
}

/// Writes the answer of a hit. Returns the item's new expiry, and whether this client won the recache.
fn write_found(found: &Found<'_>, meta: &Meta<'_>, context: &mut Context<'_>) -> (Option<UnixSeconds>, bool) {
    let Found { item, is_made } = found;
    let (now, options) = (context.now, &meta.options);
    let out = &mut *context.out;
    // A client that already has this version needs no copy of it.
    let wants_value = options.wants_value && options.cas != Some(item.cas);
    if wants_value {
        out.reserve(item.value.len() + 64);
        out.extend_from_slice(b"VA ");
        number::write(out, item.value.len() as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    // The flags take effect in the order of the line: `t` before `T` reports the old time, and after it the new one.
    let mut expires = if *is_made { None } else { item.expires };
    let mut has_won = false;
    for word in meta.flags() {
        match word[0] {
            b'T' => expires = expiry(options.ttl.unwrap_or(0), now),
            b'N' if *is_made => {
                expires = expiry(options.vivify.unwrap_or(0), now);
                has_won = true;
            }
            b'R' if !is_made && !item.marks.is_won => {
                let before = expiry(options.recache.unwrap_or(0), now).unwrap_or(0);
                has_won |= expires.is_some_and(|at| at < before);
            }
            b's' => flag(out, b's', item.value.len() as u64),
            b't' => time_left(out, expires, now),
            b'c' => flag(out, b'c', item.cas),
            b'f' => flag(out, b'f', u64::from(item.flags)),
            b'l' => flag(out, b'l', u64::from(now.saturating_sub(item.last_access))),
            b'h' => flag(out, b'h', u64::from(item.marks.is_fetched)),
            _ => echo(out, meta, word),
        }
    }
    if item.marks.is_won {
        out.extend_from_slice(b" Z");
    }
    if item.marks.is_stale {
        out.extend_from_slice(b" X");
        has_won |= !item.marks.is_won;
    }
    if has_won {
        out.extend_from_slice(b" W");
    }
    out.extend_from_slice(b"\r\n");
    if wants_value {
        out.extend_from_slice(item.value);
        out.extend_from_slice(b"\r\n");
    }
    (expires, has_won)
}

/// Executes `mg`. An item created because there was none counts as a miss.
pub(super) fn get<S: Store>(key: &Key<'_>, meta: &Meta<'_>, store: &mut S, context: &mut Context<'_>) -> Outcome {
    let options = &meta.options;
    let start = context.out.len();
    context.counters.add(if options.ttl.is_some() { Count::CmdTouch } else { Count::CmdGet });
    let item = if options.is_traceless { store.peek(key) } else { store.get(key) };
    let outcome = Outcome::found(item.is_some());
    let (marks, had, (expires, has_won)) = match item {
        Some(item) => {
            context.counters.add(if options.ttl.is_some() { Count::TouchHits } else { Count::GetHits });
            (item.marks, item.expires, write_found(&Found { item, is_made: false }, meta, context))
        }
        None => {
            context.counters.add(if options.ttl.is_some() { Count::TouchMisses } else { Count::GetMisses });
            let put = options.vivify.map(|exptime| Put {
                expires: expiry(exptime, context.now),
                condition: Condition::Absent,
                cas: options.new_cas,
                ..Put::default()
            });
            let Some((put, Ok(Stored { cas }))) = put.map(|put| (put, store.put(key, b"", put))) else {
                if !options.is_quiet {
                    answer(meta, b"EN", context);
                }
                return outcome;
            };
            let (last_access, marks) = (context.now, Marks::default());
            let item = Item { value: b"", flags: 0, cas, expires: put.expires, last_access, marks };
            (marks, put.expires, write_found(&Found { item, is_made: true }, meta, context))
        }
    };
    // The time is set first, since that may fail for lack of memory: then nobody has won either. Marks need no memory.
    if expires != had && !is_touched(store.touch(key, expires)) {
        return fail(start, context);
    }
    if has_won {
        let marks = Marks { is_won: true, is_fetched: marks.is_fetched || !options.is_traceless, ..marks };
        remark(key, marks, Token::Keep, store);
    }
    outcome
}

/// Whether an item has its new expiry, or is gone because that was in the past.
fn is_touched(touched: Result<(), Refused>) -> bool {
    matches!(touched, Ok(()) | Err(Refused::NotFound))
}

/// Reports lack of memory, in place of the answer that began at `start`.
fn fail(start: usize, context: &mut Context<'_>) -> Outcome {
    context.counters.add(Count::StoreNoMemory);
    context.out.truncate(start);
    context.say(OUT_OF_MEMORY);
    Outcome::Refused
}

/// Sets the marks of an item just found or stored, with a token that needs no more memory than its present one.
fn remark<S: Store>(key: &Key<'_>, marks: Marks, token: Token, store: &mut S) {
    let remarked = store.mark(key, marks, token);
    // An expiry in the past has deleted it meanwhile.
    debug_assert!(!matches!(remarked, Err(Refused::Full)), "marks need no memory");
}

/// The condition of an `ms`, and the further meaning of its CAS token.
enum Plan {
    Put(Put),
    Extend(Side),
}

fn plan<S: Store>(key: &Key<'_>, meta: &Meta<'_>, store: &S, now: UnixSeconds) -> (Plan, Marks) {
    let options = &meta.options;
    let put = Put {
        flags: options.client_flags,
        expires: expiry(options.ttl.unwrap_or(0), now),
        cas: options.new_cas,
        ..Put::default()
    };
    let condition = match (options.mode, options.cas) {
        (b'A', _) => return (Plan::Extend(Side::End), Marks::default()),
        (b'P', _) => return (Plan::Extend(Side::Start), Marks::default()),
        (b'E', _) => Condition::Absent,
        (_, Some(token)) => {
            // With `I`, a token older than the item's still stores, as a stale item that keeps its expiry and its
            // winner. Zero is not a token.
            let item = store.peek(key).filter(|item| options.invalidates && token != 0 && token < item.cas);
            if let Some(Item { expires, marks, .. }) = item {
                let put = Put { expires, is_stale: true, ..put };
                return (Plan::Put(put), Marks { is_stale: true, is_fetched: false, is_won: marks.is_won });
            }
            Condition::Unchanged(token)
        }
        (b'R', None) => Condition::Present,
        _ => Condition::Always,
    };
    (Plan::Put(Put { condition, ..put }), Marks::default())
}

pub(super) fn set<S: Store>(key: &Key<'_>, meta: &Meta<'_>, store: &mut S, context: &mut Context<'_>) -> Outcome {
    let options = &meta.options;
    let Some(value) = meta.value else {
        forget(key, store);
        context.counters.add(Count::StoreTooLarge);
        context.say(TOO_LARGE);
        return Outcome::Refused;
    };
    context.counters.add(Count::CmdSet);
    let result = match plan(key, meta, store, context.now) {
        (Plan::Put(put), marks) => {
            let result = store.put(key, value, put);
            if result.is_ok() && marks.is_won {
                remark(key, marks, Token::Keep, store);
            }
            result
        }
        (Plan::Extend(side), _) => match (store.extend(key, value, side, token(options.cas)), options.vivify) {
            (Err(Refused::NotFound), Some(exptime)) => {
                let expires = expiry(exptime, context.now);
                store.put(
                    key,
                    value,
                    Put { flags: options.client_flags, expires, cas: options.new_cas, ..Put::default() },
                )
            }
            (Ok(stored), _) => renamed(key, stored, options.new_cas, store),
            (refused, _) => refused,
        },
    };
    let outcome = Outcome::of(&result);
    let code = match result {
        Ok(_) if options.is_quiet => return outcome,
        Ok(_) => b"HD",
        Err(Refused::Changed) => b"EX",
        Err(Refused::NotFound) if options.cas.is_some() && !matches!(options.mode, b'A' | b'P') => b"NF",
        Err(Refused::TooLarge { .. }) if !matches!(options.mode, b'A' | b'P') => {
            context.counters.add(Count::StoreTooLarge);
            forget(key, store);
            context.say(TOO_LARGE);
            return outcome;
        }
        Err(Refused::Full) => {
            context.counters.add(Count::StoreNoMemory);
            // If an append or prepend fails, the item stays, unlike in memcached.
            if !matches!(options.mode, b'A' | b'P') {
                forget(key, store);
            }
            context.say(NO_MEMORY);
            return outcome;
        }
        Err(_) => b"NS",
    };
    context.say(code);
    for word in meta.flags() {
        match word[0] {
            b'c' => flag(context.out, b'c', result.map_or(0, |stored| stored.cas)),
            b's' => flag(context.out, b's', stored_len(key, value, outcome, store)),
            _ => echo(context.out, meta, word),
        }
    }
    context.say(b"\r\n");
    outcome
}

/// Returns the length for the flag `s`: of the whole item, or of the value that was not stored.
fn stored_len<S: Store>(key: &Key<'_>, value: &[u8], outcome: Outcome, store: &S) -> u64 {
    let item = if outcome == Outcome::Hit { store.peek(key) } else { None };
    item.map_or(value.len(), |item| item.value.len()) as u64
}

/// Gives a changed item the token that `E` names, if any. Fails if there is no memory for it; the change stays.
fn renamed<S: Store>(key: &Key<'_>, stored: Stored, new_cas: Option<u64>, store: &mut S) -> Result<Stored, Refused> {
    let Some(cas) = new_cas else { return Ok(stored) };
    let marks = store.peek(key).map_or(Marks::default(), |item| item.marks);
    store.mark(key, marks, Token::Exactly(cas)).map(|()| Stored { cas })
}

pub(super) fn delete<S: Store>(key: &Key<'_>, meta: &Meta<'_>, store: &mut S, context: &mut Context<'_>) -> Outcome {
    let options = &meta.options;
    let result = if options.invalidates || options.drops_value {
        invalidate(key, meta, store, context.now)
    } else {
        store.delete(key, options.cas)
    };
    context.counters.add(if result.is_ok() { Count::DeleteHits } else { Count::DeleteMisses });
    match result {
        Ok(()) if options.is_quiet => {}
        Ok(()) => answer(meta, b"HD", context),
        Err(Refused::Changed) => answer(meta, b"EX", context),
        Err(Refused::Full) => return fail(context.out.len(), context),
        Err(_) => answer(meta, b"NF", context),
    }
    Outcome::of(&result)
}

/// Executes `md` with `I` or `x`: the item stays, either as stale and with another CAS token, or without its value,
/// flags, time and marks.
fn invalidate<S: Store>(key: &Key<'_>, meta: &Meta<'_>, store: &mut S, now: UnixSeconds) -> Result<(), Refused> {
    let options = &meta.options;
    let Item { cas, mut marks, .. } = store.peek(key).ok_or(Refused::NotFound)?;
    if options.cas.is_some_and(|token| token != cas) {
        return Err(Refused::Changed);
    }
    if options.drops_value {
        let expires = expiry(options.ttl.unwrap_or(0), now);
        let cas = Some(options.new_cas.unwrap_or(cas));
        store.put(key, b"", Put { flags: options.client_flags, expires, cas, ..Put::default() })?;
        marks = Marks::default();
    }
    if !options.invalidates {
        return Ok(());
    }
    if let Some(ttl) = options.ttl {
        store.touch(key, expiry(ttl, now))?;
    }
    // The next client may win again.
    let marks = Marks { is_stale: true, is_won: false, ..marks };
    match store.mark(key, marks, options.new_cas.map_or(Token::Next, Token::Exactly)) {
        // A time in the past has deleted it.
        Err(Refused::NotFound) => Ok(()),
        marked => marked,
    }
}

/// Returns the token that an item must have for `ma`, and for `ms` to append or prepend. memcached takes zero for none
/// there.
fn token(cas: Option<u64>) -> Option<u64> {
    cas.filter(|&token| token != 0)
}

/// Executes `ma`. A number created because there was none counts as a hit: it is stored.
pub(super) fn arithmetic<S: Store>(
    key: &Key<'_>,
    meta: &Meta<'_>,
    store: &mut S,
    context: &mut Context<'_>,
) -> Outcome {
    let options = &meta.options;
    let by = options.delta.unwrap_or(1);
    let delta = if matches!(options.mode, b'D' | b'-') { Delta::Down(by) } else { Delta::Up(by) };
    let (value, stored, is_made) = match (store.count(key, delta, token(options.cas)), options.vivify) {
        (Ok((value, stored)), _) => match renamed(key, stored, options.new_cas, store) {
            Ok(stored) => (value, stored, false),
            // As below, the number was changed, but that is not reported.
            Err(_) => return fail(context.out.len(), context),
        },
        (Err(Refused::NotFound), Some(exptime)) => {
            let put = Put { expires: expiry(exptime, context.now), cas: options.new_cas, ..Put::default() };
            let mut text = itoa::Buffer::new();
            match store.put(key, text.format(options.initial).as_bytes(), put) {
                Ok(stored) => (options.initial, stored, true),
                Err(_) => {
                    context.say(b"SERVER_ERROR Out of memory allocating new item\r\n");
                    return Outcome::Refused;
                }
            }
        }
        (Err(Refused::NotFound), None) => {
            context.counters.add(count_of(delta, false));
            answer(meta, b"NF", context);
            return Outcome::Miss;
        }
        (Err(Refused::Changed), _) => {
            answer(meta, b"EX", context);
            return Outcome::Conflict;
        }
        (Err(Refused::NotANumber), _) => {
            context.say(NOT_NUMERIC);
            return Outcome::Refused;
        }
        (Err(_), _) => return fail(context.out.len(), context),
    };
    context.counters.add(count_of(delta, !is_made));
    let had = store.peek(key).and_then(|item| item.expires);
    let mut expires = if is_made { None } else { had };
    let start = context.out.len();
    let mut text = itoa::Buffer::new();
    let text = text.format(value).as_bytes();
    if options.wants_value {
        context.say(b"VA ");
        number::write(context.out, text.len() as u64);
    } else {
        context.say(b"HD");
    }
    for word in meta.flags() {
        match word[0] {
            b'c' => flag(context.out, b'c', stored.cas),
            b't' => time_left(context.out, expires, context.now),
            b'T' => expires = expiry(options.ttl.unwrap_or(0), context.now),
            b'N' if is_made => expires = expiry(options.vivify.unwrap_or(0), context.now),
            _ => echo(context.out, meta, word),
        }
    }
    context.say(b"\r\n");
    if options.wants_value {
        context.say(text);
        context.say(b"\r\n");
    }
    if expires != had && !is_touched(store.touch(key, expires)) {
        return fail(start, context);
    }
    if options.is_quiet {
        context.out.truncate(start);
    }
    Outcome::Hit
}
