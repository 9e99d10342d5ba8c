//! The way to another host, as `decide` finds it.

use super::Compiler;
use model::{Lookup, Vif, WireAttributes};
use packet::Mac;
use std::net::IpAddr;

/// The way to a remote.
pub(super) struct Path<'a> {
    pub wire: &'a Vif,
    pub src_mac: Mac,
    pub src: IpAddr,
    /// The remote itself, or the router it is behind.
    pub hop: IpAddr,
}

impl<'a, T: Lookup> Compiler<'a, T> {
    /// By the wire on whose subnet the remote is (the longest, of equal ones the first), else by the first that has a
    /// gateway of its family.
    pub(super) fn underlay(&self, remote: IpAddr) -> Option<Path<'a>> {
        let same = |addr: &IpAddr| addr.is_ipv4() == remote.is_ipv4();
        let subnets = || {
            self.wires().flat_map(|(vif, wire)| wire.addresses.iter().map(move |subnet| (vif, wire, subnet)))
        };
        let sources = &self.tables.host().tunnel_source;
        if sources.contains(&remote) || subnets().any(|(.., subnet)| subnet.addr() == remote) {
            return None;
        }
        let on_link = subnets()
            .filter(|(.., subnet)| subnet.contains(&remote))
            .reduce(|best, next| if next.2.prefix_len() > best.2.prefix_len() { next } else { best })
            .map(|(vif, wire, _)| (vif, wire, remote));
        let by_gateway = || {
            self.wires().find_map(|(vif, wire)| Some((vif, wire, wire.gateways.iter().copied().find(same)?)))
        };
        let (wire, attributes, hop) = on_link.or_else(by_gateway)?;
        let own = || attributes.addresses.iter().map(|subnet| subnet.addr()).find(same);
        let src = sources.iter().copied().find(same).or_else(own)?;
        Some(Path { wire, src_mac: wire.mac?, src, hop })
    }

    fn wires(&self) -> impl Iterator<Item = (&'a Vif, &'a WireAttributes)> + use<'a, T> {
        let tables = self.tables;
        tables.wires().iter().filter_map(|id| {
            let vif = tables.vif(*id)?;
            Some((vif, vif.wire.as_ref()?))
        })
    }
}
