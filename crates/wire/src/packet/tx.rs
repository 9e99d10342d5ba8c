//! Sending through a packet socket: frames are gathered in our own memory and sent by one sendmmsg.

use super::Queue;
use super::join::Plan;
use super::rx::ACCEPTS;
use crate::buffers::{MAX_FRAME, Memory};
use crate::state::{Current, Follower, Refusals, State, TAG, why};
use arrayvec::ArrayVec;
use mem::vnet::{self, VNET_HEADER_SHORT};
use mem::{Accepts, BURST, Lease, NoRoom, Offload, Refusal, Room, Segment, TxQueue, scatter};
use std::io;
use std::ops::Range;
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
            sender.begin();
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
    /// Why the socket takes no more frames of this burst.
    stopped: Option<NoRoom>,
    /// Number of frames of this burst that were sent or refused.
    done: usize,
    /// The refused ones of this burst.
    refusals: Refusals,
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
            stopped: None,
            done: 0,
            refusals: Refusals::default(),
        })
    }

    fn begin(&mut self) {
        (self.stopped, self.done) = (None, 0);
        self.refusals = Refusals::default();
    }

    /// Records that the kernel refused `frames` of the gathered ones.
    fn refuse(&mut self, frames: Range<usize>, why: NoRoom) {
        self.state.refused.add(frames.len());
        let bytes = self.frames[frames.clone()].iter().map(|frame| frame.len() - VNET_HEADER_SHORT).sum();
        let frames = self.done + frames.start..self.done + frames.end;
        self.refusals.add(Refusal { frames, bytes, why });
    }

    /// Sends the gathered frames; records those that the kernel refuses.
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
            let first = done..done + self.plan.frames_of(0..1);
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // A kernel before 6.2 does not know joined frames.
                Some(libc::EINVAL) if first.len() > 1 => self.joins = false,
                // The error concerns this frame: it is longer than the MTU, or the device's queue dropped it.
                Some(libc::EMSGSIZE | libc::EINVAL | libc::ENOBUFS) => {
                    done = first.end;
                    self.refuse(first, why(&error));
                }
                // The socket has no room, or there is no device.
                _ => {
                    self.refuse(done..self.frames.len(), why(&error));
                    self.stopped = Some(why(&error));
                    break;
                }
            }
        }
        self.done += self.frames.len();
        self.frames.clear();
        self.used = 0;
    }
}

impl Room for Sender {
    fn reserve(&mut self, len: usize, offload: &Offload) -> Result<&[Segment], NoRoom> {
        if !self.state.up() {
            return Err(NoRoom::Down);
        }
        // The kernel looks at the lengths of other frames.
        let longest = self.state.longest() + TAG;
        let cut_too_long =
            offload.gso.is_some_and(|gso| usize::from(gso.hdr_len) + usize::from(gso.size) > longest);
        if len > MAX_FRAME || cut_too_long {
            return Err(NoRoom::TooLong);
        }
        let bytes = (HEADROOM + len).next_multiple_of(64);
        if self.frames.is_full() || self.used + bytes > MEMORY {
            // The frames before this one are complete by now.
            self.flush();
        }
        if let Some(why) = self.stopped {
            return Err(why);
        }
        let start = self.used + HEADROOM - VNET_HEADER_SHORT;
        let message = self.memory.segment(start, VNET_HEADER_SHORT + len);
        scatter(&vnet::build(offload)[..VNET_HEADER_SHORT], &[message], 0);
        self.frames.push(message);
        self.frame = [message.slice(VNET_HEADER_SHORT, len)];
        self.used += bytes;
        Ok(&self.frame)
    }

    fn settle(&mut self, refused: &mut dyn FnMut(Refusal)) {
        self.flush();
        self.refusals.take(refused);
    }
}
