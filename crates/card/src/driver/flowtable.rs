//! The flows on the card, by their keys and by their connections.

use super::usage::Counter;
use crate::card::Identity;
use crate::compile::Hop;
use crate::cuckoo::{Cuckoo, Entry};
use crate::entries;
use crate::flows::{Flow, FlowVerdict};
use crate::frame::Key;
use crate::hash::Words;
use crate::hold::Hold;
use crate::registers::FlowAction;
use crate::step::Step;
use model::ovs::FlowId;
use model::{FlowKey, Nat, VifId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// The fraction of the room for flows that one guest may use, and that one wire may use, as divisors.
const GUEST_PART: usize = 16;
const WIRE_PART: usize = 2;

/// How often flows stayed on the host, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// The flow's interface had used up its share.
    pub quota: u64,
    /// There was no room: in the table, within reach of a search, and in the stash.
    pub full: u64,
}

#[derive(Debug)]
struct Record {
    flow: Flow,
    /// The interface by which it first came in.
    vif: VifId,
    counter: Counter,
    generation: u8,
}

impl Record {
    fn hop(&self) -> Option<Hop> {
        if let FlowVerdict::Forward { hop, .. } = self.flow.verdict { hop } else { None }
    }
}

/// The flows on the card, with indexes.
pub struct FlowTable {
    table: Cuckoo<entries::FlowEntry>,
    records: BTreeMap<Key, Record>,
    connections: BTreeMap<FlowKey, BTreeSet<Key>>,
    /// Keys by the flow of an Open vSwitch from which they were made.
    origins: BTreeMap<(VifId, FlowId), BTreeSet<Key>>,
    /// Number of flows by interface.
    by_vif: BTreeMap<VifId, usize>,
    /// Number of flows for which there is room.
    room: usize,
    pub refused: Refused,
    /// Generation by network; a missing network has 0.
    generations: BTreeMap<u16, u8>,
    /// Networks with flows that depend on other networks.
    far: BTreeSet<u16>,
    /// Numbers of counters that were used before and are free. Numbers from `next` to `end` were never used. Numbers
    /// below `counted` have counters, the others only seen bits.
    free: BTreeSet<u32>,
    next: u32,
    end: u32,
    counted: u32,
    /// The flows with counters, by counter.
    owners: BTreeMap<u32, Key>,
    /// The flow after which the sweep continues.
    swept: Option<Key>,
}

impl FlowTable {
    /// Makes an empty table with room for as many flows as the card has.
    pub fn new(card: &Identity, secret: Words) -> Self {
        let (bits, end) = (card.flow_buckets, card.flows_seen);
        Self {
            table: Cuckoo::new(bits, secret).with_stash(card.stash_flows),
            records: BTreeMap::new(),
            connections: BTreeMap::new(),
            origins: BTreeMap::new(),
            by_vif: BTreeMap::new(),
            room: (4 << bits).min(end as usize),
            refused: Refused::default(),
            generations: BTreeMap::new(),
            far: BTreeSet::new(),
            free: BTreeSet::new(),
            next: 0,
            end,
            counted: card.flow_counters,
            owners: BTreeMap::new(),
            swept: None,
        }
    }

    /// Returns the number of flows, including those of former generations.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns the number of flows in the stash.
    pub fn stashed(&self) -> usize {
        self.table.stashed()
    }

    /// Returns the generation of valid flows in a network.
    pub fn generation(&self, vrf: u16) -> u8 {
        self.generations.get(&vrf).copied().unwrap_or_default()
    }

    /// Starts the next generation in a network. If the numbers wrap around, returns all of its flows: the caller must
    /// remove them, or old ones would become valid again.
    pub fn bump(&mut self, vrf: u16) -> Vec<Key> {
        let generation = self.generations.entry(vrf).or_default();
        *generation = generation.wrapping_add(1);
        if *generation != 0 {
            return Vec::new();
        }
        self.records.keys().filter(|key| key.vrf == vrf).copied().collect()
    }

    /// Takes the set of networks with flows that depend on other networks. These flows are about to become invalid.
    pub fn take_far(&mut self) -> BTreeSet<u16> {
        std::mem::take(&mut self.far)
    }

