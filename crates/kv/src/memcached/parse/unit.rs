//! What a command asks for.

use dunlin_store::{Delta, KEY_BYTES_MAX};

/// What a retrieval asks of each of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Get {
    /// The CAS token is wanted too (`gets`, `gats`).
    pub with_cas: bool,
    /// The item is to get this expiry, in memcached's sense (`gat`, `gats`).
    pub touch: Option<i32>,
    /// It is a `gat` or `gats` of one key: where the item cannot be touched, an error takes the place of the whole answer.
    pub is_lone_touch: bool,
}

/// The storage commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Store in any case.
    Set,
    /// Store if there is none.
    Add,
    /// Store if there is one.
    Replace,
    /// Add behind.
    Append,
    /// Add in front.
    Prepend,
    /// Store if unchanged since this token.
    Cas(u64),
}

/// A storage command.
#[derive(Debug, Clone, Copy)]
pub struct StoreUnit<'a> {
    /// Which.
    pub verb: Verb,
    /// The key.
    pub key: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// Expiry in memcached's sense.
    pub exptime: i32,
    /// The value; `None` if it is longer than a value may be.
    pub value: Option<&'a [u8]>,
    /// No answer is wanted.
    pub is_quiet: bool,
}

/// The meta commands that have a key.
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

/// The flags of a meta command that say what to do; those that say what to answer are read from the line again.
#[derive(Debug, Clone, Copy, Default)]
pub struct MetaOptions {
    /// `b`: the key is in base64.
    pub is_base64: bool,
    /// `u`: leave no trace of the access.
    pub is_traceless: bool,
    /// `v`: the value is wanted.
    pub wants_value: bool,
    /// `q`: no answer in the usual case.
    pub is_quiet: bool,
    /// `I`: mark as stale.
    pub invalidates: bool,
    /// `x`: drop the value, keep the item.
    pub drops_value: bool,
    /// `T`: expiry in memcached's sense.
    pub ttl: Option<i32>,
    /// `N`: make an item if there is none, with this expiry.
    pub vivify: Option<i32>,
    /// `R`: win the recache if less is left than this.
    pub recache: Option<i32>,
    /// `C`: the CAS token to compare with.
    pub cas: Option<u64>,
    /// `E`: the CAS token the item is to have.
    pub new_cas: Option<u64>,
    /// `F`: the client's flags.
    pub client_flags: u32,
    /// `M`: the mode, or zero.
    pub mode: u8,
    /// `D`: what to add or subtract.
    pub delta: Option<u64>,
    /// `J`: what a made number begins with.
    pub initial: u64,
}

/// A meta command.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'a> {
    /// Which.
    pub verb: MetaVerb,
    /// The key as it stands in the line.
    pub key: &'a [u8],
    /// The words behind key and length.
    pub flags: &'a [u8],
    /// What they say to do.
    pub options: MetaOptions,
    /// `ms`: the value; `None` if it is longer than a value may be.
    pub value: Option<&'a [u8]>,
}

impl<'a> Meta<'a> {
    /// The flags, in the order of the line.
    pub(crate) fn flags(&self) -> impl Iterator<Item = &'a [u8]> {
        self.flags.split(|&byte| byte == b' ').filter(|flag| !flag.is_empty())
    }
}

/// What `stats` asks for.
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
        /// Items at most; zero for as many as there is room for.
        items_max: u32,
    },
    /// `stats cachedump` of another class.
    DumpNothing,
}

/// What concerns all cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Delete everything, now or in memcached's sense later.
    Flush {
        /// When; zero and less mean now.
        exptime: i32,
        /// No answer is wanted.
        is_quiet: bool,
    },
    /// Counts.
    Stats(StatsKind),
}

/// One piece of work: at most one key.
#[derive(Debug, Clone, Copy)]
pub enum Unit<'a> {
    /// One key of a retrieval.
    Get {
        /// The key.
        key: &'a [u8],
        /// What is asked.
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
    /// Nothing but an answer.
    Say(&'static [u8]),
    /// A matter of all cores.
    Ask(Ask),
    /// `quit`
    Quit,
}

/// A key as it stands in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyText<'a> {
    /// As it is.
    Plain(&'a [u8]),
    /// In base64.
    Base64(&'a [u8]),
}

/// A decoded key.
pub(crate) type DecodedKey = arrayvec::ArrayVec<u8, KEY_BYTES_MAX>;

/// Decodes a key from base64: the standard alphabet, padded. `None` if it is none, or empty.
pub(crate) fn decode_key(text: &[u8]) -> Option<DecodedKey> {
    use base64::Engine as _;
    let mut bytes = [0; KEY_BYTES_MAX];
    let len = base64::engine::general_purpose::STANDARD.decode_slice(text, &mut bytes).ok()?;
    if len == 0 { None } else { DecodedKey::try_from(&bytes[..len]).ok() }
}

impl<'a> Unit<'a> {
    /// Its key, if it has one.
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
