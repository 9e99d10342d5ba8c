//! Look-ups in the lines of the card's tables.

use super::{Memory, bits};
use crate::compile::{remote, remote_places};
use crate::cuckoo::Entry;
use crate::entries;
use crate::frame::Key;
use crate::hash::choices;
use crate::hold::Hold;
use crate::registers::{
    Bridge, Flow4, Flow6, FlowAction, FlowKind, Label, Nexthop, Port, Punt, Remote, Route4, Route6,
    RouteKind, Table, Vni, Vrf,
};
use model::Nat;
use packet::Mac;
use std::net::{IpAddr, Ipv4Addr};

/// The content of a flow table line.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowLine {
    pub action: u8,
    pub generation: u8,
    pub index: u32,
    pub nexthop: u32,
    pub has_nexthop: bool,
    pub nat: Nat,
    pub keep_ttl: bool,
}

impl FlowLine {
    pub fn forwards(&self) -> bool {
        self.action == FlowAction::Forward as u8 || Hold::of_action(self.action).is_some()
    }
}

/// Number of IPv6 prefix lengths for which a network has room.
const LENGTHS: usize = 16;

impl Memory {
    pub(super) fn port(&self, number: u16) -> Port {
        Port::decode(&self.line(Table::Port, number.into()))
    }

    pub(super) fn vrf(&self, number: u16) -> Vrf {
        Vrf::decode(&self.line(Table::Vrf, number.into()))
    }

    pub(super) fn nexthop(&self, number: u32) -> Result<Nexthop, Punt> {
        if !self.is_changing(number) {
            self.check(Table::Nexthop, number)?;
        }
        Ok(Nexthop::decode(&self.nexthop_line(number)))
    }

    pub(super) fn label(&self, label: u32) -> Label {
        Label::decode(&self.line(Table::Label, label))
    }

    pub(super) fn vni(&self, vni: u32) -> Option<u16> {
        let places = [vni & 0xfff, 1 << 12 | (vni ^ vni >> 12) & 0xfff];
        let mut ways = places.iter().map(|place| Vni::decode(&self.line(Table::Vni, *place)));
        ways.find(|entry| entry.valid && entry.vni == vni).map(|entry| entry.vrf)
    }

    pub(super) fn is_remote(&self, addr: IpAddr) -> bool {
        let wanted = remote(addr);
        remote_places(addr)
            .into_iter()
            .any(|place| Remote::decode(&self.line(Table::Remote, place)) == wanted)
    }

    /// Returns the addresses of the first lines of an entry's two buckets, in a table of 2^`bits` buckets in each way.
    fn places<E: Entry>(&self, wanted: &E, bits: u32) -> [u32; 2] {
        let [a, b] = choices(&wanted.key(), self.secret()).map(|choice| choice & ((1 << bits) - 1));
        let [first, second] = E::ways(bits);
        [first + a * E::LINES as u32, second + b * E::LINES as u32]
    }

    pub(super) fn bridge(&self, vrf: u16, mac: Mac) -> Result<Option<Bridge>, Punt> {
        let wanted = Bridge { mac: bits(mac), vrf, ..Default::default() };
        first_of(self.places(&wanted, self.sizes().bridge_lines), |place| {
            self.check(Table::Bridge, place)?;
            let line: [u8; 32] = self.line(Table::Bridge, place);
            let mut entries = line.as_chunks().0.iter().map(Bridge::decode);
            Ok(entries.find(|e| e.valid && e.mac == wanted.mac && e.vrf == vrf))
        })
    }

    pub(super) fn flow(&self, key: &Key) -> Result<Option<FlowLine>, Punt> {
        let wanted = entries::FlowEntry::from(key);
        let buckets = self.places(&wanted, self.sizes().flow_buckets).map(|bucket| (Table::Flow, bucket));
        let stash = (0..self.sizes().stash_flows).map(|number| (Table::Stash, number));
        first_of(buckets.into_iter().chain(stash), |(table, at)| {
            let lines: [[u8; 32]; 2] = if table == Table::Flow {
                [at, at | 1].into_iter().try_for_each(|line| self.check(table, line))?;
                [at, at | 1].map(|line| self.line(table, line))
            } else {
                let flow: [u8; 64] = self.line(table, at);
                [0, 32].map(|half| std::array::from_fn(|byte| flow[half + byte]))
            };
            Ok(match wanted {
                entries::FlowEntry::V4(wanted) => lines.iter().find_map(|line| flow4(line, &wanted)),
                entries::FlowEntry::V6(wanted) => flow6(&lines, &wanted),
            })
        })
    }

