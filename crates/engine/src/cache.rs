//! The flow cache of one worker: memoised decisions by flow.
//!
//! An entry is one cache line: its key, the number of its action, which other flows share, its connection or its flow
//! of Open vSwitch, and counts not yet passed on to these. Workers share nothing of it, so nothing is atomic.
//!
//! Entries lie close together, so that few pages hold them all: where the TLB does not know a page, a look-up waits
//! longer than for the line. They are found by an index of sets, each a cache line of references with some bits of the
//! hash. So a look-up reads one set and, nearly always, one entry, whatever keys a guest chooses. Until it has its full
//! size, the index is at most a quarter full. It grows by linear hashing, one set at a time: no growth takes longer
//! than an insertion.

use crate::contexts::Contexts;
use crate::hash::KeyHash;
use crate::huge::{Line, Table};
use crate::key::Key;
use mem::prefetch;
use model::ovs;
use tables::{FlowCell, FlowRef};

/// References in a set: so many that hardly any set is full before the index has its full size, although sets that are
/// not yet split hold twice as much as the others. In a full set, flows would drive each other out for every packet.
const WAYS: usize = 16;
/// Sets of an empty index.
const FIRST_SETS: usize = 256;
/// Average number of entries per set above which the index grows.
const DENSITY: usize = WAYS / 4;

/// A reference: the number of an entry's line, and above it bits of its hash, of which the highest is always set. 0:
/// none.
type Reference = u32;
const NUMBER_BITS: u32 = 21;
const NUMBER: Reference = (1 << NUMBER_BITS) - 1;
/// Position, in a hash, of the bits that references contain.
const TAG_AT: u32 = u64::BITS - (Reference::BITS - 1 - NUMBER_BITS);

/// The end of the list of free lines.
const NONE: u64 = u64::MAX;

/// The location of an entry, valid until its removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// An entry without its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The number of the action for its packets, less than [`Entry::ACTIONS`].
    pub action: u32,
    /// Longest IP packet that is known to pass.
    pub max_len: u16,
    /// When the connection was last updated for a packet, in ticks ([`crate::clock::Now::tick`]).
    pub tick: u8,
    /// Packets not yet counted elsewhere; at most [`Entry::FULL`].
    pub packets: u32,
    /// Their bytes.
    pub bytes: u32,
    /// Entropy hash of the flow, for tunnels: the lower 20 bits, which are enough for every use.
    pub entropy: u32,
    pub owner: Owner,
}

/// The connection or flow to which the packets of an entry belong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Owner {
    #[default]
    Nobody,
    /// A connection, and whether they go in its reply direction.
    Connection(FlowRef, bool),
    Ovs(OvsFlow),
}

/// A flow of Open vSwitch, as entries refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OvsFlow {
    /// The cell that changes when it is removed.
    pub cell: FlowCell,
    /// Counter of the flow; `None` if the packets do not fit the flow's actions.
    pub counter: Option<u32>,
    /// The last bits of the epoch at which it was last known to be there.
    pub stamp: u32,
}

impl OvsFlow {
    pub const fn new(cell: FlowCell, counter: Option<u32>, epoch: u64) -> Self {
        Self { cell, counter, stamp: epoch as u32 & STAMP }
    }

    /// Returns the epoch of its stamp, seen from `now`. For an entry so old that the stamp's bits have
    /// wrapped around, the result is wrong; such an entry is not used any more.
    pub const fn since(self, now: u64) -> u64 {
        now.saturating_sub(((now as u32).wrapping_sub(self.stamp) & STAMP) as u64)
    }

    const fn unpack(word: u64) -> Self {
        let counter = field(word, COUNTER_AT, COUNTER_BITS);
        Self {
            cell: FlowCell::from_bits(word as u16),
            counter: if counter < ovs::MAX_COUNTERS { Some(counter) } else { None },
            stamp: (word >> STAMP_AT) as u32,
        }
    }

