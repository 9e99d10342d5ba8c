//! Numbers for the contexts of flows: with them a flow's key fits a cache line, whatever headers its packets have.

use crate::hash::fold;
use model::{Vif, VifId, ovs};
use packet::TunnelKind;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::net::Ipv6Addr;
use tables::Snapshot;

/// Most contexts known at a time.
const MOST: usize = 1 << 16;
/// About how many contexts are forgotten at once when there are too many: each time, all are looked at, and
/// so many new contexts pay for that.
const SHED: usize = MOST / 4;
/// Bits that tell which numbers are in use. Numbers that share one are kept together.
const MARKS: usize = 2 * MOST;
/// Once so many numbers were given away, numbering begins anew before the next burst, because packets of a
/// burst may still have numbers from before.
const ENOUGH: u32 = 1 << 31;
/// Contexts that are found without the map: those of the most recent bursts.
const RECENT: usize = 64;

/// How keys of packets that meet flows of Open vSwitch differ from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Looks {
    /// Whether packets may meet any.
    pub at_flows: bool,
    /// Whether flows look at these fields of single packets: then the fields distinguish contexts.
    ttl: bool,
    tcp_flags: bool,
    /// Nobody looks at addresses and ports, so that keys do not have them ([`Snapshot::ovs_is_coarse`]).
    pub coarse: bool,
}

impl Looks {
    const fn of(mask: &ovs::Key) -> Self {
        Self { at_flows: true, ttl: mask.ip_ttl != 0, tcp_flags: mask.tcp_flags != 0, coarse: false }
    }

    /// Returns the looks at a port that an Open vSwitch programs.
    pub fn of_port(port: &Vif, snapshot: &Snapshot) -> Self {
        Self { coarse: snapshot.ovs_is_coarse(port), ..Self::of(&snapshot.ovs_mask(port.id)) }
    }

    /// Returns the looks at a wire: those at packets in tunnels that have ports of their own.
    pub fn of_wire(snapshot: &Snapshot) -> Self {
        snapshot.ovs_tunnel_mask().map_or_else(Self::default, |mask| Self::of(&mask))
    }
}

/// The properties that a flow's packets share besides the 5-tuple: their ingress, and all L2 and tunnel
/// headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Context {
    /// Interface, the outermost header's tag (with its presence in bit 16), TTL and TCP flags where they decide,
    /// whether keys are coarse, and the kind of tunnel.
    origin: u64,
    /// Addresses of the innermost Ethernet header, zero if there is none; above them a label or network identifier,
    /// and the length of Geneve's options.
    macs: [u64; 2],
    /// Addresses of the outer Ethernet header and of the outer IP header, IPv4 as mapped. Only with a tunnel.
    outer: [u64; 6],
}

/// A context that no packet has.
pub(crate) const NOBODY: Context = Context { origin: u64::MAX, macs: [0; 2], outer: [0; 6] };
/// Stands for the number of a context that has none. No entry's key contains it. It is not 0 either, because
/// empty lines contain 0.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// Kind of a context without a tunnel.
const PLAIN: u64 = 0;
const KIND_AT: u32 = 48;
const TTL_AT: u32 = 33;
const FLAGS_AT: u32 = 41;
/// Set in contexts of coarse keys, so that none of them equals that of a packet whose addresses and ports are
/// zero.
const COARSE_AT: u32 = 46;
/// The flags below this bit are in no packet that the fast parse accepts: FIN, SYN, RST.
const FIRST_FLAG: u32 = 3;

const KINDS: [TunnelKind; 4] =
    [TunnelKind::MplsUdp, TunnelKind::MplsGre, TunnelKind::Vxlan, TunnelKind::Geneve];

/// Returns the number that stands for a kind of tunnel in a context.
const fn number_of(kind: TunnelKind) -> u64 {
    match kind {
        TunnelKind::MplsUdp => 1,
        TunnelKind::MplsGre => 2,
        TunnelKind::Vxlan => 3,
        TunnelKind::Geneve => 4,
    }
}

/// Returns the addresses of an Ethernet header as two words.
#[inline(always)]
pub(crate) const fn macs(ethernet: &[u8; 14]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *ethernet;
    [u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes([i, j, k, l, 0, 0, 0, 0])]
}

impl Context {
    #[inline(always)]
    pub const fn of(ingress: VifId) -> Self {
        Self { origin: ingress.0 as u64, macs: [0; 2], outer: [0; 6] }
    }

    const fn ingress(&self) -> VifId {
        VifId(self.origin as u16)
    }

    #[inline(always)]
    pub const fn set_macs(&mut self, macs: [u64; 2]) {
        self.macs = macs;
    }

