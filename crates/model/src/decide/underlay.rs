//! The way to another host's tunnel endpoint.

use super::{Frame, Walk};
use crate::{DropReason, Lookup, Nat, NeighbourScope, Vif, WireAttributes};
use packet::{L4, Mac, proto};
use std::net::IpAddr;

/// The way to a remote.
pub(super) struct Path<'a> {
    pub wire: &'a Vif,
    /// Source MAC: the wire's.
    pub src_mac: Mac,
    /// Outer source address.
    pub src: IpAddr,
    /// The remote itself, or the router it is behind.
    pub hop: IpAddr,
}

impl Path<'_> {
    /// Where the next hop is sought.
    pub fn scope(&self) -> NeighbourScope {
        NeighbourScope::Wire(self.wire.id)
    }
}

impl<'a, T: Lookup> Walk<'a, T> {
    /// The way to a remote, which is not this host: the wire on whose subnet it is (the longest), else the first with a
    /// gateway of its family.
    pub(super) fn path(&self, remote: IpAddr) -> Result<Path<'a>, DropReason> {
        if self.is_ours(remote) {
            return Err(DropReason::NoUnderlay);
        }
        let (wire, attributes, hop) =
            self.on_link(remote).or_else(|| self.by_gateway(remote)).ok_or(DropReason::NoUnderlay)?;
        let family = |addr: &IpAddr| addr.is_ipv4() == remote.is_ipv4();
        let tunnel_source = self.tables.host().tunnel_source.iter().copied().find(family);
        let own = || attributes.addresses.iter().map(|subnet| subnet.addr()).find(family);
        let src = tunnel_source.or_else(own).ok_or(DropReason::NoUnderlay)?;
        let src_mac = wire.mac.ok_or(DropReason::NoUnderlay)?;
        Ok(Path { wire, src_mac, src, hop })
    }

    fn on_link(&self, remote: IpAddr) -> Option<(&'a Vif, &'a WireAttributes, IpAddr)> {
        let subnets = self.underlay().flat_map(|(wire, attributes)| {
            attributes.addresses.iter().map(move |subnet| (wire, attributes, subnet))
        });
        // Of equal ones the first.
        let longest = subnets
            .filter(|(.., subnet)| subnet.contains(&remote))
            .reduce(|best, next| if next.2.prefix_len() > best.2.prefix_len() { next } else { best });
        longest.map(|(wire, attributes, _)| (wire, attributes, remote))
    }

    fn by_gateway(&self, remote: IpAddr) -> Option<(&'a Vif, &'a WireAttributes, IpAddr)> {
        self.underlay().find_map(|(wire, attributes)| {
            let gateway = attributes.gateways.iter().find(|g| g.is_ipv4() == remote.is_ipv4())?;
            Some((wire, attributes, *gateway))
        })
    }

    /// Whether an address is this host's on the underlay.
    pub(super) fn is_ours(&self, addr: IpAddr) -> bool {
        self.tables.host().tunnel_source.contains(&addr)
            || self.underlay().any(|(_, wire)| wire.addresses.iter().any(|subnet| subnet.addr() == addr))
    }

    /// Whether tunnel packets are taken from an address.
    pub(super) fn is_peer(&self, addr: IpAddr) -> bool {
        self.tables.is_remote(addr)
            || self.tables.host().tunnel_peers.iter().any(|prefix| prefix.contains(&addr))
    }

    /// Whether an address is one that hosts of the underlay may have.
    fn is_underlay(&self, addr: IpAddr) -> bool {
        let on_link = |wire: &WireAttributes| wire.addresses.iter().any(|subnet| subnet.contains(&addr));
        self.is_peer(addr) || self.is_ours(addr) || self.underlay().any(|(_, wire)| on_link(wire))
    }

    /// Whether a tenant's packet is one that a host of the underlay would take for a tunnel's, or would answer to
    /// another. Addresses are those with which it leaves.
    pub(super) fn is_underlay_tunnel(&self, frame: &Frame<'_>, nat: Nat) -> bool {
        let Some(ip) = frame.headers.ip() else { return false };
        let tunnel = match frame.headers.l4 {
            L4::Udp { dst, .. } => matches!(dst, proto::PORT_VXLAN | proto::PORT_MPLS),
            _ => ip.protocol == proto::GRE,
        };
        tunnel && (self.is_underlay(nat.dst.unwrap_or(ip.dst)) || self.is_underlay(nat.src.unwrap_or(ip.src)))
    }

    fn underlay(&self) -> impl Iterator<Item = (&'a Vif, &'a WireAttributes)> + use<'a, T> {
        let tables = self.tables;
        tables.wires().iter().filter_map(|id| {
            let wire = tables.vif(*id)?;
            Some((wire, wire.wire.as_ref()?))
        })
    }
}
