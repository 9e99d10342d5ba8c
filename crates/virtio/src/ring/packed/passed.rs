//! Returns chains that a different device took, although the ring does not say that it returned them.
//!
//! When a guest moves here, the VMM names the position that the device there reached. Some of what that
//! device wrote into the ring may be missing. DPDK (22.11) marks a used descriptor of a packed ring as
//! written at its offset from the address that QEMU (7.2) gives for the log. For a packed ring that is the
//! address of the device event area, so the descriptor itself is copied only if the guest wrote into the same
//! page afterwards. The driver looks at used descriptors in the order of the ring, so it waits at the first
//! one that is missing.
//!
//! Viaduct therefore returns every chain before the position that still looks available in its lap. It
//! returns each chain by itself, because it does not know which of them the driver has seen. A chain that is
//! returned twice does no harm: the driver has passed its slot, and fills it before it looks there again. The
//! same holds for the rest of a chain of several descriptors, or of a batch (IN_ORDER), of which only the
//! first descriptor is written. Packets in these buffers are lost, because their lengths are lost: the chains
//! have length 0, so drivers drop them and refill the buffers (Linux: `receive_buf`).

use super::*;

impl Packed {
    /// Returns to the driver the chains of the last lap that still look available. The result says whether there were
    /// any.
    pub(super) fn return_passed(&self) -> bool {
        let size = self.at.size;
        let (mut place, mut left, mut returned) = (self.used.back(size, size), size, false);
        while left > 0 {
            let seen = self.rest(place.index).load(Ordering::Acquire);
            let (slots, id) = self.passed_chain(place, left);
            if let Some(id) = id {
                let used = Self::used_word(place, Done::new(id, slots, 0));
                step();
                // If this is the rest of a chain, the driver may fill the slot at this moment.
                let stored =
                    self.rest(place.index).compare_exchange(seen, used, Ordering::Release, Ordering::Relaxed);
                returned |= stored.is_ok();
            }
            place = place.advance(slots, size);
            left -= slots;
        }
        returned
    }

    /// Returns the number of slots of the chain at this position, at most `left`, and its id; one slot and
    /// `None` if there is no chain.
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
