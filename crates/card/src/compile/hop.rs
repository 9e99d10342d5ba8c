//! Lines of nexthops.

use super::{Compiler, Hop, address_bits, host_line, is_port, mac_bits};
use crate::registers::{self, NexthopKind};
use model::{DropReason, Lookup, Tunnel, Vif, VifId, Vrf, underlay_path, underlay_paths};
use packet::{Mac, TunnelKind, checksum, proto};
use std::net::IpAddr;

/// If a wire's MTU leaves less room than this for a tenant's packets, the host handles them: the card subtracts the
/// VLAN tags from it.
const LEAST_MTU: u16 = 8;

impl<T: Lookup> Compiler<'_, T> {
    #[must_use]
    pub fn line(&self, hop: &Hop) -> registers::Nexthop {
        let kind = |kind: NexthopKind| registers::Nexthop { kind: kind as u8, ..Default::default() };
        match *hop {
            Hop::Host => None,
            Hop::Flow => Some(kind(NexthopKind::Flow)),
            Hop::Discard => {
                Some(registers::Nexthop { id: DropReason::DiscardRoute as u32, ..kind(NexthopKind::Discard) })
            }
            Hop::Guest { vif, mac } => self.guest(vif, mac),
            Hop::GuestByFlow { vif, mac } => {
                self.guest(vif, mac).map(|line| registers::Nexthop { policy: true, ..line })
            }
            Hop::Unchanged { vif, src, dst } => self.unchanged(vif, src, dst),
            Hop::Tunnel { tunnel, vrf } => self.tunnel(&tunnel, vrf),
        }
        .unwrap_or_else(host_line)
    }

    /// Makes the line of a nexthop to a guest. The guest must be attached, without VLANs, mirror and `shape.in`, in a network
    /// that
    /// lowers no MSS. RoCEv2, which may be for the guest's verbs device, goes to the host anyway.
    fn guest(&self, id: VifId, mac: Mac) -> Option<registers::Nexthop> {
        let is_served = |vif: &&Vif| {
            is_port(vif.kind) && vif.mirror.is_none() && vif.shape.inward.is_none() && !vif.is_tagged()
        };
        let vif = self.tables.vif(id).filter(is_served)?;
        let at = self.attached(id)?;
        let network = self.tables.network(vif.vrf?).filter(|network| !network.tcp.mss_clamp)?;
        Some(registers::Nexthop {
            kind: NexthopKind::Guest as u8,
            policy: vif.policy,
            port: at.port,
            egress: at.egress,
            mtu: vif.mtu.min(network.mtu),
            mac: mac_bits(mac),
            ..Default::default()
        })
    }

    /// Makes the line of a nexthop to a port of an Open vSwitch. It must be attached, without rules and mirror.
    fn unchanged(&self, id: VifId, src: Mac, dst: Mac) -> Option<registers::Nexthop> {
        let vif = self.tables.vif(id).filter(|vif| crate::ovs::is_plain(vif))?;
        let at = self.attached(id)?;
        Some(registers::Nexthop {
            kind: NexthopKind::Guest as u8,
            port: at.port,
            egress: at.egress,
            mtu: vif.mtu,
            mac: mac_bits(dst),
            outer_src_mac: mac_bits(src),
            ..Default::default()
        })
    }

    /// Makes the line of a nexthop through a tunnel. Its next hop in the underlay must be known. The host sends tunnel
    /// packets that may be fragmented, and those that take several paths.
    fn tunnel(&self, tunnel: &Tunnel, vrf: Vrf) -> Option<registers::Nexthop> {
        let encapsulation = encapsulation(tunnel.kind)?;
        let network = self.tables.network(vrf)?;
        let path = underlay_path(self.tables, tunnel.remote, 0)?;
        let is_only = underlay_paths(self.tables, tunnel.remote).nth(1).is_none();
        let path = Some(path).filter(|path| is_only && path.dont_fragment && path.kernels.is_none())?;
        let at = self.attached(path.wire.id)?;
        let neighbour = self.tables.neighbour(path.scope(), path.hop)?;
        let id_bits = if tunnel.kind == TunnelKind::Vxlan { 24 } else { 20 };
        let learned = self.tables.path_mtu(tunnel.remote).unwrap_or(u16::MAX);
        let inner = if tunnel.kind == TunnelKind::Vxlan { proto::ETHERNET_LEN } else { 0 };
        let overhead = (tunnel.overhead() + inner) as u16;
        let mtu = path.mtu().min(learned).saturating_sub(overhead).min(network.mtu);
        (tunnel.id >> id_bits == 0 && mtu >= LEAST_MTU).then(|| registers::Nexthop {
            kind: NexthopKind::Tunnel as u8,
            tunnel: encapsulation as u8,
            outer_v6: tunnel.remote.is_ipv6(),
            port: at.port,
            egress: at.egress,
            mtu,
            id: tunnel.id,
            mac: tunnel.inner_mac().map_or(0, mac_bits),
            outer_src: address_bits(path.src),
            outer_dst: address_bits(tunnel.remote),
            outer_src_mac: mac_bits(path.src_mac),
            outer_dst_mac: mac_bits(neighbour),
            checksum: outer_checksum(tunnel.kind, tunnel.id, path.src, tunnel.remote),
            ..Default::default()
        })
    }
}

/// Converts an encapsulation to the card's number. The card does not know Geneve.
const fn encapsulation(kind: TunnelKind) -> Option<registers::Tunnel> {
    match kind {
        TunnelKind::MplsUdp => Some(registers::Tunnel::MplsUdp),
        TunnelKind::MplsGre => Some(registers::Tunnel::MplsGre),
        TunnelKind::Vxlan => Some(registers::Tunnel::Vxlan),
        TunnelKind::Geneve => None,
    }
}

/// Returns the one's complement sum of the parts of UDP's checksum over IPv6 that are the same in all packets of a
/// tunnel; 0 if there is no checksum. The card adds source port, lengths and payload.
#[must_use]
pub fn outer_checksum(kind: TunnelKind, id: u32, src: IpAddr, dst: IpAddr) -> u16 {
    const TTL: u32 = 64;
    const BOTTOM: u32 = 1 << 8;
    const VXLAN_FLAGS: u32 = 0x0800_0000;
    let mut sum = checksum::pseudo_header(src, dst, proto::UDP, 0);
    match kind {
        TunnelKind::MplsGre | TunnelKind::Geneve => return 0,
        _ if dst.is_ipv4() => return 0,
        TunnelKind::MplsUdp => {
            sum.add_u16(proto::PORT_MPLS);
            sum.add_u32(id << 12 | BOTTOM | TTL);
        }
        TunnelKind::Vxlan => {
            sum.add_u16(proto::PORT_VXLAN);
            sum.add_u32(VXLAN_FLAGS);
            sum.add_u32(id << 8);
        }
    }
    sum.fold()
}
