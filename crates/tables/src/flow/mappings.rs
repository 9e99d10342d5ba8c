//! The ends of guests that have one port of a shared address for all destinations ([`model::snat::Mapping`]).
//!
//! A table holds these ends, each with its port and the number of connections that have it. A set beside it holds the
//! ports that are taken, so that no other end gets them. Both are made of the connections: an end goes with its last
//! one, and there are no more ends than connections, each of which is charged to somebody.
//!
//! Locks are taken in this order: the connection's shard, the end's, the port's. A look-up of an end's port takes the
//! end's alone, and only a connection's first packet makes one.

use super::zeroed::Zeroed;
use super::{Flows, MAX_SHARDS, MIN_SHARD, WAYS, lock};
use model::{Binding, DropReason, Endpoint, FlowKey, OutsidePort, Vrf};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of an end: its address, its other fields with its port, and the number of its connections with the protocol.
const WORDS: usize = 4;
const COUNT_AT: u32 = 16;
/// In the words of an end: its address is IPv4.
const IS_V4: u64 = 1 << 8;
/// In a taken port: it is of an IPv4 address; the word is in use.
const OF_V4: u64 = 1 << 56;
const IN_USE: u64 = 1 << 57;

pub(super) struct Mappings {
    shards: Box<[Mutex<()>]>,
    /// Buckets of ends. A shard's lock guards those of the shard.
    ends: Zeroed<{ WAYS * WORDS }>,
    port_shards: Box<[Mutex<()>]>,
    /// Buckets of taken ports, read without locks.
    ports: Zeroed<WAYS>,
    /// Buckets of a shard, a power of two, in both.
    per_shard: usize,
}

/// An end and its port, as the words of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mapping {
    addr: [u64; 2],
    /// Network, port inside, tag and port outside.
    ends: u64,
    about: u64,
}

impl Mapping {
    fn new(inside: &Endpoint, outside: OutsidePort, protocol: u8) -> Self {
        let (addr, v4) = match inside.addr {
            IpAddr::V4(addr) => ([0, u64::from(addr.to_bits())], IS_V4),
            IpAddr::V6(addr) => ([(addr.to_bits() >> 64) as u64, addr.to_bits() as u64], 0),
        };
        let ends = [inside.vrf.0, inside.port, outside.tag, outside.port];
        let ends = ends.into_iter().fold(0, |word, half| word << 16 | u64::from(half));
        Self { addr, ends, about: u64::from(protocol) | v4 }
    }

    /// Reads a place that its shard's lock guards; returns also the number of connections. `None` if it is free.
    fn read(place: &[AtomicU64; WORDS]) -> Option<(Self, u64)> {
        let [high, low, ends, about] = place.each_ref().map(|word| word.load(Ordering::Relaxed));
        let (count, about) = (about >> COUNT_AT, about % (1 << COUNT_AT));
        (count > 0).then_some((Self { addr: [high, low], ends, about }, count))
    }

    fn write(self, place: &[AtomicU64; WORDS], count: u64) {
        let Self { addr: [high, low], ends, about } = self;
        let words = [high, low, ends, count << COUNT_AT | about];
        place.iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }

    /// Returns whether both are of the same end.
    fn is_of_end(&self, other: &Self) -> bool {
        (self.addr, self.about, self.ends >> 32) == (other.addr, other.about, other.ends >> 32)
    }

    const fn outside(&self) -> OutsidePort {
        OutsidePort { tag: (self.ends >> 16) as u16, port: self.ends as u16 }
    }

    /// Returns its port as a word of the set.
    const fn taken(&self) -> u64 {
        let v4 = if self.about & IS_V4 == 0 { 0 } else { OF_V4 };
        let port = (self.ends >> 48) << 32 | self.ends & 0xffff_ffff;
        IN_USE | v4 | (self.about & 0xff) << 48 | port
    }
}

impl Mappings {
    /// Creates empty tables for as many connections. They take memory as ends need it.
    pub fn new(capacity: usize) -> Self {
        let shards = (capacity / MIN_SHARD).clamp(1, MAX_SHARDS);
        let locks = || (0..shards).map(|_| Mutex::new(())).collect();
        let buckets = capacity * 2 / WAYS;
        Self {
            shards: locks(),
            ends: Zeroed::new(buckets),
            port_shards: locks(),
            ports: Zeroed::new(buckets),
            per_shard: buckets / shards,
        }
    }

    fn shard(&self, hash: u64) -> usize {
        (hash >> 58) as usize & (self.shards.len() - 1)
    }

    fn buckets(&self, hash: u64) -> [usize; 2] {
        let first = self.shard(hash) * self.per_shard;
        [hash >> 32, hash >> 12].map(|bits| first + (bits as usize & (self.per_shard - 1)))
    }

    /// Returns the places where an end with this hash may be. The shard must be locked.
    fn places(&self, hash: u64) -> impl Iterator<Item = &[AtomicU64; WORDS]> {
        let buckets = self.buckets(hash).into_iter();
        buckets.flat_map(|bucket| self.ends.records()[bucket].as_chunks::<WORDS>().0)
    }

    fn port_places(&self, hash: u64) -> impl Iterator<Item = &AtomicU64> {
        self.buckets(hash).into_iter().flat_map(|bucket| &self.ports.records()[bucket])
    }

