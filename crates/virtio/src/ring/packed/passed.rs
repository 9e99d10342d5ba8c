//! Chains that another device took, and of whose return the ring says nothing.
//!
//! A VMM that moves a guest here names the position to which the device there came. It may not have brought all that
//! that device wrote into the ring. DPDK (22.11) tells of what it writes into a packed ring's descriptors by their
//! offset from the address that QEMU (7.2) gives for that, which is the device event area's: descriptors come along if
//! the guest wrote into the same page afterwards. And DPDK may stop before it shows a batch whose first descriptor it
//! keeps back. The driver looks at used descriptors in the order of the ring, so it stands at the first that is
//! missing.
//!
//! All before the position that still looks available in its lap is therefore returned, each chain by itself, because
//! it is not known which of them the driver has seen. What is returned too often does no harm: it is behind where the
//! driver looks, in a slot that it fills before it looks there again. So is the rest of a chain of several descriptors,
//! or of a batch (IN_ORDER), of which only the first one is written. What was received in such a buffer is lost, as its
//! length is: drivers drop a packet of length 0, and refill the buffer (Linux: `receive_buf`).

use super::*;

impl Packed {
    /// Returns the chains of the last lap that still look available. Returns whether there were any.
    pub(super) fn return_passed(&self) -> bool {
        let size = self.at.size;
        let (mut place, mut left, mut returned) = (self.used.back(size, size), size, false);
        while left > 0 {
            let seen = self.rest(place.index).load(Ordering::Acquire);
            let (slots, id) = self.passed_chain(place, left);
            if let Some(id) = id {
                let used = Self::used_word(place, Done::new(id, slots, 0));
                step();
                // If it is the rest of a chain, the driver may fill the slot at this moment.
                let stored =
                    self.rest(place.index).compare_exchange(seen, used, Ordering::Release, Ordering::Relaxed);
                returned |= stored.is_ok();
            }
            place = place.advance(slots, size);
            left -= slots;
        }
        returned
    }

    /// Slots of the chain at this position, at most `left`, and its id; one slot and `None` if there is no chain.
    fn passed_chain(&self, mut place: Position, left: u16) -> (u16, Option<u16>) {
        let mut id = None;
        for slots in 0..left {
            let desc = self.desc(place.index);
            if !Self::is_available(desc.flags, place.wrap) {
                return (slots.max(1), id);
            }
            id = Some(desc.next);
            place = place.advance(1, self.at.size);
            if !desc.has_next() {
                return (slots + 1, id);
            }
        }
        (left, id)
    }
}
