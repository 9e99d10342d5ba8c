//! The memory regions of an application, and how the daemon reaches its memory by their keys.
//!
//! Pages that an application has in a sealed file are mapped; the others are reached through its address space.

use crate::address_space::AddressSpace;
use crate::atomics::Turn;
use crate::ids::{Key, MwId, PdId, Qpn};
use crate::keys::Keyed;
use crate::limits::Limits;
use crate::random;
use crate::registered::{Full, Registered, Share, Spent};
use mem::FaultWord;
use rdma::{Access, Fault};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uverbs::qp::access;
use uverbs::{FIRST_KEY, Kind as KeyKind, MemoryError, Region, RegionTable, SharedPages};

/// Pages of a region that are in a file, and the file, to share.
#[derive(Debug)]
pub(crate) struct RegionPages {
    pub pages: Arc<SharedPages>,
    pub file: OwnedFd,
    _share: Share,
}

/// Some of an application's bytes, which it, or a peer, may use by a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    key: Key,
    pub address: u64,
}

/// Bytes that count as registered. Of all there is, which nobody can say how much it is, none: nothing is pinned.
const fn counted(region: &Region) -> u64 {
    if region.is_implicit() { 0 } else { region.len }
}

/// What may be done with a region, in words.
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

/// The regions and windows of an application, by key. Keys are random in all their bits: a guess hits none of `n` but
/// once in 2^32 / `n` times.
#[derive(Debug)]
pub(crate) struct Regions {
    /// By [`index`].
    pub(crate) keyed: HashMap<MwId, Keyed>,
    /// Those of them that others may map.
    pages: HashMap<Key, RegionPages>,
    /// The same, for the application itself and peers that share memory.
    pub(crate) table: RegionTable,
    pub file: OwnedFd,
    /// Regions that there is room for.
    pub limit: u32,
    /// Bytes of all.
    pub registered: u64,
    /// What the daemon has spent on them.
    pub(crate) spent: Spent,
    /// With those of the device's other applications.
    pub(crate) together: Arc<Registered>,
}

impl Regions {
    pub fn new(limit: u32, together: Arc<Registered>) -> Result<Self, MemoryError> {
        let (table, file) = RegionTable::create(limit)?;
        let (keyed, pages) = Default::default();
        let spent = Spent::new(together.account.clone());
        Ok(Self { keyed, pages, table, file, limit, registered: 0, spent, together })
    }

    /// What has this key.
    pub fn keyed(&self, key: Key) -> Option<&Keyed> {
        self.keyed.get(&key.index()).filter(|keyed| keyed.key == key)
    }

    /// The region, not a window, with this key.
    pub fn get(&self, key: Key) -> Option<&Region> {
        self.keyed(key).filter(|keyed| keyed.window.is_none()).and_then(|keyed| keyed.region.as_ref())
    }

    /// Whether windows are bound to the region with this key.
    pub fn has_windows(&self, key: Key) -> bool {
        self.keyed(key).is_some_and(|keyed| keyed.windows > 0)
    }

