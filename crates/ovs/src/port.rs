//! The OVS side of a port, as workers see it: rings that come and go with drivers.

use crate::ring::{Incoming, Next, Numbers, Outgoing, Rings, SLOT};
use mem::{
    Accepts, BURST, Burst, Csum, Lease, NoRoom, Offload, Opened, Port, PortStatus, Room, RxQueue, Segment,
    TxQueue, copy, scatter,
};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sockets::{Closing, Untrusted};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ethernet header and two VLAN tags, bytes.
const LINK_HEADERS: usize = 14 + 2 * 4;
/// Default of the largest IP packet for OVS, bytes.
const DEFAULT_MTU: u32 = 1500;
/// Most messages that are taken from a bell at once.
const RINGS: usize = 16;
/// Most bells of earlier drivers that are still being closed.
const CLOSING: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OvsPort {
    /// Name of the guest or wire.
    pub name: String,
    /// Largest IP packet, bytes.
    pub mtu: u16,
}

/// State that both queues and the service share.
#[derive(Debug)]
pub struct Shared {
    pub spec: OvsPort,
    /// The driver that has the port, and a count of changes.
    driver: Mutex<Option<Arc<Driver>>>,
    /// Earlier drivers, so that it is not a worker who drops the last reference.
    former: Mutex<Vec<Arc<Driver>>>,
    /// Counts the bells that are being closed.
    closing: Arc<Closing>,
    version: AtomicU32,
    /// Longest frame for OVS, bytes.
    frame: AtomicU32,
    /// Whether OVS has the port down, so that it gets no frames.
    down: AtomicBool,
    /// Messages that were not packets.
    malformed: AtomicU64,
    /// Written when a different driver gets the port. No driver has this descriptor.
    wake: OwnedFd,
    /// Readable when a sleeping worker has to look: `wake`, or the bell of the driver that has the port.
    event: OwnedFd,
}

/// The connection of a port to its driver.
#[derive(Debug)]
struct Driver {
    rings: Arc<Rings>,
    /// The driver wakes the worker through the other end, which only this session's driver ever had, so
    /// nothing that it does to it harms a later driver. It is a socket, because reads of a socket can be told
    /// not to wait, no matter what is done to the other end. Descriptors may come by it.
    bell: Untrusted,
}

impl Shared {
    fn new(spec: OvsPort) -> io::Result<Self> {
        let shared = Self {
            spec,
            driver: Mutex::default(),
            former: Mutex::default(),
            closing: Arc::default(),
            version: AtomicU32::new(0),
            frame: AtomicU32::new(DEFAULT_MTU + LINK_HEADERS as u32),
            down: AtomicBool::new(false),
            malformed: AtomicU64::new(0),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            event: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        };
        shared.watch(&shared.wake)?;
        Ok(shared)
    }

    /// Lets this descriptor wake the worker, until it is closed or deleted.
    fn watch(&self, descriptor: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.event, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
    }

    fn driver(&self) -> MutexGuard<'_, Option<Arc<Driver>>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the port to a driver with these rings, in place of any other. Returns the descriptor with which
    /// that driver wakes the worker.
    ///
    /// # Errors
    /// The process is out of descriptors, or too many that came from earlier drivers are not closed yet;
    /// nothing is changed.
    pub fn give_to(&self, rings: Arc<Rings>) -> rustix::io::Result<OwnedFd> {
        if self.closing.count() >= CLOSING {
            return Err(Errno::BUSY);
        }
        let (bell, clapper) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let bell = Untrusted::new(bell, &self.closing)?;
        self.watch(&bell)?;
        self.replace(Some(Arc::new(Driver { rings, bell })));
        Ok(clapper)
    }

    pub fn take_away(&self) {
        self.replace(None);
    }

    fn replace(&self, driver: Option<Arc<Driver>>) {
        let old = {
            let mut place = self.driver();
            self.version.fetch_add(1, Ordering::Release);
            std::mem::replace(&mut *place, driver)
        };
        if let Some(old) = old {
            let _ = epoll::delete(&self.event, &old.bell);
            let mut former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
            former.retain(|driver| Arc::strong_count(driver) > 1);
            former.push(old);
        }
        self.set_mtu(DEFAULT_MTU);
        // Wakes a sleeping worker. Fails only if it is readable already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Is true if a driver has the port, and has it up.
    pub fn is_up(&self) -> bool {
        self.driver().is_some() && !self.is_down()
    }

    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Sets the length of packets that OVS takes, bytes.
    pub fn set_mtu(&self, mtu: u32) {
        self.frame.store(mtu.saturating_add(LINK_HEADERS as u32), Ordering::Relaxed);
    }

    pub fn mtu(&self) -> u32 {
        self.frame.load(Ordering::Relaxed) - LINK_HEADERS as u32
    }

    /// Tells the driver the state and counters of the guest or wire.
    pub fn tell(&self, up: bool, numbers: &Numbers) {
        if let Some(driver) = &*self.driver() {
            driver.rings.tell(up, numbers);
        }
    }

    /// Returns the number of messages from drivers that were not packets.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }
}

/// Opens the port. Returns the state for the service, and the queues for the executor.
///
/// # Errors
/// The process is out of descriptors.
pub fn open(spec: OvsPort) -> io::Result<(Arc<Shared>, Opened)> {
    let shared = Arc::new(Shared::new(spec)?);
    let rx = Rx { seen: Seen::default(), ring: None, driver: None, shared: shared.clone() };
    let tx = Tx { lease: Lease::new(Sender { seen: Seen::default(), ring: None, shared: shared.clone() }) };
    let opened =
        Opened { port: Arc::new(Device(shared.clone())), rx: vec![Box::new(rx)], tx: vec![Arc::new(tx)] };
    Ok((shared, opened))
}

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

/// The version of the driver that a queue knows.
#[derive(Debug, Default)]
struct Seen(u32);

impl Seen {
    #[inline]
    fn is_latest(&self, shared: &Shared) -> bool {
        shared.version.load(Ordering::Acquire) == self.0
    }

