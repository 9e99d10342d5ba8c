//! Sending to a tap: one write per frame, so memory for one frame.

use super::{ACCEPTS, Shared};
use crate::buffers::{MAX_FRAME, Memory};
use crate::state::{Refusals, why};
use mem::vnet::{self, VNET_HEADER};
use mem::{Accepts, Lease, NoRoom, Offload, Refusal, Room, Segment, TxQueue, scatter};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

pub(super) struct TapTx {
    pub sender: Lease<Sender>,
}

impl TxQueue for TapTx {
    fn accepts(&self) -> Accepts {
        ACCEPTS
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        let run = |sender: &mut Sender| {
            (sender.done, sender.refusals) = (0, Refusals::default());
            fill(sender);
            sender.flush();
        };
        self.sender.with(run).is_some()
    }
}

/// Fills one frame at a time, and writes it.
pub(super) struct Sender {
    shared: Arc<Shared>,
    index: usize,
    memory: Memory,
    /// Bytes of header and frame that are to be written; 0 if there is no frame.
    pending: usize,
    frame: [Segment; 1],
    /// Number of frames of this burst that were written or refused, and the refused ones.
    done: usize,
    refusals: Refusals,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> io::Result<Self> {
        let memory = Memory::new(VNET_HEADER + MAX_FRAME)?;
        let frame = [memory.segment(0, 0)];
        let refusals = Refusals::default();
        Ok(Self { shared, index, memory, pending: 0, frame, done: 0, refusals })
    }

    /// Writes the frame that was reserved last; records it if the kernel refuses it.
    fn flush(&mut self) {
        if self.pending == 0 {
            return;
        }
        let message = self.memory.segment(0, self.pending);
        self.pending = 0;
        let tap = self.shared.queues[self.index].tap.as_raw_fd();
        // SAFETY: the message is mapped and nobody else's; its length is passed along.
        let written = unsafe { libc::write(tap, message.as_ptr().cast(), message.len()) };
        if written < 0 {
            let error = io::Error::last_os_error();
            self.shared.state.refused.add(1);
            let bytes = message.len() - VNET_HEADER;
            self.refusals.add(Refusal { frames: self.done..self.done + 1, bytes, why: why(&error) });
            if error.raw_os_error() == Some(libc::EBADFD) {
                self.shared.detached(self.index);
            }
        }
        self.done += 1;
    }
}

impl Room for Sender {
    fn reserve(&mut self, len: usize, offload: &Offload) -> Result<&[Segment], NoRoom> {
        self.flush();
        if !self.shared.state.up() {
            return Err(NoRoom::Down);
        }
        if len > MAX_FRAME {
            return Err(NoRoom::TooLong);
        }
        self.pending = VNET_HEADER + len;
        let message = self.memory.segment(0, self.pending);
        scatter(&vnet::build(offload), &[message], 0);
        self.frame = [message.slice(VNET_HEADER, len)];
        Ok(&self.frame)
    }

    fn settle(&mut self, refused: &mut dyn FnMut(Refusal)) {
        self.flush();
        self.refusals.take(refused);
    }
}
