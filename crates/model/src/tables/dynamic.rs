//! The state that the tables learn from packets: MACs, neighbours, connections, fragments, and the meters'
//! levels.

use super::Tables;
use crate::snat::tag;
use crate::{
    BridgeTarget, Connection, DropReason, Effects, Endpoint, FlowChange, FlowKey, FlowState, FragmentKey,
    Meter, MeterId, NeighbourScope, Network, OutsidePort, PathMtu, RuleId, Seconds, Transport, Vif, VifId,
    Vrf,
};
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Seconds after which a learned MAC expires if no packet shows it again (IEEE 802.1Q, 8.8.3).
pub const MAC_AGE: Seconds = 300;
/// Most connections, most neighbours, most learned MACs and most fragments.
const CAPACITY: usize = 65_536;

/// A remembered connection.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    connection: Connection,
    rule: Option<RuleId>,
    seen: Seconds,
}

/// The learned state.
#[derive(Clone, Debug, Default)]
pub(super) struct Dynamic {
    macs: BTreeMap<(Vrf, Mac), (BridgeTarget, Seconds)>,
    neighbours: BTreeMap<(NeighbourScope, IpAddr), Mac>,
    /// Neighbours that did not answer.
    unreachable: BTreeSet<(NeighbourScope, IpAddr)>,
    paths: BTreeMap<IpAddr, (u16, Seconds)>,
    /// Connections, by their original direction.
    connections: BTreeMap<FlowKey, Remembered>,
    fragments: BTreeMap<FragmentKey, (Transport, Seconds)>,
    pub(super) meters: BTreeMap<MeterId, Meter>,
}

impl Dynamic {
    pub(super) fn learned(&self, vrf: Vrf, mac: Mac) -> Option<BridgeTarget> {
        self.macs.get(&(vrf, mac)).map(|(target, _)| *target)
    }

    pub(super) fn neighbour(&self, scope: NeighbourScope, addr: IpAddr) -> Option<Mac> {
        self.neighbours.get(&(scope, addr)).copied()
    }

    pub(super) fn is_unreachable(&self, scope: NeighbourScope, addr: IpAddr) -> bool {
        self.unreachable.contains(&(scope, addr))
    }

    pub(super) fn any_is_silent(&self) -> bool {
        self.unreachable.iter().any(|(scope, _)| matches!(scope, NeighbourScope::Wire(_)))
    }

    pub(super) fn path_mtu(&self, remote: IpAddr) -> Option<u16> {
        self.paths.get(&remote).map(|(mtu, _)| *mtu)
    }

    pub(super) fn connection(&self, key: &FlowKey, now: Seconds) -> Option<(Connection, bool)> {
        let alive =
            |key: &FlowKey| self.connections.get(key).filter(|c| !c.expired(now)).map(|c| c.connection);
        alive(key).map(|c| (c, false)).or_else(|| alive(&key.reverse()).map(|c| (c, true)))
    }

    pub(super) fn bound(&self, key: &FlowKey, now: Seconds) -> Option<Connection> {
        let is_its = |c: &&Remembered| !c.expired(now) && c.connection.outside_key() == Some(*key);
        self.connections.values().find(is_its).map(|c| c.connection)
    }

    pub(super) fn mapping(
        &self,
        inside: &Endpoint,
        protocol: u8,
        is_usable: &dyn Fn(OutsidePort) -> bool,
    ) -> Option<OutsidePort> {
        let its = self.mappings(protocol).filter(|(end, _)| end == inside);
        its.map(|(_, port)| port).filter(|port| is_usable(*port)).min()
    }

    pub(super) fn is_mapped(&self, vrf: Vrf, outside: (IpAddr, u16), protocol: u8) -> bool {
        let port = OutsidePort { tag: tag(outside.0), port: outside.1 };
        let is_there = |end: &Endpoint| end.vrf == vrf && end.addr.is_ipv4() == outside.0.is_ipv4();
        self.mappings(protocol).any(|(end, taken)| taken == port && is_there(&end))
    }

    fn mappings(&self, protocol: u8) -> impl Iterator<Item = (Endpoint, OutsidePort)> {
        let of_protocol =
            self.connections.values().filter(move |c| c.connection.original.protocol == protocol);
        of_protocol.filter_map(|c| c.connection.mapping())
    }

    pub(super) fn fragment(&self, key: &FragmentKey, now: Seconds) -> Option<Transport> {
        let fresh = |seen: Seconds| now.saturating_sub(seen) < FragmentKey::TIMEOUT;
        self.fragments.get(key).filter(|(_, seen)| fresh(*seen)).map(|(transport, _)| *transport)
    }

