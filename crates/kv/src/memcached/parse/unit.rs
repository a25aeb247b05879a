//! Units: parsed commands.

use dunlin_store::{Delta, KEY_BYTES_MAX};

/// What a retrieval requests of each of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Get {
    /// Also return the CAS token (`gets`, `gats`).
    pub with_cas: bool,
    /// Set this expiry, in memcached's format (`gat`, `gats`).
    pub touch: Option<i32>,
    /// It is a `gat` or `gats` of one key: if the item cannot be touched, an error replaces the whole answer.
    pub is_lone_touch: bool,
}

/// The storage commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Store always.
    Set,
    /// Store if the key has no item.
    Add,
    /// Store if the key has an item.
    Replace,
    /// Append.
    Append,
    /// Prepend.
    Prepend,
    /// Store if the item is unchanged since this token.
    Cas(u64),
}

/// A storage command.
#[derive(Debug, Clone, Copy)]
pub struct StoreUnit<'a> {
    /// The command.
    pub verb: Verb,
    /// The key.
    pub key: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// Expiry in memcached's format.
    pub exptime: i32,
    /// The value; `None` if it is too long.
    pub value: Option<&'a [u8]>,
    /// No answer is wanted.
    pub is_quiet: bool,
}

/// The meta commands with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaVerb {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `me`
    Debug,
}

/// The flags of a meta command that determine what to do; those that determine the answer are parsed from the line
/// again.
#[derive(Debug, Clone, Copy, Default)]
pub struct MetaOptions {
    /// `b`: the key is in base64.
    pub is_base64: bool,
    /// `u`: do not record the access.
    pub is_traceless: bool,
    /// `v`: return the value.
    pub wants_value: bool,
    /// `q`: no answer in the usual case.
    pub is_quiet: bool,
    /// `I`: mark as stale.
    pub invalidates: bool,
    /// `x`: remove the value, keep the item.
    pub drops_value: bool,
    /// `T`: expiry in memcached's format.
    pub ttl: Option<i32>,
    /// `N`: create an item if there is none, with this expiry.
    pub vivify: Option<i32>,
    /// `R`: win the recache if less time than this is left.
    pub recache: Option<i32>,
    /// `C`: the CAS token to compare with.
    pub cas: Option<u64>,
    /// `E`: the item's new CAS token.
    pub new_cas: Option<u64>,
    /// `F`: the client's flags.
    pub client_flags: u32,
    /// `M`: the mode, or zero.
    pub mode: u8,
    /// `D`: what to add or subtract.
    pub delta: Option<u64>,
    /// `J`: the initial value of a created number.
    pub initial: u64,
}

/// A meta command.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'a> {
    /// The command.
    pub verb: MetaVerb,
    /// The key as it is in the line.
    pub key: &'a [u8],
    /// The words after key and length.
    pub flags: &'a [u8],
    /// The parsed flags.
    pub options: MetaOptions,
    /// `ms`: the value; `None` if it is too long.
    pub value: Option<&'a [u8]>,
}

impl<'a> Meta<'a> {
    /// Returns the flags, in the order of the line.
    pub(crate) fn flags(&self) -> impl Iterator<Item = &'a [u8]> {
        self.flags.split(|&byte| byte == b' ').filter(|flag| !flag.is_empty())
    }
}

/// The kinds of `stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsKind {
    /// `stats`
    General,
    /// `stats settings`
    Settings,
    /// `stats items`
    Items,
    /// `stats slabs`
    Slabs,
    /// `stats sizes`
    Sizes,
    /// `stats conns`
    Connections,
    /// `stats reset`
    Reset,
    /// `stats cachedump` of the one class that has items.
    Dump {
        /// Maximum number of items; zero for as many as there is room for.
        items_max: u32,
    },
    /// `stats cachedump` of another class.
    DumpNothing,
}

/// A command for all cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Delete everything, now or at a time in memcached's format.
    Flush {
        /// The time; zero or less means now.
        exptime: i32,
        /// No answer is wanted.
        is_quiet: bool,
    },
    /// Return statistics.
    Stats(StatsKind),
}

/// One piece of work, with at most one key.
#[derive(Debug, Clone, Copy)]
pub enum Unit<'a> {
    /// One key of a retrieval.
    Get {
        /// The key.
        key: &'a [u8],
        /// What is requested.
        get: Get,
        /// `END` follows its answer.
        is_last: bool,
    },
    /// A storage command.
    Store(StoreUnit<'a>),
    /// `delete`
    Delete {
        /// The key.
        key: &'a [u8],
        /// No answer is wanted.
        is_quiet: bool,
    },
    /// `touch`
    Touch {
        /// The key.
        key: &'a [u8],
        /// Expiry in memcached's sense.
        exptime: i32,
        /// No answer is wanted.
        is_quiet: bool,
    },
    /// `incr`, `decr`
    Count {
        /// The key.
        key: &'a [u8],
        /// What to add or subtract.
        delta: Delta,
        /// No answer is wanted.
        is_quiet: bool,
    },
    /// A meta command with a key.
    Meta(Meta<'a>),
    /// Only an answer.
    Say(&'static [u8]),
    /// A command for all cores.
    Ask(Ask),
    /// `quit`
    Quit,
}

/// A key as it is in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyText<'a> {
    /// Plain text.
    Plain(&'a [u8]),
    /// In base64.
    Base64(&'a [u8]),
}

/// A decoded key.
pub(crate) type DecodedKey = arrayvec::ArrayVec<u8, KEY_BYTES_MAX>;

/// Decodes a key from base64: the standard alphabet, padded. `None` if it is invalid or empty.
pub(crate) fn decode_key(text: &[u8]) -> Option<DecodedKey> {
    use base64::Engine as _;
    let mut bytes = [0; KEY_BYTES_MAX];
    let len = base64::engine::general_purpose::STANDARD.decode_slice(text, &mut bytes).ok()?;
    if len == 0 { None } else { DecodedKey::try_from(&bytes[..len]).ok() }
}

impl<'a> Unit<'a> {
    /// Returns its key, if it has one.
    #[inline]
    pub(crate) fn key(&self) -> Option<KeyText<'a>> {
        match *self {
            Unit::Get { key, .. } | Unit::Delete { key, .. } | Unit::Touch { key, .. } | Unit::Count { key, .. } => {
                Some(KeyText::Plain(key))
            }
            Unit::Store(StoreUnit { key, .. }) => Some(KeyText::Plain(key)),
            Unit::Meta(Meta { key, options: MetaOptions { is_base64: true, .. }, .. }) => Some(KeyText::Base64(key)),
            Unit::Meta(Meta { key, .. }) => Some(KeyText::Plain(key)),
            Unit::Say(_) | Unit::Ask(_) | Unit::Quit => None,
        }
    }
}
