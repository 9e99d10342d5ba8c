//! The look-ups of an explained packet, and how they are worded.

use super::words::{Names, action};
use crate::{
    Action, BridgeEntry, BridgeTarget, Endpoint, FlowKey, FlowState, FragmentKey, KernelPath, NeighbourScope,
    Nexthop, NexthopId, RouteEntry, RuleMatch, RuleQuery, Transport, Tunnel, VifId, VifKind, Vrf, ovs,
};
use packet::{Mac, TunnelKind};
use std::net::IpAddr;

/// One table look-up of an explained packet: its key and its result; `None` is a miss.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // fields: what is asked for, and `found`
pub enum Step {
    /// An interface.
    Vif { id: VifId, found: Option<(VifKind, Option<Vrf>)> },
    /// A network.
    Network { vrf: Vrf, found: bool },
    /// The guest that has an address.
    Guest { vrf: Vrf, addr: IpAddr, found: Option<VifId> },
    /// The MAC of an address's owner on another host.
    Owner { vrf: Vrf, addr: IpAddr, found: Mac },
    /// A bridge entry.
    Bridge { vrf: Vrf, mac: Mac, found: Option<BridgeEntry> },
    /// A route.
    Route { vrf: Vrf, addr: IpAddr, found: Option<RouteEntry> },
    /// A nexthop.
    Nexthop { id: NexthopId, found: Option<Nexthop> },
    /// Whether tunnel packets are accepted from a host.
    Remote { addr: IpAddr, found: bool },
    /// The nexthop of an MPLS label.
    Mpls { label: u32, found: Option<NexthopId> },
    /// The network of a VXLAN network identifier.
    Vxlan { vni: u32, found: Option<Vrf> },
    /// The port of a tunnel.
    Tunnel { kind: TunnelKind, remote: IpAddr, id: u32, found: VifId },
    /// A neighbour's MAC.
    Neighbour { scope: NeighbourScope, addr: IpAddr, found: Option<Mac> },
    /// A neighbour that does not answer.
    Unreachable { scope: NeighbourScope, addr: IpAddr },
    /// The kernel's paths to a tunnel's remote, on wires that it keeps.
    KernelPaths { remote: IpAddr, found: Vec<KernelPath> },
    /// A tunnel's remote that is out of reach.
    Down { remote: IpAddr },
    /// One of several paths to a tunnel's remote, which is broken.
    PathDown { remote: IpAddr, wire: VifId, hop: IpAddr },
    /// A path's MTU, bytes.
    Path { remote: IpAddr, found: Option<u16> },
    /// The floating address of an inside one.
    FloatingOf { vrf: Vrf, inside: IpAddr, outside_vrf: Vrf, found: Option<IpAddr> },
    /// The inside address of a floating one.
    InsideOf { vrf: Vrf, outside: IpAddr, found: Option<(Vrf, IpAddr)> },
    /// The network whose guests share an address.
    SharedBy { vrf: Vrf, outside: IpAddr, found: Option<Vrf> },
    /// The guest's end for which a port of a shared address stands, towards another end.
    Bound { vrf: Vrf, port: u16, remote: Endpoint, protocol: u8, found: Option<Endpoint> },
    /// The port that a guest's end has for all destinations.
    Mapping { inside: Endpoint, protocol: u8, found: Option<u16> },
    /// A port of a shared address that a different end has for all destinations.
    Mapped { vrf: Vrf, outside: (IpAddr, u16), protocol: u8 },
    /// The rules of a network.
    Rules { vrf: Vrf, query: RuleQuery, found: Option<RuleMatch> },
    /// The network's default action, for packets that no rule matches.
    Default { vrf: Vrf, action: Action },
    /// A connection, and whether the packet goes in its reply direction.
    Flow { key: FlowKey, found: Option<(FlowState, bool)> },
    /// Protocol and ports of a fragment's datagram.
    Fragment { key: FragmentKey, found: Option<Transport> },
    /// A shaper: packets to or from an interface wait for this rate.
    Shape { id: VifId, inward: bool, bits_per_second: u64 },
    /// A flow of an Open vSwitch.
    OvsFlow { port: VifId, key: Box<ovs::Key>, found: Option<ovs::Flow> },
}