    #[inline(always)]
    pub const fn set_tag(&mut self, tag: u16) {
        self.origin |= (1 << 16 | tag as u64) << 16;
    }

    #[inline(always)]
    pub const fn is_tagged(&self) -> bool {
        self.origin >> 32 & 1 != 0
    }

    /// Adds the fields at which flows look to the context.
    #[inline(always)]
    pub fn look(&mut self, at: Looks, ttl: u8, tcp_flags: impl FnOnce() -> u8) {
        if at.ttl {
            self.origin |= (ttl as u64) << TTL_AT;
        }
        if at.tcp_flags {
            self.origin |= u64::from(tcp_flags() >> FIRST_FLAG) << FLAGS_AT;
        }
        self.origin |= (at.coarse as u64) << COARSE_AT;
    }

    /// Turns the Ethernet header into that of a tunnel. Call it before setting the inner addresses.
    #[inline(always)]
    pub const fn enter(&mut self, kind: TunnelKind, src: Ipv6Addr, dst: Ipv6Addr) {
        let (src, dst) = (src.to_bits(), dst.to_bits());
        let [a, b] = self.macs;
        self.origin |= number_of(kind) << KIND_AT;
        self.outer = [a, b, (src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64];
        self.macs = [0; 2];
    }

    /// Enters the same tunnel as `other`.
    #[inline(always)]
    pub const fn enter_as(&mut self, other: &Self) {
        self.origin |= other.origin >> KIND_AT << KIND_AT;
        self.outer = other.outer;
        self.macs = [0; 2];
    }

    #[inline(always)]
    pub fn tunnel(&self) -> Option<TunnelKind> {
        KINDS.into_iter().find(|kind| number_of(*kind) == self.origin >> KIND_AT)
    }

    /// Sets the label or network identifier of the tunnel, with the length of Geneve's options above it. Call it after
    /// setting the inner addresses.
    #[inline(always)]
    pub const fn set_id(&mut self, id: u32) {
        self.macs[1] |= (id as u64) << 32;
    }

    /// Returns whether it equals `other`. `WIRE`: whether it may have a tunnel.
    #[inline(always)]
    pub fn is<const WIRE: bool>(&self, other: &Self) -> bool {
        let plain =
            (self.origin ^ other.origin) | (self.macs[0] ^ other.macs[0]) | (self.macs[1] ^ other.macs[1]);
        plain == 0 && (!WIRE || self.origin >> KIND_AT == PLAIN || self.outer_differs(other) == 0)
    }

    /// Compares the outer headers without `==`, which would call `memcmp`; 0 if they are equal.
    #[inline(always)]
    fn outer_differs(&self, other: &Self) -> u64 {
        (0..self.outer.len()).fold(0, |all, i| all | self.outer[i] ^ other.outer[i])
    }

    /// Returns its index among the recent contexts.
    #[inline(always)]
    const fn place(&self) -> usize {
        let mixed =
            (self.macs[0] >> 40) ^ (self.macs[0] << 8) ^ (self.macs[1] >> 24) ^ self.macs[1] ^ self.origin;
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
    }
}

impl std::hash::Hash for Context {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { origin, macs, outer } = self;
        [*origin].iter().chain(macs).chain(outer).for_each(|word| state.write_u64(*word));
    }
}

/// A worker's contexts and their numbers.
#[derive(Debug)]
pub(crate) struct Contexts {
    recent: Box<[(Context, u32); RECENT]>,
    numbers: HashMap<Context, u32, Keyed>,
    /// Number of contexts of each interface.
    held: HashMap<VifId, usize, Keyed>,
    /// Which numbers the current round through the cache has seen in entries.
    marks: Box<[u64; MARKS / 64]>,
    next: u32,
}

/// Returns the word that holds a number's mark, and the mark's bit in it.
#[inline(always)]
const fn mark(number: u32) -> (usize, u64) {
    (number as usize % MARKS / 64, 1 << (number % 64))
}

impl Contexts {
    /// Creates an empty collection. `secrets` prevent senders from making contexts collide.
    pub fn new(secrets: [u64; 2]) -> Self {
        Self {
            recent: Box::new([(NOBODY, UNKNOWN); RECENT]),
            numbers: HashMap::with_hasher(Keyed(secrets)),
            held: HashMap::with_hasher(Keyed(secrets)),
            marks: Box::new([0; MARKS / 64]),
            next: 0,
        }
    }

