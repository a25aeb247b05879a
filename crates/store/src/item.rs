//! Items, and how operations change them.

use crate::error::Refused;

/// Seconds since 1970. Time is supplied from outside ([`crate::Store::set_now`]).
pub type UnixSeconds = u32;

/// State that memcached's meta commands keep of an item besides its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    /// The item was read since it was stored.
    pub is_fetched: bool,
    /// The item was invalidated: it is still returned, marked as stale, until it is stored again.
    pub is_stale: bool,
    /// A client was told to store it again (memcached's "win" token).
    pub is_won: bool,
}

/// A found item, borrowed until the next operation on its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'a> {
    /// Its value.
    pub value: &'a [u8],
    /// 32 bits for the client's own use.
    pub flags: u32,
    /// A token that changes whenever the item changes; unique among the versions of this key.
    pub cas: u64,
    /// When it expires; `None` if never.
    pub expires: Option<UnixSeconds>,
    /// When it was last read, or stored if it never was. May be up to a minute behind.
    pub last_access: UnixSeconds,
    /// Its marks, as they were before this read.
    pub marks: Marks,
}

/// The condition under which a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// Always.
    #[default]
    Always,
    /// If the key has no item (`add`).
    Absent,
    /// If the key has an item (`replace`).
    Present,
    /// If the key has an item that was not changed since this token was returned (`cas`).
    Unchanged(u64),
}

impl Condition {
    /// Checks it for a key whose item has this token; `None` if there is no item.
    ///
    /// # Errors
    /// [`Refused::Exists`], [`Refused::NotFound`] ([`Condition::Unchanged`] without an item, too) or
    /// [`Refused::Changed`].
    pub fn check(self, found: Option<u64>) -> Result<(), Refused> {
        match (self, found) {
            (Condition::Absent, Some(_)) => Err(Refused::Exists),
            (Condition::Present | Condition::Unchanged(_), None) => Err(Refused::NotFound),
            (Condition::Unchanged(token), Some(found)) if token != found => Err(Refused::Changed),
            _ => Ok(()),
        }
    }
}

/// How to store a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Put {
    /// 32 bits for the client's own use.
    pub flags: u32,
    /// When it expires; `None` if never. A past time stores nothing, and deletes an existing item.
    pub expires: Option<UnixSeconds>,
    /// The condition.
    pub condition: Condition,
    /// The CAS token to give it; `None` for the partition's next one.
    pub cas: Option<u64>,
    /// Whether it is stored as stale: for memcached's `ms` with flag `I` and a token older than the item's.
    pub is_stale: bool,
}

/// The result of an operation that changed an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// The item's new CAS token.
    pub cas: u64,
}

/// Where bytes are added to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// After it (`append`).
    End,
    /// Before it (`prepend`).
    Start,
}

/// A change of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delta {
    /// Adds, and wraps at 2^64.
    Up(u64),
    /// Subtracts, and stops at 0.
    Down(u64),
}

/// What happens to an item's CAS token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Token {
    /// It is kept.
    #[default]
    Keep,
    /// It becomes the partition's next one: the item counts as changed.
    Next,
    /// It becomes this one.
    Exactly(u64),
}
