//! The fields rules match: for each, which rules accept a value.

use super::lines::{Line, Lines, Presence, Slot};
use crate::trie::{Bits, Trie};
use arrayvec::ArrayVec;
use ipnet::IpNet;
use model::{PortRange, Rule, RuleQuery};
use std::net::IpAddr;
use std::sync::Arc;

/// The sets whose union is the rules that accept a value: at most one for each prefix of an IPv6 address, and one of
/// the rules that accept any value.
pub(super) struct Accepting<'a>(ArrayVec<&'a Lines, 130>);

impl<'a> Accepting<'a> {
    pub const NONE: Self = Self(ArrayVec::new_const());

    fn add(&mut self, set: &'a Lines) {
        if !set.is_empty() {
            self.0.push(set);
        }
    }

    /// Returns the chunks in which some rule accepts the value.
    pub fn present(&self) -> Presence {
        let mut all = Presence::default();
        for set in &self.0 {
            all.iter_mut().zip(set.present()).for_each(|(to, from)| *to |= from);
        }
        all
    }

    /// Returns the rules of `chunk` that accept the value.
    pub fn line(&self, chunk: u8) -> Line {
        let mut line = Line::default();
        self.0.iter().for_each(|set| set.or_into(chunk, &mut line));
        line
    }
}

type Sets<K> = Trie<K, Arc<Lines>>;

fn add<K: Bits>(sets: &mut Sets<K>, key: K, len: u8, slot: Slot) {
    match sets.get_mut(key, len) {
        Some(set) => Arc::make_mut(set).add(slot),
        None => {
            let mut set = Lines::default();
            set.add(slot);
            sets.insert(key, len, Arc::new(set));
        }
    }
}

fn remove<K: Bits>(sets: &mut Sets<K>, key: K, len: u8, slot: Slot) {
    if let Some(set) = sets.get_mut(key, len) {
        Arc::make_mut(set).remove(slot);
        if set.is_empty() {
            sets.remove(key, len);
        }
    }
}

/// A set of prefixes: source or destination.
#[derive(Clone, Default)]
struct Prefixes {
    any: Arc<Lines>,
    v4: Sets<u32>,
    v6: Sets<u128>,
}

impl Prefixes {
    fn add(&mut self, prefixes: &[IpNet], slot: Slot) {
        if prefixes.is_empty() {
            Arc::make_mut(&mut self.any).add(slot);
        }
        for prefix in prefixes {
            match prefix {
                IpNet::V4(p) => add(&mut self.v4, p.network().to_bits(), p.prefix_len(), slot),
                IpNet::V6(p) => add(&mut self.v6, p.network().to_bits(), p.prefix_len(), slot),
            }
        }
    }

    fn remove(&mut self, prefixes: &[IpNet], slot: Slot) {
        if prefixes.is_empty() {
            Arc::make_mut(&mut self.any).remove(slot);
        }
        for prefix in prefixes {
            match prefix {
                IpNet::V4(p) => remove(&mut self.v4, p.network().to_bits(), p.prefix_len(), slot),
                IpNet::V6(p) => remove(&mut self.v6, p.network().to_bits(), p.prefix_len(), slot),
            }
        }
    }

    /// Adds the sets of an address's prefixes, and the set of rules that accept any.
    fn accepting<'a>(&'a self, addr: IpAddr, out: &mut Accepting<'a>) {
        out.add(&self.any);
        match addr {
            IpAddr::V4(a) => self.v4.matches(a.to_bits(), |set| out.add(set)),
            IpAddr::V6(a) => self.v6.matches(a.to_bits(), |set| out.add(set)),
        }
    }
}

/// Splits a range of ports into prefixes: at most 30.
fn port_prefixes(range: PortRange) -> impl Iterator<Item = (u16, u8)> {
    let (mut next, last) = (u32::from(range.first), u32::from(range.last));
    std::iter::from_fn(move || {
        (next <= last).then(|| {
            let size = next.trailing_zeros().min(16).min((last - next + 1).ilog2());
            let prefix = (next as u16, 16 - size as u8);
            next += 1 << size;
            prefix
        })
    })
}

#[derive(Clone, Default)]
pub(super) struct Fields {
    src: Prefixes,
    dst: Prefixes,
    any_protocol: Arc<Lines>,
    /// Whole values, as 16-bit prefixes.
    protocol: Sets<u16>,
    any_port: Arc<Lines>,
    ports: Sets<u16>,
}

impl Fields {
    pub fn add(&mut self, rule: &Rule, slot: Slot) {
        self.src.add(&rule.from, slot);
        self.dst.add(&rule.to, slot);
        match rule.protocol {
            Some(protocol) => add(&mut self.protocol, protocol.into(), 16, slot),
            None => Arc::make_mut(&mut self.any_protocol).add(slot),
        }
        match rule.ports {
            Some(range) => port_prefixes(range).for_each(|(port, len)| add(&mut self.ports, port, len, slot)),
            None => Arc::make_mut(&mut self.any_port).add(slot),
        }
    }

    pub fn remove(&mut self, rule: &Rule, slot: Slot) {
        self.src.remove(&rule.from, slot);
        self.dst.remove(&rule.to, slot);
        match rule.protocol {
            Some(protocol) => remove(&mut self.protocol, protocol.into(), 16, slot),
            None => Arc::make_mut(&mut self.any_protocol).remove(slot),
        }
        match rule.ports {
            Some(range) => {
                port_prefixes(range).for_each(|(port, len)| remove(&mut self.ports, port, len, slot));
            }
            None => Arc::make_mut(&mut self.any_port).remove(slot),
        }
    }

    /// Adds, for each field, the rules that accept its value; the most selective field comes first.
    pub fn accepting<'a>(&'a self, query: &RuleQuery, out: &mut [Accepting<'a>; 4]) {
        let [dst, src, ports, protocol] = out;
        self.dst.accepting(query.dst, dst);
        self.src.accepting(query.src, src);
        ports.add(&self.any_port);
        if let Some(port) = query.dst_port {
            self.ports.matches(port, |set| ports.add(set));
        }
        protocol.add(&self.any_protocol);
        self.protocol.matches(query.protocol.into(), |set| protocol.add(set));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_a_range_cover_it_exactly() {
        for (first, last) in [(0, 65535), (80, 80), (1, 65534), (1024, 65535), (443, 8080), (65535, 65535)] {
            let prefixes: Vec<_> = port_prefixes(PortRange { first, last }).collect();
            assert!(prefixes.len() <= 30);
            let mut next = u32::from(first);
            for (port, len) in prefixes {
                assert_eq!(u32::from(port), next);
                next += 1 << (16 - len);
            }
            assert_eq!(next, u32::from(last) + 1);
        }
    }
}