    /// Regions, and windows that are bound.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Region)> {
        self.keyed.values().filter_map(|keyed| Some((keyed.key, keyed.region.as_ref()?)))
    }

    /// Maps pages that an application says it has in a file; `None` where too much is mapped already.
    pub fn map(
        &self,
        file: OwnedFd,
        (address, len): (u64, u64),
        limits: Limits,
        (space, fault): (&AddressSpace, &Arc<FaultWord>),
    ) -> Result<Option<RegionPages>, MemoryError> {
        let Some(share) = Share::take(&self.together, len, limits) else { return Ok(None) };
        let pages = Arc::new(SharedPages::open_guarded(&file, address, len, fault)?);
        self.together.note(space, &pages);
        Ok(Some(RegionPages { pages, file, _share: share }))
    }

    /// Adds a region, with pages of it in a file where there are; its key.
    pub fn insert(
        &mut self,
        region: Region,
        pages: Option<RegionPages>,
        limits: Limits,
    ) -> Result<Key, Full> {
        let key = self.new_key();
        self.spent.grow(self.keyed.len() + 1, self.table.page(key.0))?;
        self.together.take(counted(&region), None, limits)?;
        self.put(key, Region { file: pages.as_ref().map_or(0, |it| it.pages.inode()), ..region });
        self.pages.extend(pages.map(|pages| (key, pages)));
        Ok(key)
    }

    /// Puts a region in the place of another, with its key and file, or a new key and none.
    pub fn replace(
        &mut self,
        key: Key,
        region: Region,
        keeps_key: bool,
        limits: Limits,
    ) -> Result<Key, Full> {
        let old = self.get(key).copied();
        let new = if keeps_key { key } else { self.new_key() };
        self.spent.grow(self.keyed.len() + usize::from(old.is_none()), self.table.page(new.0))?;
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

    /// A key of which no other has more than the lowest byte.
    pub(crate) fn new_key(&self) -> Key {
        loop {
            let key = Key(random::number());
            if key.0 >= FIRST_KEY && !self.keyed.contains_key(&key.index()) {
                return key;
            }
        }
    }

    fn put(&mut self, key: Key, region: Region) {
        self.registered += counted(&region);
        self.table.insert(key.0, &region);
        self.keyed.insert(key.index(), Keyed { key, region: Some(region), window: None, windows: 0 });
    }

    fn forget(&mut self, key: Key) -> Option<Region> {
        let region = *self.get(key)?;
        self.keyed.remove(&key.index());
        self.table.remove(key.0);
        self.registered -= counted(&region);
        Some(region)
    }

    pub fn is_used(&self, pd: PdId) -> bool {
        let is_its = |it: &Keyed| {
            it.region.is_some_and(|it| it.pd == pd.0) || it.window.as_ref().is_some_and(|it| it.pd == pd)
        };
        self.keyed.values().any(is_its)
    }

    /// Where the bytes lie that the application itself wants by a key.
    pub fn find_local(&self, key: Key, pd: PdId, address: u64, len: u64, needs: u32) -> Result<Place, Fault> {
        let found = self.get(key).and_then(|region| region.find_local(pd.0, address, len, needs));
        found.map(|address| Place { key, address }).ok_or(Fault::Protection)
    }

    /// The same for the peer of a queue pair, by protection domain and number of that.
    pub fn find_remote(
        &self,
        key: Key,
        (pd, qpn): (PdId, Qpn),
        address: u64,
        len: u64,
        needs: u32,
    ) -> Result<Place, Fault> {
        let keyed = self.keyed(key).ok_or(Fault::Protection)?;
        let found = keyed.region.and_then(|region| region.find_remote((pd.0, qpn.0), address, len, needs));
        let address = found.ok_or(Fault::Protection)?;
        Ok(Place { key: keyed.region_key(), address })
    }

    /// Its pages in a file, for a peer that shares memory and has found its key.
    pub fn shared(&self, key: Key) -> Option<&RegionPages> {
        self.keyed(key).and_then(|keyed| self.pages.get(&keyed.region_key()))
    }

    /// Its pages in a file, if it has any there.
    fn pages(&self, place: Place) -> Option<&SharedPages> {
        self.pages.get(&place.key).map(|it| &*it.pages)
    }

    /// Does something with a word in a file, on which peers may be at work themselves, by whatever key, of whatever
    /// context of the application. Those take no turns.
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
        self.together.give_back(self.keyed.len(), self.registered);
    }
}

/// An application's memory by its regions' keys.
#[derive(Clone, Copy)]
pub(crate) struct Reach<'a> {
    pub space: &'a AddressSpace,
    pub regions: &'a Regions,
}

