//! The device's side: what `backend.rs` sets up once a VMM has described rings.

use super::drivers::mock::{Driver, Ram};
use crate::announcement::Announcement;
use crate::features::Features;
use crate::queue::{Queue, Running, Shared};
use crate::ring::{Journal, Layout, Memory, Packed, Ring, Split};
use crate::rx::GuestRx;
use crate::tx::GuestTx;
use mem::{Account, BURST, Burst, DirtyLog, FaultWord, Offload, Room, RxQueue, TxQueue};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64};

/// The guest's receiving ring.
pub const TO_GUEST: usize = 0;
/// The guest's sending ring.
pub const FROM_GUEST: usize = 1;
pub const RINGS: usize = 2;

/// Both queues of a port.
pub struct Device {
    rx: GuestRx,
    tx: GuestTx,
    burst: Burst,
    frame: Vec<u8>,
}

impl Device {
    /// Creates a device on the rings of these drivers. It sends frames of `len` bytes to their guest.
    pub fn new(ram: Ram, drivers: &[Driver; RINGS], len: usize, logged: bool) -> Self {
        let form = if drivers[0].packed { Features::RING_PACKED.0 } else { 0 };
        let features = Features(Features::VERSION_1.0 | Features::IN_ORDER.0 | form);
        let queue = |driver| {
            let queue = Queue::new(false).expect("descriptors");
            *queue.close().running() = Some(running(ram, driver, features, logged));
            queue
        };
        let shared = Arc::new(Shared {
            queues: drivers.iter().map(queue).collect(),
            account: Arc::default(),
            pages: Account::of_pages(),
            refused: AtomicU64::new(0),
            quota: Arc::default(),
            fault: Arc::new(FaultWord::new()),
            features: AtomicU64::new(features.0),
            mtu: AtomicU16::new(0),
            pairs: AtomicU16::new(1),
            announcement: Announcement::default(),
            files: std::sync::Mutex::default(),
        });
        let mut rx = GuestRx::new(shared.clone(), FROM_GUEST).expect("a thread");
        rx.disarm();
        let tx = GuestTx::new(shared, TO_GUEST).expect("a thread");
        Self { rx, tx, burst: Burst::new(), frame: vec![0; len] }
    }

    /// Takes a burst from the guest and returns it; returns how many packets it had.
    pub fn receive(&mut self) -> usize {
        let packets = self.rx.poll(&mut self.burst, usize::MAX);
        self.rx.release(&mut self.burst);
        packets
    }

    /// Sends a burst to the guest; returns how many packets the guest accepted.
    pub fn send(&self) -> usize {
        let mut stored = 0;
        let mut store = |room: &mut dyn Room| {
            // The call goes through a trait object, as that of workers does.
            let room = black_box(room);
            let frames = (0..BURST).map(|_| room.put(&self.frame, &[], 0, 0, &Offload::default()));
            stored = frames.filter(Result::is_ok).count();
        };
        self.tx.burst(&mut store);
        stored
    }
}

/// Returns a ring that is started and enabled.
fn running(ram: Ram, driver: &Driver, features: Features, logged: bool) -> Running {
    let regions = ram.regions();
    let layout = Layout::resolve(&regions, &driver.addresses(), driver.size.into(), driver.packed, false);
    let layout = layout.expect("a ring in memory");
    let base = driver.first_base();
    // A bit for each page up to 8 GiB.
    let bits = Vec::leak(vec![0_u8; 1 << 18]);
    // SAFETY: nobody else has it, and it is never freed.
    let log = unsafe { DirtyLog::from_raw(bits.len() as u64, bits.as_mut_ptr()) }.expect("a log");
    // SAFETY: the layout was checked, and the memory is never freed.
    let (memory, ring) = unsafe {
        let ring = match driver.packed {
            true => Ring::Packed(Packed::new(layout, false, true, base, Journal::mortal(driver.size))),
            false => Ring::Split(Split::new(layout, false, base)),
        };
        (Memory::new(regions, false, logged.then_some(log)).expect("memory"), ring)
    };
    Running {
        enabled: true,
        kicked: true,
        ..Running::new(ring, memory, layout.written(driver.packed, false), features)
    }
}
