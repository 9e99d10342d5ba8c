//! The memory regions of an application, and how the daemon accesses its memory by their keys.
//!
//! Pages that an application has in a sealed file are mapped; others are accessed through its address space.

use crate::address_space::AddressSpace;
use crate::atomics::Turns;
use crate::ids::{Key, MwId, PdId, Qpn};
use crate::keys::KeyEntry;
use crate::limits::Limits;
use crate::random;
use crate::registered::{MappedBytes, RegionLimit, Registered, TableMemory};
use mem::FaultWord;
use rdma::{Access, Fault};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uverbs::qp::access;
use uverbs::{FIRST_KEY, Kind as KeyKind, MemoryError, Region, RegionTable, SharedPages};

/// The pages of a region that are in a file, and the file, to share.
#[derive(Debug)]
pub(crate) struct RegionPages {
    pub pages: Arc<SharedPages>,
    pub file: OwnedFd,
    _mapped: MappedBytes,
}

/// A range of an application's memory to which a key gives access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    key: Key,
    pub address: u64,
}

/// The bytes that count as registered. An implicit region counts as none: nothing is pinned, and its size is unknown.
const fn counted(region: &Region) -> u64 {
    if region.is_implicit() { 0 } else { region.len }
}

/// The access flags of a region or window, in words.
pub(crate) fn access_names(flags: u32, kind: KeyKind) -> String {
    let names = [
        (access::MW_BIND, "bind"),
        (access::LOCAL_WRITE, "local-write"),
        (access::REMOTE_WRITE, "remote-write"),
        (access::REMOTE_READ, "remote-read"),
        (access::REMOTE_ATOMIC, "remote-atomic"),
    ];
    let first = if kind == KeyKind::Region { None } else { Some("window") };
    let set = names.into_iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| name);
    let set: Vec<_> = first.into_iter().chain(set).collect();
    if set.is_empty() { "local-read".into() } else { set.join(" ") }
}

/// The right that a peer needs.
pub(crate) const fn right(access: Access) -> u32 {
    match access {
        Access::Write => access::REMOTE_WRITE,
        Access::Read => access::REMOTE_READ,
        Access::Atomic => access::REMOTE_ATOMIC,
    }
}

/// The regions and windows of an application, by key. All bits of keys are random: a guess hits one of `n` keys with a
/// probability of `n` in 2^32.
#[derive(Debug)]
pub(crate) struct Regions {
    /// By the part of the key that stays the same ([`Key::index`]).
    pub(crate) entries: HashMap<MwId, KeyEntry>,
    /// The pages of regions that peers may map.
    pages: HashMap<Key, RegionPages>,
    /// The same regions in a shared table, for the application itself and for peers that share memory.
    pub(crate) table: RegionTable,
    pub file: OwnedFd,
    /// How many regions the table has room for.
    pub limit: u32,
    /// Registered bytes of all regions.
    pub registered: u64,
    /// Memory of the daemon for the tables.
    pub(crate) table_memory: TableMemory,
    /// What all applications of the device have registered.
    pub(crate) together: Arc<Registered>,
}

impl Regions {
    pub fn new(limit: u32, together: Arc<Registered>) -> Result<Self, MemoryError> {
        let (table, file) = RegionTable::create(limit)?;
        let (entries, pages) = Default::default();
        let table_memory = TableMemory::new(together.budget.clone());
        Ok(Self { entries, pages, table, file, limit, registered: 0, table_memory, together })
    }

    /// The region or window with this key.
    pub fn entry(&self, key: Key) -> Option<&KeyEntry> {
        self.entries.get(&key.index()).filter(|entry| entry.key == key)
    }

    /// The region, not a window, with this key.
    pub fn get(&self, key: Key) -> Option<&Region> {
        self.entry(key).filter(|entry| entry.window.is_none()).and_then(|entry| entry.region.as_ref())
    }

    /// Whether windows are bound to the region with this key.
    pub fn has_windows(&self, key: Key) -> bool {
        self.entry(key).is_some_and(|entry| entry.windows > 0)
    }

