//! The path to another host's tunnel endpoint, what routers on it report, and who may send tunnel packets.

use super::{Frame, Walk};
use crate::underlay::{UnderlayPath, is_own_underlay, underlay, underlay_path, underlay_paths};
use crate::{DropReason, Lookup, Nat, PathMtu, WireAttributes};
use packet::{Fragment, Headers, Ip, L4, entropy_port, proto};
use std::net::IpAddr;

/// The code of "fragmentation needed and DF set" (RFC 792).
const ICMP_TOO_BIG: u8 = 4;
/// The MTU that every path carries or is assumed to carry, bytes: less is useless to tenants (RFC 1122, 3.3.2) or
/// violates the standard (RFC 8200, 5). Old routers report 0.
const LEAST_V4: u16 = 576;
const LEAST_V6: u16 = 1280;

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |field| u16::from_be_bytes(*field))
}

/// Returns whether tunnels have this UDP port.
const fn is_tunnel_port(port: u16) -> bool {
    matches!(port, proto::PORT_VXLAN | proto::PORT_GENEVE | proto::PORT_MPLS)
}

impl<'a, T: Lookup> Walk<'a, T> {
    /// Returns the path to a remote for a flow with this entropy.
    pub(super) fn path(&self, remote: IpAddr, entropy: u32) -> Result<UnderlayPath<'a>, DropReason> {
        underlay_path(self.tables, remote, entropy).ok_or(DropReason::NoUnderlay)
    }

    /// Returns the MTU that an ICMP error to this host reports for the path to a remote, if that is less than
    /// the known MTU. Anybody may forge such an error, so its sender must be one that a router may have, and it must
    /// quote a tunnel packet as this host sends it there, longer than the reported MTU (RFC 5927, 7).
    pub(super) fn too_big(&self, ip: &Ip) -> Result<Option<PathMtu>, DropReason> {
        let headers = &self.packet.headers;
        let Some(found) = self.reported(ip).filter(|_| self.may_be_router(ip.src)) else { return Ok(None) };
        Ok(self.is_right(headers)?.then_some(found))
    }

    fn reported(&self, ip: &Ip) -> Option<PathMtu> {
        let headers = &self.packet.headers;
        if !is_too_big(ip, &headers.l4) {
            return None;
        }
        let at = usize::from(headers.l4_at);
        let said = self.packet.bytes.get(at + 4..at + proto::ICMP_LEN)?;
        let (floor, said) = match ip.src {
            IpAddr::V4(_) => (LEAST_V4, u32::from(be16(said, 2))),
            IpAddr::V6(_) => (LEAST_V6, u32::from(be16(said, 0)) << 16 | u32::from(be16(said, 2))),
        };
        let mtu = u16::try_from(said).ok()?.max(floor);
        let quoted = headers.quoted(self.packet.bytes, self.packet.len as usize).ok()??;
        let refused = quoted.ip()?;
        let is_tunnel = match quoted.l4 {
            L4::Udp { src, dst } => src >= entropy_port(0) && is_tunnel_port(dst),
            _ => refused.protocol == proto::GRE,
        };
        let is_whole = refused.fragment == Fragment::Whole && refused.dont_fragment;
        self.path(refused.dst, 0).ok().filter(|path| path.src == refused.src)?;
        // The flow may have taken any of several paths.
        let longest = || underlay_paths(self.tables, refused.dst).map(|path| path.mtu()).max();
        let known = self.tables.path_mtu(refused.dst).or_else(longest)?;
        let is_ours = is_tunnel && is_whole && refused.src == ip.dst && self.is_remote(refused.dst);
        let is_less = mtu < known && u32::from(mtu) < refused.len;
        (is_ours && is_less).then_some(PathMtu { remote: refused.dst, mtu })
    }

    /// Returns whether a router on the way to a remote may have this address: it is neither this host's nor, unless
    /// it is on the underlay too, in a subnet of tenants on the wires.
    fn may_be_router(&self, addr: IpAddr) -> bool {
        let of_tenants = |wire: &WireAttributes| {
            let networks = wire.networks.iter().filter_map(|(_, vrf)| self.tables.network(*vrf));
            networks.flat_map(|network| &network.gateways).any(|subnet| subnet.contains(&addr))
        };
        let may = !addr.is_unspecified() && !self.is_ours(addr);
        may && (self.is_underlay(addr) || !underlay(self.tables).any(|(_, wire)| of_tenants(wire)))
    }

    /// Returns whether an address is this host's on the underlay.
    pub(super) fn is_ours(&self, addr: IpAddr) -> bool {
        is_own_underlay(self.tables, addr)
    }

    /// Returns whether tunnels lead to an address.
    pub(super) fn is_remote(&self, addr: IpAddr) -> bool {
        self.is_peer(addr) || self.tables.is_port_remote(addr)
    }

    /// Returns whether tunnel packets for any network are accepted from an address.
    pub(super) fn is_peer(&self, addr: IpAddr) -> bool {
        self.tables.is_remote(addr)
            || self.tables.host().tunnel_peers.iter().any(|prefix| prefix.contains(&addr))
    }

    /// Returns whether an address is one that hosts of the underlay may have.
    fn is_underlay(&self, addr: IpAddr) -> bool {
        let on_link = |wire: &WireAttributes| wire.addresses.iter().any(|subnet| subnet.contains(&addr));
        self.is_remote(addr) || self.is_ours(addr) || underlay(self.tables).any(|(_, wire)| on_link(wire))
    }

    /// Returns whether a host of the underlay would take a tenant's packet for a tunnel packet and accept it,
    /// would answer it to another host, or would believe what it says about the path of such packets. Judges by the
    /// addresses with which the packet leaves.
    pub(super) fn is_underlay_tunnel(&self, frame: &Frame<'_>, nat: Nat) -> bool {
        let Some(ip) = frame.headers.ip() else { return false };
        let (src, dst) = (nat.src.unwrap_or(ip.src), nat.dst.unwrap_or(ip.dst));
        if is_too_big(ip, &frame.headers.l4) {
            return match frame.headers.quoted(self.packet.bytes, frame.end) {
                Ok(Some(quoted)) => quoted.ip().is_some_and(|refused| {
                    is_tunnel(&quoted, refused)
                        && [dst, refused.src, refused.dst].iter().any(|&addr| self.is_underlay(addr))
                }),
                // Others may read what can't be read here.
                _ => self.is_underlay(dst),
            };
        }
        is_tunnel(&frame.headers, ip) && (self.is_underlay(dst) || self.is_underlay(src))
    }
}

/// Returns whether a packet goes to a tunnel's other end.
fn is_tunnel(headers: &Headers, ip: &Ip) -> bool {
    match headers.l4 {
        L4::Udp { dst, .. } => is_tunnel_port(dst),
        _ => ip.protocol == proto::GRE,
    }
}

/// Returns whether a packet is the ICMP error of a router for which another packet is too big.
fn is_too_big(ip: &Ip, l4: &L4) -> bool {
    match (ip.src, l4) {
        (IpAddr::V4(_), L4::Icmp { kind: proto::ICMP_UNREACHABLE, code, .. }) => *code == ICMP_TOO_BIG,
        (IpAddr::V6(_), L4::Icmp { kind: proto::ICMPV6_TOO_BIG, .. }) => true,
        _ => false,
    }
}