    const fn pack(self) -> u64 {
        let counter = match self.counter {
            Some(counter) => counter,
            None => ovs::MAX_COUNTERS,
        };
        self.cell.to_bits() as u64 | (counter as u64) << COUNTER_AT | (self.stamp as u64) << STAMP_AT
    }
}

/// Positions of the fields in the two words, in bits from the lowest. The first word's lower half belongs to the key.
const ACTION_AT: u32 = 32;
const ACTION_BITS: u32 = 20;
const TICK_AT: u32 = 52;
const REPLY_AT: u32 = 60;
const OVS_AT: u32 = 61;
const PACKETS_AT: u32 = 16;
const PACKETS_BITS: u32 = 6;
const BYTES_AT: u32 = 22;
const BYTES_BITS: u32 = 22;
const ENTROPY_AT: u32 = 44;

/// Positions of the fields in the last word of an entry of a flow of Open vSwitch; the flow's cell comes
/// first.
const COUNTER_AT: u32 = FlowCell::BITS;
const COUNTER_BITS: u32 = 21;
const STAMP_AT: u32 = COUNTER_AT + COUNTER_BITS;
const STAMP: u32 = u32::MAX >> (u32::BITS - (u64::BITS - STAMP_AT));
const _: () = assert!(ovs::MAX_COUNTERS < 1 << COUNTER_BITS);

/// The last word of an entry that belongs to nobody.
const NO_FLOW: u64 = u64::MAX;

const fn field(word: u64, at: u32, bits: u32) -> u32 {
    (word >> at) as u32 & ((1 << bits) - 1)
}

impl Entry {
    /// Actions that entries can number.
    pub const ACTIONS: usize = 1 << ACTION_BITS;
    /// Bits of an entropy hash that entries keep.
    pub const ENTROPY: u32 = (1 << (64 - ENTROPY_AT)) - 1;
    /// Number of packets after which they are counted elsewhere: the bytes of so many of the longest frames fit the
    /// field.
    pub const FULL: u32 = 63;

    #[inline(always)]
    fn unpack(line: &Line) -> Self {
        let [.., five, six, seven] = *line;
        Self {
            action: field(five, ACTION_AT, ACTION_BITS),
            tick: (five >> TICK_AT) as u8,
            max_len: six as u16,
            packets: field(six, PACKETS_AT, PACKETS_BITS),
            bytes: field(six, BYTES_AT, BYTES_BITS),
            entropy: (six >> ENTROPY_AT) as u32,
            owner: match seven {
                _ if five >> OVS_AT & 1 != 0 => Owner::Ovs(OvsFlow::unpack(seven)),
                NO_FLOW => Owner::Nobody,
                _ => Owner::Connection(FlowRef::from_bits(seven), five >> REPLY_AT & 1 != 0),
            },
        }
    }

    #[inline(always)]
    fn pack_into(&self, line: &mut Line) {
        let (owner, about) = match self.owner {
            Owner::Nobody => (NO_FLOW, 0),
            Owner::Connection(flow, reply) => (flow.to_bits(), u64::from(reply) << REPLY_AT),
            Owner::Ovs(flow) => (flow.pack(), 1 << OVS_AT),
        };
        line[5] = line[5] & 0xffff_ffff
            | u64::from(self.action) << ACTION_AT
            | u64::from(self.tick) << TICK_AT
            | about;
        line[6] = u64::from(self.max_len)
            | u64::from(self.packets) << PACKETS_AT
            | u64::from(self.bytes) << BYTES_AT
            | u64::from(self.entropy) << ENTROPY_AT;
        line[7] = owner;
    }
}

/// The entry of a packet, read and written without unpacking it.
pub(crate) struct Found<'a>(&'a mut Line);

