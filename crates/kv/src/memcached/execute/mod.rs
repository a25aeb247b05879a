//! Executes units on the partition that owns their keys, and writes the answers as memcached would.
//!
//! Differences from memcached 1.6.45 are noted at the commands. In general: a value may have its full 1 MiB (memcached
//! counts its own header); an item does not remember that its key came in base64 (the answer's `b` follows the
//! request); base64 must be canonical; and `E`, `x` and `ms` with `N` and `s`, which are of later versions, are
//! supported.

mod classic;
mod debug;
mod expiry;
mod kind;
mod meta;

use arrayvec::ArrayVec;
use dunlin_store::tier::Ticket;
use dunlin_store::{Key, Store, UnixSeconds};

use super::counters::Counters;
use super::limits::{BURST_UNITS_MAX, OUTPUT_BYTES_MAX, WORK_BYTES_MAX};
use super::parse::{Meta, MetaVerb, Unit, Verb};
use crate::memcached::parse::{DecodedKey, KeyText, decode_key};
use crate::metrics::{CoreMetrics, Outcome};
use crate::shard::on_device;
pub use expiry::expiry;
pub(super) use kind::{kind, may_change};

/// The time, and the counters of a core.
pub(super) struct Books<'a> {
    pub now: UnixSeconds,
    /// memcached's counters.
    pub counters: &'a Counters,
    /// The metrics of operations of all protocols.
    pub metrics: &'a mut CoreMetrics,
    /// Records that must be read before the burst can go on.
    pub awaited: &'a mut Vec<Ticket>,
}

/// What an operation needs besides the store.
struct Context<'a> {
    now: UnixSeconds,
    counters: &'a Counters,
    out: &'a mut Vec<u8>,
}

impl Context<'_> {
    fn say(&mut self, said: &[u8]) {
        self.out.extend_from_slice(said);
    }

    fn say_unless(&mut self, is_quiet: bool, said: &[u8]) {
        if !is_quiet {
            self.say(said);
        }
    }
}

/// Where long values may be among the answers of a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LongValues {
    /// Anywhere: the burst pauses after one.
    Anywhere,
    /// Only first.
    First,
    /// Nowhere: the burst pauses before one.
    Nowhere,
}

/// Whether commands that change something may run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Changes {
    /// They may.
    #[default]
    Run,
    /// They wait for another turn of the core: see [`super::backend::wait_for_turn`].
    Wait,
}

/// When a burst pauses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pause {
    /// When the answers in `out` are more than this many bytes.
    pub answers_max: usize,
    /// Where values may exceed that length.
    pub long_values: LongValues,
    /// Whether the burst pauses before a unit whose item is in the tier.
    pub for_tier: bool,
    /// Before the first change, if changes wait.
    pub changes: Changes,
}

impl Default for Pause {
    fn default() -> Pause {
        Pause {
            answers_max: OUTPUT_BYTES_MAX,
            long_values: LongValues::Anywhere,
            for_tier: false,
            changes: Changes::Run,
        }
    }
}

/// Why a burst ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BurstEnd {
    /// All units have run.
    Done,
    /// The answers have reached their limit.
    Answers,
    /// The burst moved more than [`WORK_BYTES_MAX`], or a change waited for a snapshot's disk: other tasks of the core
    /// must get their turn.
    Work,
    /// The next unit needs an item that is in the tier: see [`Books::awaited`].
    Tier,
    /// The next unit is a change, and changes wait.
    Change,
}

/// Bytes of records that a burst waits for at a time, or one record.
const AWAITED_BYTES_MAX: usize = 1 << 20;