impl Step {
    /// Returns the name of the table: `bridge`, `flow`, `fragment`, `guest`, `kernel`, `mpls`, `nat`, `neighbour`,
    /// `network`, `nexthop`, `ovs`, `owner`, `path`, `remote`, `route`, `rule`, `shape`, `snat`, `tunnel`, `vif` or `vxlan`.
    #[must_use]
    pub const fn table(&self) -> &'static str {
        match self {
            Self::Vif { .. } => "vif",
            Self::Network { .. } => "network",
            Self::Guest { .. } => "guest",
            Self::Owner { .. } => "owner",
            Self::Bridge { .. } => "bridge",
            Self::Route { .. } => "route",
            Self::Nexthop { .. } => "nexthop",
            Self::Remote { .. } | Self::Down { .. } => "remote",
            Self::Mpls { .. } => "mpls",
            Self::Vxlan { .. } => "vxlan",
            Self::Tunnel { .. } => "tunnel",
            Self::Neighbour { .. } | Self::Unreachable { .. } => "neighbour",
            Self::KernelPaths { .. } => "kernel",
            Self::Path { .. } | Self::PathDown { .. } => "path",
            Self::FloatingOf { .. } | Self::InsideOf { .. } => "nat",
            Self::SharedBy { .. } | Self::Bound { .. } | Self::Mapping { .. } | Self::Mapped { .. } => "snat",
            Self::Rules { .. } | Self::Default { .. } => "rule",
            Self::Flow { .. } => "flow",
            Self::Fragment { .. } => "fragment",
            Self::Shape { .. } => "shape",
            Self::OvsFlow { .. } => "ovs",
        }
    }

    /// Returns the IP protocol in the key, if the key has one.
    #[must_use]
    pub const fn protocol(&self) -> Option<u8> {
        match self {
            Self::Rules { query, .. } => Some(query.protocol),
            Self::Flow { key, .. } => Some(key.protocol),
            Self::Bound { protocol, .. } | Self::Mapping { protocol, .. } | Self::Mapped { protocol, .. } => {
                Some(*protocol)
            }
            Self::Fragment { found: Some(transport), .. } => Some(transport.protocol),
            Self::OvsFlow { key, .. } if key.ip_proto != 0 => Some(key.ip_proto),
            _ => None,
        }
    }

    /// Returns the key, in words.
    #[must_use]
    pub fn key(&self, names: &dyn Names) -> String {
        let network = |vrf: &Vrf| names.network(*vrf);
        let end = |end: &Endpoint| format!("{} {} port {}", names.network(end.vrf), end.addr, end.port);
        match self {
            Self::Vif { id, .. } => names.vif(*id),
            Self::Shape { id, inward: true, .. } => format!("to {}", names.vif(*id)),
            Self::Shape { id, inward: false, .. } => format!("from {}", names.vif(*id)),
            Self::Network { vrf, .. } => network(vrf),
            Self::Guest { vrf, addr, .. } | Self::Owner { vrf, addr, .. } | Self::Route { vrf, addr, .. } => {
                format!("{} {addr}", network(vrf))
            }
            Self::Bridge { vrf, mac, .. } => format!("{} {mac}", network(vrf)),
            Self::Nexthop { id, .. } => id.to_string(),
            Self::Remote { addr, .. } => addr.to_string(),
            Self::Mpls { label, .. } => label.to_string(),
            Self::Vxlan { vni, .. } => vni.to_string(),
            Self::Tunnel { kind, remote, id, .. } => {
                Tunnel { kind: *kind, remote: *remote, id: *id, mac: None }.to_string()
            }
            Self::Neighbour { scope, addr, .. } | Self::Unreachable { scope, addr } => match scope {
                NeighbourScope::Wire(id) => format!("{} {addr}", names.vif(*id)),
                NeighbourScope::Network(vrf) => format!("{} {addr}", network(vrf)),
            },
            Self::PathDown { remote, wire, hop } => format!("{remote} by {} {hop}", names.vif(*wire)),
            Self::KernelPaths { remote, .. } | Self::Path { remote, .. } | Self::Down { remote } => {
                remote.to_string()
            }
            Self::FloatingOf { vrf, inside, outside_vrf, .. } => {
                format!("{} {inside} in {}", network(vrf), network(outside_vrf))
            }
            Self::InsideOf { vrf, outside, .. } | Self::SharedBy { vrf, outside, .. } => {
                format!("{} {outside}", network(vrf))
            }
            Self::Bound { vrf, port, remote, protocol, .. } => {
                format!("{} port {port} for {} protocol {protocol}", network(vrf), end(remote))
            }
            Self::Mapping { inside, protocol, .. } => {
                format!("{} protocol {protocol} for all destinations", end(inside))
            }
            Self::Mapped { vrf, outside: (addr, port), protocol } => {
                format!("{} {addr} port {port} protocol {protocol}", network(vrf))
            }
            Self::Rules { vrf, query, .. } => {
                let port = query.dst_port.map_or_else(String::new, |port| format!(" port {port}"));
                let RuleQuery { src, dst, protocol, .. } = query;
                format!("{} {src} > {dst} protocol {protocol}{port}", network(vrf))
            }
            Self::Default { vrf, .. } => format!("{} default", network(vrf)),
            Self::Flow { key, .. } => {
                format!("{} > {} protocol {}", end(&key.src), end(&key.dst), key.protocol)
            }
            Self::Fragment { key, .. } => {
                format!("{} {} > {} id {}", network(&key.vrf), key.src, key.dst, key.id)
            }
            Self::OvsFlow { port, key, .. } => format!("{}: {key}", names.vif(*port)),
        }
    }

    /// Returns the result, in words; `None` for a miss.
    #[must_use]
    pub fn result(&self, names: &dyn Names) -> Option<String> {
        Some(match self {
            Self::Vif { id, found } => match (*found)? {
                (kind, Some(vrf)) => format!("{} ({}) in {}", names.vif(*id), word(kind), names.network(vrf)),
                (kind, None) => format!("{} ({})", names.vif(*id), word(kind)),
            },
            Self::Network { vrf, found } => found.then(|| names.network(*vrf))?,
            Self::Guest { found, .. } => names.vif((*found)?),
            Self::Owner { found, .. } => format!("at {found}, on another host"),
            Self::Bridge { found, .. } => bridged(&(*found)?, names),
            Self::Route { addr, found, .. } => routed(*addr, (*found)?),
            Self::Nexthop { found, .. } => found.as_ref()?.words(names),
            Self::Remote { found, .. } => found.then(|| "named by a nexthop or a wire".to_owned())?,
            Self::Mpls { found, .. } => format!("nexthop {}", (*found)?),
            Self::Vxlan { found, .. } => names.network((*found)?),
            Self::Tunnel { found, .. } => names.vif(*found),
            Self::Neighbour { found, .. } => (*found)?.to_string(),
            Self::Unreachable { .. } => "does not answer".to_owned(),
            Self::PathDown { .. } => "down (BFD): used where no other works".to_owned(),
            Self::Down { .. } => "down (BFD): used where there is no other path".to_owned(),
            Self::KernelPaths { found, .. } if found.is_empty() => return None,
            Self::KernelPaths { found, .. } => {
                let paths: Vec<_> = found.iter().map(|path| leads(path, names)).collect();
                paths.join(", ")
            }
            Self::Path { found, .. } => format!("mtu {}", (*found)?),
            Self::FloatingOf { found, .. } => (*found)?.to_string(),
            Self::InsideOf { found, .. } => {
                let (vrf, addr) = (*found)?;
                format!("{} {addr}", names.network(vrf))
            }
            Self::SharedBy { found, .. } => format!("shared by {}", names.network((*found)?)),
            Self::Bound { found, .. } => {
                let Endpoint { addr, port, .. } = (*found)?;
                format!("{addr} port {port}")
            }
            Self::Mapping { found, .. } => format!("port {}", (*found)?),
            Self::Mapped { .. } => "of a different port, for all destinations".to_owned(),
            Self::Rules { found, .. } => found.as_ref()?.words(names),
            Self::Default { action: of, .. } => action(*of).to_owned(),
            Self::Flow { found, .. } => {
                let (state, is_reply) = (*found)?;
                format!("{state}, {} direction", if is_reply { "reply" } else { "original" })
            }
            Self::Fragment { found, .. } => {
                let transport = (*found)?;
                let (src, dst) = transport.ports.unwrap_or_default();
                format!("protocol {}, ports {src} > {dst}", transport.protocol)
            }
            Self::Shape { bits_per_second, .. } => {
                format!("waits for {} Mbit/s", bits_per_second / 1_000_000)
            }
            Self::OvsFlow { found, .. } => {
                let flow = found.as_ref()?;
                format!("flow {}: {}: {}", flow.id, flow.matching, flow.actions_in_words(names))
            }
        })
    }
}