    pub fn counter(&mut self, key: &Key) -> Option<&mut Counter> {
        self.records.get_mut(key).map(|record| &mut record.counter)
    }

    pub fn owner(&self, index: u32) -> Option<Key> {
        self.owners.get(&index).copied()
    }

    pub fn counted(&self) -> Vec<Key> {
        self.owners.values().copied().collect()
    }

    pub fn is_counted(&self, key: &Key) -> bool {
        self.records.get(key).is_some_and(|record| record.counter.index < self.counted)
    }

    pub fn uncounted(&self) -> usize {
        self.records.len() - self.owners.len()
    }

    /// Returns whether the card has exactly this flow.
    pub fn holds(&self, flow: &Flow) -> bool {
        let generation = self.generation(flow.key.vrf);
        self.records
            .get(&flow.key)
            .is_some_and(|record| record.generation == generation && record.flow == *flow)
    }

    /// Takes a free counter. Returns its number, and whether a flow had it before. If it must be `exact`, seen bits are
    /// not enough.
    pub fn take_counter(&mut self, exact: bool) -> Option<(u32, bool)> {
        let end = if exact { self.counted.min(self.end) } else { self.end };
        if let Some(index) = self.free.first().copied().filter(|index| *index < end) {
            self.free.remove(&index);
            return Some((index, true));
        }
        if self.next >= end {
            self.refused.full += 1;
            return None;
        }
        let index = self.next;
        self.next += 1;
        Some((index, false))
    }

    /// Returns the flows of a connection: all, or only those that drop packets.
    pub fn of_connection(&self, connection: &FlowKey, dropped_only: bool) -> Vec<Key> {
        let keys = self.connections.get(connection).into_iter().flatten();
        let dropped = |key: &Key| {
            let record = self.records.get(key);
            record.is_some_and(|record| matches!(record.flow.verdict, FlowVerdict::Drop(_)))
        };
        keys.filter(|key| !dropped_only || dropped(key)).copied().collect()
    }

    /// Returns the flows that were made from one of these flows of Open vSwitch.
    pub fn of_origins(&self, origins: RangeInclusive<(VifId, FlowId)>) -> Vec<Key> {
        self.origins.range(origins).flat_map(|(_, keys)| keys).copied().collect()
    }

