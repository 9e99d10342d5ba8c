//! One remembered connection: 128 bytes of atomics.
//!
//! Words that identify it are written under the shard's lock and read without, validated by a sequence number (a
//! seqlock); state, time and counters change in place.

use super::account::Account;
use model::{Connection, Counters, Endpoint, FlowInfo, FlowKey, FlowState, RuleId, Seconds, Vrf};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A packed [`FlowKey`].
pub(super) type KeyWords = [u64; 6];

/// Bits of the last key word.
const SRC_V4: u64 = 1 << 8;
const DST_V4: u64 = 1 << 9;

/// Packs a key. Equal keys give equal words and different ones different ones.
pub(super) fn pack(key: &FlowKey) -> KeyWords {
    let addr = |addr: IpAddr, v4: u64| match addr {
        IpAddr::V4(a) => (0, u64::from(a.to_bits()), v4),
        IpAddr::V6(a) => ((a.to_bits() >> 64) as u64, a.to_bits() as u64, 0),
    };
    let (s0, s1, src_v4) = addr(key.src.addr, SRC_V4);
    let (d0, d1, dst_v4) = addr(key.dst.addr, DST_V4);
    let ends = [key.src.vrf.0, key.dst.vrf.0, key.src.port, key.dst.port];
    let ends = ends.into_iter().fold(0, |word, half| word << 16 | u64::from(half));
    [s0, s1, d0, d1, ends, u64::from(key.protocol) | src_v4 | dst_v4]
}

fn unpack([s0, s1, d0, d1, ends, about]: KeyWords) -> FlowKey {
    let addr = |high: u64, low: u64, v4: bool| {
        if v4 {
            IpAddr::V4(Ipv4Addr::from_bits(low as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)))
        }
    };
    let src = addr(s0, s1, about & SRC_V4 != 0);
    let dst = addr(d0, d1, about & DST_V4 != 0);
    FlowKey {
        src: Endpoint { vrf: Vrf((ends >> 48) as u16), addr: src, port: (ends >> 16) as u16 },
        dst: Endpoint { vrf: Vrf((ends >> 32) as u16), addr: dst, port: ends as u16 },
        protocol: about as u8,
    }
}

/// Words of an entry.
pub(super) const WORDS: usize = 16;
/// Sequence number: bit 0 while being written, bit 1 while in use, generation above.
const SEQ: usize = 0;
/// The key, packed.
const KEY: usize = 1;
/// Rule (low half) and second of creation. Of a free entry, the next free one: not in a word that a worker may still
/// write which found the entry in use just before.
const ORIGIN: usize = 7;
/// The account that it is charged to (low half), and whether there is a rule.
const CHARGE: usize = 8;
/// Its hash, by which it is found in the index.
const HASH: usize = 9;
/// State, what was seen, whether packets are missing in the counters, and the sequence number they belong to (high
/// half).
const STATE: usize = 10;
/// Second of the last packet.
const LAST: usize = 11;
/// Packets and bytes, original direction and replies.
const COUNTERS: usize = 12;

const WRITING: u64 = 1;
const LIVE: u64 = 2;
const HAS_RULE: u64 = 1 << 32;
/// Of the state's word: packets are missing in the counters.
const APPROXIMATE: u64 = 1 << 16;

/// An entry, wherever it lies.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a>(pub &'a [AtomicU64; WORDS]);

/// What a seqlock read found.
pub(super) struct Read {
    pub connection: Connection,
    pub seq: u32,
    pub last: Seconds,
}

impl Read {
    pub fn expired(&self, now: Seconds) -> bool {
        let timeout = self.connection.state.timeout(self.connection.original.protocol);
        now.saturating_sub(self.last) >= timeout
    }
}

/// What a new entry says.
pub(super) struct New {
    pub connection: Connection,
    pub rule: Option<RuleId>,
    pub charged: Account,
    pub hash: u64,
    pub now: Seconds,
}

const fn rank(state: FlowState) -> u8 {
    match state {
        FlowState::New => 0,
        FlowState::Established => 1,
        FlowState::Closing => 2,
        FlowState::Closed => 3,
    }
}

const fn later(a: FlowState, b: FlowState) -> FlowState {
    if rank(a) >= rank(b) { a } else { b }
}

fn pack_state(state: FlowState, seen: u8, seq: u64) -> u64 {
    seq << 32 | u64::from(seen) << 8 | u64::from(rank(state))
}

fn unpack_state(word: u64) -> (FlowState, u8) {
    let state = match word & 3 {
        0 => FlowState::New,
        1 => FlowState::Established,
        2 => FlowState::Closing,
        _ => FlowState::Closed,
    };
    (state, (word >> 8) as u8)
}

