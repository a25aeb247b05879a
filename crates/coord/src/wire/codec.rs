//! Values as bytes: numbers little-endian, a 32-bit length before anything of variable length, a one-byte tag before
//! each enum.

use std::collections::{BTreeMap, VecDeque};

/// Malformed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the value does.
    #[error("it is cut off")]
    Short,
    /// Bytes follow the end of the value.
    #[error("bytes follow it")]
    Long,
    /// An unknown tag.
    #[error("nothing has the tag {0}")]
    Tag(u8),
    /// A name that is not UTF-8.
    #[error("a name is no UTF-8")]
    Text,
}

/// A type with an encoding.
pub trait Wire: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);

    /// Takes one from the front of `bytes`.
    ///
    /// # Errors
    /// [`WireError`] if the bytes are malformed.
    fn take(bytes: &mut &[u8]) -> Result<Self, WireError>;

    /// Its bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// Decodes exactly these bytes.
    ///
    /// # Errors
    /// [`WireError`] if they are malformed.
    fn from_bytes(mut bytes: &[u8]) -> Result<Self, WireError> {
        let value = Self::take(&mut bytes)?;
        if bytes.is_empty() { Ok(value) } else { Err(WireError::Long) }
    }
}

fn split<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], WireError> {
    let (front, rest) = bytes.split_at_checked(len).ok_or(WireError::Short)?;
    *bytes = rest;
    Ok(front)
}

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, WireError> {
        Ok(split(bytes, 1)?[0])
    }
}

impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, WireError> {
        split(bytes, 8)?.try_into().map(u64::from_le_bytes).map_err(|_| WireError::Short)
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, WireError> {
        match u8::take(bytes)? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(WireError::Tag(tag)),
        }
    }
}

/// Lengths fit 32 bits: everything that has one is limited far below.
pub(crate) fn put_len(len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(len as u32).to_le_bytes());
}

/// The number of items that follow.
pub(crate) fn take_len(bytes: &mut &[u8]) -> Result<usize, WireError> {
    let len = split(bytes, 4)?.try_into().map(u32::from_le_bytes).map_err(|_| WireError::Short)?;
    Ok(len as usize)
}

impl Wire for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        out.extend_from_slice(self);
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, WireError> {
        let len = take_len(bytes)?;
        Ok(split(bytes, len)?.to_vec())
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, WireError> {
        String::from_utf8(Vec::take(bytes)?).map_err(|_| WireError::Text)
    }
}

impl<W: Wire> Wire for Option<W> {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        self.iter().for_each(|value| value.put(out));
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, WireError> {
        match u8::take(bytes)? {
            0 => Ok(None),
            1 => W::take(bytes).map(Some),
            tag => Err(WireError::Tag(tag)),
        }
    }
}

/// Several values, one after the other. Nothing is reserved on the word of an unchecked count.
fn take_all<W: Wire, C: FromIterator<W>>(bytes: &mut &[u8]) -> Result<C, WireError> {
    let count = take_len(bytes)?;
    (0..count).map(|_| W::take(bytes)).collect()
}

impl<W: Wire> Wire for VecDeque<W> {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, WireError> {
        take_all(bytes)
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        self.iter().for_each(|(key, value)| {
            key.put(out);
            value.put(out);
        });
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, WireError> {
        let count = take_len(bytes)?;
        (0..count).map(|_| Ok((K::take(bytes)?, V::take(bytes)?))).collect()
    }
}

/// Vectors of a structure; `Vec<u8>` has its own encoding.
macro_rules! wire_vec {
    ($($item:ty),*) => { $(
        impl $crate::wire::Wire for Vec<$item> {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&(self.len() as u32).to_le_bytes());
                self.iter().for_each(|value| value.put(out));
            }

            fn take(bytes: &mut &[u8]) -> Result<Self, $crate::wire::WireError> {
                let all = std::collections::VecDeque::<$item>::take(bytes)?;
                Ok(all.into())
            }
        }
    )* };
}

/// A structure: its fields in this order.
macro_rules! wire_struct {
    ($name:ident { $($field:ident),* }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $( self.$field.put(out); )*
            }

            fn take(bytes: &mut &[u8]) -> Result<Self, $crate::wire::WireError> {
                Ok($name { $($field: $crate::wire::Wire::take(bytes)?),* })
            }
        }
    };
}

/// An enum: its tag, then the variant's fields in this order.
macro_rules! wire_enum {
    ($name:ident { $($tag:literal => $variant:ident { $($field:ident),* }),* $(,)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $( $name::$variant { $($field),* } => {
                        out.push($tag);
                        $( $field.put(out); )*
                    } )*
                }
            }

            fn take(bytes: &mut &[u8]) -> Result<Self, $crate::wire::WireError> {
                match <u8 as $crate::wire::Wire>::take(bytes)? {
                    $( $tag => Ok($name::$variant { $($field: $crate::wire::Wire::take(bytes)?),* }), )*
                    tag => Err($crate::wire::WireError::Tag(tag)),
                }
            }
        }
    };
}

pub(crate) use {wire_enum, wire_struct, wire_vec};
