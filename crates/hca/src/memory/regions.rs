//! The memory regions of an application, and how the daemon accesses its memory by their keys.
//!
//! Pages that an application has in a sealed file are mapped, and so are those in a window; others are accessed through
//! its address space, if it is in reach.

use crate::base::ids::{ById, Key, MwId, PdId};
use crate::base::limits::Limits;
use crate::base::random;
use crate::memory::address_space::AddressSpace;
use crate::memory::atomics::Turns;
use crate::memory::keys::{KeyEntry, QpScope};
use crate::memory::registered::{MappedBytes, RegionLimit, Registered, TableMemory};
use crate::window::Pages;
use crate::window::source::{ListBytes, MemoryBacking, MemorySource, Reach};
use mem::FaultWord;
use rdma::{Access, Fault};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uverbs::qp::access;
use uverbs::{FIRST_KEY, Given, Kind as KeyKind, MemoryError, Part, Region, RegionTable, SharedPages};

/// The pages of a region that others may map, one after the other, and what to give them for that.
#[derive(Debug)]
pub(crate) struct RegionPages {
    extents: Vec<Arc<SharedPages>>,
    backing: PagesBacking,
    /// Whether the pages only stand for the region's own, which can't move. Then nobody else maps them.
    stands_in: bool,
}

#[derive(Debug)]
enum PagesBacking {
    File(OwnedFd, #[allow(dead_code, reason = "kept, not read")] MappedBytes),
    Window(Vec<(Arc<Pages>, Part)>, #[allow(dead_code, reason = "kept, not read")] ListBytes),
}

/// Pages of a window, and where a program has them.
#[derive(Debug)]
pub(crate) struct Piece {
    pub address: u64,
    pub part: Part,
    pub pages: Arc<Pages>,
}

/// A file with the pages of a program's memory from `address` to `address + len`.
#[derive(Debug)]
pub(crate) struct PagesFile {
    pub file: OwnedFd,
    pub address: u64,
    pub len: u64,
}

/// Bytes that the daemon keeps for a piece of a region.
const BYTES_OF_PIECE: u64 = (size_of::<SharedPages>() + size_of::<Arc<SharedPages>>() + 16) as u64
    + size_of::<(Arc<Pages>, Part)>() as u64;

impl RegionPages {
    /// Orphans pages of windows, so that nobody else gets them.
    fn leave(&self) {
        if let PagesBacking::Window(pieces, _) = &self.backing {
            pieces.iter().for_each(|(pages, _)| pages.leave());
        }
    }

    /// Returns the identifier of the pages ([`Region::file`]).
    pub fn id(&self) -> u64 {
        if self.stands_in {
            return 0;
        }
        self.extents.first().map_or(0, |first| first.file())
    }

    /// Returns the first address of the pages, and their length in bytes.
    pub fn range(&self) -> (u64, u64) {
        let ranges = self.extents.iter().map(|extent| extent.range());
        (self.extents.first().map_or(0, |first| first.range().0), ranges.map(|(_, len)| len).sum())
    }

    /// Makes what a program gets to map the pages. `None` if it can't map them, or no descriptor is left.
    pub fn give(&self, to: &Reach) -> Option<Vec<Given>> {
        match &self.backing {
            _ if self.stands_in => None,
            PagesBacking::File(file, _) if to.is_local => Some(vec![file.try_clone().ok()?.into()]),
            PagesBacking::File(..) => None,
            PagesBacking::Window(pieces, _) if to.is_local && pieces.len() > DESCRIPTORS => None,
            PagesBacking::Window(pieces, _) => {
                pieces.iter().map(|(pages, part)| to.pages(pages, *part)).collect()
            }
        }
    }

    /// Returns the extent with this address.
    fn extent(&self, address: u64) -> Option<&SharedPages> {
        let after = match &self.extents[..] {
            [only] => return Some(only),
            all => all.partition_point(|extent| extent.range().0 <= address),
        };
        self.extents.get(after.checked_sub(1)?).map(|extent| &**extent)
    }

    /// Calls `each` for the parts of this memory, each of which is in one extent, with its address, and its place
    /// among the bytes. Returns false if some of it is in no extent, or `each` fails.
    fn for_each(
        &self,
        address: u64,
        len: usize,
        mut each: impl FnMut(&SharedPages, u64, std::ops::Range<usize>) -> bool,
    ) -> bool {
        let mut done = 0;
        loop {
            let at = address.wrapping_add(done as u64);
            let Some(extent) = self.extent(at) else { return false };
            let (start, its) = extent.range();
            let left = its.saturating_sub(at.wrapping_sub(start)).min((len - done) as u64) as usize;
            if (left == 0 && done < len) || !each(extent, at, done..done + left) {
                return false;
            }
            done += left;
            if done == len {
                return true;
            }
        }
    }

    fn read(&self, address: u64, out: &mut [u8]) -> bool {
        if let [only] = &self.extents[..] {
            return only.read(address, out);
        }
        self.for_each(address, out.len(), |extent, at, part| extent.read(at, &mut out[part]))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> bool {
        if let [only] = &self.extents[..] {
            return only.write(address, bytes);
        }
        self.for_each(address, bytes.len(), |extent, at, part| extent.write(at, &bytes[part]))
    }

    fn word(&self, address: u64) -> Option<&AtomicU64> {
        self.extent(address)?.word(address)
    }
}

/// Most regions in a table in a window.
const ROOM: u32 = 4096;
/// Most descriptors that go along with an answer.
const DESCRIPTORS: usize = 12;

/// A range of an application's memory to which a key gives access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub key: Key,
    pub address: u64,
}

/// Returns the bytes of a region that count as registered: none of an implicit region, since nothing of it is
/// pinned, and its size is unknown.
const fn counted(region: &Region) -> u64 {
    if region.is_implicit() { 0 } else { region.len }
}

/// Returns the access flags of a region or window, in words.
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

/// Returns the access flag that a peer needs.
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
    pub(crate) entries: ById<MwId, KeyEntry>,
    /// The pages of regions that peers may map.
    pages: ById<Key, RegionPages>,
    /// The same regions in a shared table, for the application itself and for peers that share memory.
    pub(crate) table: RegionTable,
    /// The memory of the shared table.
    pub backing: MemoryBacking,
    /// How many regions the table has room for.
    pub limit: u32,
    /// Registered bytes of all regions.
    pub registered: u64,
    /// The memory that the tables cost the daemon.
    pub(crate) table_memory: TableMemory,
    /// The sums of all applications of the device.
    pub(crate) together: Arc<Registered>,
}

impl Regions {
    /// Creates the table of an application's regions, with memory from this source, for at most `limit` regions.
    /// The table that peers read is in a file that only the device can write; if peers are in virtual machines, it
    /// is in their common window, with room for fewer regions: others are not shared.
    pub fn new(limit: u32, together: Arc<Registered>, source: &MemorySource) -> Result<Self, MemoryError> {
        let room = limit.min(ROOM);
        let common = source.common(RegionTable::bytes(room));
        let (table, backing, limit) = match common {
            Some((memory, backing)) => (RegionTable::new(memory, room), backing, room),
            None => {
                let (table, file) = RegionTable::create(limit)?;
                (table, MemoryBacking::File(file), limit)
            }
        };
        let (entries, pages) = Default::default();
        let table_memory = TableMemory::new(together.budget.clone());
        Ok(Self { entries, pages, table, backing, limit, registered: 0, table_memory, together })
    }

