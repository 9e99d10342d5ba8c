//! The layout of the memory, and access to it. The peer may write all of it at any time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a ring.
pub const SIZE: u64 = 256 << 10;
/// Bytes before the rings: the two directions, and two small rings for connections that have never had more than that
/// on the way ([`Direction::start_small`]).
pub const HEADER: usize = 4096;
/// Bytes of both rings.
pub const RINGS: usize = 2 * SIZE as usize;
/// Bytes of the memory of a connection.
pub const BYTES: usize = HEADER + RINGS;
/// Bytes of a small ring.
pub(crate) const SMALL: u64 = ((HEADER - 2 * size_of::<Direction>()) / 2) as u64;
/// Entries of a log.
const LOG: usize = 4;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that sends by the first ring.
    First,
    /// The other.
    Second,
}

/// The place of a switch.
#[repr(C)]
#[derive(Debug, Default)]
struct Switch {
    /// Position in the kernel's stream.
    k: AtomicU64,
    /// Position in the ring.
    r: AtomicU64,
}

/// How a reader is to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bell {
    /// By a byte of the kernel's socket.
    Kernel,
    /// By the doorbell of its program ([`crate::Doors`]).
    Door,
}

/// Values of `rx_armed`.
const KERNEL: u32 = 1;
const DOOR: u32 = 2;

/// A direction, as sender and reader tell each other of it. Each line of the cache has one writer, but the last.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Direction {
    /// Sender: bytes ever written to the ring.
    wr: AtomicU64,
    /// Sender: how often it switched.
    epoch: AtomicU32,
    /// Sender: the CPU that it was on, plus one.
    cpu: AtomicU32,
    /// Sender: whether it will stay with TCP from now on.
    left: AtomicU32,
    /// Daemon, if the sender is on another host: whether all that it ever wrote is here, and nothing more comes.
    whole: AtomicU32,
    /// Daemon, if the reader is on another host: whether the sender has left, and all that it wrote is there.
    settled: AtomicU32,
    pad0: u32,
    /// Maker, then sender: the position up to which bytes go by the small ring.
    small: AtomicU64,
    pad1: [u32; 6],
    log: [Switch; LOG],
    /// Reader: bytes ever read from the ring.
    rd: AtomicU64,
    /// Reader: bytes ever taken from the kernel's stream.
    rx_k: AtomicU64,
    /// Reader: the epoch in which it reads.
    rx_epoch: AtomicU32,
    /// Reader: whether it follows switches.
    rx_ready: AtomicU32,
    pad2: [u32; 10],
    /// Whether the reader sleeps, or may: then the sender rings, as this says ([`Bell`]).
    rx_armed: AtomicU32,
    /// Whether the sender waits for room: then the reader rings, in its own direction.
    tx_armed: AtomicU32,
    /// Reader or daemon: whether the sender shall return to TCP; [`Direction::LEAVES`]: with what is unread.
    want_tcp: AtomicU32,
    pad3: [u32; 13],
}

impl Direction {
    /// A value of [`Direction::wanted`]: the reader reads no more, and what is unread goes by the kernel as well.
    pub const LEAVES: u32 = 2;
    /// A value of [`Direction::wanted`]: what is in the ring is still read there.
    pub const RETURNS: u32 = 1;

    pub(crate) fn wr(&self) -> u64 {
        self.wr.load(Ordering::Acquire)
    }

    pub(crate) fn set_wr(&self, to: u64) {
        self.wr.store(to, Ordering::Release);
    }

    pub(crate) fn rd(&self) -> u64 {
        self.rd.load(Ordering::Acquire)
    }

    pub(crate) fn set_rd(&self, to: u64) {
        self.rd.store(to, Ordering::Release);
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn rx_epoch(&self) -> u32 {
        self.rx_epoch.load(Ordering::Acquire)
    }

    pub(crate) fn acknowledge(&self, epoch: u32) {
        self.rx_epoch.store(epoch, Ordering::Release);
    }

    pub(crate) fn set_rx_k(&self, to: u64) {
        self.rx_k.store(to, Ordering::Release);
    }

    pub(crate) fn rx_k(&self) -> u64 {
        self.rx_k.load(Ordering::Acquire)
    }

    /// Logs a switch, then lets the reader see it.
    pub(crate) fn log(&self, epoch: u32, k: u64, r: u64) {
        self.log_only(epoch, k, r);
        self.set_epoch(epoch);
    }

    /// Logs a switch, which the reader does not see yet.
    pub(crate) fn log_only(&self, epoch: u32, k: u64, r: u64) {
        let entry = &self.log[epoch as usize % LOG];
        entry.k.store(k, Ordering::Relaxed);
        entry.r.store(r, Ordering::Relaxed);
    }

    pub(crate) fn set_epoch(&self, epoch: u32) {
        self.epoch.store(epoch, Ordering::Release);
    }

    /// Returns where the sender switched to an epoch: positions in the kernel's stream and in the ring.
    pub(crate) fn switch(&self, epoch: u32) -> (u64, u64) {
        let entry = &self.log[epoch as usize % LOG];
        (entry.k.load(Ordering::Relaxed), entry.r.load(Ordering::Relaxed))
    }

    pub(crate) fn set_ready(&self) {
        self.rx_ready.store(1, Ordering::Release);
    }

    /// Returns whether the reader follows switches.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.rx_ready.load(Ordering::Acquire) == 1
    }

