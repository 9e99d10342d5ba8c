//! The choice of the underlay's path to another host.

use crate::{Encap, Lookup, NeighbourScope, Tunnel, Vif, VifId, WireAttributes};
use ipnet::IpNet;
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
/// that contains the remote, else one of the kernel's paths on wires that it keeps, else a wire with a gateway of the
/// remote's family. A wire without a link counts only if no other wire leads there. Of several paths, those that are
/// known to be broken, or whose next hop does not answer, count only if there are no others.
pub fn underlay_path<T: Lookup>(tables: &T, remote: IpAddr, entropy: u32) -> Option<UnderlayPath<'_>> {
    let ways = all_ways(tables, remote)?;
    let (first, second) = (ways.clone().next()?, ways.clone().nth(1));
    let answers = |way: &Leaving<'_>| match way.kernels {
        Some(path) => path.mac.is_some(),
        None => !tables.is_silent(NeighbourScope::Wire(way.wire.id), way.hop),
    };
    let works = |way: &Leaving<'_>| answers(way) && !tables.is_path_down(remote, way.wire.id, way.hop);
    let chosen = match second {
        None => Some(first),
        Some(_) => pick(|| ways.clone().filter(works), entropy)
            .or_else(|| pick(|| ways.clone().filter(answers), entropy))
            .or_else(|| pick(|| ways.clone(), entropy)),
    };
    chosen?.to(tables, remote)
}

/// Returns all paths among which flows to a remote may be spread, working or not.
pub fn underlay_paths<T: Lookup>(tables: &T, remote: IpAddr) -> impl Iterator<Item = UnderlayPath<'_>> {
    all_ways(tables, remote).into_iter().flatten().filter_map(move |way| way.to(tables, remote))
}

/// The wire by which packets leave, and the next hop there.
#[derive(Clone)]
struct Leaving<'a> {
    wire: &'a Vif,
    attributes: &'a WireAttributes,
    hop: IpAddr,
    kernels: Option<KernelPath>,
}

impl<'a> Leaving<'a> {
    fn to<T: Lookup>(self, tables: &T, remote: IpAddr) -> Option<UnderlayPath<'a>> {
        let Self { wire, attributes, hop, kernels } = self;
        let family = |addr: &IpAddr| addr.is_ipv4() == remote.is_ipv4();
        let tunnel_source = tables.host().tunnel_source.iter().copied().find(family);
        let own = || attributes.addresses.iter().map(|subnet| subnet.addr()).find(family);
        let (src, dont_fragment) =
            (tunnel_source.or_else(own)?, remote.is_ipv6() || !tables.host().tunnel_fragments);
        Some(UnderlayPath { wire, src_mac: wire.mac?, src, hop, dont_fragment, kernels })
    }
}

/// Returns whether an address is this host's on the underlay.
pub(crate) fn is_own_underlay<T: Lookup>(tables: &T, addr: IpAddr) -> bool {
    tables.host().tunnel_source.contains(&addr)
        || underlay(tables).any(|(_, wire)| wire.addresses.iter().any(|subnet| subnet.addr() == addr))
}

/// Returns the wires.
pub(crate) fn underlay<T: Lookup>(tables: &T) -> impl Iterator<Item = (&Vif, &WireAttributes)> + Clone {
    tables.wires().iter().filter_map(|id| {
        let wire = tables.vif(*id)?;
        Some((wire, wire.wire.as_ref()?))
    })
}

/// Returns the wires that have a link, or those that have none if `is_down`.
fn wires<T: Lookup>(tables: &T, is_down: bool) -> impl Iterator<Item = (&Vif, &WireAttributes)> + Clone {
    underlay(tables).filter(move |(_, wire)| wire.is_down == is_down)
}

/// Returns the ways to a remote, if it is not this host.
fn all_ways<T: Lookup>(tables: &T, remote: IpAddr) -> Option<impl Iterator<Item = Leaving<'_>> + Clone> {
    if is_own_underlay(tables, remote) {
        return None;
    }
    let up = ways(tables, remote, false);
    let is_up = up.clone().next().is_some();
    let down = (!is_up).then(|| ways(tables, remote, true));
    Some(up.chain(down.into_iter().flatten()))
}

/// Returns the ways to a remote by wires that have a link, or by those that have none if `is_down`.
fn ways<T: Lookup>(tables: &T, remote: IpAddr, is_down: bool) -> impl Iterator<Item = Leaving<'_>> + Clone {
    let linked = on_link(tables, remote, is_down);
    let asks_kernel = linked.is_none() && wires(tables, is_down).any(|(_, wire)| wire.shared);
    let kernels = by_kernel(tables, if asks_kernel { tables.kernel_paths(remote) } else { &[] }, is_down);
    let is_outside = linked.is_none() && kernels.clone().next().is_none();
    let gateways = is_outside.then(|| by_gateway(tables, remote, is_down));
    linked.into_iter().chain(kernels).chain(gateways.into_iter().flatten())
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

/// Returns the ways by the kernel's paths.
fn by_kernel<'a, T: Lookup>(
    tables: &'a T,
    paths: &'a [KernelPath],
    is_down: bool,
) -> impl Iterator<Item = Leaving<'a>> + Clone {
    paths.iter().filter_map(move |path| {
        let wire = tables.vif(path.wire)?;
        let attributes = wire.wire.as_ref().filter(|wire| wire.shared && wire.is_down == is_down)?;
        Some(Leaving { wire, attributes, hop: path.hop, kernels: Some(*path) })
    })
}

/// Returns the ways by wires with a gateway. If the source of tunnels is an address in a wire's subnet, routers expect
/// it on that wire alone: then the first way is the only one.
fn by_gateway<T: Lookup>(
    tables: &T,
    remote: IpAddr,
    is_down: bool,
) -> impl Iterator<Item = Leaving<'_>> + Clone {
    let is_its = move |addr: &&IpAddr| addr.is_ipv4() == remote.is_ipv4();
    let source = tables.host().tunnel_source.iter().find(is_its);
    let is_on = |subnet: &IpNet| {
        source.is_some_and(|source| subnet.addr() == *source) && subnet.prefix_len() < subnet.max_prefix_len()
    };
    let is_everywhere =
        source.is_some() && !underlay(tables).any(|(_, wire)| wire.addresses.iter().any(is_on));
    let ways = wires(tables, is_down).filter_map(move |(wire, attributes)| {
        let gateway = attributes.gateways.iter().find(is_its)?;
        Some(Leaving { wire, attributes, hop: *gateway, kernels: None })
    });
    ways.take(if is_everywhere { usize::MAX } else { 1 })
}

/// Chooses among ways, each by its weight.
fn pick<'a, I: Iterator<Item = Leaving<'a>>>(ways: impl Fn() -> I, entropy: u32) -> Option<Leaving<'a>> {
    let weight = |way: &Leaving<'_>| way.kernels.map_or(1, |path| u64::from(path.weight.max(1)));
    let total: u64 = ways().map(|way| weight(&way)).sum();
    // In proportion to the hash, so that most flows stay where they are if one way goes.
    let mut place = (u64::from(entropy) * total) >> 32;
    ways().find(|way| {
        let is_here = place < weight(way);
        place = place.saturating_sub(weight(way));
        is_here
    })
}
