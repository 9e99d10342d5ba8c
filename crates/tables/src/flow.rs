//! The connection table: bounded, shared by all workers, read without locks.
//!
//! A connection takes one entry of 128 bytes and 16 bytes of index, so 144 bytes at full load, for both directions;
//! the kernel provides memory only as entries are used, and a connection is refused if it has none left. The index uses a symmetric keyed hash: both directions find
//! the same entry. A look-up probes two buckets of eight slots, a cache line each, and no more. Inserting and removing
//! lock one of up to 64 shards; state, time and counters are atomics.
//!
//! Every connection is charged to an [`Account`]. When a shard is full, a new connection evicts another one out of a
//! bounded number of candidates. `room.rs` defines which, so that nobody's connections depend on how many others open.

mod account;
mod early;
mod entry;
mod fragments;
mod hash;
#[cfg(test)]
mod kill;
mod mappings;
mod outside;
mod remembered;
mod room;
mod state;
mod zeroed;

pub use account::Account;
use account::Accounts;
use carryover::Table;
use entry::{Entry, New, Read, WORDS, pack};
use executor::{FlowInfo, FlowUse};
pub use fragments::Fragments;
use hash::FlowHash;
use mappings::Mappings;
use model::{Connection, DropReason, FlowChange, FlowKey, Seconds, Segment, VifId};
use outside::Outside;
pub use remembered::{FORMAT, Record, remembered};
use rustix::io::Errno;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zeroed::Zeroed;

const WAYS: usize = 8;
/// Fewest entries of a shard, so that small tables have fewer shards.
const MIN_SHARD: usize = 1024;
const MAX_SHARDS: usize = 64;
/// In place of the number of an entry: none.
const NONE: u32 = u32::MAX;

/// Bounds of the connection table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// Connections; rounded up to a power of two, at most 2^30.
    pub connections: usize,
    /// Most connections charged to one [`Account`].
    pub per_guest: usize,
    /// Most new connections of one account in a second.
    pub new_per_second: u32,
}

impl Default for FlowLimits {
    fn default() -> Self {
        Self { connections: 1 << 21, per_guest: 1 << 20, new_per_second: 1_000_000 }
    }
}

impl FlowLimits {
    /// Returns the number of the table's entries.
    fn capacity(self) -> usize {
        self.connections.clamp(WAYS, 1 << 30).next_power_of_two()
    }

    /// Returns the size of the table's entries in bytes.
    #[must_use]
    pub fn table_bytes(self) -> u64 {
        self.capacity() as u64 * size_of::<Record>() as u64
    }
}

/// A reference to a connection, as a flow cache keeps it. It may safely outlive the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowRef {
    index: u32,
    seq: u32,
}

impl FlowRef {
    /// Returns it as a number, which never has all bits set.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.index as u64) << 32 | self.seq as u64
    }

    /// Reverses [`Self::to_bits`].
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: (bits >> 32) as u32, seq: bits as u32 }
    }
}

/// The state that a shard's lock guards, besides the shard's index and entries.
struct Shard {
    /// Entries before this one (counted from the shard's first) have been used at least once.
    used: u32,
    /// The first free entry among them.
    free: u32,
    /// The entry at which the search for one to evict continues.
    hand: u32,
}

pub struct Flows {
    hash: FlowHash,
    shards: Box<[Mutex<Shard>]>,
    /// For each shard, the number of entries that have been used, for sweeps.
    used: Box<[AtomicU32]>,
    /// Number of entries of a shard, a power of two.
    per_shard: usize,
    /// The entries of all shards, one shard after the other.
    entries: Zeroed<WORDS>,
    /// Buckets, with twice as many slots as entries. A slot holds a tag (high half) and the entry's number + 1, or 0.
    index: Zeroed<WAYS>,
    /// The connections by what stands for their guests outside.
    outside: Outside,
    mappings: Mappings,
    accounts: Accounts,
    fragments: Fragments,
    live: AtomicU64,
    created: AtomicU64,
    /// The entry at which [`Flows::expire`] goes on.
    sweep: AtomicU64,
    /// The reason why the last new entry had no memory; 0 if it had.
    lack: AtomicI32,
}

impl Flows {
    #[must_use]
    pub fn new(limits: FlowLimits) -> Self {
        Self::with_entries(limits, Zeroed::new(limits.capacity()))
    }

    /// Creates an empty table whose entries lie in this memory, which must be new and have
    /// [`FlowLimits::table_bytes`]. Who reads the memory later finds the connections there ([`fn@remembered`]).
    #[must_use]
    pub fn kept_in(limits: FlowLimits, table: Table) -> Self {
        Self::with_entries(limits, Zeroed::kept_in(table))
    }

