//! The second index of connections: by the port of a shared address that stands for their guest outside, and the other
//! end.
//!
//! It has the form of the first one, but its own shards: a connection is in the shard of its inside ends, and its slot
//! here in that of its outside ends. Who locks both locks the connection's first. No key is there twice: that is how two
//! workers never take one port for two connections.

use super::entry::New;
use super::{FlowRef, Flows, MAX_SHARDS, MIN_SHARD, WAYS, entry_of, lock};
use crate::flow::zeroed::Zeroed;
use model::{Connection, DropReason, FlowKey, Seconds};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) struct Outside {
    shards: Box<[Mutex<()>]>,
    /// Buckets of slots, as in the first index.
    index: Zeroed<WAYS>,
    /// Buckets of a shard, a power of two. There may be more of them at the end of `index`.
    per_shard: usize,
}

impl Outside {
    /// Creates an index for a table of `capacity` entries. It takes memory as connections need it.
    pub fn new(capacity: usize) -> Self {
        let shards = (capacity / MIN_SHARD).clamp(1, MAX_SHARDS);
        let buckets = capacity * 2 / WAYS;
        Self {
            shards: (0..shards).map(|_| Mutex::new(())).collect(),
            index: Zeroed::new(buckets),
            per_shard: buckets / shards,
        }
    }

    fn shard(&self, hash: u64) -> usize {
        (hash >> 58) as usize & (self.shards.len() - 1)
    }

    fn buckets(&self, hash: u64) -> [&[AtomicU64; WAYS]; 2] {
        let first = self.shard(hash) * self.per_shard;
        let bucket = |bits: u64| first + (bits as usize & (self.per_shard - 1));
        [hash >> 32, hash >> 12].map(|bits| &self.index.records()[bucket(bits)])
    }
}

impl Flows {
    /// Finds the connection that has this outside key ([`Connection::outside_key`]), unless it timed out before `now`.
    /// Takes no locks.
    #[must_use]
    pub fn bound(&self, key: &FlowKey, now: Seconds) -> Option<Connection> {
        let (connection, _, is_expired) = self.find_bound(key, now)?;
        (!is_expired).then_some(connection)
    }

    fn find_bound(&self, key: &FlowKey, now: Seconds) -> Option<(Connection, FlowRef, bool)> {
        let hash = self.hash(key);
        Self::tagged(self.outside.buckets(hash), hash).find_map(|index| {
            let read = self.entry(index).read()?;
            let is_expired = read.expired(now);
            let found = (read.connection.outside_key() == Some(*key)).then_some(read)?;
            Some((found.connection, FlowRef { index, seq: found.seq }, is_expired))
        })
    }

    /// Removes the connection that timed out with the outside key of a new one. No shard must be locked.
    pub(super) fn forget_expired(&self, new: &New) {
        let Some(key) = new.connection.outside_key() else { return };
        if let Some((_, FlowRef { index, seq }, true)) = self.find_bound(&key, new.now) {
            self.remove_if_still(index, seq, |read| read.expired(new.now));
        }
    }

    /// Enters a new connection, whose shard is locked, into this index if it has an outside key, and counts it with the
    /// others of its guest's end.
    ///
    /// # Errors
    /// `SnatPorts`: a different connection has the key, [`Self::hold`] fails, or there is no room.
    pub(super) fn bind(&self, connection: &Connection, index: u32) -> Result<(), DropReason> {
        let (Some(key), Some(binding)) = (connection.outside_key(), connection.binding) else {
            return Ok(());
        };
        self.hold(&connection.original, binding)?;
        let bound = self.index_outside(&key, index);
        if bound.is_err() {
            self.release(&connection.original, binding);
        }
        bound
    }

    fn index_outside(&self, key: &FlowKey, index: u32) -> Result<(), DropReason> {
        let hash = self.hash(key);
        let _shard = lock(&self.outside.shards[self.outside.shard(hash)]);
        let buckets = self.outside.buckets(hash);
        let is_same =
            |index| self.entry(index).read().is_some_and(|read| read.connection.outside_key() == Some(*key));
        let is_taken = Self::tagged(buckets, hash).any(is_same);
        let mut slots = buckets.into_iter().flatten();
        let free = slots.find(|slot| slot.load(Ordering::Relaxed) == 0).filter(|_| !is_taken);
        free.ok_or(DropReason::SnatPorts)?.store(Self::slot(hash, index), Ordering::Release);
        Ok(())
    }

    /// Removes a live entry, whose shard is locked, from this index.
    pub(super) fn unbind(&self, index: u32) {
        let entry = self.entry(index);
        let (Some(key), Some(binding)) = (entry.outside_key(), entry.binding()) else { return };
        self.release(&entry.original(), binding);
        let hash = self.hash(&key);
        let _shard = lock(&self.outside.shards[self.outside.shard(hash)]);
        let mut slots = self.outside.buckets(hash).into_iter().flatten();
        if let Some(mine) = slots.find(|slot| entry_of(slot) == Some(index)) {
            mine.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
