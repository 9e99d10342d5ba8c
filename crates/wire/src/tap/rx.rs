//! Receiving from a tap: one read per frame, into slots that belong to the burst until released.

use super::{ACCEPTS, Shared};
use crate::buffers::{MAX_FRAME, Memory};
use mem::vnet::{self, DataValid, VNET_HEADER, VNET_HEADER_SHORT};
use mem::{BURST, Burst, Offload, RxQueue, Segment, gather};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// Distance between slots, bytes: an odd number of cache lines, as for packet sockets.
const STRIDE: usize = (VNET_HEADER + MAX_FRAME).next_multiple_of(128) + 64;

const ETHERNET: usize = 14;

pub(super) struct TapRx {
    shared: Arc<Shared>,
    index: usize,
    memory: Memory,
}

impl TapRx {
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> io::Result<Self> {
        Ok(Self { shared, index, memory: Memory::new(BURST * STRIDE)? })
    }

    /// Reads a frame with its header into `slot`. Returns the number of bytes; `None` if there is no frame.
    fn read(&self, slot: Segment) -> Option<usize> {
        let tap = self.shared.queues[self.index].tap.as_raw_fd();
        // SAFETY: the slot is mapped and nobody else's; its length is passed along.
        let read = unsafe { libc::read(tap, slot.as_ptr().cast(), slot.len()) };
        if let Ok(read) = usize::try_from(read) {
            return Some(read);
        }
        if io::Error::last_os_error().raw_os_error() == Some(libc::EBADFD) {
            self.shared.detached(self.index);
        }
        None
    }
}

/// Returns the frame in the first `read` bytes of `slot`; `None` if it is malformed.
fn frame(slot: Segment, read: usize) -> Option<(Segment, Offload)> {
    let len = read.checked_sub(VNET_HEADER).filter(|len| (ETHERNET..=MAX_FRAME).contains(len))?;
    let mut header = [0; VNET_HEADER_SHORT];
    gather(&[slot], 0, &mut header);
    let offload = vnet::parse(&header, len, ACCEPTS, DataValid::Trust).ok()?;
    Some((slot.slice(VNET_HEADER, len), offload))
}

impl RxQueue for TapRx {
    fn poll(&mut self, burst: &mut Burst, byte_budget: usize) -> usize {
        let mut bytes = 0;
        for i in 0..BURST {
            let slot = self.memory.segment(i * STRIDE, VNET_HEADER + MAX_FRAME);
            let Some(read) = self.read(slot) else { break };
            match frame(slot, read) {
                // There is room: there are as many packets as slots, with one segment each.
                Some((frame, offload)) => _ = burst.push(&[frame], frame.len() as u32, offload),
                None => self.shared.state.malformed.add(1),
            }
            bytes += read;
            if bytes >= byte_budget {
                break;
            }
        }
        burst.len()
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.queues[self.index].events.as_fd()
    }

    fn arm(&mut self) -> bool {
        // The tap polls readable as long as it has frames.
        false
    }

    fn disarm(&mut self) {}
}