    /// Asks the sender to return to TCP. A stronger wish stays.
    pub fn want_tcp(&self, how: u32) {
        self.want_tcp.fetch_max(how, Ordering::SeqCst);
    }

    /// Returns whether the sender shall return to TCP: 0, [`Self::RETURNS`] or [`Self::LEAVES`].
    #[must_use]
    pub fn wanted(&self) -> u32 {
        self.want_tcp.load(Ordering::Acquire)
    }

    /// Notes that the sender stays with TCP for good, and has sent all.
    pub fn set_left(&self) {
        self.left.store(1, Ordering::Release);
    }

    /// Returns whether the sender stays with TCP for good.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) == 1
    }

    /// Notes that all is here which a sender on another host ever wrote.
    pub fn set_whole(&self) {
        self.whole.store(1, Ordering::Release);
    }

    /// Returns whether all is here which a sender on another host ever wrote.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire) == 1
    }

    /// Notes that all is on another host which the sender has written before it left.
    pub fn set_settled(&self) {
        self.settled.store(1, Ordering::Release);
    }

    /// Returns whether all is on another host which the sender has written before it left.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire) == 1
    }

    /// Notes the CPU on which the sender runs.
    pub fn set_cpu(&self, cpu: u32) {
        if self.cpu.load(Ordering::Relaxed) != cpu + 1 {
            self.cpu.store(cpu + 1, Ordering::Relaxed);
        }
    }

    /// Returns whether the sender was on this CPU last.
    #[must_use]
    pub fn is_on(&self, cpu: u32) -> bool {
        self.cpu.load(Ordering::Relaxed) == cpu + 1
    }

    /// Has bytes go by the small ring, as long as no more are on the way than it holds. For the maker of the memory.
    pub fn start_small(&self) {
        self.small.store(u64::MAX, Ordering::Release);
    }

    /// Returns the position up to which bytes go by the small ring.
    pub(crate) fn small(&self) -> u64 {
        self.small.load(Ordering::Acquire)
    }

    /// Has bytes from a position on go by the large ring.
    pub(crate) fn grow(&self, from: u64) {
        self.small.store(from, Ordering::Release);
    }

    /// Returns whether bytes go by the large ring, as the sender says.
    #[must_use]
    pub fn has_grown(&self) -> bool {
        self.small() != u64::MAX
    }

    /// Asks the sender to ring when it has written. The caller looks at the ring again, then sleeps.
    pub fn arm(&self) {
        self.rx_armed.store(KERNEL, Ordering::SeqCst);
        fence();
    }

    /// Does what [`Self::arm`] does, by the doorbell. If somebody waits for the kernel's socket, that wakes both.
    pub fn arm_door(&self) {
        _ = self.rx_armed.compare_exchange(0, DOOR, Ordering::SeqCst, Ordering::Relaxed);
        fence();
    }

    /// Returns whether the sender will ring.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.rx_armed.load(Ordering::Acquire) != 0
    }

    /// Asks the reader to ring when there is room. The caller looks for room again, then sleeps.
    pub fn arm_room(&self) {
        self.tx_armed.store(1, Ordering::SeqCst);
        fence();
    }

    /// Returns the bell that the reader asks for, which is then no longer so.
    #[must_use]
    pub fn take_armed(&self) -> Option<Bell> {
        match self.rx_armed.swap(0, Ordering::SeqCst) {
            0 => None,
            DOOR => Some(Bell::Door),
            _ => Some(Bell::Kernel),
        }
    }

    /// Returns whether the sender waits for room, which is then no longer so. To be called after reading.
    #[must_use]
    pub fn take_room_armed(&self) -> bool {
        fence();
        self.tx_armed.load(Ordering::Relaxed) == 1 && self.tx_armed.swap(0, Ordering::SeqCst) == 1
    }

    /// Returns how many bytes the reader has taken from the kernel's stream, as it says.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.rx_k()
    }

    /// Returns the bytes ever written to the ring and read from it, as they say. For showing.
    #[must_use]
    pub fn positions(&self) -> (u64, u64) {
        (self.wr(), self.rd())
    }

    /// Returns whether bytes go by the ring, as the sender says. For showing.
    #[must_use]
    pub fn is_ring(&self) -> bool {
        self.epoch() % 2 == 1
    }
}