    fn is_taken(&self, hash: u64, port: u64) -> bool {
        self.port_places(hash).any(|place| place.load(Ordering::Acquire) == port)
    }

    /// Takes a port. Returns false if somebody has it, or there is no room.
    fn take(&self, hash: u64, port: u64) -> bool {
        let _shard = lock(&self.port_shards[self.shard(hash)]);
        let mut free = self.port_places(hash).filter(|place| place.load(Ordering::Relaxed) == 0);
        let place = free.next().filter(|_| !self.is_taken(hash, port));
        place.inspect(|place| place.store(port, Ordering::Release)).is_some()
    }

    fn give_back(&self, hash: u64, port: u64) {
        let _shard = lock(&self.port_shards[self.shard(hash)]);
        let mine = self.port_places(hash).find(|place| place.load(Ordering::Relaxed) == port);
        mine.into_iter().for_each(|place| place.store(0, Ordering::Release));
    }
}

impl Flows {
    /// Returns the port that a guest's end has for all destinations ([`model::Lookup::mapping`]).
    #[must_use]
    pub fn mapping(
        &self,
        inside: &Endpoint,
        protocol: u8,
        is_usable: &dyn Fn(OutsidePort) -> bool,
    ) -> Option<OutsidePort> {
        let sought = Mapping::new(inside, OutsidePort { tag: 0, port: 0 }, protocol);
        let hash = self.end_hash(inside, protocol);
        let _shard = lock(&self.mappings.shards[self.mappings.shard(hash)]);
        let found = self.mappings.places(hash).filter_map(Mapping::read);
        let its = found.filter(|(found, _)| found.is_of_end(&sought)).map(|(found, _)| found.outside());
        its.filter(|port| is_usable(*port)).min()
    }

    /// Returns whether an end has this port for all destinations ([`model::Lookup::is_mapped`]). Takes no locks.
    #[must_use]
    pub fn is_mapped(&self, vrf: Vrf, outside: (IpAddr, u16), protocol: u8) -> bool {
        let port = OutsidePort { tag: model::snat::tag(outside.0), port: outside.1 };
        let nobody = Endpoint { vrf, addr: nobody(outside.0), port: 0 };
        let taken = Mapping::new(&nobody, port, protocol).taken();
        self.mappings.is_taken(self.port_hash(&nobody, port, protocol), taken)
    }

    /// Counts a new connection between these ends with the others of the guest's end, if that has its port for all
    /// destinations.
    ///
    /// # Errors
    /// `SnatPorts`: the end has a different port of the address, a different end has the port, or there is no room.
    pub(super) fn hold(&self, original: &FlowKey, binding: Binding) -> Result<(), DropReason> {
        let Some((inside, outside)) = binding.mapping(original) else { return Ok(()) };
        let new = Mapping::new(&inside, outside, original.protocol);
        let hash = self.end_hash(&inside, original.protocol);
        let _shard = lock(&self.mappings.shards[self.mappings.shard(hash)]);
        let mut free = None;
        for place in self.mappings.places(hash) {
            match Mapping::read(place) {
                Some((found, count)) if found == new => {
                    new.write(place, count + 1);
                    return Ok(());
                }
                Some((found, _)) if found.is_of_end(&new) && found.outside().tag == outside.tag => {
                    return Err(DropReason::SnatPorts);
                }
                Some(_) => {}
                None => free = free.or(Some(place)),
            }
        }
        let place = free.ok_or(DropReason::SnatPorts)?;
        let port_hash = self.port_hash(&inside, outside, original.protocol);
        if !self.mappings.take(port_hash, new.taken()) {
            return Err(DropReason::SnatPorts);
        }
        new.write(place, 1);
        Ok(())
    }

    /// Reverses [`Self::hold`].
    pub(super) fn release(&self, original: &FlowKey, binding: Binding) {
        let Some((inside, outside)) = binding.mapping(original) else { return };
        let held = Mapping::new(&inside, outside, original.protocol);
        let hash = self.end_hash(&inside, original.protocol);
        let _shard = lock(&self.mappings.shards[self.mappings.shard(hash)]);
        for place in self.mappings.places(hash) {
            let Some((_, count)) = Mapping::read(place).filter(|(found, _)| *found == held) else { continue };
            held.write(place, count - 1);
            if count == 1 {
                self.mappings.give_back(self.port_hash(&inside, outside, original.protocol), held.taken());
            }
            return;
        }
    }

    fn end_hash(&self, inside: &Endpoint, protocol: u8) -> u64 {
        let dst = Endpoint { addr: nobody(inside.addr), port: 0, ..*inside };
        self.hash(&FlowKey { src: *inside, dst, protocol })
    }

    /// Returns the hash of a port of a network. Of `of`, the network and the family count.
    fn port_hash(&self, of: &Endpoint, port: OutsidePort, protocol: u8) -> u64 {
        let OutsidePort { tag, port } = port;
        let binding = Binding { tag, port, of_destination: false, for_all: true };
        let remote = Endpoint { vrf: of.vrf, addr: nobody(of.addr), port: 0 };
        self.hash(&binding.key(of.vrf, remote, protocol))
    }
}

/// Returns the address of nobody, in the family of an address.
const fn nobody(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
