//! Receiving from a packet socket: one recvmmsg per burst, into slots that belong to the burst until released.

use super::Queue;
use super::datagram::MAX_HEADERS;
use super::split::Split;
use crate::buffers::{MAX_FRAME, Memory};
use crate::state::{Follower, State, TAG};
use mem::vnet::{self, DataValid, VNET_HEADER_SHORT};
use mem::{Accepts, BURST, Burst, Csum, Offload, RxQueue, Segment, gather, scatter};
use std::io;
use std::mem::{size_of, zeroed};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes before a frame in its slot: the vnet header, and room for reinserting a VLAN tag.
const HEADROOM: usize = 16;

/// Distance between slots, bytes: an odd number of cache lines, so that the frames' heads, which are read, don't all
/// fall into the same cache set.
const STRIDE: usize = (HEADROOM + MAX_FRAME).next_multiple_of(128) + 64;

/// Bytes for the headers of a datagram that came joined with others.
const HEAD: usize = MAX_HEADERS.next_multiple_of(64);

/// Bytes of an Ethernet header, and of the addresses in it.
const ETHERNET: usize = 14;
const ADDRESSES: usize = 12;

/// Everything that a sender can leave unfinished, as the kernel does between devices that support it.
pub(super) const ACCEPTS: Accepts = Accepts { csum: true, tso4: true, tso6: true, ecn: true };

/// Receives a control message: the kernel's information about the frame.
#[derive(Clone, Copy)]
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    about: libc::tpacket_auxdata,
}

/// The arguments of recvmmsg, which are reused.
struct Messages {
    headers: [libc::mmsghdr; BURST],
    vectors: [libc::iovec; BURST],
    controls: [Control; BURST],
}

// SAFETY: the pointers inside are set anew before each call, and the kernel follows them only during it.
unsafe impl Send for Messages {}

pub(super) struct PacketRx {
    queues: Arc<[Queue]>,
    index: usize,
    socket: Follower<Arc<OwnedFd>>,
    state: Arc<State>,
    memory: Memory,
    messages: Box<Messages>,
    /// Messages that were received and not yet passed on, and the rest of the first of them.
    pending: Range<usize>,
    split: Option<Split>,
    /// Average length in bytes of the messages received last. It determines how many to ask for within a byte budget.
    mean: usize,
}

/// A received message: one frame, or several datagrams joined in one frame.
enum Frame {
    One(Segment, Offload),
    Several(Split),
}

impl PacketRx {
    pub(super) fn new(queues: Arc<[Queue]>, index: usize, state: Arc<State>) -> io::Result<Self> {
        let socket = Follower::new(&queues[index].socket);
        // SAFETY: zeros are valid for these C structures.
        let messages = Box::new(unsafe { zeroed() });
        let memory = Memory::new(BURST * (STRIDE + HEAD))?;
        Ok(Self { queues, index, socket, state, memory, messages, pending: 0..0, split: None, mean: 1500 })
    }

    /// Receives up to `count` frames into the first slots; returns how many came.
    fn receive(&mut self, count: usize) -> usize {
        let Messages { headers, vectors, controls } = &mut *self.messages;
        for (i, ((header, vector), control)) in
            headers.iter_mut().zip(vectors).zip(controls).take(count).enumerate()
        {
            let slot = self.memory.segment(slot(i), VNET_HEADER_SHORT + MAX_FRAME);
            *vector = libc::iovec { iov_base: slot.as_ptr().cast(), iov_len: slot.len() };
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = std::ptr::from_mut(control).cast();
            header.msg_hdr.msg_controllen = size_of::<Control>();
        }
        // SAFETY: `count` headers were set up above; they point to slots and controls that live in self.
        let received = unsafe {
            libc::recvmmsg(
                self.socket.value.as_raw_fd(),
                headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        match usize::try_from(received) {
            Ok(received) => received,
            Err(_) => {
                // EINVAL: segmentation that a vnet header can't express; that frame is lost. Other errors mean that
                // there is no packet (EAGAIN), or that the device goes down, which the watch reports.
                if io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
                    self.state.malformed.add(1);
                }
                0
            }
        }
    }

    /// Returns the whole frame of message `i`, with its VLAN tag; `None` if it is malformed.
    fn frame(&self, i: usize) -> Option<Frame> {
        let message = &self.messages.headers[i];
        let len = (message.msg_len as usize).checked_sub(VNET_HEADER_SHORT).filter(|len| *len >= ETHERNET)?;
        if message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            return None;
        }
        let mut header = [0; VNET_HEADER_SHORT];
        gather(&[self.memory.segment(slot(i), VNET_HEADER_SHORT)], 0, &mut header);
        let start = slot(i) + VNET_HEADER_SHORT;
        let tag = self.messages.tag(i);
        let frame = match tag {
            None => self.memory.segment(start, len),
            Some(tag) => put_back(tag, self.memory.segment(start - TAG, len + TAG)),
        };
        if let Some(size) = vnet::datagrams(&header) {
            return Split::new(frame, size.into()).map(Frame::Several);
        }
        let offload = vnet::parse(&header, len, ACCEPTS, DataValid::Trust).ok()?;
        Some(Frame::One(frame, if tag.is_some() { behind_tag(offload)? } else { offload }))
    }
}

