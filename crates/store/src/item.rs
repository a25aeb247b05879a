//! Items, and what can be said about how to change one.

/// Seconds since 1970. Time comes in from outside ([`crate::Store::set_now`]).
pub type UnixSeconds = u32;

/// What memcached's meta commands keep of an item beside its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    /// It was read since it was stored.
    pub is_fetched: bool,
    /// It was invalidated: it is still given out, marked as stale, until it is stored again.
    pub is_stale: bool,
    /// Somebody was told to store it again (the paper trail of memcached's "win" token).
    pub is_won: bool,
}

/// An item as it is found, lent until the next operation on its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'a> {
    /// Its value.
    pub value: &'a [u8],
    /// 32 bits of the client's own.
    pub flags: u32,
    /// Changes whenever the item changes; unique among the versions of this key.
    pub cas: u64,
    /// When it expires; `None` for never.
    pub expires: Option<UnixSeconds>,
    /// When it was last read, or else stored. May be up to a minute behind.
    pub last_access: UnixSeconds,
    /// Its marks, as they were before this read.
    pub marks: Marks,
}

/// When a value is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// In any case.
    #[default]
    Always,
    /// If there is no item of that key (`add`).
    Absent,
    /// If there is one (`replace`).
    Present,
    /// If there is one and it was not changed since this token was given (`cas`).
    Unchanged(u64),
}

/// How to store a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Put {
    /// 32 bits of the client's own.
    pub flags: u32,
    /// When it expires; `None` for never. A time that has passed stores nothing and deletes what there was.
    pub expires: Option<UnixSeconds>,
    /// When to.
    pub condition: Condition,
    /// The CAS token it is to have; `None` for the next of the partition.
    pub cas: Option<u64>,
    /// Whether it is stored as stale: what memcached's `ms` with `I` does with a token that is older than the item's.
    pub is_stale: bool,
}

/// What became of an operation that changed an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// The item's new CAS token.
    pub cas: u64,
}

/// Where bytes are added to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Behind it (`append`).
    End,
    /// In front of it (`prepend`).
    Start,
}

/// What is added to a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delta {
    /// Adds, and wraps at 2^64.
    Up(u64),
    /// Subtracts, and stops at 0.
    Down(u64),
}

/// What becomes of an item's CAS token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Token {
    /// It stays.
    #[default]
    Keep,
    /// It becomes the next of the partition: the item counts as changed.
    Next,
    /// It becomes this one.
    Exactly(u64),
}
