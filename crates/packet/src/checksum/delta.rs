//! Incremental update (RFC 1624).

use super::Sum;

/// The change of a checksum when fields under it change (RFC 1624, equation 3).
///
/// Fields must lie at even offsets of the summed data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta(Sum);

impl Delta {
    /// Records that a 16-bit field changed from `old` to `new`.
    #[inline]
    pub fn replace_u16(&mut self, old: u16, new: u16) {
        self.0.add_u16(!old);
        self.0.add_u16(new);
    }

    /// Records that a 32-bit field changed from `old` to `new`.
    #[inline]
    pub fn replace_u32(&mut self, old: u32, new: u32) {
        self.0.add_u32(!old);
        self.0.add_u32(new);
    }

    /// Records that a 16-byte field changed from `old` to `new`.
    #[inline]
    pub fn replace_bytes16(&mut self, old: [u8; 16], new: [u8; 16]) {
        self.0.add(&(!u128::from_ne_bytes(old)).to_ne_bytes());
        self.0.add(&new);
    }

    /// Returns the checksum that replaces `checksum`.
    #[inline]
    #[must_use]
    pub fn apply(self, checksum: u16) -> u16 {
        !self.apply_partial(!checksum)
    }

    /// Returns the sum that replaces `sum`, the content of a checksum field that is still to be completed:
    /// such a field holds the pseudo-header's sum, not complemented.
    #[inline]
    #[must_use]
    pub fn apply_partial(self, sum: u16) -> u16 {
        let mut total = self.0;
        total.add_u16(sum);
        total.fold()
    }
}

/// Returns the checksum after a 16-bit field changed from `old` to `new`.
#[inline]
#[must_use]
pub fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    let mut delta = Delta::default();
    delta.replace_u16(old, new);
    delta.apply(checksum)
}
