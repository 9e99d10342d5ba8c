//! The OVS side of a port, as workers see it: rings that come and go with drivers.

use crate::ring::{Incoming, Next, Numbers, Outgoing, Rings};
use mem::{
    Accepts, BURST, Burst, Lease, NoRoom, Offload, Opened, Port, PortStatus, Room, RxQueue, Segment, TxQueue,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ethernet header and two VLAN tags, bytes.
const LINK_HEADERS: usize = 14 + 2 * 4;
/// Largest IP packet for OVS, unless it says otherwise, bytes.
const DEFAULT_MTU: u32 = 1500;
/// Most messages that are taken from a bell at once.
const RINGS: usize = 16;

/// What is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OvsPort {
    /// Name of the guest or wire.
    pub name: String,
    /// Its largest IP packet, bytes.
    pub mtu: u16,
}

/// What both queues and the service share.
#[derive(Debug)]
pub struct Shared {
    /// What the port was opened as.
    pub spec: OvsPort,
    /// The rings of the driver that has the port, and a count of changes.
    rings: Mutex<Option<Arc<Rings>>>,
    version: AtomicU32,
    /// Longest frame for OVS.
    frame: AtomicU32,
    /// Messages that were not packets.
    malformed: AtomicU64,
    /// Wakes the worker. A socket, because reads of it can be told not to wait, whatever the driver does to its end.
    bell: OwnedFd,
    /// The driver's end.
    clapper: OwnedFd,
}

impl Shared {
    fn new(spec: OvsPort) -> io::Result<Self> {
        let (bell, clapper) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self {
            spec,
            rings: Mutex::default(),
            version: AtomicU32::new(0),
            frame: AtomicU32::new(DEFAULT_MTU + LINK_HEADERS as u32),
            malformed: AtomicU64::new(0),
            bell,
            clapper,
        })
    }

    fn rings(&self) -> MutexGuard<'_, Option<Arc<Rings>>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives it a driver's rings, or none.
    pub fn set_rings(&self, rings: Option<Arc<Rings>>) {
        {
            let mut place = self.rings();
            *place = rings;
            self.version.fetch_add(1, Ordering::Release);
        }
        self.set_mtu(DEFAULT_MTU);
        // A worker that sleeps sees them.
        let _ = send(&self.clapper, &[0], SendFlags::DONTWAIT);
    }

    /// Whether a driver has it.
    pub fn is_up(&self) -> bool {
        self.rings().is_some()
    }

    /// The driver's end of the bell.
    pub fn clapper(&self) -> BorrowedFd<'_> {
        self.clapper.as_fd()
    }

    /// OVS takes packets of this length, bytes.
    pub fn set_mtu(&self, mtu: u32) {
        self.frame.store(mtu.saturating_add(LINK_HEADERS as u32), Ordering::Relaxed);
    }

    /// The MTU in OVS.
    pub fn mtu(&self) -> u32 {
        self.frame.load(Ordering::Relaxed) - LINK_HEADERS as u32
    }

    /// Tells the driver the state of the guest or wire.
    pub fn tell(&self, up: bool, numbers: &Numbers) {
        if let Some(rings) = &*self.rings() {
            rings.tell(up, numbers);
        }
    }

    /// What a driver sent that are not packets.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }
}

/// Opens the port: what both sides share, and what the executor gets.
///
/// # Errors
/// Out of descriptors.
pub fn open(spec: OvsPort) -> io::Result<(Arc<Shared>, Opened)> {
    let shared = Arc::new(Shared::new(spec)?);
    let rx = Rx { seen: Seen::default(), ring: None, shared: shared.clone() };
    let tx = Tx { lease: Lease::new(Sender { seen: Seen::default(), ring: None, shared: shared.clone() }) };
    let opened =
        Opened { port: Arc::new(Device(shared.clone())), rx: vec![Box::new(rx)], tx: vec![Arc::new(tx)] };
    Ok((shared, opened))
}

