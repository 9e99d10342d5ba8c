//! Sending to a tap: one write per frame, so memory for one frame. If the writes cost too much, frames wait for the
//! thread that makes such calls.

use super::spool::Spool;
use super::{ACCEPTS, Shared};
use crate::buffers::{MAX_FRAME, Memory};
use crate::state::Refusals;
use mem::vnet::{self, VNET_HEADER};
use mem::{Accepts, Lease, NoRoom, Offload, Refusal, Room, Segment, TxQueue, scatter};
use std::io;
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
    /// Frames that wait for the thread.
    spool: Arc<Spool>,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> io::Result<Self> {
        let memory = Memory::new(VNET_HEADER + MAX_FRAME)?;
        let frame = [memory.segment(0, 0)];
        let refusals = Refusals::default();
        let spool = Spool::new(shared.clone(), index)?;
        Ok(Self { shared, index, memory, pending: 0, frame, done: 0, refusals, spool })
    }

    /// Writes the frame that was reserved last; records it if the kernel refuses it.
    fn flush(&mut self) {
        if self.pending == 0 {
            return;
        }
        let message = self.memory.segment(0, self.pending);
        self.pending = 0;
        // Frames that still wait go first.
        let sent = match self.shared.account.is_aside() || !self.spool.is_empty() {
            true => self.spool.push(message),
            false => self.shared.account.call(message.len(), || self.shared.write(self.index, message)),
        };
        if let Err(why) = sent {
            let bytes = message.len() - VNET_HEADER;
            self.refusals.add(Refusal { frames: self.done..self.done + 1, bytes, why });
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
