//! Virtqueues (VIRTIO 1.2, 2.6 to 2.8), the device's side.
//!
//! A ring is resolved once, when it starts, into checked pointers ([`Layout`]). The driver may write all of it
//! at any time, so each field is read once and validated before it is used. What a driver can do wrong in one
//! chain costs it that chain ([`Chain::ok`]); what leaves no trust in the ring's state costs it the ring
//! ([`Fault`]). Chains are completed in the order in which they were taken, negotiated or not, so that the used
//! index alone says where to resume.

mod chain;
mod layout;
#[cfg(test)]
pub(crate) mod mock;
mod packed;
mod split;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use chain::{Access, MAX_CHAIN, Memory};
pub(crate) use layout::{Addresses, Layout, LayoutError};
pub(crate) use packed::Packed;
pub(crate) use split::Split;

use mem::Segment;

#[cfg(target_endian = "big")]
compile_error!("rings are little-endian (VIRTIO 1.2, 2.4) and are read here as they lie");

/// One buffer of the driver, as taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// What the driver knows it by: the head's index (split) or the buffer id (packed).
    id: u16,
    /// Ring slots it takes.
    slots: u16,
    /// Whether it could be resolved; if not, it holds no segments and is only to be returned.
    pub(crate) ok: bool,
}

/// Why a ring's state can't be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub(crate) enum Fault {
    /// More chains available than the ring has room for.
    #[error("available index jumped by more than the ring's size")]
    IndexJump = 2,
    /// A head that is no descriptor.
    #[error("available ring names a descriptor outside the table")]
    HeadOutside = 3,
    /// A packed chain whose end can't be found.
    #[error("descriptor chain longer than the packed ring, or than {MAX_CHAIN} descriptors")]
    EndlessChain = 4,
    /// Nothing that can be used.
    #[error("driver makes nothing but malformed chains available")]
    Rubbish = 5,
}

impl Fault {
    /// The fault with this code.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        let all = [Self::IndexJump, Self::HeadOutside, Self::EndlessChain, Self::Rubbish];
        all.into_iter().find(|f| *f as u32 == code)
    }
}

/// What both forms of ring do. Callers are generic over it: a burst dispatches once.
pub(crate) trait Virtqueue {
    /// Looks, once a burst, at what the driver made available.
    fn look(&mut self) -> Result<(), Fault>;

    /// Takes the next chain and appends its segments to `out`, which must have room for [`MAX_CHAIN`]. None
    /// where nothing more is available.
    fn take(
        &mut self,
        access: Access,
        memory: &mut Memory,
        out: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, Fault>;

    /// Takes the next chain where it is one buffer in the region of the last hit, as most are. Where it isn't, or where
    /// nothing is available, nothing is taken: [`Virtqueue::take`] knows more.
    fn take_single(&mut self, access: Access, memory: &Memory) -> Option<(Chain, Segment)>;

    /// Brings a buffer near that will be taken soon, for writing.
    fn prefetch(&self, memory: &Memory);

    /// Puts back the chains last taken, none of them completed.
    fn rewind(&mut self, chains: &[Chain]);

    /// Notes that the oldest chain taken is used, `written` bytes of it written. Nothing is visible yet.
    fn complete(&mut self, chain: Chain, written: u32);

    /// Makes all that was completed visible to the driver; whether it wants to be notified.
    fn publish(&mut self) -> bool;

    /// Asks the driver for notifications of new buffers, or for none.
    fn want_kicks(&mut self, want: bool);

    /// Whether a chain is available that was not taken.
    fn pending(&self) -> bool;

    /// The position as GET_VRING_BASE encodes it, valid when all chains taken have been published.
    fn base(&self) -> u32;
}

/// A ring of either form.
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

/// Whether moving an index from `old` to `new` passes `event` (2.7.7.2, 2.7.10).
fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