    /// Removes entries of interfaces and networks that no longer exist.
    pub(super) fn retain(&mut self, vifs: &BTreeMap<VifId, Vif>, networks: &BTreeMap<Vrf, Network>) {
        self.macs.retain(|(vrf, _), (target, _)| {
            networks.contains_key(vrf) && !matches!(target, BridgeTarget::Vif(id) if !vifs.contains_key(id))
        });
        let is_there = |scope: &NeighbourScope| match scope {
            NeighbourScope::Wire(id) => vifs.contains_key(id),
            NeighbourScope::Network(vrf) => networks.contains_key(vrf),
        };
        self.neighbours.retain(|(scope, _), _| is_there(scope));
        self.unreachable.retain(|(scope, _)| is_there(scope));
        self.connections
            .retain(|key, _| networks.contains_key(&key.src.vrf) && networks.contains_key(&key.dst.vrf));
        self.fragments.retain(|key, _| networks.contains_key(&key.vrf));
    }
}

impl Remembered {
    fn expired(&self, now: Seconds) -> bool {
        now.saturating_sub(self.seen) >= self.connection.timeout()
    }
}

impl Tables {
    /// Carries out the effects of a decision on these tables. The packet counts as `len` bytes
    /// ([`crate::rewrite::metered_len`]). Counters and copies are left to the caller.
    ///
    /// # Errors
    /// The reason why the packet is dropped after all: it is over a rate, or there is no room for its
    /// connection.
    pub fn commit(&mut self, effects: &Effects, len: usize, now_ns: u64) -> Result<(), DropReason> {
        let now = (now_ns / 1_000_000_000) as Seconds;
        for (id, reason) in &effects.meters {
            if let Some(meter) = self.dynamic.meters.get_mut(id)
                && !meter.conforms(now_ns, len)
            {
                return Err(*reason);
            }
        }
        let dynamic = &mut self.dynamic;
        if let Some(learn) = effects.learn {
            insert(&mut dynamic.macs, (learn.vrf, learn.mac), (learn.at, now));
        }
        if let Some(found) = effects.neighbour {
            dynamic.unreachable.remove(&(found.scope, found.addr));
            insert(&mut dynamic.neighbours, (found.scope, found.addr), found.mac);
        }
        if let Some(path) = effects.path {
            insert(&mut dynamic.paths, path.remote, (path.mtu, now));
        }
        if let Some((key, transport)) = effects.fragment {
            insert(&mut dynamic.fragments, key, (transport, now));
        }
        effects.flow.map_or(Ok(()), |change| dynamic.follow(change, now))
    }

    /// Removes a neighbour that did not answer.
    pub fn give_up(&mut self, scope: NeighbourScope, addr: IpAddr) {
        self.dynamic.neighbours.remove(&(scope, addr));
        if self.dynamic.unreachable.len() < CAPACITY {
            self.dynamic.unreachable.insert((scope, addr));
        }
    }

    /// Removes entries that have expired at `now`.
    pub fn expire(&mut self, now: Seconds) {
        let dynamic = &mut self.dynamic;
        dynamic.macs.retain(|_, (_, seen)| now.saturating_sub(*seen) < MAC_AGE);
        dynamic.paths.retain(|_, (_, since)| now.saturating_sub(*since) < PathMtu::AGE);
        dynamic.connections.retain(|_, c| !c.expired(now));
        dynamic.fragments.retain(|_, (_, seen)| now.saturating_sub(*seen) < FragmentKey::TIMEOUT);
    }

    /// Returns the connections, with the rules that allowed them.
    pub fn connections(&self) -> impl Iterator<Item = (Connection, Option<RuleId>)> {
        self.dynamic.connections.values().map(|c| (c.connection, c.rule))
    }
}

impl Dynamic {
    fn follow(&mut self, change: FlowChange, now: Seconds) -> Result<(), DropReason> {
        let (connection, rule) = match change {
            FlowChange::Create { connection, rule } => {
                self.make_room(now)?;
                // A new connection may run in the opposite direction of a closed one.
                self.connections.remove(&connection.original.reverse());
                (connection, rule)
            }
            FlowChange::Update { connection, .. } => {
                let Some(known) = self.connections.get(&connection.original) else { return Ok(()) };
                (connection, known.rule)
            }
        };
        self.connections.insert(connection.original, Remembered { connection, rule, seen: now });
        Ok(())
    }

    /// Makes room for a connection. If the table is full, evicts the oldest connection that is not
    /// established.
    fn make_room(&mut self, now: Seconds) -> Result<(), DropReason> {
        if self.connections.len() < CAPACITY {
            return Ok(());
        }
        self.connections.retain(|_, c| !c.expired(now));
        if self.connections.len() < CAPACITY {
            return Ok(());
        }
        let mut evictable =
            self.connections.iter().filter(|(_, c)| c.connection.state != FlowState::Established);
        let oldest = evictable.by_ref().min_by_key(|(_, c)| c.seen).map(|(key, _)| *key);
        self.connections.remove(&oldest.ok_or(DropReason::FlowTableFull)?);
        Ok(())
    }
}

/// Inserts or replaces an entry. Adds a new entry only if there is room.
fn insert<K: Ord, V>(table: &mut BTreeMap<K, V>, key: K, value: V) {
    if table.len() < CAPACITY || table.contains_key(&key) {
        table.insert(key, value);
    }
}
