//! One record.

/// A key and its value, with the attributes that memcached keeps. A server's limits are not checked here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The key, any bytes.
    pub key: Vec<u8>,
    /// The value, any bytes.
    pub value: Vec<u8>,
    /// 32 bits for the client's own use.
    pub flags: u32,
    /// When it expires, in seconds since 1970; `None` for never.
    pub expires: Option<u32>,
}
