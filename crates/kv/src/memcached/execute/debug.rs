//! `me`: metadata of an item, for people.

use dunlin_store::{Key, Store};

use super::Context;
use crate::memcached::counters::Count;
use crate::memcached::number;
use crate::memcached::parse::Meta;

pub(super) fn debug<S: Store>(key: &Key<'_>, meta: &Meta<'_>, store: &mut S, context: &mut Context<'_>) {
    context.counters.add(Count::CmdMeta);
    let Some(item) = store.peek(key) else { return context.say(b"EN\r\n") };
    let out = &mut *context.out;
    out.extend_from_slice(b"ME ");
    out.extend_from_slice(meta.key);
    out.extend_from_slice(b" exp=");
    match item.expires {
        None => out.extend_from_slice(b"-1"),
        Some(at) => number::write(out, u64::from(at.saturating_sub(context.now))),
    }
    out.extend_from_slice(b" la=");
    number::write(out, u64::from(context.now.saturating_sub(item.last_access)));
    out.extend_from_slice(b" cas=");
    number::write(out, item.cas);
    out.extend_from_slice(if item.marks.is_fetched { b" fetch=yes" } else { b" fetch=no" });
    // There are no slab classes; the size is that of key and value.
    out.extend_from_slice(b" cls=1 size=");
    number::write(out, (key.bytes().len() + item.value.len()) as u64);
    out.extend_from_slice(b"\r\n");
}