/// Runs a burst of at most [`BURST_UNITS_MAX`] units in order and appends their answers to `out`; calls `done` after
/// each. Stops early when `pause` says so, after [`WORK_BYTES_MAX`], or after a change that waited for the disk.
/// Returns how many units ran, which is at least one unless no long value is allowed or changes wait, and why it ended.
///
/// HERD's two-stage pipeline (thesis section 4.4.1): first it prefetches every key's index line, then every item, then
/// it runs the operations.
pub(super) fn burst<'u, 'i: 'u, S: Store>(
    units: impl Iterator<Item = &'u Unit<'i>> + Clone,
    store: &mut S,
    books: Books<'_>,
    out: &mut Vec<u8>,
    pause: Pause,
    mut done: impl FnMut(&Vec<u8>),
) -> (usize, BurstEnd) {
    let Books { now, counters, metrics, awaited } = books;
    store.set_now(now);
    let mut decoded = ArrayVec::<DecodedKey, BURST_UNITS_MAX>::new();
    for unit in units.clone() {
        if let Some(KeyText::Base64(text)) = unit.key() {
            // The parser rejects keys that cannot be decoded.
            decoded.push(decode_key(text).unwrap_or_default());
        }
    }
    let mut decoded = decoded.iter();
    let mut keys = ArrayVec::<Option<Key<'_>>, BURST_UNITS_MAX>::new();
    for unit in units.clone() {
        let bytes = match unit.key() {
            Some(KeyText::Plain(bytes)) => Some(bytes),
            Some(KeyText::Base64(_)) => decoded.next().map(|key| &key[..]),
            None => None,
        };
        keys.push(bytes.and_then(|bytes| store.key(bytes).ok()));
    }
    if keys.len() > 1 {
        keys.iter().flatten().for_each(|key| store.prefetch(key));
        keys.iter().flatten().for_each(|key| store.prefetch_item(key));
    }
    let mut context = Context { now, counters, out };
    let (mut count, mut work) = (0, 0);
    let stalled = store.stalled();
    for (unit, key) in units.clone().zip(&keys) {
        // Before it takes its turn: by the time that its record has come, the turn would be over.
        if pause.for_tier && await_tier(units.clone().zip(&keys).skip(count), store, now, awaited) {
            return (count, BurstEnd::Tier);
        }
        if pause.changes == Changes::Wait && may_change(unit) {
            return (count, BurstEnd::Change);
        }
        if let Some(key) = key {
            if is_too_long(unit, key, store, context.out.len(), pause, count) {
                return (count, BurstEnd::Answers);
            }
            work += moved_bytes(unit, key, store);
        }
        let answered = context.out.len();
        match (unit, key) {
            (Unit::Say(said), _) => context.say(said),
            (unit, Some(key)) => {
                let outcome = operate(unit, key, store, &mut context);
                if let (Some(kind), Some(outcome)) = (kind(unit), outcome) {
                    metrics.count(kind, outcome);
                }
            }
            // The key is invalid; the parser lets none of these pass.
            (_, None) => context.say(b"CLIENT_ERROR bad command line format\r\n"),
        }
        count += 1;
        done(context.out);
        work += context.out.len() - answered;
        if context.out.len() > pause.answers_max {
            return (count, BurstEnd::Answers);
        }
        if work > WORK_BYTES_MAX || store.stalled() > stalled {
            return (count, BurstEnd::Work);
        }
    }
    (count, BurstEnd::Done)
}

/// Whether the first of these units needs an item that is in the tier. Then `awaited` gets its record, and those that the
/// others need, so that they are read together.
fn await_tier<'u, 'i: 'u, 'k, S: Store>(
    units: impl Iterator<Item = (&'u Unit<'i>, &'k Option<Key<'k>>)>,
    store: &S,
    now: UnixSeconds,
    awaited: &mut Vec<Ticket>,
) -> bool {
    let mut bytes = 0;
    for (unit, key) in units {
        let ticket = key.as_ref().filter(|_| needs_item(unit)).and_then(|key| on_device(store, key, now));
        let Some(ticket) = ticket else {
            if bytes == 0 {
                return false;
            }
            continue;
        };
        bytes += ticket.bytes();
        if bytes > AWAITED_BYTES_MAX && !awaited.is_empty() {
            break;
        }
        awaited.push(ticket);
    }
    bytes > 0
}

/// Whether a unit needs to know its item. What stores or deletes one whatever it is does not.
fn needs_item(unit: &Unit<'_>) -> bool {
    match unit {
        Unit::Store(unit) => unit.verb != Verb::Set,
        Unit::Delete { .. } => false,
        Unit::Meta(Meta { verb: MetaVerb::Set, options, .. }) => {
            options.cas.is_some() || !matches!(options.mode, 0 | b'S' | b's')
        }
        Unit::Meta(Meta { verb: MetaVerb::Delete, options, .. }) => {
            options.cas.is_some() || options.invalidates || options.drops_value
        }
        _ => true,
    }
}

