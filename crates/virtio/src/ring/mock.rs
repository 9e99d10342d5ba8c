//! Drivers for tests: the guest's side of a ring, over any memory.

use super::Addresses;
use mem::{Region, RegionSpec, Regions};
use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Guest-physical address of the memory's first byte.
pub(crate) const GPA: u64 = 0x1_0000_0000;
/// Address of the memory's first byte in the VMM.
pub(crate) const USER: u64 = 0x7000_0000_0000;

const DESC: u64 = 0;
pub(crate) const DRIVER: u64 = 0x1000;
pub(crate) const DEVICE: u64 = 0x1400;
/// Offset of the indirect tables: one of [`TABLE_LEN`] bytes for each slot of the ring.
pub(crate) const TABLES: u64 = 0x2000;
const TABLE_LEN: u64 = 0x60;
/// Offset from a ring's base at which its part of memory ends. Rings have up to 256 slots.
pub(crate) const RING_LEN: u64 = 0x8000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Guest memory, as the guest sees it. Copies share the same bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ram {
    base: *mut u8,
    len: usize,
}

// SAFETY: an address range that its creator keeps mapped; tests access it by volatile or atomic operations.
unsafe impl Send for Ram {}

impl Ram {
    /// Wraps the `len` bytes at `base`, which must stay mapped during the test.
    pub(crate) fn at(base: *mut u8, len: usize) -> Self {
        Self { base, len }
    }

    pub(crate) fn regions(self) -> Arc<Regions> {
        let spec = RegionSpec { gpa: GPA, len: self.len as u64, user: USER, offset: 0 };
        let mut regions = Regions::default();
        // SAFETY: mapped during the test, as the caller of `at` promised.
        regions.insert(unsafe { Region::from_raw(&spec, self.base) }.unwrap()).unwrap();
        Arc::new(regions)
    }

    pub(crate) fn offset(self, at: *const u8) -> u64 {
        (at.addr() - self.base.addr()) as u64
    }

    pub(crate) fn at_offset(self, offset: u64) -> *mut u8 {
        self.ptr(offset, 0)
    }

    fn ptr(self, offset: u64, len: usize) -> *mut u8 {
        let offset = usize::try_from(offset).unwrap();
        assert!(offset + len <= self.len, "the test's own mistake");
        // SAFETY: inside, as asserted.
        unsafe { self.base.add(offset) }
    }

    pub(crate) fn write(self, offset: u64, bytes: &[u8]) {
        // SAFETY: `ptr` checks the range.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr(offset, bytes.len()), bytes.len()) };
    }