impl Found<'_> {
    #[inline(always)]
    pub const fn action(&self) -> u32 {
        field(self.0[5], ACTION_AT, ACTION_BITS)
    }

    /// Returns whether the entry was updated in this tick and can count one more packet.
    #[inline(always)]
    pub const fn is_current(&self, tick: u8) -> bool {
        ((self.0[5] >> TICK_AT) as u8 == tick) & (field(self.0[6], PACKETS_AT, PACKETS_BITS) < Entry::FULL)
    }

    #[inline(always)]
    pub const fn max_len(&self) -> u16 {
        self.0[6] as u16
    }

    #[inline(always)]
    pub const fn entropy(&self) -> u32 {
        (self.0[6] >> ENTROPY_AT) as u32
    }

    /// Returns whether the entry's flow of Open vSwitch existed at this epoch; true if it belongs to no such
    /// flow.
    #[inline(always)]
    pub const fn holds_at(&self, epoch: u64) -> bool {
        (self.0[5] >> OVS_AT & 1 == 0) | (self.0[7] >> STAMP_AT == epoch & STAMP as u64)
    }

    /// Returns the counter of the entry's flow of Open vSwitch, for actions that mark packets with it.
    #[inline(always)]
    pub const fn ovs_counter(&self) -> u32 {
        field(self.0[7], COUNTER_AT, COUNTER_BITS)
    }

    /// Returns its connection, and whether its packets go in the reply direction; `None` if it has no
    /// connection. Must not be called for an entry of a flow of Open vSwitch.
    #[inline(always)]
    pub const fn flow(&self) -> Option<(FlowRef, bool)> {
        if self.0[7] == NO_FLOW {
            return None;
        }
        Some((FlowRef::from_bits(self.0[7]), self.0[5] >> REPLY_AT & 1 != 0))
    }

    #[inline(always)]
    pub const fn count(&mut self, len: u32) {
        self.0[6] += 1 << PACKETS_AT | (len as u64) << BYTES_AT;
    }
}

const _: () = assert!(Entry::FULL < 1 << PACKETS_BITS && (Entry::FULL as u64 * (66_000)) < 1 << BYTES_BITS);

#[derive(Debug)]
pub(crate) struct Cache {
    /// The entries. Free lines begin with 0, and then have the number of the next free one.
    lines: Table<Line>,
    /// Lines that were ever in use since the cache was empty.
    touched: usize,
    /// The first free line among them.
    free: u64,
    /// References to the entries: all sets, up to the largest number.
    index: Table<[Reference; WAYS]>,
    /// Sets in use: at least a power of two and less than twice that, or the largest number.
    sets: usize,
    /// The lowest power of two above `sets`, minus one.
    mask: usize,
    hash: KeyHash,
    used: usize,
    cursor: usize,
    /// Lines that were looked at since contexts were forgotten.
    looked_at: usize,
    pub contexts: Contexts,
}

/// Returns the part of a reference that comes from the hash.
#[inline(always)]
const fn tag_of(hash: u64) -> Reference {
    1 << (Reference::BITS - 1) | ((hash >> TAG_AT) as Reference) << NUMBER_BITS
}

#[inline(always)]
const fn has_tag(reference: Reference, tag: Reference) -> bool {
    (reference ^ tag) >> NUMBER_BITS == 0
}

impl Cache {
    /// Creates a cache of at least `capacity` entries, but at most 2^21.
    pub fn new(capacity: usize) -> Self {
        let most = capacity.div_ceil(WAYS).next_power_of_two().clamp(1, (1 << NUMBER_BITS) / WAYS);
        let sets = most.min(FIRST_SETS);
        let hash = KeyHash::random();
        Self {
            lines: Table::new(most * WAYS),
            touched: 0,
            free: NONE,
            index: Table::new(most),
            sets,
            mask: 2 * sets - 1,
            used: 0,
            cursor: 0,
            looked_at: 0,
            contexts: Contexts::new(hash.secrets()),
            hash,
        }
    }

    #[inline(always)]
    pub const fn hash(&self, key: &Key) -> u64 {
        self.hash.of(key)
    }

