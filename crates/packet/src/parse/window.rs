//! Bounds-checked reads. They distinguish a packet that ends too early from a snapshot that ends too early.

use crate::ParseError;

/// The bytes of a packet that are at hand, and the offset at which the packet ends.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a> {
    /// Never reaches past `end`.
    bytes: &'a [u8],
    end: usize,
}

impl<'a> Window<'a> {
    pub(crate) fn new(bytes: &'a [u8], len: usize) -> Self {
        let at_hand = bytes.len().min(len);
        Self { bytes: &bytes[..at_hand], end: len }
    }

    /// Returns the offset just past the packet.
    pub(crate) const fn end(&self) -> usize {
        self.end
    }

    /// Returns the same bytes for a packet that ends at `end`, or where this one ends if that is earlier.
    #[inline(always)]
    pub(crate) fn until(&self, end: usize) -> Self {
        let end = end.min(self.end);
        Self { bytes: &self.bytes[..self.bytes.len().min(end)], end }
    }

    /// Returns `N` bytes at `at`. Fails with `short` if the packet ends before them.
    #[inline(always)]
    pub(crate) fn read<const N: usize>(
        &self,
        at: usize,
        short: ParseError,
    ) -> Result<&'a [u8; N], ParseError> {
        match self.bytes.get(at..).and_then(|rest| rest.first_chunk()) {
            Some(chunk) => Ok(chunk),
            None => Err(self.missing(at, N, short)),
        }
    }

    /// Returns `n` bytes at `at`. Fails with `short` if the packet ends before them.
    #[inline(always)]
    pub(crate) fn slice(&self, at: usize, n: usize, short: ParseError) -> Result<&'a [u8], ParseError> {
        match self.bytes.get(at..).and_then(|rest| rest.get(..n)) {
            Some(slice) => Ok(slice),
            None => Err(self.missing(at, n, short)),
        }
    }

    #[cold]
    fn missing(&self, at: usize, n: usize, short: ParseError) -> ParseError {
        if at.saturating_add(n) <= self.end { ParseError::HeaderTooLong } else { short }
    }
}

/// Returns the big-endian 16 bits at `at` of a header of known length.
#[inline(always)]
pub(crate) const fn be16<const N: usize>(header: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

/// Returns the big-endian 32 bits at `at` of a header of known length.
#[inline(always)]
pub(crate) const fn be32<const N: usize>(header: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}