    /// Returns the region or window with this key.
    pub fn entry(&self, key: Key) -> Option<&KeyEntry> {
        self.entries.get(&key.index()).filter(|entry| entry.key == key)
    }

    /// Returns the region with this key, but not a window.
    pub fn get(&self, key: Key) -> Option<&Region> {
        self.entry(key).filter(|entry| entry.window.is_none()).and_then(|entry| entry.region.as_ref())
    }

    /// Is true if windows are bound to the region with this key.
    pub fn has_windows(&self, key: Key) -> bool {
        self.entry(key).is_some_and(|entry| entry.windows > 0)
    }

    /// Returns all regions and bound windows.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Region)> {
        self.entries.values().filter_map(|entry| Some((entry.key, entry.region.as_ref()?)))
    }

    /// Maps a file with pages of a region. `None` if too much is mapped already.
    pub fn map(
        &self,
        PagesFile { file, address, len }: PagesFile,
        limits: Limits,
        space: &AddressSpace,
        fault: &Arc<FaultWord>,
    ) -> Result<Option<RegionPages>, MemoryError> {
        let Some(share) = MappedBytes::take(&self.together, len, limits) else { return Ok(None) };
        let pages = Arc::new(SharedPages::open_guarded(&file, address, len, fault)?);
        self.together.note(space, &pages);
        let (extents, backing) = (vec![pages], PagesBacking::File(file, share));
        Ok(Some(RegionPages { extents, backing, stands_in: false }))
    }

