//! The port, and the device's side of it.

use crate::bell::Bell;
use crate::ring::{Filler, Taker, ring};
use mem::{
    Accepts, BURST, Burst, Lease, NoRoom, Offload, Opened, Port, PortStatus, Room, RxQueue, Segment, TxQueue,
};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Ethernet header and two VLAN tags, bytes.
const LINK_HEADERS: usize = 14 + 2 * 4;

/// The parameters of a port of rings.
#[derive(Clone, Copy, Debug)]
pub struct RingPort {
    /// Largest IP packet it will ever carry, bytes.
    pub mtu: u16,
    /// Number of frames in each ring; rounded up to a power of two.
    pub slots: u32,
}

/// Bells and counters of both directions.
#[derive(Debug)]
struct Shared {
    /// The bell for the worker.
    up: Bell,
    /// The bell for the device.
    down: Bell,
    /// Number of frames that the device could not send: the ring was full, or they were too long.
    refused: AtomicU64,
}

/// Opens a port: one end for the executor, one for senders, one for the receiver.
///
/// # Errors
/// If no event descriptor is left.
pub fn open(port: &RingPort) -> io::Result<(Opened, Uplink, Downlink)> {
    let frame = usize::from(port.mtu) + LINK_HEADERS;
    let (to_worker, from_device) = ring(port.slots, frame);
    let (to_device, from_worker) = ring(port.slots, frame);
    let shared = Shared { up: Bell::new()?, down: Bell::new()?, refused: AtomicU64::new(0) };
    let shared = Arc::new(shared);
    let rx = Rx { frames: from_device, shared: shared.clone() };
    let tx = Sender { frames: to_device, slot: None, shared: shared.clone() };
    let opened = Opened {
        port: Arc::new(Device(shared.clone())),
        rx: vec![Box::new(rx)],
        tx: vec![Arc::new(Tx(Lease::new(tx)))],
    };
    let uplink = Uplink(Arc::new(Up { frames: Mutex::new(to_worker), shared: shared.clone() }));
    Ok((opened, uplink, Downlink { frames: from_worker, shared }))
}

struct Device(Arc<Shared>);

impl Port for Device {
    fn status(&self) -> PortStatus {
        PortStatus {
            up: true,
            features: vec!["verbs".into()],
            queues: 1,
            lost: self.0.refused.load(Ordering::Relaxed),
            ..PortStatus::default()
        }
    }
}

/// The sending end of a device: its frames go to the worker. Clones send into the same ring.
#[derive(Clone, Debug)]
pub struct Uplink(Arc<Up>);

#[derive(Debug)]
struct Up {
    frames: Mutex<Filler>,
    shared: Arc<Shared>,
}

impl Uplink {
    /// Sends a frame of `len` bytes. `fill` writes it over old bytes. False, with `fill` not run, if the ring is full
    /// or the frame too long; that is counted. [`Self::ring`] wakes a worker that sleeps.
    #[must_use]
    pub fn send(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        self.send_unfinished(len, &Offload::default(), fill)
    }

    /// Does the same for a frame with unfinished `offload`.
    #[must_use]
    pub fn send_unfinished(&self, len: usize, offload: &Offload, fill: impl FnOnce(&mut [u8])) -> bool {
        // A panic of `fill` leaves nothing behind.
        let sent = self.0.frames.lock().unwrap_or_else(PoisonError::into_inner).fill(len, offload, fill);
        if !sent {
            self.0.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    /// Wakes the worker, if it sleeps, so that it sees what was sent.
    pub fn ring(&self) {
        self.0.shared.up.ring();
    }

    /// Returns for how many frames there is room, unless others send.
    #[must_use]
    pub fn room(&self) -> usize {
        self.0.frames.lock().unwrap_or_else(PoisonError::into_inner).free() as usize
    }

    /// Returns the number of frames that could not be sent since the port was opened.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.shared.refused.load(Ordering::Relaxed)
    }
}

/// The worker's receiving half.
struct Rx {
    frames: Taker,
    shared: Arc<Shared>,
}

impl RxQueue for Rx {
    fn poll(&mut self, burst: &mut Burst, byte_budget: usize) -> usize {
        let mut bytes = 0;
        while burst.len() < BURST && (bytes < byte_budget || burst.is_empty()) {
            let Some((frame, offload)) = self.frames.take() else { break };
            bytes += frame.len();
            // There is room: a burst has room for at least as many segments as packets.
            burst.push_one(frame, offload);
        }
        burst.len()
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
        self.frames.give_back();
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.up.fd()
    }

    fn arm(&mut self) -> bool {
        !self.shared.up.arm() || self.frames.is_ready()
    }

    fn disarm(&mut self) {
        self.shared.up.disarm();
    }
}

/// The workers' sending half.
struct Tx(Lease<Sender>);

struct Sender {
    frames: Filler,
    slot: Option<Segment>,
    shared: Arc<Shared>,
}

impl TxQueue for Tx {
    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        let run = |sender: &mut Sender| {
            sender.slot = None;
            fill(sender);
            if sender.slot.is_some() {
                sender.frames.publish();
                sender.shared.down.ring();
            }
        };
        self.0.with(run).is_some()
    }
}

impl Room for Sender {
    fn reserve(&mut self, len: usize, _: &Offload) -> Result<&[Segment], NoRoom> {
        if len > self.frames.frame() {
            return Err(NoRoom::TooLong);
        }
        let slot = self.frames.slot(len).ok_or(NoRoom::Full)?;
        Ok(std::slice::from_ref(self.slot.insert(slot)))
    }
}

/// The receiving end of a device.
#[derive(Debug)]
pub struct Downlink {
    frames: Taker,
    shared: Arc<Shared>,
}

impl Downlink {
    /// Lets `look` read the next frame; false if there is none.
    pub fn receive(&mut self, look: impl FnOnce(&[u8])) -> bool {
        self.frames.look(look).is_some()
    }

    /// Returns a descriptor that polls readable when there are frames after [`Downlink::arm`].
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.down.fd()
    }

    /// Requests events, before sleeping. True if frames are already waiting, so that the caller must not sleep. In
    /// either case, [`Downlink::disarm`] must follow.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        !self.shared.down.arm() || self.frames.is_ready()
    }

    /// Ends the request for events and drains pending ones, after waking.
    pub fn disarm(&mut self) {
        self.shared.down.disarm();
    }
}