    /// Returns the number of a known context, otherwise [`UNKNOWN`]. `WIRE`: whether the context may have a
    /// tunnel.
    #[inline(always)]
    pub fn number<const WIRE: bool>(&mut self, context: &Context) -> u32 {
        let (recent, number) = &self.recent[context.place()];
        if context.is::<WIRE>(recent) { *number } else { self.look_up(context) }
    }

    #[cold]
    #[inline(never)]
    fn look_up(&mut self, context: &Context) -> u32 {
        let number = self.numbers.get(context).copied().unwrap_or(UNKNOWN);
        if number != UNKNOWN {
            self.recent[context.place()] = (*context, number);
        }
        number
    }

    /// Returns the number of a context, and assigns one if it has none. If there are too many contexts,
    /// forgets some.
    pub fn intern(&mut self, context: &Context) -> u32 {
        match self.number::<true>(context) {
            UNKNOWN => {
                if self.numbers.len() >= MOST {
                    self.shed();
                }
                // A burst has too few packets for this number to reach `UNKNOWN`.
                self.next += 1;
                self.numbers.insert(*context, self.next);
                *self.held.entry(context.ingress()).or_default() += 1;
                self.next
            }
            number => number,
        }
    }

    /// Makes room: all interfaces may keep the same number of contexts; those that have more keep that many,
    /// chosen at random. Nobody finds cache entries of forgotten contexts any more, because their numbers are
    /// not given away again; these entries are removed when they are old.
    fn shed(&mut self) {
        let (held, random) = (&self.held, Keyed([self.next.into(), 0x9e37_79b9_7f4a_7c15]));
        let share = share(|most| held.values().map(|count| (*count).min(most)).sum());
        self.numbers.retain(|context, number| {
            let count = held.get(&context.ingress()).copied().unwrap_or(1);
            random.hash_one(u64::from(*number)) % (count as u64) < share as u64
        });
        self.recent.fill((NOBODY, UNKNOWN));
        self.count();
    }

    fn count(&mut self) {
        self.held.clear();
        for context in self.numbers.keys() {
            *self.held.entry(context.ingress()).or_default() += 1;
        }
    }

    /// Notes that an entry has this number.
    #[inline(always)]
    pub fn keep(&mut self, number: u32) {
        let (word, bit) = mark(number);
        self.marks[word] |= bit;
    }

    /// Forgets contexts whose numbers were not seen in any entry since the last call.
    pub fn age(&mut self) {
        let (marks, before) = (&self.marks, self.numbers.len());
        self.numbers.retain(|_, number| {
            let (word, bit) = mark(*number);
            marks[word] & bit != 0
        });
        self.marks.fill(0);
        if self.numbers.len() < before {
            self.recent.fill((NOBODY, UNKNOWN));
            self.count();
        }
    }

    /// Forgets all contexts. The cache must be empty.
    pub fn clear(&mut self) {
        if self.numbers.is_empty() {
            return;
        }
        self.recent.fill((NOBODY, UNKNOWN));
        self.numbers.clear();
        self.held.clear();
    }

    /// Returns whether so many numbers were given away that numbering must begin anew.
    #[inline(always)]
    pub const fn are_worn(&self) -> bool {
        self.next >= ENOUGH
    }

    /// Begins with the first number again. Before this, all contexts must be forgotten, and no packet may
    /// have a number.
    pub const fn renew(&mut self) {
        self.next = 0;
    }

    /// Pretends that nearly all numbers were given away.
    #[cfg(test)]
    pub const fn wear(&mut self) {
        self.next = UNKNOWN - 1;
    }
}

/// Returns how many contexts each interface may have at most, so that [`SHED`] become free. `kept` computes
/// the number of contexts that remain if each interface has at most so many.
fn share(kept: impl Fn(usize) -> usize) -> usize {
    let (mut fits, mut too_many) = (0, MOST);
    while too_many - fits > 1 {
        let most = fits.midpoint(too_many);
        if kept(most) <= MOST - SHED { fits = most } else { too_many = most }
    }
    fits
}

/// Builds the map's hashers, which are fast and keyed.
#[derive(Clone, Copy, Debug)]
struct Keyed([u64; 2]);

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        let Self([state, secret]) = *self;
        KeyedHasher { state, secret }
    }
}

