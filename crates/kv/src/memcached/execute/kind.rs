//! The operation that a command counts as.

use dunlin_store::Delta;

use crate::memcached::parse::{Meta, MetaVerb, StoreUnit, Unit, Verb};
use crate::metrics::Operation;

/// Returns the operation that a unit counts as, if any. `me` does not count.
#[inline(always)]
pub(in crate::memcached) fn kind(unit: &Unit<'_>) -> Option<Operation> {
    Some(match unit {
        Unit::Get { get, .. } if get.touch.is_some() => Operation::GetAndTouch,
        Unit::Get { .. } => Operation::Get,
        Unit::Store(StoreUnit { verb, .. }) => match verb {
            Verb::Set => Operation::Set,
            Verb::Add => Operation::Add,
            Verb::Replace => Operation::Replace,
            Verb::Append => Operation::Append,
            Verb::Prepend => Operation::Prepend,
            Verb::Cas(_) => Operation::CompareAndSwap,
        },
        Unit::Delete { .. } => Operation::Delete,
        Unit::Touch { .. } => Operation::Touch,
        Unit::Count { delta: Delta::Up(_), .. } => Operation::Increment,
        Unit::Count { delta: Delta::Down(_), .. } => Operation::Decrement,
        Unit::Meta(meta) => return kind_of_meta(meta),
        Unit::Say(_) | Unit::Ask(_) | Unit::Quit => return None,
    })
}

/// Whether a unit may change an item, beyond what is recorded of the access. The first `mg` of a stale item, which takes
/// note that somebody won it, does not count: each item has only one.
#[inline]
pub(in crate::memcached) fn may_change(unit: &Unit<'_>) -> bool {
    match unit {
        Unit::Get { get, .. } => get.touch.is_some(),
        Unit::Store(_) | Unit::Delete { .. } | Unit::Touch { .. } | Unit::Count { .. } => true,
        Unit::Meta(Meta { verb, options, .. }) => match verb {
            MetaVerb::Get => options.ttl.is_some() || options.vivify.is_some() || options.recache.is_some(),
            MetaVerb::Set | MetaVerb::Delete | MetaVerb::Arithmetic => true,
            MetaVerb::Debug => false,
        },
        Unit::Say(_) | Unit::Ask(_) | Unit::Quit => false,
    }
}

fn kind_of_meta(meta: &Meta<'_>) -> Option<Operation> {
    let options = &meta.options;
    Some(match meta.verb {
        MetaVerb::Get if options.ttl.is_some() => Operation::GetAndTouch,
        MetaVerb::Get => Operation::Get,
        MetaVerb::Set => match (options.mode, options.cas) {
            (b'A', _) => Operation::Append,
            (b'P', _) => Operation::Prepend,
            (b'E', _) => Operation::Add,
            (_, Some(_)) => Operation::CompareAndSwap,
            (b'R', None) => Operation::Replace,
            _ => Operation::Set,
        },
        MetaVerb::Delete => Operation::Delete,
        MetaVerb::Arithmetic if matches!(options.mode, b'D' | b'-') => Operation::Decrement,
        MetaVerb::Arithmetic => Operation::Increment,
        MetaVerb::Debug => return None,
    })
}
