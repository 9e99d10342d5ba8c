//! Sending through a packet socket: frames are gathered in our own memory and sent by one sendmmsg.

use super::Queue;
use super::join::Plan;
use super::rx::ACCEPTS;
use crate::buffers::{MAX_FRAME, Memory};
use crate::state::{Current, Follower, State};
use arrayvec::ArrayVec;
use mem::vnet::{self, VNET_HEADER_SHORT};
use mem::{Accepts, BURST, Lease, NoRoom, Offload, Room, Segment, TxQueue, scatter};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Bytes before a frame: the vnet header, and padding that aligns the frame.
const HEADROOM: usize = 16;

/// Most bytes of gathered frames: a burst of ordinary frames, or a few large segments.
const MEMORY: usize = 4 * (HEADROOM + MAX_FRAME).next_multiple_of(64);

pub(super) struct PacketTx {
    pub queues: Arc<[Queue]>,
    pub index: usize,
    pub sender: Lease<Sender>,
}

impl TxQueue for PacketTx {
    fn accepts(&self) -> Accepts {
        // The kernel segments and completes checksums if the device can't.
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

/// Gathers frames and sends them at the end of a burst.
pub(super) struct Sender {
    socket: Follower<Arc<OwnedFd>>,
    state: Arc<State>,
    memory: Memory,
    used: usize,
    /// The gathered frames, each after its vnet header.
    frames: ArrayVec<Segment, BURST>,
    plan: Plan,
    /// Whether the kernel accepts several datagrams in one frame: assumed until it refuses such a frame.
    joins: bool,
    /// The frame reserved last.
    frame: [Segment; 1],
    /// Whether the socket has refused a frame of this burst for lack of room.
    full: bool,
}

impl Sender {
    pub(super) fn new(socket: &Current<Arc<OwnedFd>>, state: Arc<State>) -> io::Result<Self> {
        let memory = Memory::new(MEMORY)?;
        let frame = [memory.segment(0, 0)];
        Ok(Self {
            socket: Follower::new(socket),
            state,
            memory,
            used: 0,
            frames: ArrayVec::new(),
            plan: Plan::new(),
            joins: true,
            frame,
            full: false,
        })
    }

    /// Sends the gathered frames; counts those that the kernel refuses.
    fn flush(&mut self) {
        let mut done = 0;
        while done < self.frames.len() {
            let longest = if self.joins { self.state.longest() } else { 0 };
            let left = &self.frames[done..];
            let messages = self.plan.make(left, longest);
            // SAFETY: the messages point to vectors of the plan, which point to headers in it and to frames in self.
            let sent = unsafe {
                libc::sendmmsg(
                    self.socket.value.as_raw_fd(),
                    messages.as_mut_ptr(),
                    messages.len() as libc::c_uint,
                    libc::MSG_DONTWAIT,
                )
            };
            if let Ok(sent) = usize::try_from(sent) {
                done += self.plan.frames_of(0..sent);
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                // A kernel before 6.2 does not know joined frames.
                Some(libc::EINVAL) if self.plan.frames_of(0..1) > 1 => self.joins = false,
                // The error concerns this frame: it is longer than the MTU, or the device's queue dropped it.
                Some(libc::EMSGSIZE | libc::EINVAL | libc::ENOBUFS) => {
                    let refused = self.plan.frames_of(0..1);
                    self.state.refused.add(refused);
                    done += refused;
                }
                // The socket has no room, or there is no device.
                _ => {
                    self.state.refused.add(left.len());
                    self.full = true;
                    break;
                }
            }
        }
        self.frames.clear();
        self.used = 0;
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
        if self.frames.is_full() || self.used + bytes > MEMORY {
            // The frames before this one are complete by now.
            self.flush();
        }
        if self.full {
            return Err(NoRoom::Full);
        }
        let start = self.used + HEADROOM - VNET_HEADER_SHORT;
        let message = self.memory.segment(start, VNET_HEADER_SHORT + len);
        scatter(&vnet::build(offload)[..VNET_HEADER_SHORT], &[message], 0);
        self.frames.push(message);
        self.frame = [message.slice(VNET_HEADER_SHORT, len)];
        self.used += bytes;
        Ok(&self.frame)
    }
}
