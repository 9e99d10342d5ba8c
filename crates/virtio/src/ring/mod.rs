//! Virtqueues (VIRTIO 1.2, 2.6 to 2.8), on the device's side.
//!
//! A ring is resolved once, when it starts, into checked pointers ([`Layout`]). The driver may write all of
//! it at any time, so each field is read once and validated before use. An error in one chain costs the
//! driver that chain ([`Chain::ok`]); an error that makes the ring's state untrustworthy costs it the ring
//! ([`Fault`]). Chains are completed in the order in which they were taken, whether that is negotiated or
//! not, so the used index of a split ring alone tells where to resume. For a packed ring, a [`Journal`]
//! tells.

mod chain;
#[cfg(test)]
mod death;
mod journal;
#[cfg(test)]
mod kills;
mod layout;
#[cfg(test)]
pub(crate) mod mock;
#[cfg(test)]
mod moves;
mod packed;
mod split;
#[cfg(test)]
mod tests;
mod work;

/// Tests have the device die here.
#[cfg(not(test))]
mod death {
    #[inline(always)]
    pub(super) fn step() {}
}

pub(crate) use chain::{Access, MAX_CHAIN, Memory};
pub(crate) use journal::{Identity, Journal};
pub(crate) use layout::{Addresses, Layout, LayoutError};
pub(crate) use packed::Packed;
pub(crate) use split::Split;

use mem::Segment;

#[cfg(target_endian = "big")]
compile_error!("rings are little-endian (VIRTIO 1.2, 2.4), and this code reads them without conversion");

/// One buffer of the driver, as taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// The driver's identifier for it: the head's index (split) or the buffer id (packed).
    id: u16,
    /// Ring slots it takes.
    slots: u16,
    /// Whether it could be resolved. If not, it has no segments and is only returned.
    pub(crate) ok: bool,
}

/// The reason why a ring's state can no longer be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub(crate) enum Fault {
    /// The driver made more chains available than the ring has room for.
    #[error("available index jumped by more than the ring's size")]
    IndexJump = 2,
    /// A head is not a descriptor's index.
    #[error("available ring names a descriptor outside the table")]
    HeadOutside = 3,
    /// The end of a packed chain can't be found.
    #[error("descriptor chain longer than the packed ring, or than {MAX_CHAIN} descriptors")]
    EndlessChain = 4,
    /// No chain can be used.
    #[error("driver makes nothing but malformed chains available")]
    Rubbish = 5,
}

impl Fault {
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        let all = [Self::IndexJump, Self::HeadOutside, Self::EndlessChain, Self::Rubbish];
        all.into_iter().find(|f| *f as u32 == code)
    }
}

/// The operations of both forms of ring. Callers are generic over it: a burst dispatches once.
pub(crate) trait Virtqueue {
    /// Checks, once per burst, what the driver made available.
    fn look(&mut self) -> Result<(), Fault>;

    /// Returns how many chains are known to be available without another look.
    fn known(&self) -> usize {
        0
    }

    /// Reads, between bursts, what the driver wrote about chains that are known to be available, as far as
    /// the next burst will take them.
    fn read_ahead(&mut self) {}

    /// Prefetches, for writing, the places where so many chains will be shown to the driver as used.
    fn expect_used(&self, _count: usize) {}

    /// Takes the next chain and appends its segments to `out`, which must have room for [`MAX_CHAIN`]. `None` if no
    /// more is available.
    fn take(
        &mut self,
        access: Access,
        memory: &mut Memory,
        out: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, Fault>;

    /// Takes the next chain if it is a single buffer in the region of the last hit, as most are. Otherwise, or if
    /// nothing is available, takes nothing: [`Virtqueue::take`] then decides.
    fn take_single(&mut self, access: Access, memory: &Memory) -> Option<(Chain, Segment)>;

    /// Takes chains as [`Virtqueue::take_single`] does, up to `most` of them and as long as `more` returns
    /// true for each.
    #[inline(always)]
    fn take_singles(
        &mut self,
        access: Access,
        memory: &Memory,
        most: usize,
        mut more: impl FnMut(Chain, Segment) -> bool,
    ) {
        for _ in 0..most {
            let Some((chain, buffer)) = self.take_single(access, memory) else { return };
            if !more(chain, buffer) {
                return;
            }
        }
    }

    /// Prefetches, for writing, a buffer that will be taken soon.
    fn prefetch(&self, memory: &Memory);

    /// Puts back the chains taken last, none of which is completed.
    fn rewind(&mut self, chains: &[Chain]);

    /// Records that the oldest taken chain is used, with `written` bytes written. The driver does not see it yet.
    fn complete(&mut self, chain: Chain, written: u32);

    /// Makes all completed chains visible to the driver. Returns whether it wants to be notified.
    fn publish(&mut self) -> bool;

    /// Asks the driver for notifications of new buffers, or for none.
    fn want_kicks(&mut self, want: bool);

    /// Returns whether a chain is available that was not taken.
    fn pending(&self) -> bool;

    /// Returns the position as GET_VRING_BASE encodes it; valid when all taken chains have been published.
    fn base(&self) -> u32;
}

#[allow(clippy::large_enum_variant, reason = "each lies in its queue for as long as it runs")]
pub(crate) enum Ring {
    Split(Split),
    Packed(Packed),
}

/// Runs `$body` with `$r` bound to the ring inside.
macro_rules! dispatch {
    ($ring:expr, $r:ident => $body:expr) => {
        match $ring {
            $crate::ring::Ring::Split($r) => $body,
            $crate::ring::Ring::Packed($r) => $body,
        }
    };
}
pub(crate) use dispatch;

/// Returns whether an index that moves from `old` to `new` passes `event` (2.7.7.2, 2.7.10).
fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
