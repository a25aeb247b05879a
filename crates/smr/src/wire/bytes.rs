//! Sequential reading and writing of fields.

use super::WireError;

/// Reads fields one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(all: &'a [u8]) -> Reader<'a> {
        Reader { all, at: 0 }
    }

    /// Returns the number of bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns the number of bytes not read yet.
    pub fn left(&self) -> usize {
        self.all.len() - self.at
    }

    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        if len > self.left() {
            return Err(WireError::Short);
        }
        let bytes = &self.all[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    #[inline]
    pub fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    #[inline]
    pub fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads this many words.
    #[inline]
    pub fn words<const N: usize>(&mut self) -> Result<[u64; N], WireError> {
        let mut words = [0; N];
        let (bytes, _) = self.take(N * size_of::<u64>())?.as_chunks();
        words.iter_mut().zip(bytes).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        Ok(words)
    }

    /// Reads a length of 32 bits, and that many bytes.
    pub fn counted(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    /// Returns all remaining bytes.
    pub fn rest(self) -> &'a [u8] {
        &self.all[self.at..]
    }

    /// # Errors
    /// [`WireError::Long`] if bytes remain.
    pub fn end(self) -> Result<(), WireError> {
        if self.left() == 0 { Ok(()) } else { Err(WireError::Long) }
    }
}

/// Writes fields one after the other into memory of the right length.
///
/// # Panics
/// If the memory is too short: the caller has computed the length first.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut [u8]) -> Writer<'a> {
        Writer { out, at: 0 }
    }

    /// Returns the number of bytes written so far.
    pub fn len(&self) -> usize {
        self.at
    }

    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    #[inline]
    pub fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    #[inline]
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Writes a length and the bytes. They are shorter than 4 GiB, as all messages are.
    pub fn counted(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.bytes(bytes);
    }

    /// Whether the memory is full, as it must be at the end.
    pub fn is_full(&self) -> bool {
        self.at == self.out.len()
    }
}