    /// Makes pages of a region out of pieces of windows, at least one, which follow one another. `stands_in`: they
    /// only stand for the region's own. `None` if there is no room for so many.
    pub fn over(&self, pieces: Vec<Piece>, space: &AddressSpace, stands_in: bool) -> Option<RegionPages> {
        /// Numbers that are no inodes.
        static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
        let held = ListBytes::take(pieces.len() as u64 * BYTES_OF_PIECE, &self.together.budget)?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (mut extents, mut parts) = (Vec::with_capacity(pieces.len()), Vec::with_capacity(pieces.len()));
        for Piece { address, part, pages } in pieces {
            let memory = pages.view(part.offset, part.len)?;
            let extent = Arc::new(SharedPages::new(memory, address, id));
            if !stands_in {
                self.together.note(space, &extent);
            }
            extents.push(extent);
            parts.push((pages, part));
        }
        Some(RegionPages { extents, backing: PagesBacking::Window(parts, held), stands_in })
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
        self.put(key, Region { file: pages.as_ref().map_or(0, RegionPages::id), ..region });
        self.pages.extend(pages.map(|pages| (key, pages)));
        Ok(key)
    }

    /// Replaces a region. It keeps key and pages, or gets a new key and no pages.
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

    /// Chooses a new key. It differs from all others in more than the lowest byte.
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

    /// Orphans pages of windows that regions have, so that nobody else gets them.
    pub fn leave(&self) {
        self.pages.values().for_each(RegionPages::leave);
    }

    pub fn is_used(&self, pd: PdId) -> bool {
        let is_its = |it: &KeyEntry| {
            it.region.is_some_and(|it| it.pd == pd.0) || it.window.as_ref().is_some_and(|it| it.pd == pd)
        };
        self.entries.values().any(is_its)
    }

    /// Returns the pages of windows that a region has.
    pub fn window_pages(&self, key: Key) -> Vec<Arc<Pages>> {
        match self.pages.get(&key).map(|pages| &pages.backing) {
            Some(PagesBacking::Window(pieces, _)) => pieces.iter().map(|(pages, _)| pages.clone()).collect(),
            _ => Vec::new(),
        }
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
        scope: QpScope,
        address: u64,
        len: u64,
        needs: u32,
    ) -> Result<Place, Fault> {
        let entry = self.entry(key).ok_or(Fault::Protection)?;
        let region = entry.region.as_ref().ok_or(Fault::Protection)?;
        let found = region.find_remote((scope.pd.0, scope.qpn.0), address, len, needs);
        let address = found.ok_or(Fault::Protection)?;
        Ok(Place { key: entry.region_key(), address })
    }

    /// Returns the shared pages behind a key, for a peer that shares memory.
    pub fn shared(&self, key: Key) -> Option<&RegionPages> {
        self.entry(key).and_then(|entry| self.pages.get(&entry.region_key()))
    }

    /// Is true if the region with this key has pages that only stand for its own.
    pub fn stands_in(&self, key: Key) -> bool {
        self.pages.get(&key).is_some_and(|pages| pages.stands_in)
    }

    /// Returns the shared pages at this place, if there are any.
    fn pages(&self, place: Place) -> Option<&RegionPages> {
        self.pages.get(&place.key)
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
    /// Prefetches what is read soon, if it is mapped.
    pub fn prefetch(self, place: Place, len: usize) {
        if let Some(extent) = self.regions.pages(place).and_then(|pages| pages.extent(place.address)) {
            extent.prefetch(place.address, len);
        }
    }

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
    use crate::base::budget::{DeviceBudget, Exhausted};
    use crate::memory::registered::BYTES_OF_REGION;
    use crate::window::notes::ProgramNote;
    use crate::window::program_pages::ProgramPages;

    fn source() -> MemorySource {
        let reach = Reach { is_local: true, windows: Default::default() };
        MemorySource::new(reach, ProgramNote::default(), None, Arc::new(ProgramPages::new())).unwrap()
    }

    #[test]
    fn limits_are_for_all_applications_of_a_device_together() {
        let budget = DeviceBudget::new(Arc::new(crate::base::budget::HostBudget::new(1, 1)), 1 << 20);
        let together = Arc::new(Registered::new(Arc::new(budget)));
        let regions = || Regions::new(8, together.clone(), &source()).unwrap();
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
        let budget =
            Arc::new(DeviceBudget::new(Arc::new(crate::base::budget::HostBudget::new(1, 1)), 1 << 20));
        let together = Arc::new(Registered::new(budget.clone()));
        let limits = Limits { mrs: 1000, registered: 1000, ..Limits::default() };
        let region = Region { pd: 1, address: 0, len: 1, iova: 0, access: 0, file: 0, kind: KeyKind::Region };
        let mut regions = Regions::new(limits.mrs, together.clone(), &source()).unwrap();
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