impl Entry<'_> {
    fn get(self, word: usize) -> u64 {
        self.0[word].load(Ordering::Relaxed)
    }

    fn set(self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Relaxed);
    }

    /// Reads it if it is in use. `None` as well where it was being written meanwhile.
    pub fn read(self) -> Option<Read> {
        let seq = self.0[SEQ].load(Ordering::Acquire);
        if seq & (WRITING | LIVE) != LIVE {
            return None;
        }
        let key = std::array::from_fn(|i| self.get(KEY + i));
        let (state, seen) = unpack_state(self.get(STATE));
        let last = self.get(LAST) as Seconds;
        fence(Ordering::Acquire);
        (self.get(SEQ) == seq).then(|| Read {
            connection: Connection { original: unpack(key), state, seen },
            seq: seq as u32,
            last,
        })
    }

    /// Whether `seq` is still the one of [`Self::read`].
    pub fn is(self, seq: u32) -> bool {
        self.0[SEQ].load(Ordering::Acquire) as u32 == seq
    }

    /// Fills a free entry. Under the shard's lock. Returns its sequence number.
    pub fn fill(self, new: &New) -> u32 {
        let seq = (self.get(SEQ) | WRITING | LIVE) + 4;
        self.set(SEQ, seq);
        fence(Ordering::Release);
        pack(&new.connection.original).into_iter().enumerate().for_each(|(i, word)| self.set(KEY + i, word));
        self.set(ORIGIN, u64::from(new.now) << 32 | u64::from(new.rule.map_or(0, |r| r.0)));
        let has_rule = if new.rule.is_some() { HAS_RULE } else { 0 };
        self.set(CHARGE, has_rule | u64::from(new.charged.number()));
        self.set(HASH, new.hash);
        let seq = seq & !WRITING;
        self.set(STATE, pack_state(new.connection.state, new.connection.seen, seq));
        self.set(LAST, new.now.into());
        (0..4).for_each(|i| self.set(COUNTERS + i, 0));
        self.0[SEQ].store(seq, Ordering::Release);
        seq as u32
    }

    /// Makes it a free one. Under the shard's lock.
    pub fn clear(self, next_free: u32) {
        self.0[SEQ].store(self.get(SEQ) & !LIVE, Ordering::Relaxed);
        fence(Ordering::Release); // Whoever reads what follows finds it no longer in use.
        self.set(ORIGIN, next_free.into());
    }

    /// The free entry after this one.
    pub fn next_free(self) -> u32 {
        self.get(ORIGIN) as u32
    }

    pub fn hash(self) -> u64 {
        self.get(HASH)
    }

    pub fn charged(self) -> Account {
        Account::numbered(self.get(CHARGE) as u32)
    }

    /// Whether it has had a packet each way at most, as far as they have been counted.
    pub fn is_single(self) -> bool {
        let most = self.get(COUNTERS).max(self.get(COUNTERS + 2));
        most <= 1 && self.get(STATE) & APPROXIMATE == 0
    }

    pub fn created(self) -> Seconds {
        (self.get(ORIGIN) >> 32) as Seconds
    }

    /// Brings what is remembered together with what a packet did. Two workers may do so at once, one for each
    /// direction, neither knowing of the other's packet: what was seen adds up, and states only advance. Returns
    /// whether it is still the connection `seq` says.
    pub fn update(self, to: &Connection, seq: u32, now: Seconds) -> bool {
        const BOTH: u8 = Connection::FIN | Connection::REPLY_FIN;
        let merge = |word: u64| {
            let (state, seen) = unpack_state(word);
            let seen = seen | to.seen;
            let state = match later(state, to.state) {
                FlowState::Closing if seen & BOTH == BOTH => FlowState::Closed,
                state => state,
            };
            let new = pack_state(state, seen, seq.into()) | word & APPROXIMATE;
            ((word >> 32) as u32 == seq && new != word).then_some(new)
        };
        let _ = self.0[STATE].fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
        let still = self.is(seq);
        if still {
            self.touch_at(now);
        }
        still
    }

    fn touch_at(self, now: Seconds) {
        // Counts may come late, for packets of seconds ago: they must not make it look idle.
        if self.get(LAST) < u64::from(now) {
            self.set(LAST, now.into());
        }
    }

    /// Counts packets.
    pub fn count(self, reply: bool, packets: u64, bytes: u64, now: Seconds) {
        let at = COUNTERS + 2 * usize::from(reply);
        self.0[at].fetch_add(packets, Ordering::Relaxed);
        self.0[at + 1].fetch_add(bytes, Ordering::Relaxed);
        self.touch_at(now);
    }

    /// Notes that packets are missing in the counters, unless it is another connection than `seq` says.
    pub fn miscount(self, seq: u32) {
        let mark = |word: u64| {
            let marks = (word >> 32) as u32 == seq && word & APPROXIMATE == 0;
            marks.then_some(word | APPROXIMATE)
        };
        let _ = self.0[STATE].fetch_update(Ordering::Relaxed, Ordering::Relaxed, mark);
    }

    /// For people.
    pub fn info(self, now: Seconds) -> Option<FlowInfo> {
        let read = self.read()?;
        let rule = (self.get(CHARGE) & HAS_RULE != 0).then(|| RuleId(self.get(ORIGIN) as u32));
        let counters = |at| Counters { packets: self.get(COUNTERS + at), bytes: self.get(COUNTERS + at + 1) };
        let info = FlowInfo {
            key: read.connection.original,
            state: read.connection.state,
            rule,
            forward: counters(0),
            reply: counters(2),
            approximate: self.get(STATE) & APPROXIMATE != 0,
            age: now.saturating_sub(self.created()),
            idle: now.saturating_sub(read.last),
        };
        fence(Ordering::Acquire);
        self.is(read.seq).then_some(info)
    }
}