    /// All regions and bound windows.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Region)> {
        self.entries.values().filter_map(|entry| Some((entry.key, entry.region.as_ref()?)))
    }

    /// Maps a file with pages of a region. `None` if too much is mapped already.
    pub fn map(
        &self,
        file: OwnedFd,
        (address, len): (u64, u64),
        limits: Limits,
        (space, fault): (&AddressSpace, &Arc<FaultWord>),
    ) -> Result<Option<RegionPages>, MemoryError> {
        let Some(share) = MappedBytes::take(&self.together, len, limits) else { return Ok(None) };
        let pages = Arc::new(SharedPages::open_guarded(&file, address, len, fault)?);
        self.together.note(space, &pages);
        Ok(Some(RegionPages { pages, file, _mapped: share }))
    }

    /// Adds a region, with its pages in a file if there are any. Returns its key.
    pub fn insert(
        &mut self,
        region: Region,
        pages: Option<RegionPages>,
        limits: Limits,
    ) -> Result<Key, RegionLimit> {
        let key = self.new_key();
        self.table_memory.grow(self.entries.len() + 1, self.table.page(key.0))?;
        self.together.take(counted(&region), None, limits)?;
        self.put(key, Region { file: pages.as_ref().map_or(0, |it| it.pages.file()), ..region });
        self.pages.extend(pages.map(|pages| (key, pages)));
        Ok(key)
    }

    /// Replaces a region. It keeps key and file, or gets a new key and no file.
    pub fn replace(
        &mut self,
        key: Key,
        region: Region,
        keeps_key: bool,
        limits: Limits,
    ) -> Result<Key, RegionLimit> {
        let old = self.get(key).copied();
        let new = if keeps_key { key } else { self.new_key() };
        self.table_memory.grow(self.entries.len() + usize::from(old.is_none()), self.table.page(new.0))?;
        self.together.take(counted(&region), old.as_ref().map(counted), limits)?;
        self.forget(key);
        if keeps_key {
            self.put(key, Region { file: old.map_or(0, |old| old.file), ..region });
            return Ok(key);
        }
        self.pages.remove(&key);
        self.put(new, Region { file: 0, ..region });
        Ok(new)
    }

    pub fn remove(&mut self, key: Key) -> Option<Region> {
        let region = self.forget(key)?;
        self.pages.remove(&key);
        self.together.give_back(1, counted(&region));
        Some(region)
    }

    /// A new key. It differs from all others in more than the lowest byte.
    pub(crate) fn new_key(&self) -> Key {
        loop {
            let key = Key(random::number());
            if key.0 >= FIRST_KEY && !self.entries.contains_key(&key.index()) {
                return key;
            }
        }
    }

    fn put(&mut self, key: Key, region: Region) {
        self.registered += counted(&region);
        self.table.insert(key.0, &region);
        self.entries.insert(key.index(), KeyEntry { key, region: Some(region), window: None, windows: 0 });
    }

    fn forget(&mut self, key: Key) -> Option<Region> {
        let region = *self.get(key)?;
        self.entries.remove(&key.index());
        self.table.remove(key.0);
        self.registered -= counted(&region);
        Some(region)
    }

    pub fn is_used(&self, pd: PdId) -> bool {
        let is_its = |it: &KeyEntry| {
            it.region.is_some_and(|it| it.pd == pd.0) || it.window.as_ref().is_some_and(|it| it.pd == pd)
        };
        self.entries.values().any(is_its)
    }

    /// Finds memory for a request of the application itself, by a key and the access that it needs.
    pub fn find_local(&self, key: Key, pd: PdId, address: u64, len: u64, needs: u32) -> Result<Place, Fault> {
        let found = self.get(key).and_then(|region| region.find_local(pd.0, address, len, needs));
        found.map(|address| Place { key, address }).ok_or(Fault::Protection)
    }

    /// Finds memory for a request of the peer of a queue pair, which has this protection domain and number.
    pub fn find_remote(
        &self,
        key: Key,
        (pd, qpn): (PdId, Qpn),
        address: u64,
        len: u64,
        needs: u32,
    ) -> Result<Place, Fault> {
        let entry = self.entry(key).ok_or(Fault::Protection)?;
        let found = entry.region.and_then(|region| region.find_remote((pd.0, qpn.0), address, len, needs));
        let address = found.ok_or(Fault::Protection)?;
        Ok(Place { key: entry.region_key(), address })
    }

    /// The pages in a file behind a key, for a peer that shares memory.
    pub fn shared(&self, key: Key) -> Option<&RegionPages> {
        self.entry(key).and_then(|entry| self.pages.get(&entry.region_key()))
    }

    /// The pages in a file at this place, if there are any.
    fn pages(&self, place: Place) -> Option<&SharedPages> {
        self.pages.get(&place.key).map(|it| &*it.pages)
    }

    /// Works on a word that is in a file. Peers may work on the same word themselves, with any key and from any
    /// context of the application, without taking turns.
    fn with_word<T>(
        &self,
        place: Place,
        space: &AddressSpace,
        mut work: impl FnMut(&AtomicU64) -> T,
    ) -> Option<T> {
        let near = self.pages(place).and_then(|pages| pages.word(place.address)).map(&mut work);
        near.or_else(|| self.together.with_word(space.identity(), place.address, work))
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        self.together.give_back(self.entries.len(), self.registered);
    }
}

/// Access to an application's memory through the keys of its regions.
#[derive(Clone, Copy)]
pub(crate) struct MemoryAccess<'a> {
    pub space: &'a AddressSpace,
    pub regions: &'a Regions,
}

