//! The flow cache of one worker: decisions memoised by flow.
//!
//! An entry is one cache line: its key, and what each of its packets needs. What is needed less often (what the
//! decision depended on, the connection, counters' targets) lies elsewhere. Nothing here is shared, so nothing
//! is atomic. The table has a fixed size, is touched as it fills, and is set-associative: a look-up probes
//! [`WAYS`] lines at most, whatever keys a guest chooses; the hash is keyed and not linear, so that it can't
//! choose those of one set.

use crate::huge;
use crate::key::{Context, Key};
use mem::prefetch;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Lines of a set.
const WAYS: usize = 8;
/// 64-bit words of a line.
const WORDS: usize = 8;
/// Bits of the epoch an entry keeps. The cache is emptied when the others change, so that none is mistaken.
const EPOCH_BITS: u32 = 24;
/// Bits of the index of an entry's rest.
const REST_BITS: u32 = 24;
/// Contexts known at once; the cache is emptied rather than exceed it.
const CONTEXTS: usize = 1 << 16;

/// An entry's place, good until the next insertion or removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// What each packet needs of its entry, besides the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hot {
    /// Epoch of the tables at which the decision was last known to hold (its lower bits).
    pub epoch: u32,
    /// How its packets are rewritten.
    pub template: u16,
    /// Longest IP packet known to pass.
    pub max_len: u16,
    /// Second (its lower bits) in which the connection was last touched.
    pub second: u16,
    /// Whether its packets are policed.
    pub metered: bool,
    /// Packets not yet counted elsewhere, less than 128.
    pub packets: u8,
    /// Their bytes.
    pub bytes: u32,
    /// Where the entry's rest is; set by the cache.
    pub rest: u32,
}

impl Hot {
    /// Packets after which they are counted elsewhere.
    pub const FULL: u8 = 64;

    #[inline(always)]
    fn pack(self) -> [u64; 2] {
        let first =
            u64::from(self.epoch) | u64::from(self.rest) << EPOCH_BITS | u64::from(self.template) << 48;
        let second = u64::from(self.max_len)
            | u64::from(self.second) << 16
            | u64::from(self.packets) << 32
            | u64::from(self.metered) << 39
            | u64::from(self.bytes) << 40;
        [first, second]
    }

    #[inline(always)]
    fn unpack([first, second]: [u64; 2]) -> Self {
        Self {
            epoch: first as u32 & ((1 << EPOCH_BITS) - 1),
            rest: (first >> EPOCH_BITS) as u32 & ((1 << REST_BITS) - 1),
            template: (first >> 48) as u16,
            max_len: second as u16,
            second: (second >> 16) as u16,
            packets: (second >> 32) as u8 & 0x7f,
            metered: second >> 39 & 1 != 0,
            bytes: (second >> 40) as u32,
        }
    }
}

/// The part of an epoch that entries keep.
#[inline(always)]
pub(crate) const fn short_epoch(epoch: u64) -> u32 {
    epoch as u32 & ((1 << EPOCH_BITS) - 1)
}

/// An entry that was removed.
#[derive(Debug)]
pub(crate) struct Removed<R> {
    /// Its hot part, with what it had not counted yet.
    pub hot: Hot,
    /// Its rest.
    pub rest: R,
}

/// The flow cache.
#[derive(Debug)]
pub(crate) struct Cache<R> {
    words: Vec<u64>,
    /// First word of the first line: lines are aligned to cache lines.
    first: usize,
    /// Number of sets less one.
    mask: usize,
    secrets: [u64; 7],
    rest: Vec<Option<R>>,
    /// Entropy hashes of flows, for tunnels; beside `rest`.
    entropy: Vec<u32>,
    free: Vec<u32>,
    contexts: HashMap<Context, u32, KeyedState>,
    next_context: u32,
    cursor: usize,
}

