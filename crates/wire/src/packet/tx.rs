//! Sending by a packet socket: frames are gathered in memory of ours and sent by one sendmmsg.

use super::Queue;
use super::rx::ACCEPTS;
use crate::buffers::{MAX_FRAME, Memory};
use crate::state::{Current, Follower, State};
use mem::vnet::{self, VNET_HEADER_SHORT};
use mem::{Accepts, BURST, Lease, NoRoom, Offload, Room, Segment, TxQueue, scatter};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Bytes before a frame: the vnet header, and what aligns the frame.
const HEADROOM: usize = 16;

/// Bytes of frames gathered at most: a burst of ordinary frames, or a few large segments.
const MEMORY: usize = 4 * (HEADROOM + MAX_FRAME).next_multiple_of(64);

/// The sending half.
pub(super) struct PacketTx {
    pub queues: Arc<[Queue]>,
    pub index: usize,
    pub sender: Lease<Sender>,
}

impl TxQueue for PacketTx {
    fn accepts(&self) -> Accepts {
        // The kernel segments and completes checksums where the device can't.
        ACCEPTS
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        let run = |sender: &mut Sender| {
            sender.socket.follow(&self.queues[self.index].socket);
            sender.full = false;
            fill(sender);
            sender.flush();
        };
        self.sender.with(run).is_some()
    }
}

/// The frames gathered and not yet sent.
pub(super) struct Sender {
    socket: Follower<Arc<OwnedFd>>,
    state: Arc<State>,
    memory: Memory,
    used: usize,
    messages: Box<[libc::mmsghdr; BURST]>,
    vectors: Box<[libc::iovec; BURST]>,
    count: usize,
    /// The frame reserved last.
    frame: [Segment; 1],
    /// Whether the socket took no more in this burst.
    full: bool,
}

// SAFETY: the pointers inside lead to memory of this value, and are followed by the kernel in `flush` only.
unsafe impl Send for Sender {}

impl Sender {
    pub(super) fn new(socket: &Current<Arc<OwnedFd>>, state: Arc<State>) -> io::Result<Self> {
        let memory = Memory::new(MEMORY)?;
        let frame = [memory.segment(0, 0)];
        Ok(Self {
            socket: Follower::new(socket),
            state,
            memory,
            used: 0,
            // SAFETY: zeros are valid for these C structures.
            messages: Box::new(unsafe { zeroed() }),
            // SAFETY: as above.
            vectors: Box::new(unsafe { zeroed() }),
            count: 0,
            frame,
            full: false,
        })
    }

    /// Sends what was gathered; counts what the kernel refuses.
    fn flush(&mut self) {
        let mut done = 0;
        for (message, vector) in self.messages.iter_mut().zip(self.vectors.iter_mut()).take(self.count) {
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
        }
        while done < self.count {
            let messages = &mut self.messages[done..self.count];
            // SAFETY: the messages point to vectors, and those to frames, that live in self.
            let sent = unsafe {
                libc::sendmmsg(
                    self.socket.value.as_raw_fd(),
                    messages.as_mut_ptr(),
                    messages.len() as libc::c_uint,
                    libc::MSG_DONTWAIT,
                )
            };
            if let Ok(sent) = usize::try_from(sent) {
                done += sent;
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                // About this frame: longer than the MTU, or dropped by the device's queue.
                Some(libc::EMSGSIZE | libc::EINVAL | libc::ENOBUFS) => {
                    self.state.refused.add(1);
                    done += 1;
                }
                // No room in the socket, or no device.
                _ => {
                    self.state.refused.add(self.count - done);
                    self.full = true;
                    break;
                }
            }
        }
        (self.count, self.used) = (0, 0);
    }
}

impl Room for Sender {
    fn reserve(&mut self, len: usize, offload: &Offload) -> Result<&[Segment], NoRoom> {
        if !self.state.up() {
            return Err(NoRoom::Down);
        }
        if len > MAX_FRAME {
            return Err(NoRoom::TooLong);
        }
        let bytes = (HEADROOM + len).next_multiple_of(64);
        if self.count == BURST || self.used + bytes > MEMORY {
            // The frames before this one are filled by now.
            self.flush();
        }
        if self.full {
            return Err(NoRoom::Full);
        }
        let start = self.used + HEADROOM - VNET_HEADER_SHORT;
        let message = self.memory.segment(start, VNET_HEADER_SHORT + len);
        scatter(&vnet::build(offload)[..VNET_HEADER_SHORT], &[message], 0);
        self.vectors[self.count] = libc::iovec { iov_base: message.as_ptr().cast(), iov_len: message.len() };
        self.frame = [message.slice(VNET_HEADER_SHORT, len)];
        self.count += 1;
        self.used += bytes;
        Ok(&self.frame)
    }
}
