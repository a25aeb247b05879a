//! One record.

/// A key and its value, with what memcached keeps beside it. Limits of a server are not checked here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The key, any bytes.
    pub key: Vec<u8>,
    /// The value, any bytes.
    pub value: Vec<u8>,
    /// 32 bits of the client's own.
    pub flags: u32,
    /// When it expires, in seconds since 1970; `None` for never.
    pub expires: Option<u32>,
}