    pub(crate) fn read(self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: `ptr` checks the range.
        unsafe { ptr::copy_nonoverlapping(self.ptr(offset, len), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Returns whether the range is in this memory; for checks of the segments that the device resolved.
    pub(crate) fn holds(self, at: *const u8, len: usize) -> bool {
        let start = at.addr().wrapping_sub(self.base.addr());
        start <= self.len && len <= self.len - start
    }

    fn u16(self, offset: u64) -> &'static AtomicU16 {
        // SAFETY: `ptr` checks the range, the offsets used are even, and the memory outlives the test.
        unsafe { AtomicU16::from_ptr(self.ptr(offset, 2).cast()) }
    }

    fn desc(self, offset: u64, addr: u64, len: u32, last: [u16; 2]) {
        self.write(offset, &addr.to_le_bytes());
        self.write(offset + 8, &len.to_le_bytes());
        self.write(offset + 12, &last[0].to_le_bytes());
        self.write(offset + 14, &last[1].to_le_bytes());
    }
}

/// A buffer: guest-physical address, length, whether the device may write it.
pub(crate) type Buffer = (u64, u32, bool);

/// The driver's side of a ring of either form.
pub(crate) struct Driver {
    pub(crate) ram: Ram,
    /// Offset of the ring in memory.
    base: u64,
    pub(crate) size: u16,
    pub(crate) packed: bool,
    in_order: bool,
    /// Next slot to fill; for split rings, the free-running available index.
    next: u16,
    avail_idx: u16,
    avail_wrap: bool,
    used_idx: u16,
    used_wrap: bool,
    free: u16,
    /// Number of slots of the chain with this id, and the order in which chains were offered.
    slots: HashMap<u16, u16>,
    order: std::collections::VecDeque<u16>,
    next_id: u16,
    /// A used descriptor that was read, and whose batch has more chains.
    batch: Option<(u16, u32)>,
}

impl Driver {
    /// Creates a driver with an empty ring at `base` of `ram`.
    pub(crate) fn new(ram: Ram, base: u64, size: u16, packed: bool, in_order: bool) -> Self {
        ram.write(base, &vec![0; RING_LEN as usize]);
        Self {
            ram,
            base,
            size,
            packed,
            in_order,
            next: 0,
            avail_idx: 0,
            avail_wrap: true,
            used_idx: 0,
            used_wrap: true,
            free: size,
            slots: HashMap::new(),
            order: std::collections::VecDeque::new(),
            next_id: 0,
            batch: None,
        }
    }

    /// Returns the ring's addresses as the VMM describes them.
    pub(crate) fn addresses(&self) -> Addresses {
        let at = |offset| USER + self.base + offset;
        Addresses { desc: at(DESC), driver: at(DRIVER), device: at(DEVICE) }
    }

    /// Returns the position at which the device starts.
    pub(crate) fn first_base(&self) -> u32 {
        if self.packed { 0x8000 } else { 0 }
    }

    /// Makes a chain available, in one descriptor with a table if `indirect`. Returns its id, or `None` without room.
    pub(crate) fn offer(&mut self, buffers: &[Buffer], indirect: bool) -> Option<u16> {
        let slots = if indirect { 1 } else { buffers.len() as u16 };
        if slots > self.free {
            return None;
        }
        let id = if self.packed {
            self.offer_packed(buffers, indirect)
        } else {
            self.offer_split(buffers, indirect)
        };
        self.free -= slots;
        self.slots.insert(id, slots);
        self.order.push_back(id);
        Some(id)
    }

    /// Makes a chain available that is one descriptor for the test's own table.
    pub(crate) fn offer_table(&mut self, table: Buffer) -> u16 {
        let slot = u64::from(if self.packed { self.avail_idx } else { self.next % self.size });
        let id = self.offer(&[table], false).expect("room for one more");
        let at = self.base + DESC + 16 * slot + if self.packed { 14 } else { 12 };
        let flags = self.ram.u16(at).load(Ordering::Relaxed);
        self.ram.u16(at).store(flags | INDIRECT, Ordering::Release);
        id
    }

    /// Writes a table and returns the buffer that refers to it.
    fn table(&self, slot: u16, buffers: &[Buffer]) -> (u64, u32) {
        let at = self.base + TABLES + u64::from(slot) * TABLE_LEN;
        assert!(buffers.len() as u64 * 16 <= TABLE_LEN);
        for (i, (addr, len, write)) in buffers.iter().enumerate() {
            let (i, flags) = (i as u16, if *write { WRITE } else { 0 });
            let more = if usize::from(i) + 1 < buffers.len() { NEXT } else { 0 };
            let last = if self.packed { [0, flags] } else { [flags | more, i + 1] };
            self.ram.desc(at + 16 * u64::from(i), *addr, *len, last);
        }
        (GPA + at, buffers.len() as u32 * 16)
    }

    fn offer_split(&mut self, buffers: &[Buffer], indirect: bool) -> u16 {
        let head = self.next % self.size;
        let parts: Vec<(u64, u32, u16)> = match indirect {
            true => {
                let (addr, len) = self.table(head, buffers);
                vec![(addr, len, INDIRECT)]
            }
            false => buffers.iter().map(|(a, l, w)| (*a, *l, if *w { WRITE } else { 0 })).collect(),
        };
        for (i, (addr, len, flags)) in parts.iter().enumerate() {
            let slot = self.next % self.size;
            self.next = (self.next + 1) % self.size;
            let more = if i + 1 < parts.len() { NEXT } else { 0 };
            let at = self.base + DESC + 16 * u64::from(slot);
            self.ram.desc(at, *addr, *len, [flags | more, self.next]);
        }
        let entry = self.base + DRIVER + 4 + 2 * u64::from(self.avail_idx % self.size);
        self.ram.u16(entry).store(head, Ordering::Relaxed);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.ram.u16(self.base + DRIVER + 2).store(self.avail_idx, Ordering::Release);
        head
    }

    fn offer_packed(&mut self, buffers: &[Buffer], indirect: bool) -> u16 {
        let id = self.next_id;
        self.next_id = (self.next_id + 1) % self.size;
        let parts: Vec<(u64, u32, u16)> = match indirect {
            true => {
                let (addr, len) = self.table(self.avail_idx, buffers);
                vec![(addr, len, INDIRECT)]
            }
            false => buffers.iter().map(|(a, l, w)| (*a, *l, if *w { WRITE } else { 0 })).collect(),
        };
        let mut first = None;
        for (i, (addr, len, flags)) in parts.iter().enumerate() {
            let lap = if self.avail_wrap { 1 << 7 } else { 1 << 15 };
            let more = if i + 1 < parts.len() { NEXT } else { 0 };
            let at = self.base + DESC + 16 * u64::from(self.avail_idx);
            let flags = flags | more | lap;
            // The first descriptor's flags are written last.
            let now = if first.is_none() { self.ram.u16(at + 14).load(Ordering::Relaxed) } else { flags };
            self.ram.desc(at, *addr, *len, [id, now]);
            first.get_or_insert((at, flags));
            self.avail_idx += 1;
            if self.avail_idx == self.size {
                (self.avail_idx, self.avail_wrap) = (0, !self.avail_wrap);
            }
        }
        let (at, flags) = first.unwrap();
        self.ram.u16(at + 14).store(flags, Ordering::Release);
        id
    }

    /// Takes the next chain that the device used: its id and the bytes written.
    pub(crate) fn used(&mut self) -> Option<(u16, u32)> {
        let (last, written) = match self.batch.take() {
            Some(batch) => batch,
            None if self.packed => self.used_packed()?,
            None => self.used_split()?,
        };
        // With IN_ORDER, a used descriptor of a packed ring may also stand for earlier chains, which come
        // first.
        let oldest = *self.order.front().expect("a chain used, none offered");
        let (id, written) = match self.packed && self.in_order && oldest != last {
            true => {
                self.batch = Some((last, written));
                (oldest, 0)
            }
            false => (last, written),
        };
        assert_eq!(oldest, id, "chains are used in order");
        self.order.pop_front();
        let slots = self.slots.remove(&id).unwrap();
        self.free += slots;
        if self.packed {
            let used = self.used_idx + slots;
            (self.used_idx, self.used_wrap) = match used.checked_sub(self.size) {
                Some(index) => (index, !self.used_wrap),
                None => (used, self.used_wrap),
            };
        }
        Some((id, written))
    }

    fn used_split(&mut self) -> Option<(u16, u32)> {
        if self.ram.u16(self.base + DEVICE + 2).load(Ordering::Acquire) == self.used_idx {
            return None;
        }
        let entry = self.base + DEVICE + 4 + 8 * u64::from(self.used_idx % self.size);
        let bytes = self.ram.read(entry, 8);
        self.used_idx = self.used_idx.wrapping_add(1);
        let word = |i: usize| u32::from_le_bytes(bytes[i..i + 4].try_into().unwrap());
        Some((u16::try_from(word(0)).unwrap(), word(4)))
    }

    fn used_packed(&self) -> Option<(u16, u32)> {
        let at = self.base + DESC + 16 * u64::from(self.used_idx);
        let flags = self.ram.u16(at + 14).load(Ordering::Acquire);
        let lap = if self.used_wrap { 0x8080 } else { 0 };
        if flags & 0x8080 != lap {
            return None;
        }
        let bytes = self.ram.read(at + 8, 6);
        let len = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let id = u16::from_le_bytes(bytes[4..].try_into().unwrap());
        Some((id, len))
    }

    /// Returns whether the device asked for a notification of the chains offered since `since` chains ago.
    pub(crate) fn kick_wanted(&self, event_idx: bool, since: u16) -> bool {
        let device = self.base + DEVICE;
        match (self.packed, event_idx) {
            (false, false) => self.ram.u16(device).load(Ordering::Relaxed) & 1 == 0,
            (false, true) => {
                let event = self.ram.u16(device + 4 + 8 * u64::from(self.size)).load(Ordering::Relaxed);
                super::passes(event, self.avail_idx, self.avail_idx.wrapping_sub(since))
            }
            (true, _) => match self.ram.u16(device + 2).load(Ordering::Relaxed) {
                0 => true,
                1 => false,
                _ => {
                    let off_wrap = self.ram.u16(device).load(Ordering::Relaxed);
                    // Tests make one slot available at a time.
                    assert_eq!(since, 1);
                    let before = if self.avail_idx == 0 {
                        (self.size - 1) | u16::from(!self.avail_wrap) << 15
                    } else {
                        (self.avail_idx - 1) | u16::from(self.avail_wrap) << 15
                    };
                    off_wrap == before
                }
            },
        }
    }

    /// Asks the device to notify, of every used chain or (with event index) of the next one.
    pub(crate) fn want_interrupts(&self, want: bool, event_idx: bool) {
        let driver = self.base + DRIVER;
        match (self.packed, event_idx) {
            (false, true) => {
                let event = if want { self.used_idx } else { self.used_idx.wrapping_sub(1) };
                self.ram.u16(driver + 4 + 2 * u64::from(self.size)).store(event, Ordering::Relaxed);
            }
            (false, false) => self.ram.u16(driver).store(u16::from(!want), Ordering::Relaxed),
            (true, true) if want => {
                let off_wrap = self.used_idx | u16::from(self.used_wrap) << 15;
                self.ram.u16(driver).store(off_wrap, Ordering::Relaxed);
                self.ram.u16(driver + 2).store(2, Ordering::Relaxed);
            }
            (true, _) => self.ram.u16(driver + 2).store(u16::from(!want), Ordering::Relaxed),
        }
    }

    /// Overwrites the available index of a split ring, or the next head entry.
    pub(crate) fn corrupt(&self, avail_idx: Option<u16>, head: Option<u16>) {
        if let Some(head) = head {
            let entry = self.base + DRIVER + 4 + 2 * u64::from(self.avail_idx % self.size);
            self.ram.u16(entry).store(head, Ordering::Relaxed);
        }
        if let Some(index) = avail_idx {
            self.ram.u16(self.base + DRIVER + 2).store(index, Ordering::Release);
        }
    }
}