    fn with_entries(limits: FlowLimits, entries: Zeroed<WORDS>) -> Self {
        let capacity = entries.records().len().min(limits.capacity());
        let shards = (capacity / MIN_SHARD).clamp(1, MAX_SHARDS);
        let shard = || Mutex::new(Shard { used: 0, free: NONE, hand: 0 });
        Self {
            hash: FlowHash::random(),
            shards: (0..shards).map(|_| shard()).collect(),
            used: (0..shards).map(|_| AtomicU32::new(0)).collect(),
            per_shard: capacity / shards,
            entries,
            index: Zeroed::new(capacity * 2 / WAYS).in_huge_pages(),
            outside: Outside::new(capacity),
            mappings: Mappings::new(capacity),
            accounts: Accounts::new(capacity as u64, limits.per_guest as u64, limits.new_per_second),
            fragments: Fragments::new(),
            live: AtomicU64::new(0),
            created: AtomicU64::new(0),
            sweep: AtomicU64::new(0),
            lack: AtomicI32::new(0),
        }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed) as usize
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Continues the count of connections made from this number.
    pub fn resume_created(&self, created: u64) {
        self.created.store(created, Ordering::Relaxed);
    }

    /// Returns the number of connections made, including those before [`Self::resume_created`].
    #[must_use]
    pub fn created(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }

    /// Returns the reason why connections are refused though the table has room: the host has no memory for
    /// its next entries.
    #[must_use]
    pub fn lack(&self) -> Option<Errno> {
        Some(self.lack.load(Ordering::Relaxed)).filter(|errno| *errno != 0).map(Errno::from_raw_os_error)
    }

    #[must_use]
    pub fn held_by(&self, account: Account) -> usize {
        self.accounts.held(account) as usize
    }

    /// Returns a guest's or a wire's use of the table.
    #[must_use]
    pub fn used_by(&self, vif: VifId) -> FlowUse {
        self.accounts.used_by(vif)
    }

    #[must_use]
    pub const fn fragments(&self) -> &Fragments {
        &self.fragments
    }

