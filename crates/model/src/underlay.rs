//! The choice of the underlay's path to another host.

use crate::{Encap, Lookup, NeighbourScope, Tunnel, Vif, VifId, WireAttributes};
use packet::Mac;
use std::net::IpAddr;

/// A path by which the kernel sends packets to the remote of a tunnel, on a wire that it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelPath {
    /// The wire.
    pub wire: VifId,
    /// The next hop: the remote itself, or a router on the way to it. It may be of the other family (RFC 8950).
    pub hop: IpAddr,
    /// The next hop's MAC. `None` while the kernel does not know it.
    pub mac: Option<Mac>,
    /// The share of flows that take this path, relative to that of others.
    pub weight: u16,
    /// The MTU of the kernel's route, bytes, if it has one of its own.
    pub mtu: Option<u16>,
}

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
    /// The kernel's path, on a wire that it keeps: then it says what the next hop's MAC is, and nobody is asked.
    pub kernels: Option<KernelPath>,
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

    /// Returns the next hop's MAC, if it is known.
    #[must_use]
    pub fn hop_mac<T: Lookup>(&self, tables: &T) -> Option<Mac> {
        self.kernels.map_or_else(|| tables.neighbour(self.scope(), self.hop), |path| path.mac)
    }

    /// Returns the longest packet that the path takes, bytes of IP: the wire's MTU, or a lower one of the kernel's
    /// route.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        let of_route = self.kernels.and_then(|path| path.mtu);
        of_route.map_or(self.wire.mtu, |mtu| mtu.min(self.wire.mtu))
    }

    /// Returns whether packets may arrive, as far as is known: the wire has a link, and the next hop answers.
    pub(crate) fn is_live<T: Lookup>(&self, tables: &T) -> bool {
        let answers = || match self.kernels {
            Some(path) => path.mac.is_some(),
            None => !tables.is_silent(self.scope(), self.hop),
        };
        !self.is_down() && answers()
    }

    /// Returns the encapsulation of a packet with this entropy in a tunnel to this path's remote. `dst_mac`
    /// is the next hop's, `tos` the outer traffic class.
    pub(crate) fn encap(&self, tunnel: &Tunnel, dst_mac: Mac, entropy: u32, tos: u8) -> Encap {
        let Self { src_mac, src, dont_fragment, .. } = *self;
        let (kind, id, dst) = (tunnel.kind, tunnel.id, tunnel.remote);
        Encap { kind, id, src, dst, src_mac, dst_mac, entropy, tos, dont_fragment }
    }
}

/// Returns the path to a remote other than this host, for a flow with this entropy: the wire with the longest subnet
/// that contains the remote, else the kernel's path on a wire that it keeps, else the first wire with a gateway of the
/// remote's family. A wire without a link counts only if no other wire leads there.
pub fn underlay_path<T: Lookup>(tables: &T, remote: IpAddr, entropy: u32) -> Option<UnderlayPath<'_>> {
    if is_own_underlay(tables, remote) {
        return None;
    }
    let by = |is_down| {
        on_link(tables, remote, is_down)
            .or_else(|| by_kernel(tables, remote, is_down, entropy))
            .or_else(|| by_gateway(tables, remote, is_down))
    };
    let Leaving { wire, attributes, hop, kernels } = by(false).or_else(|| by(true))?;
    let family = |addr: &IpAddr| addr.is_ipv4() == remote.is_ipv4();
    let tunnel_source = tables.host().tunnel_source.iter().copied().find(family);
    let own = || attributes.addresses.iter().map(|subnet| subnet.addr()).find(family);
    let (src, dont_fragment) =
        (tunnel_source.or_else(own)?, remote.is_ipv6() || !tables.host().tunnel_fragments);
    Some(UnderlayPath { wire, src_mac: wire.mac?, src, hop, dont_fragment, kernels })
}

/// The wire by which packets leave, and the next hop there.
struct Leaving<'a> {
    wire: &'a Vif,
    attributes: &'a WireAttributes,
    hop: IpAddr,
    kernels: Option<KernelPath>,
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

fn on_link<T: Lookup>(tables: &T, remote: IpAddr, is_down: bool) -> Option<Leaving<'_>> {
    let subnets = wires(tables, is_down).flat_map(|(wire, attributes)| {
        attributes.addresses.iter().map(move |subnet| (wire, attributes, subnet))
    });
    // The first of several equally long ones.
    let longest = subnets
        .filter(|(.., subnet)| subnet.contains(&remote))
        .reduce(|best, next| if next.2.prefix_len() > best.2.prefix_len() { next } else { best });
    longest.map(|(wire, attributes, _)| Leaving { wire, attributes, hop: remote, kernels: None })
}

/// Chooses among the kernel's paths, each by its weight. Those whose next hop the kernel does not find count only if
/// there are no others.
fn by_kernel<T: Lookup>(tables: &T, remote: IpAddr, is_down: bool, entropy: u32) -> Option<Leaving<'_>> {
    if !wires(tables, is_down).any(|(_, wire)| wire.shared) {
        return None;
    }
    let leaving = |path: &KernelPath| {
        let wire = tables.vif(path.wire)?;
        let attributes = wire.wire.as_ref().filter(|wire| wire.shared && wire.is_down == is_down)?;
        Some(Leaving { wire, attributes, hop: path.hop, kernels: Some(*path) })
    };
    let paths = tables.kernel_paths(remote);
    let choose = |is_found: bool| {
        let usable = || paths.iter().filter(move |path| path.mac.is_some() == is_found).filter_map(leaving);
        let weight = |leaving: &Leaving<'_>| leaving.kernels.map_or(0, |path| u64::from(path.weight.max(1)));
        let total: u64 = usable().map(|leaving| weight(&leaving)).sum();
        // In proportion to the hash, so that most flows stay where they are if one path goes.
        let mut place = (u64::from(entropy) * total) >> 32;
        usable().find(|leaving| {
            let is_here = place < weight(leaving);
            place = place.saturating_sub(weight(leaving));
            is_here
        })
    };
    choose(true).or_else(|| choose(false))
}

fn by_gateway<T: Lookup>(tables: &T, remote: IpAddr, is_down: bool) -> Option<Leaving<'_>> {
    wires(tables, is_down).find_map(|(wire, attributes)| {
        let gateway = attributes.gateways.iter().find(|g| g.is_ipv4() == remote.is_ipv4())?;
        Some(Leaving { wire, attributes, hop: *gateway, kernels: None })
    })
}