/// The port's device.
struct Device(Arc<Shared>);

impl Port for Device {
    fn status(&self) -> PortStatus {
        PortStatus {
            up: self.0.is_up(),
            features: vec!["ovs".into()],
            queues: 1,
            malformed: self.0.malformed(),
            mtu: u16::try_from(self.0.mtu()).ok(),
            ..PortStatus::default()
        }
    }
}

/// Which rings a queue knows.
#[derive(Debug, Default)]
struct Seen(u32);

impl Seen {
    /// The rings, if they are others than before. Where the service is changing them, the next call sees that.
    #[inline]
    fn changed(&mut self, shared: &Shared) -> Option<Option<Arc<Rings>>> {
        if shared.version.load(Ordering::Acquire) == self.0 {
            return None;
        }
        let rings = shared.rings.try_lock().ok()?;
        // It changes under the lock alone.
        self.0 = shared.version.load(Ordering::Relaxed);
        Some(rings.clone())
    }
}

/// The worker's receiving half.
struct Rx {
    seen: Seen,
    ring: Option<Incoming>,
    shared: Arc<Shared>,
}

impl Rx {
    /// Takes a driver's rings, or lets them go. No burst is under way.
    #[inline]
    fn refresh(&mut self) {
        if let Some(rings) = self.seen.changed(&self.shared) {
            self.ring = rings.map(Incoming::new);
        }
    }
}

impl RxQueue for Rx {
    fn poll(&mut self, burst: &mut Burst, byte_budget: usize) -> usize {
        self.refresh();
        let Some(ring) = &mut self.ring else { return 0 };
        let (mut bytes, mut wrong) = (0, 0);
        while burst.len() < BURST && wrong < BURST && (bytes < byte_budget || burst.is_empty()) {
            match ring.take() {
                Next::Empty => break,
                Next::Malformed => wrong += 1,
                Next::Packet(pieces, len, offload) => {
                    bytes += len as usize;
                    let count = if pieces[1].is_empty() { 1 } else { 2 };
                    // There is room: a burst has room for many more segments than packets.
                    let _ = burst.push(&pieces[..count], len, offload);
                }
            }
        }
        if wrong > 0 {
            self.shared.malformed.fetch_add(wrong as u64, Ordering::Relaxed);
            if burst.is_empty() {
                ring.give_back();
            }
        }
        burst.len()
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
        if let Some(ring) = &self.ring {
            ring.give_back();
        }
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    fn arm(&mut self) -> bool {
        self.refresh();
        self.ring.as_ref().is_some_and(Incoming::arm)
    }

    fn disarm(&mut self) {
        if let Some(ring) = &self.ring {
            ring.disarm();
        }
        for _ in 0..RINGS {
            if recv(&self.shared.bell, &mut [0_u8; 8][..], RecvFlags::DONTWAIT).is_err() {
                break;
            }
        }
    }
}

/// The workers' sending half.
struct Tx {
    lease: Lease<Sender>,
}

struct Sender {
    seen: Seen,
    ring: Option<Outgoing>,
    shared: Arc<Shared>,
}

impl TxQueue for Tx {
    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        let run = |sender: &mut Sender| {
            if let Some(rings) = sender.seen.changed(&sender.shared) {
                sender.ring = rings.map(Outgoing::new);
            }
            fill(sender);
            if let Some(ring) = &sender.ring {
                ring.publish();
            }
        };
        self.lease.with(run).is_some()
    }
}

impl Room for Sender {
    fn reserve(&mut self, len: usize, _: &Offload) -> Result<&[Segment], NoRoom> {
        if len > self.shared.frame.load(Ordering::Relaxed) as usize {
            return Err(NoRoom::TooLong);
        }
        self.ring.as_mut().ok_or(NoRoom::Down)?.reserve(len).ok_or(NoRoom::Full)
    }
}