fn bridged(entry: &BridgeEntry, names: &dyn Names) -> String {
    let how = if entry.is_static { "static" } else { "learned" };
    match entry.target {
        BridgeTarget::Vif(id) => format!("{} ({how})", names.vif(id)),
        BridgeTarget::Nexthop(id) => format!("nexthop {id} ({how})"),
        BridgeTarget::Vtep { remote, .. } => format!("tunnel to {remote} ({how})"),
    }
}

fn routed(addr: IpAddr, route: RouteEntry) -> String {
    let prefix = ipnet::IpNet::new(addr, route.prefix_len).map(|prefix| prefix.trunc());
    let prefix = prefix.map_or_else(|_| addr.to_string(), |prefix| prefix.to_string());
    format!("{prefix} to nexthop {}", route.nexthop)
}

fn leads(path: &KernelPath, names: &dyn Names) -> String {
    let KernelPath { wire, hop, mac, weight, mtu } = path;
    let mac = mac.map_or_else(|| "not found".to_owned(), |mac| mac.to_string());
    let weight = if *weight > 1 { format!(" weight {weight}") } else { String::new() };
    let mtu = mtu.map(|mtu| format!(" mtu {mtu}")).unwrap_or_default();
    format!("{hop} ({mac}) by {}{weight}{mtu}", names.vif(*wire))
}

/// Returns the kind of an interface, as configurations call it.
const fn word(kind: VifKind) -> &'static str {
    match kind {
        VifKind::Vhost => "vhost",
        VifKind::Tap => "tap",
        VifKind::Rdma => "rdma",
        VifKind::Wire => "wire",
        VifKind::Mirror(_) => "mirror",
        VifKind::Tunnel(_) => "tunnel",
        VifKind::Ovs => "ovs",
    }
}