impl Reach<'_> {
    /// Copies from the application.
    pub fn read(self, place: Place, out: &mut [u8]) -> Result<(), Fault> {
        let is_read = self.regions.pages(place).is_some_and(|pages| pages.read(place.address, out));
        if is_read { Ok(()) } else { self.space.read(place.address, out) }
    }

    /// Copies to the application; where it waits for the last byte (`ends`), that one after all others.
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

    /// Puts what `change` makes of it in the place of an aligned word; what was there.
    pub fn exchange(self, place: Place, turn: &Turn, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        let change_word = |word: &AtomicU64| {
            let order = Ordering::SeqCst;
            word.fetch_update(order, order, |old| Some(change(old))).unwrap_or_else(|old| old)
        };
        if let Some(old) = self.regions.with_word(place, self.space, change_word) {
            return Ok(old);
        }
        let mut bytes = [0; 8];
        // A page that takes long to come comes before others have to wait for it.
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
    use crate::budget::{Account, Exhausted};
    use crate::registered::BYTES_OF_REGION;

    #[test]
    fn limits_are_for_all_applications_of_a_device_together() {
        let account = Account::new(Arc::new(crate::budget::Stock::new(1, 1)), 1 << 20);
        let together = Arc::new(Registered::new(Arc::new(account)));
        let regions = || Regions::new(8, together.clone()).unwrap();
        let region =
            |len| Region { pd: 1, address: 0, len, iova: 0, access: 0, file: 0, kind: KeyKind::Region };
        let limits = Limits { mrs: 3, registered: 100, ..Limits::default() };
        let (mut one, mut other) = (regions(), regions());
        let key = one.insert(region(60), None, limits).unwrap();
        other.insert(region(30), None, limits).unwrap();
        assert_eq!(other.insert(region(11), None, limits), Err(Full::Bytes(100)));
        assert_eq!(other.insert(region(u64::MAX), None, limits), Err(Full::Bytes(100)));
        assert_eq!(one.replace(key, region(71), false, limits), Err(Full::Bytes(100)));
        assert!(one.get(key).is_some());
        let key = one.replace(key, region(70), false, limits).unwrap();
        other.insert(region(0), None, limits).unwrap();
        assert_eq!(one.insert(region(0), None, limits), Err(Full::Regions(3)));
        one.replace(key, region(1), false, limits).unwrap();
        drop(other);
        one.insert(region(99), None, limits).unwrap();
        assert_eq!((one.registered, *together.sums()), (100, (2, 100)));
        drop(one);
        assert_eq!(*together.sums(), (0, 0));
    }

    #[test]
    fn tables_of_regions_count_as_memory_until_their_application_ends() {
        let account = Arc::new(Account::new(Arc::new(crate::budget::Stock::new(1, 1)), 1 << 20));
        let together = Arc::new(Registered::new(account.clone()));
        let limits = Limits { mrs: 1000, registered: 1000, ..Limits::default() };
        let region = Region { pd: 1, address: 0, len: 1, iova: 0, access: 0, file: 0, kind: KeyKind::Region };
        let mut regions = Regions::new(limits.mrs, together.clone()).unwrap();
        assert_eq!(account.bytes(), 0);
        let keys: Vec<_> = (0..100).map(|_| regions.insert(region, None, limits).unwrap()).collect();
        let spent = account.bytes();
        let written = spent - 100 * BYTES_OF_REGION;
        assert!(written > 0 && written.is_multiple_of(RegionTable::PAGE), "{spent}");
        for key in keys {
            regions.remove(key).unwrap();
        }
        assert_eq!(account.bytes(), spent, "nothing of it is given back to the kernel");
        // Where there is no more, no region comes, and none goes.
        let key = regions.insert(region, None, limits).unwrap();
        let rest = (1 << 20) - account.bytes();
        account.take_bytes(rest).unwrap();
        let refused = (0..200).find_map(|_| regions.insert(region, None, limits).err());
        assert_eq!(refused, Some(Full::Memory(Exhausted::Memory(1 << 20))));
        assert!(regions.get(key).is_some());
        let left = regions.keyed.len() as u64;
        assert_eq!(*together.sums(), (left, left));
        account.give_back_bytes(rest);
        drop(regions);
        assert_eq!(account.bytes(), 0);
    }
}