    /// Returns the set of a hash. A set that is not yet split also holds the flows of the new set.
    #[inline(always)]
    fn set_of(&self, hash: u64) -> usize {
        let set = hash as usize & self.mask;
        if set < self.sets { set } else { set & (self.mask >> 1) }
    }

    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        prefetch(self.index[self.set_of(hash)].as_ptr().cast());
    }

    /// Returns the slot of the entry with this hash, if there is one, most likely; prefetches the entry.
    #[inline(always)]
    pub fn guess(&self, hash: u64) -> Slot {
        let slot = self.like(hash) & NUMBER;
        prefetch(self.lines[slot as usize].as_ptr().cast());
        Slot(slot)
    }

    /// Returns the reference with the tag of a hash; 0 if there is none, and an arbitrary number if there are
    /// several.
    #[inline(always)]
    fn like(&self, hash: u64) -> Reference {
        let (set, tag) = (&self.index[self.set_of(hash)], tag_of(hash));
        // Without a branch, which would often be predicted wrong: where in its set a flow is looks random.
        set.iter().fold(0, |all, &one| all | if has_tag(one, tag) { one } else { 0 })
    }

    #[inline(always)]
    pub fn is_at(&self, Slot(slot): Slot, Key(key): &Key) -> bool {
        let line = &self.lines[slot as usize];
        // Without a branch per word: if its first word matches, the line nearly always does.
        let differs = (key[0] ^ line[0])
            | (key[1] ^ line[1])
            | (key[2] ^ line[2])
            | (key[3] ^ line[3])
            | (key[4] ^ line[4])
            | u64::from(key[5] as u32 ^ line[5] as u32);
        differs == 0
    }

    pub fn find(&self, hash: u64, key: &Key) -> Option<Slot> {
        if self.like(hash) == 0 {
            return None;
        }
        let (set, tag) = (&self.index[self.set_of(hash)], tag_of(hash));
        let mut of_tag = set.iter().filter(|one| has_tag(**one, tag)).map(|one| Slot(one & NUMBER));
        of_tag.find(|slot| self.is_at(*slot, key))
    }

    /// Returns the entry at a slot, to use it in place.
    #[inline(always)]
    pub fn found(&mut self, Slot(slot): Slot) -> Found<'_> {
        Found(&mut self.lines[slot as usize])
    }

    /// Unpacks the entry at a slot.
    #[inline(always)]
    pub fn get(&self, Slot(slot): Slot) -> Entry {
        Entry::unpack(&self.lines[slot as usize])
    }

    /// Overwrites an entry; its key stays.
    #[inline(always)]
    pub fn set(&mut self, Slot(slot): Slot, entry: &Entry) {
        entry.pack_into(&mut self.lines[slot as usize]);
    }

    /// Inserts an entry. If its set is full, the set's entry that is unused for longest makes room. Returns
    /// the entry that made room, or the replaced entry of the same key.
    pub fn insert(&mut self, hash: u64, key: &Key, entry: &Entry) -> Option<Entry> {
        let known = self.find(hash, key);
        let (Slot(at), removed) = match known {
            Some(slot) => (slot, Some(self.get(slot))),
            None => {
                let removed = self.make_room(hash, entry.tick);
                (self.add(hash), removed)
            }
        };
        self.contexts.keep(key.context());
        let line = &mut self.lines[at as usize];
        line[..6].copy_from_slice(&key.0);
        entry.pack_into(line);
        if self.used > self.sets * DENSITY && self.sets < self.index.len() {
            self.split();
        }
        removed
    }

    /// Removes the entry that is unused for longest from the set of a hash, if the set is full.
    fn make_room(&mut self, hash: u64, now: u8) -> Option<Entry> {
        let set = &self.index[self.set_of(hash)];
        if set.contains(&0) {
            return None;
        }
        let idle = |one: &&Reference| now.wrapping_sub(self.get(Slot(**one & NUMBER)).tick);
        let oldest = set.iter().max_by_key(idle).map(|one| Slot(one & NUMBER));
        self.remove(oldest?)
    }

    /// Takes a free line for a hash whose set is not full.
    fn add(&mut self, hash: u64) -> Slot {
        let line = match self.free {
            // There are as many lines as references.
            NONE => {
                self.touched += 1;
                self.touched - 1
            }
            line => {
                self.free = self.lines[line as usize][1];
                line as usize
            }
        };
        self.used += 1;
        self.refer(hash, line as Reference | tag_of(hash));
        Slot(line as u32)
    }

    /// Puts a reference into the set of a hash, which is not full.
    fn refer(&mut self, hash: u64, reference: Reference) {
        let set = self.set_of(hash);
        if let Some(place) = self.index[set].iter_mut().find(|one| **one == 0) {
            *place = reference;
        }
    }

    /// Adds a set, and moves its references there from the set that held them so far.
    fn split(&mut self) {
        let old = self.sets - (self.mask >> 1) - 1;
        self.sets += 1;
        let references = std::mem::take(&mut self.index[old]);
        for reference in references.into_iter().filter(|one| *one != 0) {
            let hash = self.hash_at(Slot(reference & NUMBER));
            self.refer(hash, reference);
        }
        if self.sets > self.mask {
            self.mask = 2 * self.sets - 1;
        }
    }

    fn hash_at(&self, Slot(slot): Slot) -> u64 {
        let [a, b, c, d, e, f, ..] = self.lines[slot as usize];
        self.hash(&Key([a, b, c, d, e, u64::from(f as u32)]))
    }

    pub fn remove(&mut self, slot: Slot) -> Option<Entry> {
        if !self.is_used(slot) {
            return None;
        }
        let (removed, hash) = (self.get(slot), self.hash_at(slot));
        let (set, reference) = (self.set_of(hash), slot.0 | tag_of(hash));
        self.index[set].iter_mut().filter(|one| **one == reference).for_each(|one| *one = 0);
        self.lines[slot.0 as usize] = [0, self.free, 0, 0, 0, 0, 0, 0];
        self.free = slot.0.into();
        self.used -= 1;
        if self.used == 0 {
            (self.touched, self.free) = (0, NONE);
        }
        Some(removed)
    }

    /// Returns the next `lines` slots of an endless round through the table.
    pub fn walk(&mut self, lines: usize) -> impl Iterator<Item = Slot> + use<> {
        let total = self.lines();
        let start = self.cursor;
        self.cursor = (start + lines) % total;
        (0..lines.min(total)).map(move |i| Slot(((start + i) % total) as u32))
    }

    /// Notes that the context of the entry at a slot is in use.
    pub fn keep_context(&mut self, Slot(slot): Slot) {
        let [about, a, b, c, d, ports, ..] = self.lines[slot as usize];
        self.contexts.keep(Key([about, a, b, c, d, ports]).context());
    }

    /// Forgets contexts without entries, if all lines were looked at with the next `lines`.
    pub fn forget_contexts(&mut self, lines: usize) {
        self.looked_at += lines;
        if self.looked_at >= self.lines() {
            self.looked_at = 0;
            self.contexts.age();
        }
    }

    /// Returns whether there is an entry at a slot.
    #[inline(always)]
    pub fn is_used(&self, Slot(slot): Slot) -> bool {
        // No context has the number 0.
        self.lines[slot as usize][0] != 0
    }

    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the number of lines that a round through the table visits: all in use, but not so few that
    /// contexts are soon forgotten.
    pub fn lines(&self) -> usize {
        self.touched.max(FIRST_SETS * WAYS).min(self.lines.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::fold;

    fn key(i: u64) -> Key {
        Key([1, i, 0, 0, 0, i & 0xffff_ffff])
    }

    #[test]
    fn entries_are_found_while_the_table_grows() {
        let mut cache = Cache::new(1 << 16);
        let mut lost = 0;
        for i in 0..20_000 {
            let entry = Entry { action: i as u32, tick: 3, max_len: 1500, ..Entry::default() };
            lost += usize::from(cache.insert(cache.hash(&key(i)), &key(i), &entry).is_some());
        }
        assert_eq!((cache.sets, cache.lines()), (cache.index.len(), 20_000 - lost));
        let found = (0..20_000).filter(|&i| {
            let slot = cache.find(cache.hash(&key(i)), &key(i));
            slot.is_some_and(|slot| cache.get(slot).action == i as u32)
        });
        assert_eq!(found.count(), 20_000 - lost);
        assert!(lost < 60, "{lost} lost");
        assert_eq!(cache.walk(cache.lines()).filter(|slot| cache.is_used(*slot)).count(), 20_000 - lost);
    }

    #[test]
    fn entries_are_found_whatever_else_was_removed() {
        // About twelve entries for each of eight sets, so that some are full.
        let mut cache = Cache::new(8 * WAYS);
        let mut there = std::collections::BTreeSet::new();
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = fold(random ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93).wrapping_add(1);
            let i = random % 96;
            let hash = cache.hash(&key(i));
            if there.remove(&i) {
                let slot = cache.find(hash, &key(i)).unwrap();
                assert_eq!(cache.remove(slot).map(|entry| u64::from(entry.action)), Some(i));
            } else {
                there.insert(i);
                let entry = Entry { action: i as u32, ..Entry::default() };
                if let Some(evicted) = cache.insert(hash, &key(i), &entry) {
                    there.remove(&u64::from(evicted.action));
                }
            }
            let found = |i: u64| cache.find(cache.hash(&key(i)), &key(i)).map(|slot| cache.get(slot).action);
            assert!((0..96).all(|i| found(i) == there.contains(&i).then_some(i as u32)));
            assert_eq!(cache.is_empty(), there.is_empty());
        }
    }

    #[test]
    fn entries_say_what_they_were_told() {
        let mut cache = Cache::new(1 << 10);
        let (hash, key) = (cache.hash(&key(7)), key(7));
        let owner = Owner::Connection(FlowRef::from_bits(0x1234_5678_9abc_def0), true);
        let said = Entry {
            action: 0xf_ffff,
            tick: 255,
            max_len: 65_535,
            entropy: 0xf_ffff,
            owner,
            packets: 0,
            bytes: 0,
        };
        let ovs = |counter| OvsFlow::new(FlowCell::from_bits(0x3ffe), counter, 0x1234_5678_9abc);
        let others = [Owner::Nobody, Owner::Ovs(ovs(Some(ovs::MAX_COUNTERS - 1))), Owner::Ovs(ovs(None))];
        for owner in others.into_iter().chain([owner]) {
            cache.insert(hash, &key, &Entry { owner, ..said });
            let slot = cache.find(hash, &key).unwrap();
            assert_eq!(cache.get(slot), Entry { owner, ..said });
        }
        let slot = cache.find(hash, &key).unwrap();
        for packets in 1..=Entry::FULL {
            assert!(cache.found(slot).is_current(255));
            cache.found(slot).count(66_000);
            assert_eq!(cache.get(slot), Entry { packets, bytes: packets * 66_000, ..said });
        }
        assert!(!cache.found(slot).is_current(255) && !cache.found(slot).is_current(254));
        assert_eq!(cache.remove(slot).map(|entry| entry.packets), Some(Entry::FULL));
        assert!(cache.find(hash, &key).is_none() && cache.is_empty());
    }

    #[test]
    fn a_flow_is_known_since_an_epoch() {
        let (mut cache, key) = (Cache::new(1 << 10), key(7));
        let hash = cache.hash(&key);
        for epoch in [1, u64::from(STAMP), u64::from(STAMP) + 1, u64::from(u32::MAX) * 5] {
            let flow = OvsFlow::new(FlowCell::from_bits(1), Some(3), epoch);
            cache.insert(hash, &key, &Entry { owner: Owner::Ovs(flow), ..Entry::default() });
            let slot = cache.find(hash, &key).unwrap();
            assert!(cache.found(slot).holds_at(epoch) && !cache.found(slot).holds_at(epoch + 1));
            for later in [0, 1, 1000, u64::from(STAMP)] {
                assert_eq!(flow.since(epoch + later), epoch);
            }
        }
    }
}