impl Messages {
    /// Returns the VLAN tag that the kernel removed from frame `i`.
    fn tag(&self, i: usize) -> Option<[u8; TAG]> {
        let Control { header, about } = &self.controls[i];
        let came = self.headers[i].msg_hdr.msg_controllen >= size_of::<libc::cmsghdr>();
        if !came
            || (header.cmsg_level, header.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA)
            || about.tp_status & libc::TP_STATUS_VLAN_VALID == 0
        {
            return None;
        }
        let [t0, t1] = about.tp_vlan_tpid.to_be_bytes();
        let [c0, c1] = about.tp_vlan_tci.to_be_bytes();
        Some([t0, t1, c0, c1])
    }
}

/// Returns the offset of the vnet header of message `i`, which is right before its frame.
const fn slot(i: usize) -> usize {
    i * STRIDE + HEADROOM - VNET_HEADER_SHORT
}

/// Inserts `tag` into `frame`, which starts with room for it.
fn put_back(tag: [u8; TAG], frame: Segment) -> Segment {
    let mut head = [0; ADDRESSES + TAG];
    gather(&[frame], TAG, &mut head[..ADDRESSES]);
    head[ADDRESSES..].copy_from_slice(&tag);
    scatter(&head, &[frame], 0);
    frame
}

/// Shifts the offload of a frame into which a tag is reinserted; `None` if the frame is too long for that.
fn behind_tag(mut offload: Offload) -> Option<Offload> {
    if let Csum::Partial { start, .. } = &mut offload.csum {
        *start = start.checked_add(TAG as u16)?;
    }
    if let Some(gso) = &mut offload.gso {
        gso.hdr_len = gso.hdr_len.saturating_add(TAG as u16);
    }
    Some(offload)
}

impl RxQueue for PacketRx {
    fn poll(&mut self, burst: &mut Burst, byte_budget: usize) -> usize {
        self.socket.follow(&self.queues[self.index].socket);
        if self.pending.is_empty() && self.split.is_none() {
            self.pending = 0..self.receive((byte_budget / self.mean).clamp(1, BURST));
            let bytes: usize =
                self.messages.headers[self.pending.clone()].iter().map(|m| m.msg_len as usize).sum();
            self.mean = bytes.checked_div(self.pending.len()).unwrap_or(self.mean).max(1);
        }
        let mut bytes = 0;
        while bytes < byte_budget && !burst.is_full(2) {
            if let Some(split) = &mut self.split {
                let head = self.memory.segment(BURST * STRIDE + burst.len() * HEAD, HEAD);
                let (segments, offload) = split.next(head);
                let len = segments[0].len() + segments[1].len();
                // There is room, as checked above.
                burst.push(&segments, len as u32, offload);
                bytes += len;
                self.split.take_if(|split| split.is_done());
            } else if let Some(i) = self.pending.next() {
                match self.frame(i) {
                    Some(Frame::One(frame, offload)) => {
                        burst.push(&[frame], frame.len() as u32, offload);
                        bytes += frame.len();
                    }
                    Some(Frame::Several(split)) => self.split = Some(split),
                    None => self.state.malformed.add(1),
                }
            } else {
                break;
            }
        }
        burst.len()
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.queues[self.index].events.as_fd()
    }

    fn arm(&mut self) -> bool {
        // The socket polls readable as long as it has frames; some may be here already.
        self.split.is_some() || !self.pending.is_empty()
    }

    fn disarm(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use mem::Gso;

    #[test]
    fn a_tag_moves_what_lies_behind_it() {
        let offload = Offload {
            csum: Csum::Partial { start: 34, offset: 16 },
            gso: Some(Gso { v6: false, size: 1448, hdr_len: 66, ecn: false }),
        };
        let moved = behind_tag(offload).unwrap();
        assert_eq!(moved.csum, Csum::Partial { start: 38, offset: 16 });
        assert_eq!(moved.gso.unwrap().hdr_len, 70);
        assert_eq!(behind_tag(Offload { csum: Csum::Partial { start: 65_533, offset: 0 }, gso: None }), None);
    }

    #[test]
    fn slots_fall_into_different_cache_sets() {
        assert_eq!(STRIDE / 64 % 2, 1);
        assert!(slot(1) >= slot(0) + VNET_HEADER_SHORT + MAX_FRAME + TAG);
    }
}