impl<R> Cache<R> {
    /// A cache of at least `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        let sets = capacity.div_ceil(WAYS).next_power_of_two().clamp(1, 1 << (REST_BITS - 3));
        let mut words = vec![0_u64; (sets * WAYS + 1) * WORDS];
        huge::advise(&mut words);
        let first = words.as_ptr().align_offset(64).min(WORDS);
        let random = RandomState::new();
        let secrets = std::array::from_fn(|i| {
            let mut hasher = random.build_hasher();
            hasher.write_usize(i);
            hasher.finish()
        });
        Self {
            words,
            first,
            mask: sets - 1,
            secrets,
            rest: Vec::new(),
            entropy: Vec::new(),
            free: Vec::new(),
            contexts: HashMap::with_hasher(KeyedState(secrets[0], secrets[1])),
            next_context: 0,
            cursor: 0,
        }
    }

    /// The number a context is known by, if it is.
    pub fn context(&self, context: &Context) -> Option<u32> {
        self.contexts.get(context).copied()
    }

    /// The number of a context, made known if it wasn't. `None` where there are too many: empty the cache.
    pub fn intern(&mut self, context: &Context) -> Option<u32> {
        if let Some(&number) = self.contexts.get(context) {
            return Some(number);
        }
        if self.contexts.len() >= CONTEXTS {
            return None;
        }
        self.next_context = self.next_context.checked_add(1)?;
        self.contexts.insert(*context, self.next_context);
        Some(self.next_context)
    }

    /// The hash of a key.
    #[inline(always)]
    pub fn hash(&self, Key(key): &Key) -> u64 {
        let s = &self.secrets;
        let a = fold(key[0] ^ s[0], key[1] ^ s[1]);
        let b = fold(key[2] ^ s[2], key[3] ^ s[3]);
        let c = fold(key[4] ^ s[4], key[5] ^ s[5]);
        fold(a ^ b.rotate_left(21), c ^ s[6])
    }

    #[inline(always)]
    fn line_of(&self, hash: u64, way: usize) -> usize {
        (hash as usize & self.mask) * WAYS + (way ^ (hash >> 61) as usize)
    }

    #[inline(always)]
    fn line(&self, line: usize) -> &[u64; WORDS] {
        let at = self.first + line * WORDS;
        self.words[at..].first_chunk().unwrap_or(&[0; WORDS])
    }

    #[inline(always)]
    fn line_mut(&mut self, line: usize) -> &mut [u64] {
        let at = self.first + line * WORDS;
        &mut self.words[at..at + WORDS]
    }

    /// Brings near the line where the key with this hash most likely lies.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        prefetch(self.line(self.line_of(hash, 0)).as_ptr().cast());
    }

    /// The entry of a key.
    #[inline(always)]
    pub fn find(&self, hash: u64, Key(key): &Key) -> Option<Slot> {
        for way in 0..WAYS {
            let at = self.line_of(hash, way);
            let line = self.line(at);
            // Without a branch per word: a line whose first word matches is nearly always the one.
            let differs = key.iter().zip(line).fold(0, |differs, (a, b)| differs | (a ^ b));
            if differs == 0 {
                return Some(Slot(at as u32));
            }
        }
        None
    }

    /// An entry's hot part.
    #[inline(always)]
    pub fn hot(&self, Slot(slot): Slot) -> Hot {
        let line = self.line(slot as usize);
        Hot::unpack([line[6], line[7]])
    }

    /// Changes an entry's hot part.
    #[inline(always)]
    pub fn set_hot(&mut self, Slot(slot): Slot, hot: Hot) {
        let line = self.line_mut(slot as usize);
        line[6..].copy_from_slice(&hot.pack());
    }

    /// An entry's rest.
    pub fn rest(&self, slot: Slot) -> Option<&R> {
        self.rest.get(self.hot(slot).rest as usize)?.as_ref()
    }

    /// As [`Cache::rest`], to change it.
    pub fn rest_mut(&mut self, slot: Slot) -> Option<&mut R> {
        let rest = self.hot(slot).rest as usize;
        self.rest.get_mut(rest)?.as_mut()
    }

    /// The entropy hash of a flow.
    #[inline(always)]
    pub fn entropy(&self, hot: Hot) -> u32 {
        self.entropy.get(hot.rest as usize).copied().unwrap_or(0)
    }

    /// Inserts an entry; a full set gives up the entry longest unused, which is returned, as is one of the same key.
    pub fn insert(&mut self, hash: u64, key: &Key, hot: Hot, entropy: u32, rest: R) -> Option<Removed<R>> {
        let now = hot.second;
        let victim = self.find(hash, key).map_or_else(|| self.victim(hash, now), |Slot(line)| line as usize);
        let removed = self.remove(Slot(victim as u32));
        let index = self.free.pop().unwrap_or(self.rest.len() as u32);
        match self.rest.get_mut(index as usize) {
            Some(place) => {
                *place = Some(rest);
                self.entropy[index as usize] = entropy;
            }
            None => {
                self.rest.push(Some(rest));
                self.entropy.push(entropy);
            }
        }
        let line = self.line_mut(victim);
        line[..6].copy_from_slice(&key.0);
        line[6..].copy_from_slice(&Hot { rest: index, ..hot }.pack());
        removed
    }

    /// The line of the set to use: a free one, or that of the entry longest unused.
    fn victim(&self, hash: u64, now: u16) -> usize {
        let mut oldest = (0, self.line_of(hash, 0));
        for way in 0..WAYS {
            let at = self.line_of(hash, way);
            if self.line(at)[0] == 0 {
                return at;
            }
            let idle = now.wrapping_sub(self.hot(Slot(at as u32)).second);
            if idle > oldest.0 {
                oldest = (idle, at);
            }
        }
        oldest.1
    }

    /// Removes an entry, if there is one.
    pub fn remove(&mut self, slot: Slot) -> Option<Removed<R>> {
        let hot = self.hot(slot);
        let line = self.line_mut(slot.0 as usize);
        if line[0] == 0 {
            return None;
        }
        line.fill(0);
        self.free.push(hot.rest);
        let rest = self.rest[hot.rest as usize].take()?;
        Some(Removed { hot, rest })
    }

    /// The next `lines` lines of an endless walk over the table: those of them that are entries.
    pub fn walk(&mut self, lines: usize) -> impl Iterator<Item = Slot> + use<R> {
        let total = (self.mask + 1) * WAYS;
        let start = self.cursor;
        self.cursor = (start + lines) % total;
        (0..lines.min(total)).map(move |i| Slot(((start + i) % total) as u32))
    }

    /// Whether there is an entry at a slot.
    pub fn is_used(&self, Slot(slot): Slot) -> bool {
        self.line(slot as usize)[0] != 0
    }

    /// Lines in all.
    pub const fn lines(&self) -> usize {
        (self.mask + 1) * WAYS
    }

    /// Forgets all contexts; every entry must have been removed.
    pub fn forget_contexts(&mut self) {
        self.contexts.clear();
    }
}

/// Multiplies to 128 bits and folds them.
#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// Builds the hashers of the contexts' map: as quick as [`Cache::hash`], and keyed like it.
#[derive(Clone, Copy, Debug)]
struct KeyedState(u64, u64);

impl BuildHasher for KeyedState {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { state: self.0, secret: self.1 }
    }
}

struct KeyedHasher {
    state: u64,
    secret: u64,
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.state = fold(self.state ^ n, self.secret).wrapping_add(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        fold(self.state, self.secret)
    }
}
