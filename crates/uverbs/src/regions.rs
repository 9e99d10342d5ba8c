//! Memory regions and windows, as seen by peers that share memory: a table that only the device writes.

use crate::qp::access;
use crate::{Memory, MemoryError};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The kind of object that a key refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Region,
    /// A memory window of type 1, for all queue pairs of its protection domain.
    Window,
    /// A memory window of type 2B, for the queue pair with this number (IBTA 10.6.7.2).
    WindowOf(u32),
}

impl Kind {
    /// Returns the encoding in the table. Numbers of queue pairs have 24 bits.
    const fn code(self) -> u32 {
        match self {
            Self::Region => 0,
            Self::Window => 1,
            Self::WindowOf(qpn) => qpn << 8 | 2,
        }
    }

    const fn of(code: u32) -> Self {
        match code {
            0 => Self::Region,
            1 => Self::Window,
            _ => Self::WindowOf(code >> 8),
        }
    }
}

/// A part of an application's memory that the application or its peers may use with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub pd: u32,
    /// The address in the application.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// The first address, for users of the key.
    pub iova: u64,
    /// `ibv_access_flags`.
    pub access: u32,
    /// Identifies the region's pages ([`SharedPages::file`](crate::SharedPages::file)); 0 if others may map none.
    pub file: u64,
    pub kind: Kind,
}

impl Region {
    /// Is true if the region is all of the application's memory, present and future: an implicit region
    /// (`IBV_ODP_SUPPORT_IMPLICIT`).
    #[must_use]
    pub const fn is_implicit(&self) -> bool {
        self.access & access::ON_DEMAND != 0 && self.address == 0 && self.len == u64::MAX
    }

    /// Returns the address of bytes that the application itself accesses with this key, in this protection domain.
    /// `None` if it may not: windows are only for peers.
    #[must_use]
    #[inline]
    pub fn find_local(&self, pd: u32, address: u64, len: u64, needs: u32) -> Option<u64> {
        if self.kind == Kind::Region { self.find(pd, address, len, needs) } else { None }
    }

    /// Returns the address of bytes that the peer of this queue pair accesses with this key, in this protection domain.
    /// `None` if it may not.
    #[must_use]
    #[inline]
    pub fn find_remote(&self, (pd, qpn): (u32, u32), address: u64, len: u64, needs: u32) -> Option<u64> {
        let is_for_others = matches!(self.kind, Kind::WindowOf(bound) if bound != qpn);
        if is_for_others { None } else { self.find(pd, address, len, needs) }
    }

    #[inline]
    fn find(&self, pd: u32, address: u64, len: u64, needs: u32) -> Option<u64> {
        let offset = address.checked_sub(self.iova)?;
        let fits = len <= self.len && offset <= self.len - len;
        let may = self.pd == pd && fits && self.access & needs == needs;
        may.then(|| self.address.wrapping_add(offset))
    }
}

/// An entry of the table. Its version is odd while it is being written.
///
/// A sequence lock with one writer, and readers that never write. The release fence after the odd version keeps the
/// writes after it; the release store of the even version keeps them before it. Readers load the version with acquire
/// ordering, then the rest, and then, after an acquire fence, the version again.
#[repr(C, align(64))]
struct Slot {
    version: AtomicU32,
    /// 0: never used; 1: free again.
    key: AtomicU32,
    pd: AtomicU32,
    access: AtomicU32,
    address: AtomicU64,
    len: AtomicU64,
    iova: AtomicU64,
    file: AtomicU64,
    /// [`Kind::code`].
    kind: AtomicU32,
    _rest: u32,
}

const NEVER: u32 = 0;
const FREE: u32 = 1;

/// Numbers below this are never keys.
pub const FIRST_KEY: u32 = 0x1_0000;

/// The table. Both ends use this type.
#[derive(Debug)]
pub struct RegionTable {
    memory: Memory,
    slots: u32,
}

