//! Ports without rings: packets come from memory and go to memory.

use mem::{
    Accepts, BURST, Burst, NoRoom, Offload, Opened, Port, PortStatus, Room, RxQueue, Segment, TxQueue,
};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Sends the same packets forever.
pub struct Source {
    frames: Vec<Vec<u8>>,
    next: usize,
    event: OwnedFd,
}

impl Source {
    pub fn new(frames: Vec<Vec<u8>>) -> Self {
        let event = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        Self { frames, next: 0, event }
    }
}

impl RxQueue for Source {
    fn poll(&mut self, burst: &mut Burst, _byte_budget: usize) -> usize {
        for _ in 0..BURST.min(self.frames.len()) {
            let frame = &mut self.frames[self.next];
            // SAFETY: the frame lives as long as the queue, and nobody else touches it.
            let segment = unsafe { Segment::new(frame.as_mut_ptr(), frame.len() as u32) };
            burst.push(&[segment], frame.len() as u32, Offload::default());
            self.next = (self.next + 1) % self.frames.len();
        }
        burst.len()
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn arm(&mut self) -> bool {
        true
    }

    fn disarm(&mut self) {}
}

/// Takes everything into 256 buffers, one after the other.
pub struct Sink(Vec<Segment>);

impl Sink {
    /// Creates a sink with buffers that are never freed.
    pub fn leaked() -> Self {
        let memory = Vec::leak(vec![0_u8; 256 * 2048]);
        let buffers = memory.chunks_mut(2048);
        // SAFETY: leaked, so mapped forever.
        Self(buffers.map(|b| unsafe { Segment::new(b.as_mut_ptr(), b.len() as u32) }).collect())
    }
}

impl TxQueue for Sink {
    fn accepts(&self) -> Accepts {
        Accepts { csum: true, tso4: true, tso6: true, ecn: true }
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        fill(&mut SinkRoom { buffers: &self.0, next: 0, reserved: self.0[0] });
        true
    }
}

struct SinkRoom<'a> {
    buffers: &'a [Segment],
    next: usize,
    reserved: Segment,
}

impl Room for SinkRoom<'_> {
    fn reserve(&mut self, len: usize, _offload: &Offload) -> Result<&[Segment], NoRoom> {
        self.reserved = self.buffers[self.next % self.buffers.len()].slice(0, len);
        self.next += 1;
        Ok(std::slice::from_ref(&self.reserved))
    }
}

struct Device;

impl Port for Device {
    fn status(&self) -> PortStatus {
        PortStatus { up: true, ..PortStatus::default() }
    }
}

/// Opens a port that sends these packets forever, if there are any, and takes all packets sent to it.
#[allow(dead_code)] // not every benchmark has an engine to attach it to
pub fn port(frames: Vec<Vec<u8>>) -> Opened {
    let rx: Vec<Box<dyn RxQueue>> =
        if frames.is_empty() { Vec::new() } else { vec![Box::new(Source::new(frames))] };
    Opened { port: Arc::new(Device), rx, tx: vec![Arc::new(Sink::leaked())] }
}