/// Whether a retrieval would return a value that is too long for its position.
#[inline]
fn is_too_long<S: Store>(
    unit: &Unit<'_>,
    key: &Key<'_>,
    store: &S,
    answered: usize,
    pause: Pause,
    count: usize,
) -> bool {
    let may_be = match pause.long_values {
        LongValues::Anywhere => return false,
        LongValues::First => count == 0 && answered == 0,
        LongValues::Nowhere => false,
    };
    let gives_value = match unit {
        Unit::Get { .. } => true,
        Unit::Meta(meta) => meta.options.wants_value && meta.verb == MetaVerb::Get,
        _ => false,
    };
    !may_be && gives_value && store.peek(key).is_some_and(|item| answered + item.value.len() > pause.answers_max)
}

/// Returns the bytes that a command moves besides its answer: its value, and the value that it adds to.
#[inline]
fn moved_bytes<S: Store>(unit: &Unit<'_>, key: &Key<'_>, store: &S) -> usize {
    let (value, is_added) = match unit {
        Unit::Store(unit) => (unit.value, matches!(unit.verb, Verb::Append | Verb::Prepend)),
        Unit::Meta(meta) if meta.verb == MetaVerb::Set => {
            (meta.value, matches!(meta.options.mode, b'A' | b'a' | b'P' | b'p'))
        }
        _ => return 0,
    };
    let added_to = if is_added { store.peek(key).map_or(0, |item| item.value.len()) } else { 0 };
    value.map_or(0, <[u8]>::len) + added_to
}

/// Executes a unit, and returns its outcome if it is an operation.
#[inline]
fn operate<S: Store>(unit: &Unit<'_>, key: &Key<'_>, store: &mut S, context: &mut Context<'_>) -> Option<Outcome> {
    Some(match unit {
        Unit::Get { get, is_last, .. } => {
            let outcome = classic::get(key, *get, store, context);
            if *is_last && !(get.is_lone_touch && outcome == Outcome::Refused) {
                context.say(b"END\r\n");
            }
            outcome
        }
        Unit::Store(unit) => classic::store(key, unit, store, context),
        Unit::Delete { is_quiet, .. } => classic::delete(key, *is_quiet, store, context),
        Unit::Touch { exptime, is_quiet, .. } => classic::touch(key, *exptime, *is_quiet, store, context),
        Unit::Count { delta, is_quiet, .. } => classic::count(key, *delta, *is_quiet, store, context),
        Unit::Meta(meta) => match meta.verb {
            MetaVerb::Get => meta::get(key, meta, store, context),
            MetaVerb::Set => meta::set(key, meta, store, context),
            MetaVerb::Delete => meta::delete(key, meta, store, context),
            MetaVerb::Arithmetic => meta::arithmetic(key, meta, store, context),
            MetaVerb::Debug => {
                debug::debug(key, meta, store, context);
                return None;
            }
        },
        Unit::Say(_) | Unit::Ask(_) | Unit::Quit => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse::{Mode, Step, step};
    use super::*;

    fn needs(text: &str) -> bool {
        let Step::Unit(unit, ..) = step(Mode::Line, text.as_bytes(), 0, 1 << 20) else { panic!("{text:?}") };
        needs_item(&unit)
    }

    #[test]
    fn what_stores_or_deletes_an_item_whatever_it_is_reads_none() {
        for text in ["set k 0 0 1\r\nx\r\n", "delete k\r\n", "ms k 1\r\nx\r\n", "ms k 1 MS T9\r\nx\r\n", "md k q\r\n"] {
            assert!(!needs(text), "{text:?}");
        }
        for text in [
            "add k 0 0 1\r\nx\r\n",
            "cas k 0 0 1 7\r\nx\r\n",
            "ms k 1 C7\r\nx\r\n",
            "ms k 1 MA\r\nx\r\n",
            "ms k 1 ME\r\nx\r\n",
            "ms k 1 MR\r\nx\r\n",
            "md k C7\r\n",
            "md k I\r\n",
            "md k x\r\n",
            "mg k v\r\n",
            "touch k 5\r\n",
        ] {
            assert!(needs(text), "{text:?}");
        }
    }
}