    /// Examines the next `count` flows of the sweep over all. Returns those of former generations.
    pub fn stale(&mut self, count: usize) -> Vec<Key> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = self.swept.map_or(Unbounded, Excluded);
        let part: Vec<Key> = self.records.range((from, Unbounded)).take(count).map(|(key, _)| *key).collect();
        self.swept = if part.len() < count { None } else { part.last().copied() };
        let stale = |key: &Key| {
            self.records.get(key).is_some_and(|record| record.generation != self.generation(key.vrf))
        };
        part.into_iter().filter(stale).collect()
    }

    /// Returns whether an interface may have one more flow. Counts refusals.
    pub fn admits(&mut self, vif: VifId, wire: bool) -> bool {
        let part = if wire { WIRE_PART } else { GUEST_PART };
        let admits = self.by_vif.get(&vif).is_none_or(|count| *count < self.room / part);
        self.refused.quota += u64::from(!admits);
        admits
    }

    /// Puts a flow onto the card; `nexthop` is the number of its own nexthop. Returns the steps, or `None` if there is
    /// no room. There must be no flow with this key.
    pub fn insert(
        &mut self,
        flow: &Flow,
        vif: VifId,
        nexthop: Option<u32>,
        counter: Counter,
        hold: Option<Hold>,
    ) -> Option<Vec<Step>> {
        let generation = self.generation(flow.key.vrf);
        let mut entry = entry(flow, nexthop, generation, counter.index);
        if let Some(hold) = hold.filter(|_| matches!(flow.verdict, FlowVerdict::Forward { .. })) {
            *entry.action_mut() = hold.action();
        }
        let Ok(steps) = self.table.insert(entry) else {
            self.free.insert(counter.index);
            self.refused.full += 1;
            return None;
        };
        if let Some(connection) = flow.connection {
            self.connections.entry(connection).or_default().insert(flow.key);
        }
        if let Some(origin) = flow.origin {
            self.origins.entry((origin.port, origin.id)).or_default().insert(flow.key);
        }
        if flow.far {
            self.far.insert(flow.key.vrf);
        }
        if counter.index < self.counted {
            self.owners.insert(counter.index, flow.key);
        }
        *self.by_vif.entry(vif).or_default() += 1;
        self.records.insert(flow.key, Record { flow: flow.clone(), vif, counter, generation });
        Some(steps)
    }

    /// Changes a flow to plain forwarding if it is in this hold group. Returns the steps.
    pub fn free(&mut self, key: &Key, hold: Hold) -> Vec<Step> {
        let Some(mut entry) = self.held(key, hold) else { return Vec::new() };
        *entry.action_mut() = FlowAction::Forward as u8;
        // The entry keeps its place, so this can't fail.
        self.table.insert(entry).unwrap_or_default()
    }

    pub fn is_held(&self, key: &Key, hold: Hold) -> bool {
        self.held(key, hold).is_some()
    }

    fn held(&self, key: &Key, hold: Hold) -> Option<entries::FlowEntry> {
        let mut entry = *self.table.find(&entries::FlowEntry::from(key).key())?;
        (*entry.action_mut() == hold.action()).then_some(entry)
    }

    /// Takes a flow's entry off the card, before [`Self::remove`]. Returns the steps.
    pub fn hide(&mut self, key: &Key) -> Vec<Step> {
        self.table.remove(&entries::FlowEntry::from(key).key())
    }

    /// Takes a flow off the card. Returns its own nexthop and the steps.
    pub fn remove(&mut self, key: &Key) -> Option<(Option<Hop>, Vec<Step>)> {
        let record = self.records.remove(key)?;
        self.free.insert(record.counter.index);
        self.owners.remove(&record.counter.index);
        if let Some(count) = self.by_vif.get_mut(&record.vif) {
            *count -= 1;
            if *count == 0 {
                self.by_vif.remove(&record.vif);
            }
        }
        if let Some(connection) = record.flow.connection {
            forget(&mut self.connections, &connection, key);
        }
        if let Some(origin) = record.flow.origin {
            forget(&mut self.origins, &(origin.port, origin.id), key);
        }
        Some((record.hop(), self.table.remove(&entries::FlowEntry::from(key).key())))
    }
}

fn forget<O: Ord>(index: &mut BTreeMap<O, BTreeSet<Key>>, of: &O, key: &Key) {
    if let Some(keys) = index.get_mut(of) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(of);
        }
    }
}

fn entry(flow: &Flow, nexthop: Option<u32>, generation: u8, index: u32) -> entries::FlowEntry {
    let (action, number, nat, keep_ttl) = match flow.verdict {
        FlowVerdict::Forward { nat, keep_ttl, .. } => {
            (FlowAction::Forward as u8, nexthop.unwrap_or_default(), nat, keep_ttl)
        }
        FlowVerdict::Drop(reason) => (FlowAction::Drop as u8, reason as u32, Nat::default(), false),
    };
    let v4 = |addr: Option<IpAddr>| match addr {
        Some(IpAddr::V4(v4)) => Some(v4.to_bits()),
        _ => None,
    };
    match entries::FlowEntry::from(&flow.key) {
        entries::FlowEntry::V4(mut line) => {
            let (src, dst) = (v4(nat.src), v4(nat.dst));
            (line.action, line.generation, line.index) = (action, generation, index);
            (line.nexthop, line.has_nexthop) = (number, nexthop.is_some());
            (line.nat_src, line.nat_dst) = (src.is_some(), dst.is_some());
            (line.new_src, line.new_dst) = (src.unwrap_or_default(), dst.unwrap_or_default());
            line.keep_ttl = keep_ttl;
            entries::FlowEntry::V4(line)
        }
        entries::FlowEntry::V6(mut line) => {
            (line.action, line.generation, line.index) = (action, generation, index);
            (line.nexthop, line.has_nexthop) = (number, nexthop.is_some());
            line.keep_ttl = keep_ttl;
            entries::FlowEntry::V6(line)
        }
    }
}
