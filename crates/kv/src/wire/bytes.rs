//! Reads and writes fields.

/// Reads fields from the front of some bytes; `None` if they end too early.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a field if `is_there`; the outer `None` means that it is too short.
    #[inline]
    pub fn optional<R>(&mut self, is_there: bool, read: impl FnOnce(&mut Self) -> Option<R>) -> Option<Option<R>> {
        if is_there { read(self).map(Some) } else { Some(None) }
    }

    #[inline]
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// `None` if bytes remain.
    #[inline]
    pub fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Writes fields into a buffer of exactly the right length.
#[derive(Debug)]
pub(super) struct Writer<'b>(pub &'b mut [u8]);

impl Writer<'_> {
    /// # Panics
    /// If the buffer is too short: its length was computed wrongly.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let (place, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        place.copy_from_slice(bytes);
        self.0 = rest;
        self
    }

    #[inline]
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    #[inline]
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    #[inline]
    pub fn optional_u32(&mut self, value: Option<u32>) -> &mut Self {
        if let Some(value) = value {
            self.u32(value);
        }
        self
    }

    #[inline]
    pub fn optional_u64(&mut self, value: Option<u64>) -> &mut Self {
        if let Some(value) = value {
            self.u64(value);
        }
        self
    }
}
