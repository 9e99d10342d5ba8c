//! One connection: 128 bytes of atomics.
//!
//! The words that identify it are written under the shard's lock and read without it, validated by a sequence number
//! (a seqlock). State, time and counters change in place.

use super::account::Account;
use super::state::{State, pack_edge, pack_windows, unpack_edge, window_of};
use executor::{Counters, FlowInfo};
use model::tcp::{Edge, advance, advance_in_order};
use model::{Binding, Connection, Endpoint, FlowKey, RuleId, Seconds, Segment, Tcp, Vrf};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

pub(super) type KeyWords = [u64; 6];

/// Bits of the last key word.
const SRC_V4: u64 = 1 << 8;
const DST_V4: u64 = 1 << 9;

/// Packs a key. Equal keys give equal words, different keys different ones.
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

/// Words of an entry: two cache lines. For a TCP connection, packets of the original direction write to the first
/// line, replies to the second.
pub(super) const WORDS: usize = 16;
/// Sequence number: bit 0 while being written, bit 1 while in use, generation above.
const SEQ: usize = 0;
/// The key, packed. Its last word also holds the connection's account and its rule. In a free entry, the first word
/// holds the number of the next free one. That is safe: a worker that found the entry in use just before never writes
/// this word.
const KEY: usize = 1;
/// Index of the key's last word.
const ABOUT: usize = 6;
/// For each side of a TCP connection: end (high half) and acknowledgment of what it sent.
const EDGES: [usize; 2] = [7, 14];
/// State, traffic seen, knowledge about TCP, and the sequence number to which all of these belong (high
/// half).
const STATE: usize = 8;
/// Second of the last packet, and second of creation (high half).
const LAST: usize = 9;
/// Packets and bytes, original direction and replies. The highest bits of the packets' words are a connection's binding:
/// its port, and its tag.
const COUNTERS: usize = 10;
const BOUND_AT: u32 = 48;
const PACKETS: u64 = (1 << BOUND_AT) - 1;
/// For a TCP connection: the sides' largest windows, and the number at which a SYN would start it anew (high half).
const WINDOWS: usize = 15;

/// The words that change while the entry holds the same connection, besides its state.
const CHANGING: [usize; 8] =
    [EDGES[0], EDGES[1], WINDOWS, LAST, COUNTERS, COUNTERS + 1, COUNTERS + 2, COUNTERS + 3];

const WRITING: u64 = 1;
const LIVE: u64 = 2;
/// Fields in the last word of the key.
const HAS_RULE: u64 = 1 << 10;
const ACCOUNT_AT: u32 = 11;
const RULE_AT: u32 = 28;
/// Bits of the binding: there is one; it is the destination's; its port is for all destinations.
const IS_BOUND: u64 = 1 << 60;
const BINDS_DESTINATION: u64 = 1 << 61;
const BINDS_FOR_ALL: u64 = 1 << 62;

/// An entry, in a table or elsewhere.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a>(pub &'a [AtomicU64; WORDS]);

/// The result of a seqlock read.
pub(super) struct Read {
    pub connection: Connection,
    pub seq: u32,
    pub last: Seconds,
}

impl Read {
    pub fn expired(&self, now: Seconds) -> bool {
        now.saturating_sub(self.last) >= self.connection.timeout()
    }
}

pub(super) struct New {
    pub connection: Connection,
    pub rule: Option<RuleId>,
    pub charged: Account,
    pub hash: u64,
    pub now: Seconds,
}