impl RegionTable {
    /// Bytes of a page of the table's file: the kernel allocates at least this much for an entry that is written.
    pub const PAGE: u64 = 4096;

    /// Returns the number of entries in a table for this many regions.
    const fn slots(regions: u32) -> u32 {
        (regions.saturating_mul(2)).next_power_of_two()
    }

    /// Creates, for the device, a table for this many regions, and the file for its readers, who can't write.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(regions: u32) -> Result<(Self, OwnedFd), MemoryError> {
        let (memory, file) = Memory::create_for_readers("memory regions", Self::bytes(regions))?;
        Ok((Self::new(memory, regions), file))
    }

    /// Returns the bytes of a table for this many regions.
    #[must_use]
    pub const fn bytes(regions: u32) -> usize {
        Self::slots(regions) as usize * size_of::<Slot>()
    }

    /// Returns the table in memory of [`Self::bytes`], zeroed at first, for either end. Others who can write there can
    /// only make it return wrong regions.
    ///
    /// # Panics
    /// If the memory is shorter.
    #[must_use]
    pub fn new(memory: Memory, regions: u32) -> Self {
        assert!(memory.len() >= Self::bytes(regions), "no room for a table of regions");
        Self { memory, slots: Self::slots(regions) }
    }

    /// Opens a table for reading.
    ///
    /// # Errors
    /// If it is not as the device makes them.
    pub fn open(file: impl AsFd, regions: u32) -> Result<Self, MemoryError> {
        Ok(Self::new(Memory::open_for_reading(file, Self::bytes(regions))?, regions))
    }

    fn slot(&self, index: u32) -> &Slot {
        let at = (index & (self.slots - 1)) as usize * size_of::<Slot>();
        // SAFETY: within the mapping (`at`); it consists of atomics, which readers only load.
        unsafe { self.memory.at::<Slot>(at).as_ref() }
    }

    /// Returns the first free entry for a key. There always is one: there are twice as many entries as regions.
    fn free_place(&self, key: u32) -> Option<u32> {
        let mut places = (0..self.slots).map(|step| first(key).wrapping_add(step) & (self.slots - 1));
        places.find(|place| self.slot(*place).key.load(Ordering::Relaxed) <= FREE)
    }

    /// Returns, for the device, the page of the file into which [`Self::insert`] would put a new key.
    #[must_use]
    pub fn page(&self, key: u32) -> u32 {
        let place = self.free_place(key).unwrap_or_default();
        (u64::from(place) * size_of::<Slot>() as u64 / Self::PAGE) as u32
    }

    /// Adds a region with a new key, for the device.
    pub fn insert(&self, key: u32, region: &Region) {
        if let Some(place) = self.free_place(key) {
            self.slot(place).write(key, region);
        }
    }

    /// Removes a region, for the device.
    pub fn remove(&self, key: u32) {
        if let Some(slot) = self.place(key) {
            let version = slot.version.load(Ordering::Relaxed);
            slot.version.store(version.wrapping_add(1), Ordering::Relaxed);
            fence(Ordering::Release);
            slot.key.store(FREE, Ordering::Relaxed);
            slot.version.store(version.wrapping_add(2), Ordering::Release);
        }
    }

    #[inline]
    fn place(&self, key: u32) -> Option<&Slot> {
        for step in 0..self.slots {
            let slot = self.slot(first(key).wrapping_add(step));
            match slot.key.load(Ordering::Acquire) {
                NEVER => return None,
                found if found == key => return Some(slot),
                _ => {}
            }
        }
        None
    }

    #[must_use]
    #[inline]
    pub fn get(&self, key: u32) -> Option<Region> {
        if key < FIRST_KEY {
            return None;
        }
        self.place(key)?.read(key)
    }
}

/// Returns the number of the entry at which the search for a key starts. The key's lowest byte counts last, since a
/// window's key changes only there.
const fn first(key: u32) -> u32 {
    key.rotate_right(8)
}