/// Makes earlier stores visible to the peer before later loads.
#[inline]
fn fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// The memory of a connection, from one end.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    base: *const u8,
    /// The place of both rings.
    rings: *const u8,
    side: Side,
}

// SAFETY: the memory has only atomics, and bytes that are copied by pointers.
unsafe impl Send for Link {}
// SAFETY: as for `Send`.
unsafe impl Sync for Link {}

impl Link {
    /// Takes memory that was mapped.
    ///
    /// # Safety
    /// `base` is aligned to a page, and [`BYTES`] bytes from there stay mapped, for reading and writing, as long as
    /// there is this link or a copy of it.
    #[must_use]
    pub const unsafe fn new(base: *const u8, side: Side) -> Self {
        // SAFETY: the caller promises as many bytes.
        Self { base, rings: unsafe { base.add(HEADER) }, side }
    }

    /// Takes memory that was mapped, whose rings are apart.
    ///
    /// # Safety
    /// As for [`Self::new`]: [`HEADER`] bytes from `base` and [`RINGS`] bytes from `rings`.
    #[must_use]
    pub const unsafe fn apart(base: *const u8, rings: *const u8, side: Side) -> Self {
        Self { base, rings, side }
    }

    /// Returns where the memory is.
    #[must_use]
    pub const fn base(&self) -> *const u8 {
        self.base
    }

    /// Returns which end this is.
    #[must_use]
    pub const fn side(&self) -> Side {
        self.side
    }

    /// Returns the same memory from the other end.
    pub(crate) const fn other(self) -> Self {
        let side = match self.side {
            Side::First => Side::Second,
            Side::Second => Side::First,
        };
        Self { side, ..self }
    }

    fn direction(&self, second: bool) -> &Direction {
        let at = if second { size_of::<Direction>() } else { 0 };
        // SAFETY: `new` promises that the memory is there and aligned; all of its values are atomic, and any bits are
        // valid for them. Only this crate knows of the padding.
        unsafe { &*self.base.add(at).cast::<Direction>() }
    }

    /// Returns the direction in which this end sends.
    #[must_use]
    pub fn tx(&self) -> &Direction {
        self.direction(self.side == Side::Second)
    }

    /// Returns the direction in which this end reads.
    #[must_use]
    pub fn rx(&self) -> &Direction {
        self.direction(self.side == Side::First)
    }

    /// Calls `each` with the pieces of a ring from a position on, which together are not longer than the large ring: where
    /// a piece is, its place among all, and its bytes.
    fn pieces(&self, second: bool, from: u64, len: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        let (len, small) = (len.min(SIZE as usize), self.direction(second).small());
        let second = usize::from(second);
        let mut done = 0;
        while done < len {
            let at = from.wrapping_add(done as u64);
            let (base, start, size, most) = if at < small {
                (self.base, 2 * size_of::<Direction>() + second * SMALL as usize, SMALL, small - at)
            } else {
                (self.rings, second * SIZE as usize, SIZE, u64::MAX)
            };
            let piece = ((len - done) as u64).min(size - at % size).min(most) as usize;
            // SAFETY: `new` and `apart` promise as many bytes there.
            each(unsafe { base.add(start + (at % size) as usize) }.cast_mut(), done, piece);
            done += piece;
        }
    }

    /// Copies into the ring in which this end sends.
    ///
    /// # Safety
    /// `len` bytes can be read at `from`. At most [`SIZE`] are copied.
    pub(crate) unsafe fn put(&self, position: u64, from: *const u8, len: usize) {
        self.pieces(self.side == Side::Second, position, len, |ring, done, piece| {
            // SAFETY: the caller promises the source; the piece lies in the ring, and overlaps with nothing of ours.
            unsafe { std::ptr::copy_nonoverlapping(from.add(done), ring, piece) };
        });
    }

    /// Copies out of the ring in which this end reads, or sends.
    ///
    /// # Safety
    /// `len` bytes can be written at `to`. At most [`SIZE`] are copied.
    pub(crate) unsafe fn get(&self, sent: bool, position: u64, to: *mut u8, len: usize) {
        self.pieces((self.side == Side::Second) == sent, position, len, |ring, done, piece| {
            // SAFETY: the caller promises the destination; the piece lies in the ring, and overlaps with nothing of
            // ours.
            unsafe { std::ptr::copy_nonoverlapping(ring, to.add(done), piece) };
        });
    }
}
