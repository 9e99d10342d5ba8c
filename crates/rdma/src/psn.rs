//! Packet sequence numbers: 24 bits that wrap around (IBTA 9.7.1).

/// A packet sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Creates a number, ignoring the upper eight bits.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number & 0xff_ffff)
    }

    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the number `packets` packets later.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// Returns the number before this one.
    #[must_use]
    pub const fn before(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// Returns how many packets this number comes after `other`; negative if it comes before. Half of all numbers come
    /// before.
    #[must_use]
    pub const fn since(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).before(), last);
        assert_eq!(Psn::new(5).since(last), 6);
        assert_eq!(last.since(Psn::new(5)), -6);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
    }
}
