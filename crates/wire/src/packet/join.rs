//! Messages for frames: one each, or one for adjacent frames that the kernel can separate again.

use super::datagram::{Datagram, MAX_HEADERS};
use mem::vnet::{self, VNET_HEADER_SHORT};
use mem::{BURST, Offload, Segment};
use std::mem::zeroed;
use std::ops::Range;

/// The oldest kernel that knows joined frames allows 64 datagrams in one. A burst never has more.
const _: () = assert!(BURST <= 64);

/// A vnet header and the headers after it.
type Head = [u8; VNET_HEADER_SHORT + MAX_HEADERS];

/// The arguments of one sendmmsg.
pub(super) struct Plan(Box<Arguments>);

struct Arguments {
    messages: [libc::mmsghdr; BURST],
    /// Number of frames in each message.
    frames: [u8; BURST],
    /// Headers of joined frames. Each replaces the headers of at least two frames.
    heads: [Head; BURST / 2],
    vectors: [libc::iovec; BURST + BURST / 2],
}

// SAFETY: the pointers inside are set anew before each call, and the kernel follows them only during it.
unsafe impl Send for Plan {}

impl Plan {
    pub fn new() -> Self {
        // SAFETY: zeros are valid for these C structures.
        Self(Box::new(unsafe { zeroed() }))
    }

    /// Makes messages for `frames`, at most [`BURST`], each with its vnet header. Joins only frames of up to `longest`
    /// bytes: of a longer one, the kernel must report that the device can't take it.
    pub fn make(&mut self, frames: &[Segment], longest: usize) -> &mut [libc::mmsghdr] {
        let Arguments { messages, frames: counts, heads, vectors } = &mut *self.0;
        let (mut message, mut head, mut vector) = (0, 0, 0);
        let mut rest = frames;
        while let Some(first) = rest.first() {
            let first_vector = vector;
            let joined = Joined::start(rest, longest);
            let count = joined.as_ref().map_or(1, |joined| joined.count);
            if let Some(joined) = joined {
                heads[head] = joined.head();
                let head_len = VNET_HEADER_SHORT + joined.datagram.headers();
                vectors[vector] =
                    libc::iovec { iov_base: heads[head].as_mut_ptr().cast(), iov_len: head_len };
                for (frame, at) in rest[..count].iter().zip(vector + 1..) {
                    vectors[at] = whole(&frame.slice(head_len, frame.len()));
                }
                head += 1;
                vector += 1 + count;
            } else {
                vectors[vector] = whole(first);
                vector += 1;
            }
            let header = &mut messages[message].msg_hdr;
            header.msg_iov = &raw mut vectors[first_vector];
            header.msg_iovlen = vector - first_vector;
            counts[message] = count as u8;
            message += 1;
            rest = &rest[count..];
        }
        &mut messages[..message]
    }

    /// Returns the number of frames in these messages.
    pub fn frames_of(&self, messages: Range<usize>) -> usize {
        self.0.frames[messages].iter().map(|&count| usize::from(count)).sum()
    }
}

fn whole(bytes: &Segment) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast(), iov_len: bytes.len() }
}

/// Adjacent frames that are sent as one.
struct Joined {
    datagram: Datagram,
    count: usize,
    payload: usize,
}

impl Joined {
    /// Joins as many frames as possible, from the first of `frames` on; `None` if they are fewer than two.
    fn start(frames: &[Segment], longest: usize) -> Option<Self> {
        let (first, rest) = frames.split_first()?;
        let datagram = candidate(first, longest)?;
        let mut joined = Self { datagram, count: 1, payload: datagram.payload };
        for next in rest.iter().map_while(|next| candidate(next, longest)) {
            if !datagram.takes(&next, joined.payload) {
                break;
            }
            joined.count += 1;
            joined.payload += next.payload;
        }
        (joined.count > 1).then_some(joined)
    }

    /// Makes the vnet header and the headers of the joined frame.
    fn head(&self) -> Head {
        let Self { datagram, payload, .. } = self;
        let (udp, headers) = (datagram.udp as u16, datagram.headers() as u16);
        let vnet = vnet::build_datagrams(udp, headers, datagram.payload as u16);
        let mut head = [0; VNET_HEADER_SHORT + MAX_HEADERS];
        head[..VNET_HEADER_SHORT].copy_from_slice(&vnet);
        head[VNET_HEADER_SHORT..].copy_from_slice(&datagram.headers_of(0, *payload));
        head
    }
}

/// Parses a frame that may be joined: it leaves no checksum and no segmentation unfinished.
fn candidate(message: &Segment, longest: usize) -> Option<Datagram> {
    let finished = vnet::build(&Offload::default());
    let frame = message.slice(VNET_HEADER_SHORT, message.len());
    let may =
        frame.len() <= longest && message.load::<VNET_HEADER_SHORT>(0)? == finished[..VNET_HEADER_SHORT];
    may.then(|| Datagram::joinable(frame)).flatten()
}
