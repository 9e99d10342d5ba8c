//! Items that come with a message. Between processes of one kernel they are descriptors. Between a virtual machine and
//! its host, where descriptors don't pass, pages of a window and tickets for streams stand for them.

use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of a page of a window.
pub const PAGE: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowKind {
    /// The window belongs to the device's guest alone.
    Own,
    /// All guests of the device's trust on this host have the window.
    Common,
}

/// Whole pages of a window, in bytes from the start of its data ([`crate::window::DATA`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub window: WindowKind,
    /// Offset of the first page: a multiple of [`PAGE`].
    pub offset: u64,
    /// Length in bytes: a multiple of [`PAGE`], not 0.
    pub len: u64,
}

impl Part {
    /// Returns the offset of the part's end; `None` if it is not whole pages.
    #[must_use]
    pub const fn end(&self) -> Option<u64> {
        let is_whole = self.offset.is_multiple_of(PAGE) && self.len.is_multiple_of(PAGE) && self.len > 0;
        if is_whole { self.offset.checked_add(self.len) } else { None }
    }
}

/// A number that gives a new stream the purpose for which the device gave the ticket out
/// ([`Opening::Ticket`](crate::Opening::Ticket)). It can be used once, and is as hard to guess as 64 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// An item that comes with a message, for the sender.
#[derive(Clone, Copy, Debug)]
pub enum Lent<'a> {
    /// A descriptor, which passes only over sockets of this kernel.
    Descriptor(BorrowedFd<'a>),
    /// Pages of a window that the receiver maps itself.
    Part(Part),
    /// Pages of a window, and the window's file, for a receiver that has no device for it. Like a descriptor, it
    /// passes only over sockets of this kernel.
    Window(BorrowedFd<'a>, Part),
    /// A ticket instead of a socket.
    Stream(Ticket),
}

impl<'a> From<BorrowedFd<'a>> for Lent<'a> {
    fn from(descriptor: BorrowedFd<'a>) -> Self {
        Self::Descriptor(descriptor)
    }
}

/// An item that comes with a message, for the receiver.
#[derive(Debug)]
#[allow(missing_docs)] // as above
pub enum Given {
    Descriptor(OwnedFd),
    Part(Part),
    Window(OwnedFd, Part),
    Stream(Ticket),
}

impl From<OwnedFd> for Given {
    fn from(descriptor: OwnedFd) -> Self {
        Self::Descriptor(descriptor)
    }
}

impl Given {
    /// Lends the item, to pass it on.
    #[must_use]
    pub fn lend(&self) -> Lent<'_> {
        match self {
            Self::Descriptor(descriptor) => Lent::Descriptor(descriptor.as_fd()),
            Self::Part(part) => Lent::Part(*part),
            Self::Window(file, part) => Lent::Window(file.as_fd(), *part),
            Self::Stream(ticket) => Lent::Stream(*ticket),
        }
    }

    /// Returns the descriptor, if the item is only a descriptor.
    #[must_use]
    pub fn descriptor(self) -> Option<OwnedFd> {
        if let Self::Descriptor(descriptor) = self { Some(descriptor) } else { None }
    }

    /// Returns the descriptors of all items that are only descriptors.
    pub fn descriptors(all: Vec<Self>) -> impl Iterator<Item = OwnedFd> {
        all.into_iter().filter_map(Self::descriptor)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_pages() {
        let part = |offset, len| Part { window: WindowKind::Own, offset, len };
        assert_eq!(part(PAGE, 2 * PAGE).end(), Some(3 * PAGE));
        let no_part = [(1, PAGE), (0, 0), (0, PAGE + 1), (0, PAGE - 1), (0u64.wrapping_sub(PAGE), PAGE)];
        assert!(no_part.into_iter().all(|(offset, len)| part(offset, len).end().is_none()));
    }
}