    /// Returns the driver if it has changed. If the service is changing it at this moment, the next call sees
    /// it.
    #[inline]
    fn changed(&mut self, shared: &Shared) -> Option<Option<Arc<Driver>>> {
        if self.is_latest(shared) {
            return None;
        }
        let driver = shared.driver.try_lock().ok()?;
        // Changes only under the lock.
        self.0 = shared.version.load(Ordering::Relaxed);
        Some(driver.clone())
    }
}

/// The worker's receiving half.
struct Rx {
    seen: Seen,
    ring: Option<Incoming>,
    /// The driver whose ring it is.
    driver: Option<Arc<Driver>>,
    shared: Arc<Shared>,
}

impl Rx {
    /// Takes the rings of a new driver, or drops those of an old one. No burst may be under way.
    #[inline]
    fn refresh(&mut self) {
        if let Some(driver) = self.seen.changed(&self.shared) {
            self.ring = driver.as_ref().map(|driver| Incoming::new(driver.rings.clone()));
            self.driver = driver;
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
                Next::Finished(slot) => {
                    mem::prefetch(slot.as_ptr());
                    bytes += slot.len();
                    // There is room: a burst has room for many more segments than packets.
                    let _ = burst.push_one(slot, Offload::default());
                }
                Next::Malformed => wrong += 1,
                Next::Packet(pieces, len, offload) => {
                    bytes += len as usize;
                    let count = if pieces[1].is_empty() { 1 } else { 2 };
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
        self.shared.event.as_fd()
    }

    fn arm(&mut self) -> bool {
        self.refresh();
        // A driver that could not be checked now would not wake it again.
        self.ring.as_ref().is_some_and(Incoming::arm) || !self.seen.is_latest(&self.shared)
    }

    fn disarm(&mut self) {
        if let Some(ring) = &self.ring {
            ring.disarm();
        }
        let _ = rustix::io::read(&self.shared.wake, &mut [0_u8; 8]);
        let Some(driver) = &self.driver else { return };
        for _ in 0..RINGS {
            match driver.bell.receive(&mut [0; 8]) {
                Ok(_) => {}
                // Descriptors came: the driver wakes nobody any more.
                Err(Errno::BADMSG) => {
                    let _ = epoll::delete(&self.shared.event, &driver.bell);
                    return;
                }
                Err(_) => break,
            }
        }
    }
}

/// Stores a frame that needs several slots.
#[cold]
fn put_in_pieces(dst: &[Segment], head: &[u8], rest: &[Segment], rest_at: usize, rest_len: usize) {
    scatter(head, dst, 0);
    copy(rest, rest_at, dst, head.len(), rest_len);
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
            sender.refresh();
            fill(sender);
            if let Some(ring) = &mut sender.ring {
                ring.publish();
                // Other workers may send without marks.
                ring.mark(None);
            }
        };
        self.lease.with(run).is_some()
    }

    fn has_room(&self) -> bool {
        // A different worker that has the lease checks itself.
        self.lease.with(Sender::has_room).unwrap_or(true)
    }
}

impl Sender {
    /// Takes the ring of a new driver, or drops that of an old one.
    #[inline]
    fn refresh(&mut self) {
        if let Some(driver) = self.seen.changed(&self.shared) {
            self.ring = driver.map(|driver| Outgoing::new(driver.rings.clone()));
        }
    }

    /// Is true if senders need not wait for the driver.
    fn has_room(&mut self) -> bool {
        self.refresh();
        self.shared.is_down() || self.ring.as_mut().is_none_or(Outgoing::has_room)
    }

    /// Returns the ring for a frame of `len` bytes.
    #[inline(always)]
    fn ring(&mut self, len: usize) -> Result<&mut Outgoing, NoRoom> {
        if len > self.shared.frame.load(Ordering::Relaxed) as usize {
            return Err(NoRoom::TooLong);
        }
        if self.shared.is_down() {
            return Err(NoRoom::Down);
        }
        self.ring.as_mut().ok_or(NoRoom::Down)
    }
}

impl Room for Sender {
    fn reserve(&mut self, len: usize, offload: &Offload) -> Result<&[Segment], NoRoom> {
        self.ring(len)?.reserve(len, offload.csum == Csum::Valid).ok_or(NoRoom::Full)
    }

    /// Does the same as [`mem::Room::put`], with a short path for frames that fit into a slot.
    fn put(
        &mut self,
        head: &[u8],
        rest: &[Segment],
        rest_at: usize,
        rest_len: usize,
        offload: &Offload,
    ) -> Result<(), NoRoom> {
        let (len, valid) = (head.len() + rest_len, offload.csum == Csum::Valid);
        let ring = self.ring(len)?;
        if len <= SLOT {
            let slot = ring.reserve_one(len, valid).ok_or(NoRoom::Full)?;
            let stored = slot.store(0, head);
            debug_assert!(stored, "the length was compared");
            if rest_len > 0 {
                copy(rest, rest_at, &[slot], head.len(), rest_len);
            }
            return Ok(());
        }
        put_in_pieces(ring.reserve(len, valid).ok_or(NoRoom::Full)?, head, rest, rest_at, rest_len);
        Ok(())
    }

    fn mark(&mut self, flow: Option<u32>) {
        if let Some(ring) = &mut self.ring {
            ring.mark(flow);
        }
    }

    /// Is always true: OVS checks checksums of packets that it tracks, unless it is told that they are right.
    fn tells_valid(&self) -> bool {
        true
    }
}
