//! The cost of a driver's descriptors, and its limit.
//!
//! A driver determines how much there is to examine: chains of many descriptors, tables of them, buffers that cross
//! regions, chains that turn out to be malformed, and all of it again for the next packet. So it has a credit, and
//! each packet or poll adds more to it than any honest driver needs.

use super::Fault;

/// Most credit, in descriptors. Also what one poll of a driver's transmit ring adds.
pub(super) const CREDIT: i32 = 2048;

/// Credit that a packet to the guest adds: enough for its chain (Linux has up to 47 descriptors), and for mergeable
/// buffers of 256 bytes and more.
const FOR_PACKET: i32 = 64;
const BYTES_FOR_DESCRIPTOR: usize = 256;

/// Most malformed chains in a row.
const RUBBISH: u32 = 1024;

/// The account of a ring's driver.
pub(crate) struct Work {
    /// Descriptors that may still be examined. It is checked between chains, so one chain may make it negative.
    credit: i32,
    /// Number of malformed chains since the last good one.
    rubbish: u32,
}

impl Work {
    pub(super) fn new() -> Self {
        Self { credit: CREDIT, rubbish: 0 }
    }

    /// Adds the credit for a poll of the driver's transmit ring.
    #[inline]
    pub(crate) fn grant_poll(&mut self) {
        self.grant(CREDIT);
    }

    /// Adds the credit for a packet of `len` bytes to the driver.
    #[inline]
    pub(crate) fn grant_packet(&mut self, len: usize) {
        self.grant(FOR_PACKET.saturating_add(i32::try_from(len / BYTES_FOR_DESCRIPTOR).unwrap_or(CREDIT)));
    }

    fn grant(&mut self, descriptors: i32) {
        self.credit = self.credit.saturating_add(descriptors).min(CREDIT);
    }

    /// Takes the credit for descriptors, or parts of buffers, that were examined.
    #[inline]
    pub(super) fn spend(&mut self, descriptors: usize) {
        self.credit -= descriptors as i32;
    }

    /// Returns whether no more chains may be examined now.
    #[inline]
    pub(crate) fn is_used_up(&self) -> bool {
        self.credit <= 0
    }

    #[inline(always)]
    pub(crate) fn good(&mut self) {
        self.rubbish = 0;
    }

    /// Records a malformed chain. It is a fault if the driver offers nothing else.
    #[cold]
    pub(crate) fn malformed(&mut self) -> Result<(), Fault> {
        self.rubbish += 1;
        if self.rubbish < RUBBISH { Ok(()) } else { Err(Fault::Rubbish) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many descriptors may still be examined.
    fn left(work: &mut Work) -> usize {
        let before = work.credit;
        let count = std::iter::from_fn(|| (!work.is_used_up()).then(|| work.spend(1))).count();
        work.credit = before;
        count
    }

    #[test]
    fn a_poll_brings_the_whole_credit_but_no_more() {
        let mut work = Work::new();
        assert_eq!(left(&mut work), 2048);
        work.grant_poll();
        assert_eq!(left(&mut work), 2048);
        work.spend(2148);
        assert!(work.is_used_up());
        work.grant_poll();
        assert_eq!(left(&mut work), 1948, "what was overdrawn is to be paid");
    }

    #[test]
    fn a_packet_brings_what_it_may_need() {
        for (len, brings) in [(0, 64), (60, 64), (255, 64), (256, 65), (65_536, 320)] {
            let mut work = Work::new();
            work.spend(2048);
            work.grant_packet(len);
            assert_eq!(left(&mut work), brings, "{len} bytes");
        }
        let mut work = Work::new();
        work.grant_packet(usize::MAX);
        assert_eq!(left(&mut work), 2048);
    }

    #[test]
    fn rubbish_is_counted_from_the_last_good_chain() {
        let mut work = Work::new();
        for _ in 0..3 {
            (1..RUBBISH).for_each(|_| assert_eq!(work.malformed(), Ok(())));
            work.good();
        }
        (1..RUBBISH).for_each(|_| assert_eq!(work.malformed(), Ok(())));
        assert_eq!(work.malformed(), Err(Fault::Rubbish));
    }
}