impl MemoryAccess<'_> {
    /// Copies from the application.
    pub fn read(self, place: Place, out: &mut [u8]) -> Result<(), Fault> {
        let is_read = self.regions.pages(place).is_some_and(|pages| pages.read(place.address, out));
        if is_read { Ok(()) } else { self.space.read(place.address, out) }
    }

    /// Copies to the application. If these are the last bytes of a message (`ends`), the last byte is written after
    /// all others, since the application polls for it.
    pub fn write(self, place: Place, bytes: &[u8], ends: bool) -> Result<(), Fault> {
        if self.regions.pages(place).is_some_and(|pages| pages.write(place.address, bytes)) {
            return Ok(());
        }
        if ends {
            self.space.write_tail_last(place.address, bytes)
        } else {
            self.space.write(place.address, bytes)
        }
    }

    /// Replaces an aligned word by the result of `change`. Returns the old value.
    pub fn exchange(self, place: Place, turn: &Turns, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        let change_word = |word: &AtomicU64| {
            let order = Ordering::SeqCst;
            word.fetch_update(order, order, |old| Some(change(old))).unwrap_or_else(|old| old)
        };
        if let Some(old) = self.regions.with_word(place, self.space, change_word) {
            return Ok(old);
        }
        let mut bytes = [0; 8];
        // Waits for a page that takes long before it takes the turn, so that others need not wait.
        self.space.read(place.address, &mut bytes)?;
        let _taken = turn.take(self.space.identity()).ok_or(Fault::Busy)?;
        self.space.read(place.address, &mut bytes)?;
        let old = u64::from_ne_bytes(bytes);
        self.space.write(place.address, &change(old).to_ne_bytes())?;
        Ok(old)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::budget::{DeviceBudget, Exhausted};
    use crate::registered::BYTES_OF_REGION;

    #[test]
    fn limits_are_for_all_applications_of_a_device_together() {
        let budget = DeviceBudget::new(Arc::new(crate::budget::HostBudget::new(1, 1)), 1 << 20);
        let together = Arc::new(Registered::new(Arc::new(budget)));
        let regions = || Regions::new(8, together.clone()).unwrap();
        let region =
            |len| Region { pd: 1, address: 0, len, iova: 0, access: 0, file: 0, kind: KeyKind::Region };
        let limits = Limits { mrs: 3, registered: 100, ..Limits::default() };
        let (mut one, mut other) = (regions(), regions());
        let key = one.insert(region(60), None, limits).unwrap();
        other.insert(region(30), None, limits).unwrap();
        assert_eq!(other.insert(region(11), None, limits), Err(RegionLimit::Bytes(100)));
        assert_eq!(other.insert(region(u64::MAX), None, limits), Err(RegionLimit::Bytes(100)));
        assert_eq!(one.replace(key, region(71), false, limits), Err(RegionLimit::Bytes(100)));
        assert!(one.get(key).is_some());
        let key = one.replace(key, region(70), false, limits).unwrap();
        other.insert(region(0), None, limits).unwrap();
        assert_eq!(one.insert(region(0), None, limits), Err(RegionLimit::Regions(3)));
        one.replace(key, region(1), false, limits).unwrap();
        drop(other);
        one.insert(region(99), None, limits).unwrap();
        assert_eq!((one.registered, *together.sums()), (100, (2, 100)));
        drop(one);
        assert_eq!(*together.sums(), (0, 0));
    }

    #[test]
    fn tables_of_regions_count_as_memory_until_their_application_ends() {
        let budget = Arc::new(DeviceBudget::new(Arc::new(crate::budget::HostBudget::new(1, 1)), 1 << 20));
        let together = Arc::new(Registered::new(budget.clone()));
        let limits = Limits { mrs: 1000, registered: 1000, ..Limits::default() };
        let region = Region { pd: 1, address: 0, len: 1, iova: 0, access: 0, file: 0, kind: KeyKind::Region };
        let mut regions = Regions::new(limits.mrs, together.clone()).unwrap();
        assert_eq!(budget.bytes(), 0);
        let keys: Vec<_> = (0..100).map(|_| regions.insert(region, None, limits).unwrap()).collect();
        let taken = budget.bytes();
        let written = taken - 100 * BYTES_OF_REGION;
        assert!(written > 0 && written.is_multiple_of(RegionTable::PAGE), "{taken}");
        for key in keys {
            regions.remove(key).unwrap();
        }
        assert_eq!(budget.bytes(), taken, "nothing of it is given back to the kernel");
        // Without room, no region is added, and none is lost.
        let key = regions.insert(region, None, limits).unwrap();
        let rest = (1 << 20) - budget.bytes();
        budget.take_bytes(rest).unwrap();
        let refused = (0..200).find_map(|_| regions.insert(region, None, limits).err());
        assert_eq!(refused, Some(RegionLimit::Memory(Exhausted::Memory(1 << 20))));
        assert!(regions.get(key).is_some());
        let left = regions.entries.len() as u64;
        assert_eq!(*together.sums(), (left, left));
        budget.give_back_bytes(rest);
        drop(regions);
        assert_eq!(budget.bytes(), 0);
    }
}