impl Entry<'_> {
    fn get(self, word: usize) -> u64 {
        self.0[word].load(Ordering::Relaxed)
    }

    fn set(self, word: usize, value: u64) {
        self.store(word, value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn store(self, word: usize, value: u64, order: Ordering) {
        #[cfg(test)]
        super::kill::here();
        self.0[word].store(value, order);
    }

    #[inline(always)]
    fn add(self, word: usize, n: u64) {
        #[cfg(test)]
        super::kill::here();
        self.0[word].fetch_add(n, Ordering::Relaxed);
    }

    #[inline(always)]
    fn change(self, word: usize, order: Ordering, to: impl Fn(u64) -> Option<u64>) {
        #[cfg(test)]
        super::kill::here();
        let _ = self.0[word].fetch_update(order, Ordering::Relaxed, to);
    }

    /// Reads the entry if it is in use. `None` also if it was written meanwhile.
    pub fn read(self) -> Option<Read> {
        let seq = self.0[SEQ].load(Ordering::Acquire);
        if seq & (WRITING | LIVE) != LIVE {
            return None;
        }
        let original = self.original();
        let state = State(self.0[STATE].load(Ordering::Acquire));
        let tcp = state.tcp(EDGES.map(|edge| self.get(edge)), self.get(WINDOWS));
        let last = self.get(LAST) as Seconds;
        let binding = self.binding();
        fence(Ordering::Acquire);
        (self.get(SEQ) == seq).then(|| Read {
            connection: Connection { original, state: state.state(), seen: state.seen(), tcp, binding },
            seq: seq as u32,
            last,
        })
    }

    /// Returns the key of an entry in use. Only for the holder of the shard's lock.
    pub fn original(self) -> FlowKey {
        unpack(std::array::from_fn(|i| self.get(KEY + i)))
    }

    /// Returns the binding of an entry in use. Only for the holder of the shard's lock.
    pub fn binding(self) -> Option<Binding> {
        let about = self.get(ABOUT);
        let high = |word| (self.get(word) >> BOUND_AT) as u16;
        (about & IS_BOUND != 0).then(|| Binding {
            tag: high(COUNTERS + 2),
            port: high(COUNTERS),
            of_destination: about & BINDS_DESTINATION != 0,
            for_all: about & BINDS_FOR_ALL != 0,
        })
    }

    /// Returns the outside key of an entry in use. Only for the holder of the shard's lock.
    pub fn outside_key(self) -> Option<FlowKey> {
        let binding = self.binding()?;
        let original = self.original();
        let (guest, remote) = binding.ends(&original);
        Some(binding.key(guest.vrf, remote, original.protocol))
    }

    /// Returns whether `seq` is still the sequence number that [`Self::read`] would find.
    pub fn is(self, seq: u32) -> bool {
        self.0[SEQ].load(Ordering::Acquire) as u32 == seq
    }

    /// Fills a free entry, under the shard's lock. Returns its sequence number.
    pub fn fill(self, new: &New) -> u32 {
        let seq = (self.get(SEQ) | WRITING | LIVE) + 4;
        self.set(SEQ, seq);
        fence(Ordering::Release);
        let connection = &new.connection;
        pack(&connection.original).into_iter().enumerate().for_each(|(i, word)| self.set(KEY + i, word));
        let rule = new.rule.map_or(0, |rule| HAS_RULE | u64::from(rule.0) << RULE_AT);
        let binding = connection.binding.map_or(0, |binding| {
            let side = if binding.of_destination { BINDS_DESTINATION } else { 0 };
            IS_BOUND | side | if binding.for_all { BINDS_FOR_ALL } else { 0 }
        });
        self.set(ABOUT, self.get(ABOUT) | binding | rule | u64::from(new.charged.number()) << ACCOUNT_AT);
        let seq = seq & !WRITING;
        for (word, edge) in EDGES.into_iter().zip(connection.tcp.edges) {
            self.set(word, pack_edge(edge));
        }
        self.set(WINDOWS, pack_windows(&connection.tcp));
        self.set(STATE, State::of(connection, seq as u32).0);
        self.set(LAST, u64::from(new.now) << 32 | u64::from(new.now));
        let (port, tag) = connection.binding.map_or((0, 0), |binding| (binding.port, binding.tag));
        let words = [u64::from(port) << BOUND_AT, 0, u64::from(tag) << BOUND_AT, 0];
        words.into_iter().enumerate().for_each(|(i, word)| self.set(COUNTERS + i, word));
        self.store(SEQ, seq, Ordering::Release);
        seq as u32
    }

    /// Gives an entry that was just filled the past that its connection had elsewhere, under the shard's
    /// lock.
    pub fn resume(self, flow: &FlowInfo, now: Seconds) {
        let ago = |seconds| u64::from(now.saturating_sub(seconds));
        self.set(LAST, ago(flow.age) << 32 | ago(flow.idle));
        let Counters { packets, bytes } = flow.forward;
        let Counters { packets: replies, bytes: reply_bytes } = flow.reply;
        for (i, count) in [packets & PACKETS, bytes, replies & PACKETS, reply_bytes].into_iter().enumerate() {
            self.add(COUNTERS + i, count);
        }
        if flow.approximate {
            self.miscount(State(self.get(STATE)).seq());
        }
    }

    /// Returns a number that identifies the connection among all that this entry ever holds. If the entry
    /// holds none now, the number is a different one.
    pub fn holds(self) -> u64 {
        self.get(SEQ)
    }

    /// Returns whether state, time and counters equal those of a different entry with the same connection.
    pub fn is_up_to_date_with(self, other: Self) -> bool {
        self.get(STATE) as u32 == other.get(STATE) as u32
            && CHANGING.into_iter().all(|word| self.get(word) == other.get(word))
    }

    /// Takes over state, time and counters from a different entry with the same connection, under the shard's
    /// lock and before workers use this entry.
    pub fn catch_up_with(self, other: Self) {
        CHANGING.into_iter().for_each(|word| self.set(word, other.get(word)));
        let state = self.get(STATE) >> 32 << 32 | u64::from(other.get(STATE) as u32);
        self.store(STATE, state, Ordering::Release);
    }

    /// Makes the entry free, under the shard's lock.
    pub fn clear(self, next_free: u32) {
        self.set(SEQ, self.get(SEQ) & !LIVE);
        fence(Ordering::Release); // A reader that sees later writes sees it no longer in use.
        self.set(KEY, next_free.into());
    }

    /// Returns the number of the free entry after this one.
    pub fn next_free(self) -> u32 {
        self.get(KEY) as u32
    }

    pub fn charged(self) -> Account {
        Account::numbered((self.get(ABOUT) >> ACCOUNT_AT) as u32 & ((1 << (RULE_AT - ACCOUNT_AT)) - 1))
    }

    /// Returns whether it has had at most one packet in each direction, as far as packets were counted.
    pub fn is_single(self) -> bool {
        let most = (self.get(COUNTERS) & PACKETS).max(self.get(COUNTERS + 2) & PACKETS);
        most <= 1 && !State(self.get(STATE)).is_approximate()
    }

    pub fn created(self) -> Seconds {
        (self.get(LAST) >> 32) as Seconds
    }

    /// Merges a packet's change into the state. Two workers may do so at once, one for each direction,
    /// without knowing of each other's packet: marks add up, and states only advance. Returns whether the
    /// entry still holds the connection of `seq`.
    pub fn update(self, to: &Connection, reply: bool, seq: u32, now: Seconds) -> bool {
        let side = usize::from(reply);
        let is_same = State(self.get(STATE)).seq() == seq;
        if let Some(edge) = to.tcp.edges[side].filter(|_| is_same) {
            self.set(EDGES[side], pack_edge(Some(edge)));
        }
        if is_same && to.tcp != Tcp::default() {
            self.raise_windows(pack_windows(&to.tcp), to.tcp.reopen.is_some());
        }
        let merge = |word: u64| {
            let state = State(word);
            let new = state.merged(to, reply);
            (state.seq() == seq && new != state).then_some(new.0)
        };
        // A reader that sees the known bits sees the edges too.
        self.change(STATE, Ordering::Release, merge);
        let still = self.is(seq);
        if still {
            self.touch_at(now);
        }
        still
    }

    /// Tracks a TCP segment that is neither SYN, FIN nor RST: records its effect, if [`Connection::follow`]
    /// would do no more. Otherwise does nothing and returns false.
    #[inline(always)]
    pub fn advance(self, reply: bool, seq: u32, segment: &Segment) -> bool {
        let (side, state) = (usize::from(reply), State(self.0[STATE].load(Ordering::Acquire)));
        let [word, other, windows] = [EDGES[side], EDGES[1 - side], WINDOWS].map(|at| self.get(at));
        let window = state.plain_window(windows, 1 - side);
        let followed = state.is_followed(seq);
        match advance_in_order(unpack_edge(word), unpack_edge(other), window, segment) {
            Some(edge) if followed => self.note(side, [word, windows], edge, segment.window),
            _ => self.advance_any(side, seq, segment),
        }
    }

    /// Does the same as [`Self::advance`], for any segment.
    #[cold]
    fn advance_any(self, side: usize, seq: u32, segment: &Segment) -> bool {
        let state = State(self.0[STATE].load(Ordering::Acquire));
        if !state.is_plain_for(side, seq) {
            return false;
        }
        let (word, windows) = (self.get(EDGES[side]), self.get(WINDOWS));
        let other = state.acknowledges(1 - side).then(|| unpack_edge(self.get(EDGES[1 - side])));
        let sizes = [state.window(windows, side), state.window(windows, 1 - side)];
        advance(Some(unpack_edge(word)), other, sizes, state.is_liberal(), segment)
            .is_some_and(|edge| self.note(side, [word, windows], edge, segment.window))
    }

    /// Records a side's new edge, and its window if that is larger, given these former words.
    #[inline(always)]
    fn note(self, side: usize, [word, windows]: [u64; 2], edge: Edge, window: u16) -> bool {
        let edge = pack_edge(Some(edge));
        if edge != word {
            // If two workers have packets of one direction at once, one update is lost; the next packet brings it
            // again.
            self.set(EDGES[side], edge);
        }
        if window > window_of(windows, side) {
            self.raise_windows(u64::from(window) << (16 * side), false);
        }
        true
    }

    /// Records larger windows, and the number at which a SYN `reopens` the connection.
    #[cold]
    fn raise_windows(self, to: u64, reopens: bool) {
        let raise = |word: u64| {
            let raised = |side| u64::from(window_of(word, side).max(window_of(to, side))) << (16 * side);
            let reopen = if reopens { to } else { word } >> 32 << 32;
            let new = reopen | raised(1) | raised(0);
            (new != word).then_some(new)
        };
        self.change(WINDOWS, Ordering::Relaxed, raise);
    }

    fn touch_at(self, now: Seconds) {
        // Counts may arrive late, for packets of some seconds ago: they must not make the connection look idle.
        let word = self.get(LAST);
        if (word as Seconds) < now {
            self.set(LAST, word >> 32 << 32 | u64::from(now));
        }
    }

    pub fn count(self, reply: bool, packets: u64, bytes: u64, now: Seconds) {
        let at = COUNTERS + 2 * usize::from(reply);
        self.add(at, packets);
        self.add(at + 1, bytes);
        self.touch_at(now);
    }

    /// Marks the counters as incomplete, unless the entry now holds a different connection than that of
    /// `seq`.
    pub fn miscount(self, seq: u32) {
        self.mark(seq, State::approximate);
    }

    /// Marks the TCP state as incomplete, unless the entry now holds a different connection than that of
    /// `seq`.
    pub fn loosen(self, seq: u32) {
        self.mark(seq, State::liberal);
    }

    fn mark(self, seq: u32, marked: impl Fn(State) -> State) {
        let mark = |word: u64| {
            let (state, marked) = (State(word), marked(State(word)));
            (state.seq() == seq && marked != state).then_some(marked.0)
        };
        self.change(STATE, Ordering::Relaxed, mark);
    }

    pub fn is_free(self) -> bool {
        self.get(SEQ) & (WRITING | LIVE) == 0
    }

    /// Returns whether this table could have written an entry in use like this one until `now`.
    pub fn is_sound(self, now: Seconds) -> bool {
        let key = self.original();
        let (words, about) = (pack(&key), self.get(ABOUT));
        let is_key = (0..ABOUT - KEY).all(|i| self.get(KEY + i) == words[i])
            && about % HAS_RULE == words[ABOUT - KEY]
            && key.src.addr.is_ipv4() == key.dst.addr.is_ipv4();
        let is_bound = about & IS_BOUND != 0 || about & (BINDS_DESTINATION | BINDS_FOR_ALL) == 0;
        let rule = (about & !(IS_BOUND | BINDS_DESTINATION | BINDS_FOR_ALL)) >> RULE_AT;
        let is_rule = if about & HAS_RULE == 0 { rule == 0 } else { u32::try_from(rule).is_ok() };
        let (seq, state) = (self.get(SEQ), State(self.get(STATE)));
        let last = self.get(LAST) as Seconds;
        let is_state = self.read().is_some_and(|read| state.is_of(&read.connection, seq as u32));
        is_key && is_bound && is_rule && is_state && self.created() <= last && last <= now
    }

    /// Returns a description of the connection, for display.
    pub fn info(self, now: Seconds) -> Option<FlowInfo> {
        let read = self.read()?;
        let about = self.get(ABOUT);
        let rule = (about & HAS_RULE != 0).then_some(RuleId((about >> RULE_AT) as u32));
        let counters =
            |at| Counters { packets: self.get(COUNTERS + at) & PACKETS, bytes: self.get(COUNTERS + at + 1) };
        let info = FlowInfo {
            key: read.connection.original,
            state: read.connection.state,
            rule,
            forward: counters(0),
            reply: counters(2),
            approximate: State(self.get(STATE)).is_approximate(),
            age: now.saturating_sub(self.created()),
            idle: now.saturating_sub(read.last),
            seen: read.connection.seen,
            tcp: read.connection.tcp,
            binding: read.connection.binding,
            charged: self.charged().parts(),
        };
        fence(Ordering::Acquire);
        self.is(read.seq).then_some(info)
    }
}