struct KeyedHasher {
    state: u64,
    secret: u64,
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        // Contexts are hashed by words; this is only for completeness.
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, n: u64) {
        self.state = fold(self.state ^ n, self.secret).wrapping_add(n);
    }

    fn finish(&self) -> u64 {
        fold(self.state, self.secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(vif: u16, i: usize) -> Context {
        let mut context = Context::of(VifId(vif));
        context.set_macs([i as u64, 0]);
        context
    }

    impl Contexts {
        fn of(&self, vif: u16) -> usize {
            self.held.get(&VifId(vif)).copied().unwrap_or_default()
        }
    }

    /// Whatever the secrets are, contexts whose MACs or tunnels differ by one spread over the map as if by chance: over
    /// its groups (the lower bits of a hash) and over the tags within one (the highest).
    #[test]
    fn neighbours_spread() {
        const PARTS: usize = 1 << 7;
        let random = std::hash::RandomState::new();
        for round in 0..if cfg!(miri) { 1 } else { 200 } {
            let keyed = Keyed([random.hash_one(round), random.hash_one(!round)]);
            for address in 0..3 {
                let mut filled = [[0_u32; PARTS]; 2];
                for i in 0..1 << 11 {
                    let mut context = Context::of(VifId(1));
                    let [src, dst] = &mut context.macs;
                    *[src, dst, &mut context.outer[5]][address] = i;
                    let hash = keyed.hash_one(context);
                    filled[0][hash as usize % PARTS] += 1;
                    filled[1][(hash >> 57) as usize] += 1;
                }
                // By chance, 1 of 10^11 parts has more than three times the mean of 16.
                let most = filled.into_iter().flatten().max().unwrap_or(0);
                assert!(most < 48, "{most} in a part, address {address}, round {round}");
            }
        }
    }

    #[test]
    fn who_has_most_contexts_makes_room() {
        let mut contexts = Contexts::new([1, 2]);
        let few: Vec<_> =
            (0..100).map(|i| context(2, i)).chain((0..MOST / 8).map(|i| context(3, i))).collect();
        let numbers: Vec<_> = few.iter().map(|context| contexts.intern(context)).collect();
        for i in 0..2 * MOST {
            let number = contexts.intern(&context(1, i));
            assert_eq!(contexts.number::<false>(&context(1, i)), number);
            assert!(contexts.numbers.len() <= MOST && number as usize == few.len() + i + 1, "{number}");
        }
        assert!(contexts.of(1) > MOST / 2, "{}", contexts.of(1));
        assert_eq!(contexts.held.values().sum::<usize>(), contexts.numbers.len());
        let again: Vec<_> = few.iter().map(|context| contexts.number::<false>(context)).collect();
        assert_eq!(again, numbers);
    }

    /// A wire of many networks, beside guests that together leave it no room.
    #[test]
    fn nobody_makes_room_alone_or_again_and_again_with_the_same() {
        let mut contexts = Contexts::new([1, 2]);
        let (wire, guests, each) = (0, 1..=14, 4095);
        let mut kept_always: Vec<_> = (0..10_000).collect();
        for round in 0..4 {
            let of_wire = (0..10_000).map(|i| context(wire, i));
            let own = |guest| (0..each).map(move |i| context(guest, round * each + i));
            for context in of_wire.chain(guests.clone().flat_map(own)) {
                contexts.intern(&context);
            }
            let fair = (MOST - SHED) / 15;
            assert!(contexts.of(wire) > fair * 9 / 10, "{}", contexts.of(wire));
            kept_always.retain(|i| contexts.number::<false>(&context(wire, *i)) != UNKNOWN);
        }
        assert!(kept_always.len() < 2000, "{}", kept_always.len());
    }

    #[test]
    fn contexts_without_entries_are_forgotten() {
        let mut contexts = Contexts::new([1, 2]);
        let all: Vec<_> = (0..1000).map(|i| context((i % 3) as u16, i)).collect();
        let numbers: Vec<_> = all.iter().map(|context| contexts.intern(context)).collect();
        for even in numbers.iter().step_by(2) {
            contexts.keep(*even);
        }
        contexts.age();
        for (context, number) in all.iter().zip(&numbers) {
            let is_kept = number % 2 == numbers[0] % 2;
            assert_eq!(contexts.number::<false>(context), if is_kept { *number } else { UNKNOWN });
        }
        assert_eq!(contexts.held.values().sum::<usize>(), 500);
        contexts.age();
        assert!(contexts.numbers.is_empty() && contexts.held.is_empty());
        assert_eq!(contexts.intern(&all[0]), 1001, "no number again");
    }

    /// However few each interface has, a look at all contexts makes room for many.
    #[test]
    fn interfaces_that_have_as_many_make_room_together() {
        let mut contexts = Contexts::new([1, 2]);
        for i in 0..=MOST {
            contexts.intern(&context((i % 1000) as u16, i));
        }
        assert!(contexts.numbers.len() <= MOST - SHED / 2, "{}", contexts.numbers.len());
    }
}
