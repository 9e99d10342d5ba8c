//! The choice of the underlay's path to another host.

use crate::{Encap, Lookup, NeighbourScope, Tunnel, Vif, WireAttributes};
use packet::Mac;
use std::net::IpAddr;

/// The path to the remote of a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct UnderlayPath<'a> {
    /// The wire by which packets leave.
    pub wire: &'a Vif,
    /// Source MAC: the wire's.
    pub src_mac: Mac,
    /// Outer source address.
    pub src: IpAddr,
    /// The next hop: the remote itself, or the router to it.
    pub hop: IpAddr,
    /// Whether tunnel packets have Don't Fragment.
    pub dont_fragment: bool,
}

impl UnderlayPath<'_> {
    /// Returns whether the path's wire has no link.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.wire.wire.as_ref().is_some_and(|wire| wire.is_down)
    }

    /// Returns where to look for the next hop.
    #[must_use]
    pub const fn scope(&self) -> NeighbourScope {
        NeighbourScope::Wire(self.wire.id)
    }

    /// Returns the encapsulation of a packet with this entropy in a tunnel to this path's remote. `dst_mac`
    /// is the next hop's, `tos` the outer traffic class.
    pub(crate) fn encap(&self, tunnel: &Tunnel, dst_mac: Mac, entropy: u32, tos: u8) -> Encap {
        let Self { src_mac, src, dont_fragment, .. } = *self;
        let (kind, id, dst) = (tunnel.kind, tunnel.id, tunnel.remote);
        Encap { kind, id, src, dst, src_mac, dst_mac, entropy, tos, dont_fragment }
    }
}

/// Returns the path to a remote other than this host: the wire with the longest subnet that contains the
/// remote, otherwise the first wire with a gateway of the remote's family. A wire without a link counts only
/// if no other wire leads there.
pub fn underlay_path<T: Lookup>(tables: &T, remote: IpAddr) -> Option<UnderlayPath<'_>> {
    if is_own_underlay(tables, remote) {
        return None;
    }
    let by = |is_down| on_link(tables, remote, is_down).or_else(|| by_gateway(tables, remote, is_down));
    let (wire, attributes, hop) = by(false).or_else(|| by(true))?;
    let family = |addr: &IpAddr| addr.is_ipv4() == remote.is_ipv4();
    let tunnel_source = tables.host().tunnel_source.iter().copied().find(family);
    let own = || attributes.addresses.iter().map(|subnet| subnet.addr()).find(family);
    let (src, dont_fragment) =
        (tunnel_source.or_else(own)?, remote.is_ipv6() || !tables.host().tunnel_fragments);
    Some(UnderlayPath { wire, src_mac: wire.mac?, src, hop, dont_fragment })
}

/// Returns whether an address is this host's on the underlay.
pub(crate) fn is_own_underlay<T: Lookup>(tables: &T, addr: IpAddr) -> bool {
    tables.host().tunnel_source.contains(&addr)
        || underlay(tables).any(|(_, wire)| wire.addresses.iter().any(|subnet| subnet.addr() == addr))
}

/// Returns the wires.
pub(crate) fn underlay<T: Lookup>(tables: &T) -> impl Iterator<Item = (&Vif, &WireAttributes)> {
    tables.wires().iter().filter_map(|id| {
        let wire = tables.vif(*id)?;
        Some((wire, wire.wire.as_ref()?))
    })
}

/// Returns the wires that have a link, or those that have none if `is_down`.
fn wires<T: Lookup>(tables: &T, is_down: bool) -> impl Iterator<Item = (&Vif, &WireAttributes)> {
    underlay(tables).filter(move |(_, wire)| wire.is_down == is_down)
}

fn on_link<T: Lookup>(tables: &T, remote: IpAddr, is_down: bool) -> Option<(&Vif, &WireAttributes, IpAddr)> {
    let subnets = wires(tables, is_down).flat_map(|(wire, attributes)| {
        attributes.addresses.iter().map(move |subnet| (wire, attributes, subnet))
    });
    // The first of several equally long ones.
    let longest = subnets
        .filter(|(.., subnet)| subnet.contains(&remote))
        .reduce(|best, next| if next.2.prefix_len() > best.2.prefix_len() { next } else { best });
    longest.map(|(wire, attributes, _)| (wire, attributes, remote))
}

fn by_gateway<T: Lookup>(
    tables: &T,
    remote: IpAddr,
    is_down: bool,
) -> Option<(&Vif, &WireAttributes, IpAddr)> {
    wires(tables, is_down).find_map(|(wire, attributes)| {
        let gateway = attributes.gateways.iter().find(|g| g.is_ipv4() == remote.is_ipv4())?;
        Some((wire, attributes, *gateway))
    })
}