    pub(super) fn route(&self, vrf: u16, line: &Vrf, dst: IpAddr) -> Result<Option<u32>, Punt> {
        match dst {
            IpAddr::V4(dst) => self.route4(line.root, dst.to_bits()),
            IpAddr::V6(dst) => self.route6(vrf, line.lengths6, dst.to_bits()),
        }
    }

    /// Looks an address up in a trie of 16, 8 and 8 bits.
    fn route4(&self, root: u32, dst: u32) -> Result<Option<u32>, Punt> {
        let mut entry = self.route4_entry(root << 16 | dst >> 16)?;
        for byte in [dst >> 8 & 0xff, dst & 0xff] {
            if entry.kind == RouteKind::Child as u8 {
                entry = self.route4_entry(entry.value << 8 | byte)?;
            }
        }
        Ok((entry.kind == RouteKind::Nexthop as u8).then_some(entry.value))
    }

    /// Reads the entry with this number, counted in the whole memory.
    fn route4_entry(&self, number: u32) -> Result<Route4, Punt> {
        self.check(Table::Route, number >> 3)?;
        let line: [u8; 32] = self.line(Table::Route, number >> 3);
        Ok(Route4::decode(&line.as_chunks().0[number as usize & 7]))
    }

    fn route6(&self, vrf: u16, lengths: u128, dst: u128) -> Result<Option<u32>, Punt> {
        let lengths = lengths.to_le_bytes().into_iter().take(LENGTHS).take_while(|length| *length <= 128);
        for length in lengths {
            let prefix = dst & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            let wanted = Route6 { prefix, vrf, length, ..Default::default() };
            let found = first_of(self.places(&wanted, self.sizes().route6_lines), |address| {
                self.check(Table::Route, address)?;
                let entry = Route6::decode(&self.line(Table::Route, address));
                let matches = entry.valid && (entry.prefix, entry.vrf, entry.length) == (prefix, vrf, length);
                Ok(matches.then_some(entry.nexthop))
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// Returns the entry in the first place that has it. If no readable place has it, returns the error of an unreadable
/// one.
fn first_of<P, T>(
    places: impl IntoIterator<Item = P>,
    mut look: impl FnMut(P) -> Result<Option<T>, Punt>,
) -> Result<Option<T>, Punt> {
    let mut result = Ok(None);
    for place in places {
        match look(place) {
            Ok(None) => {}
            Ok(found) => return Ok(found),
            Err(punt) => result = Err(punt),
        }
    }
    result
}

fn flow4(line: &[u8; 32], wanted: &Flow4) -> Option<FlowLine> {
    let flow = Flow4::decode(line);
    let key = |flow: &Flow4| entries::FlowEntry::V4(*flow).key();
    let v4 = |addr: u32| IpAddr::from(Ipv4Addr::from_bits(addr));
    (flow.kind == FlowKind::V4 as u8 && key(&flow) == key(wanted)).then(|| FlowLine {
        action: flow.action,
        generation: flow.generation,
        index: flow.index,
        nexthop: flow.nexthop,
        has_nexthop: flow.has_nexthop,
        nat: Nat {
            src: flow.nat_src.then(|| v4(flow.new_src)),
            dst: flow.nat_dst.then(|| v4(flow.new_dst)),
            ..Nat::default()
        },
        keep_ttl: flow.keep_ttl,
    })
}

fn flow6(lines: &[[u8; 32]; 2], wanted: &Flow6) -> Option<FlowLine> {
    let mut bucket = [0; 64];
    bucket[..32].copy_from_slice(&lines[0]);
    bucket[32..].copy_from_slice(&lines[1]);
    let flow = Flow6::decode(&bucket);
    let whole = flow.kind == FlowKind::V6Low as u8
        && flow.kind_high == FlowKind::V6High as u8
        && flow.version == flow.version_high;
    let key = |flow: &Flow6| entries::FlowEntry::V6(*flow).key();
    (whole && key(&flow) == key(wanted)).then(|| FlowLine {
        action: flow.action,
        generation: flow.generation,
        index: flow.index,
        nexthop: flow.nexthop,
        has_nexthop: flow.has_nexthop,
        nat: Nat::default(),
        keep_ttl: flow.keep_ttl,
    })
}
