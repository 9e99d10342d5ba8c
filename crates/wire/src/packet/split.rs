//! The datagrams of a frame that holds several, as the kernel's own segmentation would make them.

use super::datagram::Datagram;
use mem::{Offload, Segment, scatter};

/// A frame of several joined datagrams. Bursts take them one by one.
pub(super) struct Split {
    datagram: Datagram,
    /// Bytes of payload of each datagram except the last, which may have fewer.
    size: usize,
    /// Payload of all datagrams.
    payload: Segment,
    /// Number of datagrams that bursts have taken.
    done: usize,
}

impl Split {
    /// Splits `frame` into datagrams with `size` bytes of payload each, at least one; `None` if the frame is malformed.
    pub fn new(frame: Segment, size: usize) -> Option<Self> {
        let datagram = Datagram::parse(frame).filter(|datagram| size > 0 && datagram.payload > 0)?;
        Some(Self { datagram, size, payload: frame.slice(datagram.headers(), datagram.payload), done: 0 })
    }

    /// Returns the next datagram, which must exist. Stores its headers in `head`, which has room for
    /// [`MAX_HEADERS`](super::datagram::MAX_HEADERS).
    pub fn next(&mut self, head: Segment) -> ([Segment; 2], Offload) {
        let payload = self.payload.slice(self.done * self.size, self.size);
        let headers = self.datagram.headers();
        scatter(&self.datagram.headers_of(self.done, payload.len())[..headers], &[head], 0);
        self.done += 1;
        ([head.slice(0, headers), payload], self.datagram.offload())
    }

    /// Returns whether bursts have taken all datagrams.
    pub const fn is_done(&self) -> bool {
        self.done * self.size >= self.payload.len()
    }
}