impl Slot {
    fn write(&self, key: u32, region: &Region) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.pd.store(region.pd, Ordering::Relaxed);
        self.access.store(region.access, Ordering::Relaxed);
        self.address.store(region.address, Ordering::Relaxed);
        self.len.store(region.len, Ordering::Relaxed);
        self.iova.store(region.iova, Ordering::Relaxed);
        self.file.store(region.file, Ordering::Relaxed);
        self.kind.store(region.kind.code(), Ordering::Relaxed);
        self.key.store(key, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Reads the region. Returns `None` if the entry now has another key, or is being written.
    #[inline]
    fn read(&self, key: u32) -> Option<Region> {
        let version = self.version.load(Ordering::Acquire);
        let region = Region {
            pd: self.pd.load(Ordering::Relaxed),
            address: self.address.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            iova: self.iova.load(Ordering::Relaxed),
            access: self.access.load(Ordering::Relaxed),
            file: self.file.load(Ordering::Relaxed),
            kind: Kind::of(self.kind.load(Ordering::Relaxed)),
        };
        let is_its = self.key.load(Ordering::Relaxed) == key;
        fence(Ordering::Acquire);
        let same = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (same && is_its).then_some(region)
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn region(address: u64) -> Region {
        let kind = match address % 3 {
            0 => Kind::Region,
            1 => Kind::Window,
            _ => Kind::WindowOf(0xff_ffff),
        };
        Region { pd: 1, address, len: 100, iova: address, access: 3, file: address * 2, kind }
    }

    #[test]
    fn readers_see_what_is_there() {
        let (table, file) = RegionTable::create(4).unwrap();
        let reader = RegionTable::open(&file, 4).unwrap();
        // All these keys are in one run of entries.
        let keys = [0x10_0000, 0x10_0008, 0x10_0010, 0x10_0018];
        for (at, key) in keys.into_iter().enumerate() {
            table.insert(key, &region(at as u64));
        }
        for round in 0..100 {
            let key = keys[round % 4];
            table.remove(key);
            assert_eq!(reader.get(key), None);
            table.insert(key, &region(round as u64 + 7));
            assert_eq!(reader.get(key), Some(region(round as u64 + 7)));
        }
        assert_eq!(reader.get(0x10_0020), None);
        assert_eq!((reader.get(0), reader.get(1)), (None, None));
    }

    #[test]
    fn readers_can_not_write() {
        let (_table, file) = RegionTable::create(4).unwrap();
        assert!(Memory::open(&file, 512).is_err());
    }

    #[test]
    fn regions_end_where_they_end() {
        let region = Region { iova: u64::MAX - 99, kind: Kind::Region, ..region(1000) };
        assert_eq!(region.find_local(1, u64::MAX - 99, 100, 2), Some(1000));
        assert_eq!(region.find_remote((1, 7), u64::MAX, 1, 2), Some(1099));
        for (pd, address, len, needs) in [
            (2, u64::MAX, 1, 2),
            (1, u64::MAX, 2, 2),
            (1, u64::MAX - 100, 1, 2),
            (1, u64::MAX, u64::MAX, 2),
            (1, u64::MAX, 1, 4),
        ] {
            assert_eq!(region.find_local(pd, address, len, needs), None);
        }
    }

    #[test]
    fn windows_are_for_peers_and_of_type_2_for_one() {
        let region = |kind| Region { kind, ..region(1000) };
        let found = |kind, qpn| region(kind).find_remote((1, qpn), 1000, 100, 2);
        assert_eq!(region(Kind::Window).find_local(1, 1000, 1, 0), None);
        assert_eq!(region(Kind::WindowOf(7)).find_local(1, 1000, 1, 0), None);
        assert_eq!((found(Kind::Window, 7), found(Kind::WindowOf(7), 7)), (Some(1000), Some(1000)));
        assert_eq!(found(Kind::WindowOf(7), 8), None);
    }
}
