//! What a driver's descriptors cost, and what they may.
//!
//! A driver decides how much there is to look at: chains of many descriptors, tables of them, buffers that cross
//! regions, chains that turn out malformed, and all of it again for the next packet. So it is given a credit, and what
//! it is given for each packet or poll is more than any honest driver needs.

use super::Fault;

/// Credit at most, in descriptors. Also what one poll of a driver's transmit ring brings.
pub(super) const CREDIT: i32 = 2048;

/// Credit that a packet to the guest brings: a chain of it (Linux has up to 47 descriptors), and mergeable buffers of
/// 256 bytes and more.
const FOR_PACKET: i32 = 64;
const BYTES_FOR_DESCRIPTOR: usize = 256;

/// Chains in a row that may be malformed.
const RUBBISH: u32 = 1024;

/// The account of a ring's driver.
pub(crate) struct Work {
    /// Descriptors that may still be looked at. It is asked for between chains, so one chain may bring it below zero.
    credit: i32,
    /// Chains malformed since the last one that was not.
    rubbish: u32,
}

impl Work {
    pub(super) fn new() -> Self {
        Self { credit: CREDIT, rubbish: 0 }
    }

    /// Notes that the driver's transmit ring is polled.
    #[inline]
    pub(crate) fn grant_poll(&mut self) {
        self.grant(CREDIT);
    }

    /// Notes that there is a packet of `len` bytes for the driver.
    #[inline]
    pub(crate) fn grant_packet(&mut self, len: usize) {
        self.grant(FOR_PACKET.saturating_add(i32::try_from(len / BYTES_FOR_DESCRIPTOR).unwrap_or(CREDIT)));
    }

    fn grant(&mut self, descriptors: i32) {
        self.credit = self.credit.saturating_add(descriptors).min(CREDIT);
    }

    /// Notes that so many descriptors, or parts of buffers, were looked at.
    #[inline]
    pub(super) fn spend(&mut self, descriptors: usize) {
        self.credit -= descriptors as i32;
    }

    /// Whether no more chains are to be looked at now.
    #[inline]
    pub(crate) fn is_used_up(&self) -> bool {
        self.credit <= 0
    }

    /// Notes a chain that can be used.
    #[inline(always)]
    pub(crate) fn good(&mut self) {
        self.rubbish = 0;
    }

    /// Notes a malformed chain; it is a fault if the driver offers nothing else.
    #[cold]
    pub(crate) fn malformed(&mut self) -> Result<(), Fault> {
        self.rubbish += 1;
        if self.rubbish < RUBBISH { Ok(()) } else { Err(Fault::Rubbish) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many descriptors may still be looked at.
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
