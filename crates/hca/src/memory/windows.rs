//! Memory windows (IBTA 10.6.7.2): a work request binds a window's key to a part of a region, and invalidates it
//! again.
//!
//! Windows of type 2 are of type 2B: only the queue pair on which a window was bound, and its peer, may use the key.

use crate::base::ids::{Key, MwId, PdId, Qpn};
use crate::base::limits::Limits;
use crate::base::refusal::{Answer, done, refuse};
use crate::memory::keys::{KeyEntry, KeyUsers, QpScope, Window};
use crate::memory::regions::Regions;
use crate::memory::registered::RegionLimit;
use rdma::Fault;
use rustix::io::Errno;
use uverbs::qp::access;
use uverbs::{Kind, Region, Reply, WorkRequest};

/// `ibv_mw_type`.
const TYPE_1: u32 = 1;
const TYPE_2: u32 = 2;

impl Regions {
    /// Creates an unbound window. Returns its key.
    fn insert_window(&mut self, pd: PdId, is_type_2: bool, limits: Limits) -> Result<Key, RegionLimit> {
        let key = self.new_key();
        self.table_memory.grow(self.entries.len() + 1, self.table.page(key.0))?;
        self.together.take(0, None, limits)?;
        let window = Some(Window { pd, is_type_2, to: Key::default() });
        self.entries.insert(key.index(), KeyEntry { key, region: None, window, windows: 0 });
        Ok(key)
    }

    /// Removes a window, bound or not.
    fn remove_window(&mut self, mw: MwId) -> Option<()> {
        self.entries.get(&mw)?.window?;
        self.unbind(mw);
        self.entries.remove(&mw);
        self.together.give_back(1, 0);
        Some(())
    }

    /// Returns the part of a region to which a window is bound.
    pub fn window_part(&self, mw: MwId) -> Option<&Region> {
        self.entries.get(&mw).filter(|entry| entry.window.is_some()).and_then(|entry| entry.region.as_ref())
    }

    /// Ends a window's binding, if there is one. Returns the users of its key.
    fn unbind(&mut self, mw: MwId) -> Option<KeyUsers> {
        let entry = self.entries.get_mut(&mw)?;
        let part = entry.region.take()?;
        self.table.remove(entry.key.0);
        let to = entry.region_key().index();
        self.entries.entry(to).and_modify(|region| region.windows -= 1);
        Some(KeyUsers::new(&part))
    }

    /// Ends all bindings on a queue pair that is destroyed or reset: its next peer must not use them.
    pub fn unbind_all(&mut self, qpn: Qpn) {
        let is_its = |it: &&KeyEntry| it.region.is_some_and(|region| region.kind == Kind::WindowOf(qpn.0));
        let bound: Vec<_> = self.entries.values().filter(is_its).map(|it| it.key.index()).collect();
        for mw in bound {
            self.unbind(mw);
        }
    }

    /// Binds a window according to a work request of this queue pair (IBTA 10.6.7.2.2, 11.4.2.3). Returns the users of
    /// the key that this invalidated.
    pub fn bind(&mut self, scope: QpScope, asked: &WorkRequest) -> Result<Option<KeyUsers>, Fault> {
        let QpScope { pd, qpn } = scope;
        let WorkRequest { rkey, immediate, address, compare_add: len, swap, .. } = *asked;
        let (key, to) = (Key(rkey), Key(immediate));
        let entry = self.entries.get(&key.index()).ok_or(Fault::Protection)?;
        let window = entry.window.filter(|window| window.pd == pd).ok_or(Fault::Protection)?;
        if len == 0 && !window.is_type_2 {
            return Ok(self.rebind(key, None, window));
        }
        // A window of type 2 must be invalidated before it is bound again.
        if window.is_type_2 && (entry.region.is_some() || len == 0) {
            return Err(Fault::Protection);
        }
        let region = *self.get(to).ok_or(Fault::Protection)?;
        let asked = u32::try_from(swap).map_err(|_| Fault::Protection)?;
        let writes = asked & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        let known = access::LOCAL_WRITE | access::REMOTE | access::ZERO_BASED;
        let may = region.access & access::MW_BIND != 0
            && (!writes || region.access & access::LOCAL_WRITE != 0)
            && asked & !known == 0;
        let there = region.find_local(pd.0, address, len, 0).filter(|_| may).ok_or(Fault::Protection)?;
        self.table_memory.grow(self.entries.len(), self.table.page(key.0)).map_err(|_| Fault::Protection)?;
        let part = Region {
            address: there,
            len,
            iova: if asked & access::ZERO_BASED != 0 { 0 } else { address },
            access: asked & access::REMOTE,
            kind: if window.is_type_2 { Kind::WindowOf(qpn.0) } else { Kind::Window },
            ..region
        };
        Ok(self.rebind(key, Some(part), Window { to, ..window }))
    }

    fn rebind(&mut self, key: Key, region: Option<Region>, window: Window) -> Option<KeyUsers> {
        let took = self.unbind(key.index());
        if let Some(region) = &region {
            self.table.insert(key.0, region);
            self.entries.entry(window.to.index()).and_modify(|region| region.windows += 1);
        }
        self.entries.insert(key.index(), KeyEntry { key, region, window: Some(window), windows: 0 });
        took
    }

    /// Invalidates a key for the application itself: that of a bound window of type 2. Other keys, including those of
    /// regions, were not created by a work request and stay (IBTA 10.6.7.2.7). Returns the key's users.
    pub fn invalidate_local(&mut self, key: Key, pd: PdId) -> Result<KeyUsers, Fault> {
        self.invalidate(key, |region| region.pd == pd.0 && matches!(region.kind, Kind::WindowOf(_)))
    }

    /// Invalidates a key for the peer of a queue pair: a key that was bound on that queue pair (IBTA 10.6.7.2.7).
    pub fn invalidate_remote(&mut self, key: Key, scope: QpScope) -> Result<(), Fault> {
        let is_bound =
            |region: &Region| region.pd == scope.pd.0 && region.kind == Kind::WindowOf(scope.qpn.0);
        self.invalidate(key, is_bound).map(|_| ())
    }

    fn invalidate(&mut self, key: Key, may: impl FnOnce(&Region) -> bool) -> Result<KeyUsers, Fault> {
        let region = self.entry(key).and_then(|entry| entry.region.as_ref());
        region.filter(|region| may(region)).ok_or(Fault::Protection)?;
        self.unbind(key.index()).ok_or(Fault::Protection)
    }

    pub fn alloc_window(&mut self, pd: PdId, mw_type: u32, limits: Limits) -> Answer {
        if ![TYPE_1, TYPE_2].contains(&mw_type) {
            return refuse(
                Errno::INVAL,
                format!("memory windows of type {mw_type} do not exist; there are types 1 and 2"),
            );
        }
        match self.insert_window(pd, mw_type == TYPE_2, limits) {
            Ok(key) => Ok((Reply::Mw { mw: key.index().0, rkey: key.0 }, Vec::new())),
            Err(full) => refuse(Errno::NOMEM, full.to_string()),
        }
    }

    /// Destroys a memory window. Peers can't use its key any more.
    pub fn dealloc_window(&mut self, mw: MwId) -> Answer {
        match self.remove_window(mw) {
            Some(()) => done(),
            None => refuse(Errno::INVAL, "there is no such memory window"),
        }
    }
}