    fn entry(&self, index: u32) -> Entry<'_> {
        Entry(&self.entries.records()[index as usize])
    }

    fn shard_of(&self, hash: u64) -> usize {
        (hash >> 58) as usize & (self.shards.len() - 1)
    }

    fn bucket_numbers(&self, hash: u64) -> [usize; 2] {
        let per_shard = self.per_shard * 2 / WAYS;
        let first = self.shard_of(hash) * per_shard;
        [hash >> 32, hash >> 12].map(|bits| first + (bits as usize & (per_shard - 1)))
    }

    fn buckets(&self, hash: u64) -> [&[AtomicU64; WAYS]; 2] {
        self.bucket_numbers(hash).map(|bucket| &self.index.records()[bucket])
    }

    /// Returns a slot's content for an entry with this hash.
    fn slot(hash: u64, index: u32) -> u64 {
        hash << 32 | (u64::from(index) + 1)
    }

    /// Returns the entries that have the tag of `hash` in the slots of these buckets.
    fn tagged(buckets: [&[AtomicU64; WAYS]; 2], hash: u64) -> impl Iterator<Item = u32> {
        let slots = buckets.into_iter().flatten().map(|slot| slot.load(Ordering::Acquire));
        slots
            .filter(move |&slot| slot as u32 != 0 && (slot >> 32) as u32 == hash as u32)
            .map(|slot| slot as u32 - 1)
    }

    fn hash(&self, key: &FlowKey) -> u64 {
        self.hash.symmetric(&pack(key), &pack(&key.reverse()))
    }

    fn find(&self, hash: u64, key: &FlowKey) -> Option<(Read, bool, u32)> {
        let reverse = key.reverse();
        Self::tagged(self.buckets(hash), hash).find_map(|index| {
            let read = self.entry(index).read()?;
            let original = read.connection.original;
            if original == *key {
                Some((read, false, index))
            } else if original == reverse {
                Some((read, true, index))
            } else {
                None
            }
        })
    }

    /// Prefetches the memory that a look-up of this connection reads first.
    pub fn prefetch(&self, key: &FlowKey) {
        for bucket in self.bucket_numbers(self.hash(key)) {
            self.index.prefetch(bucket);
        }
    }

    /// Finds the connection that has this key as one of its directions, unless it timed out before `now`.
    /// Also returns whether the key is the reply direction, and a reference to the connection. Takes no
    /// locks.
    #[must_use]
    pub fn get(&self, key: &FlowKey, now: Seconds) -> Option<(Connection, bool, FlowRef)> {
        let (read, reply, index) = self.find(self.hash(key), key)?;
        (!read.expired(now)).then_some((read.connection, reply, FlowRef { index, seq: read.seq }))
    }

    #[must_use]
    pub fn connection(&self, flow: FlowRef) -> Option<Connection> {
        self.entry(flow.index).read().filter(|read| read.seq == flow.seq).map(|read| read.connection)
    }

    #[must_use]
    pub fn alive(&self, flow: FlowRef) -> bool {
        self.entry(flow.index).is(flow.seq)
    }

    /// Records how a packet changed a connection ([`Connection::follow`]). Returns false if the connection no longer
    /// exists.
    pub fn update(&self, flow: FlowRef, connection: &Connection, reply: bool, now: Seconds) -> bool {
        self.entry(flow.index).update(connection, reply, flow.seq, now)
    }

    /// Tracks a TCP segment that is neither SYN, FIN nor RST. Returns false, and does nothing, if
    /// [`Connection::follow`] must decide: the connection no longer exists, or the segment changes its state
    /// or does not belong to its stream.
    #[inline(always)]
    pub fn advance(&self, flow: FlowRef, reply: bool, segment: &Segment) -> bool {
        self.entry(flow.index).advance(reply, flow.seq, segment)
    }

    /// Counts packets of a connection and records the time. Returns false, and counts nothing, if it no longer exists.
    pub fn touch(&self, flow: FlowRef, reply: bool, packets: u64, bytes: u64, now: Seconds) -> bool {
        let alive = self.alive(flow);
        if alive {
            self.entry(flow.index).count(reply, packets, bytes, now);
        }
        alive
    }

    /// Records that packets of a connection are forwarded without tracking their sequence numbers.
    pub fn loosen(&self, flow: FlowRef) {
        self.entry(flow.index).loosen(flow.seq);
    }

    /// Records that packets of a connection are forwarded without being counted.
    pub fn miscount(&self, flow: FlowRef) {
        self.entry(flow.index).miscount(flow.seq);
    }

    /// Carries out a decision's change. `charged`: the account of a new connection. Returns a reference to
    /// the connection, or `None` if the connection to update no longer exists.
    ///
    /// # Errors
    /// `FlowQuota`, `FlowTableFull`: the packet must be dropped. `SnatPorts`: another connection took the port outside
    /// meanwhile; a new decision finds a different one.
    pub fn apply(
        &self,
        change: &FlowChange,
        charged: Account,
        now: Seconds,
    ) -> Result<Option<FlowRef>, DropReason> {
        match change {
            FlowChange::Create { connection, rule } => {
                let hash = self.hash(&connection.original);
                let new = New { connection: *connection, rule: *rule, charged, hash, now };
                self.create(&new).map(Some)
            }
            FlowChange::Update { connection, reply } => {
                let key = &connection.original;
                let found = self.find(self.hash(key), key);
                let flow = found.map(|(read, _, index)| FlowRef { index, seq: read.seq });
                Ok(flow.filter(|flow| self.update(*flow, connection, *reply, now)))
            }
        }
    }

    /// Enters a connection that a different host remembered. Returns false, and changes nothing, if the
    /// connection is known here and was not used later there, if it has timed out, or if there is no room for
    /// it.
    pub fn enter(&self, flow: &FlowInfo, now: Seconds) -> bool {
        self.entered(flow, now).is_some()
    }

    /// Does the same as [`Self::enter`], and returns a reference to the connection.
    fn entered(&self, flow: &FlowInfo, now: Seconds) -> Option<FlowRef> {
        let FlowInfo { key, state, seen, tcp, binding, charged: (vif, from_wire), .. } = *flow;
        let connection = Connection { original: key, state, seen, tcp, binding };
        let charged = if from_wire { Account::from_wire(vif) } else { Account::of_guest(vif) };
        let hash = self.hash(&key);
        let at = self.shard_of(hash);
        let mut shard = lock(&self.shards[at]);
        match self.find(hash, &key) {
            Some((read, ..)) if !read.expired(now) && now.saturating_sub(read.last) <= flow.idle => {
                return None;
            }
            _ if flow.idle >= connection.timeout() => return None,
            // The connection known here is from the time before the guest left.
            Some((.., index)) => self.remove(&mut shard, index),
            None => {}
        }
        let new = New { connection, rule: None, charged, hash, now };
        let entered = self.admit_or_refuse(&mut shard, at, &new).ok()?;
        self.entry(entered.index).resume(flow, now);
        Some(entered)
    }

    fn create(&self, new: &New) -> Result<FlowRef, DropReason> {
        self.forget_expired(new);
        let at = self.shard_of(new.hash);
        let mut shard = lock(&self.shards[at]);
        if let Some((read, reply, index)) = self.find(new.hash, &new.connection.original) {
            // Two workers may see a connection's first packets at once: the second one finds it already created.
            let twin = !reply
                && read.connection.state == new.connection.state
                && self.entry(index).created() == new.now
                && !read.expired(new.now);
            // Behind the same address, the first one has chosen the port. A different address is that of other tables.
            let bindings = [read.connection.binding, new.connection.binding];
            let tags = bindings.map(|binding| binding.map(|binding| binding.tag));
            if twin && tags[0] == tags[1] && bindings[0] != bindings[1] {
                return Err(DropReason::SnatPorts);
            }
            if twin && tags[0] == tags[1] {
                return Ok(FlowRef { index, seq: read.seq });
            }
            // The answerer may reopen a connection; it stays charged to its first opener.
            let charged = if reply { new.charged } else { self.entry(index).charged() };
            self.remove(&mut shard, index);
            return self.admit_or_refuse(&mut shard, at, &New { charged, ..*new });
        }
        self.admit_or_refuse(&mut shard, at, new)
    }

    fn admit_or_refuse(&self, shard: &mut Shard, at: usize, new: &New) -> Result<FlowRef, DropReason> {
        let flow = self.admit(shard, at, new);
        if flow.is_err() {
            self.accounts.refuse(new.charged);
        }
        flow
    }

    /// Removes a live entry of the locked shard.
    fn remove(&self, shard: &mut Shard, index: u32) {
        let entry = self.entry(index);
        let hash = self.hash(&entry.original());
        let slot = Self::slot(hash, index);
        let mut slots = self.buckets(hash).into_iter().flatten();
        if let Some(mine) = slots.find(|s| s.load(Ordering::Relaxed) == slot) {
            mine.store(0, Ordering::Release);
        }
        self.unbind(index);
        self.accounts.give_back(entry.charged());
        entry.clear(shard.free);
        shard.free = index;
        self.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the entries that have been used at least once, shard by shard.
    fn indexes(&self) -> impl Iterator<Item = u32> {
        self.used.iter().enumerate().flat_map(|(shard, used)| {
            let first = (shard * self.per_shard) as u32;
            first..first + used.load(Ordering::Acquire)
        })
    }

    /// Removes the entry if it is still the one that was read, and `which` returns true.
    fn remove_if_still(&self, index: u32, seq: u32, which: impl FnOnce(&Read) -> bool) -> bool {
        let mut shard = lock(&self.shards[index as usize / self.per_shard]);
        let remove = self.entry(index).read().is_some_and(|read| read.seq == seq && which(&read));
        if remove {
            self.remove(&mut shard, index);
        }
        remove
    }

    /// Removes expired connections among the next `entries`, starting where the last call ended. Returns how
    /// many. The housekeeper calls it; an eighth of the table per second keeps up with every timeout.
    pub fn expire(&self, now: Seconds, entries: usize) -> usize {
        let capacity = (self.per_shard * self.shards.len()) as u64;
        let mut at = self.sweep.load(Ordering::Relaxed) % capacity;
        let (mut left, mut skipped, mut removed) = (entries, 0, 0);
        while left > 0 && skipped <= self.shards.len() {
            let shard = at as usize / self.per_shard;
            if at as usize % self.per_shard >= self.used[shard].load(Ordering::Acquire) as usize {
                at = (((shard + 1) % self.shards.len()) * self.per_shard) as u64;
                skipped += 1;
                continue;
            }
            let index = at as u32;
            if let Some(read) = self.entry(index).read()
                && read.expired(now)
                && self.remove_if_still(index, read.seq, |read| read.expired(now))
            {
                removed += 1;
            }
            at = (at + 1) % capacity;
            left -= 1;
        }
        self.sweep.store(at, Ordering::Relaxed);
        removed
    }

    /// Calls `each` for the connections until it returns false. Connections may come and go meanwhile.
    pub fn for_each(&self, now: Seconds, each: &mut dyn FnMut(FlowInfo) -> bool) {
        for index in self.indexes() {
            if let Some(info) = self.entry(index).info(now)
                && !each(info)
            {
                return;
            }
        }
    }

    /// Removes the connections for which `which` returns true; returns how many.
    pub fn flush(&self, now: Seconds, which: &mut dyn FnMut(&FlowInfo) -> bool) -> usize {
        let mut removed = 0;
        for index in self.indexes() {
            let Some(read) = self.entry(index).read() else { continue };
            if self.entry(index).info(now).is_some_and(|info| which(&info)) {
                removed += usize::from(self.remove_if_still(index, read.seq, |_| true));
            }
        }
        removed
    }

    /// Removes the connections for whose original direction `which` returns true.
    pub(crate) fn remove_if(&self, which: impl Fn(&FlowKey) -> bool) {
        for index in self.indexes() {
            if let Some(read) = self.entry(index).read()
                && which(&read.connection.original)
            {
                self.remove_if_still(index, read.seq, |_| true);
            }
        }
    }
}

fn entry_of(slot: &AtomicU64) -> Option<u32> {
    (slot.load(Ordering::Relaxed) as u32).checked_sub(1)
}

/// Locks a mutex. A panic leaves no state guarded here half-changed, so poison is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests;
