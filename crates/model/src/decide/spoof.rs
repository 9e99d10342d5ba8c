//! Anti-spoofing: a guest sends from its own MAC and addresses, and claims no others by ARP or ND.
//!
//! Hosts need a few more sources: `::` (RFC 4862, duplicate address detection; RFC 3810, MLD), 0.0.0.0 in DHCP (RFC
//! 2131) and ARP probes (RFC 5227), and link-local addresses. Hosts choose these at random (RFC 7217) or derive them
//! from their MAC (RFC 4291, appendix A); but they may not take another host's.

use super::neighbour::Message;
use crate::{BridgeTarget, DropReason, GATEWAY_MAC, Lookup, Network, PacketView, Vif, VifId, VifKind};
use packet::{Headers, Ip, L4, Mac, proto};
use std::net::IpAddr;

const DHCP_CLIENT: u16 = 68;
const DHCP_SERVER: u16 = 67;

/// Checks that a guest may send this packet.
pub(super) fn check<T: Lookup>(
    tables: &T,
    vif: &Vif,
    network: &Network,
    packet: &PacketView<'_>,
) -> Result<(), DropReason> {
    let headers = &packet.headers;
    let eth = headers.eth.as_ref().ok_or(DropReason::EthernetTruncated)?;
    let own = vif.mac.is_none() || vif.has_mac(eth.src);
    let gateways = || eth.src == GATEWAY_MAC || is_wires(tables, network, eth.src);
    if !own || eth.src.is_group() || eth.src.is_zero() || gateways() {
        return Err(DropReason::MacSpoofed);
    }
    if let Some(ip) = headers.ip()
        && !may_send_from(tables, vif, network, headers, ip)
    {
        return Err(DropReason::AddressSpoofed);
    }
    match Message::of(headers) {
        Some(message) if !may_say(tables, vif, network, headers, &message) => {
            return Err(DropReason::NeighbourSpoofed);
        }
        None if is_malformed_nd(headers) => return Err(DropReason::NeighbourSpoofed),
        None if is_rarp(headers) && vif.mac.is_some() && !tells_of(packet, eth.src) => {
            return Err(DropReason::NeighbourSpoofed);
        }
        _ => {}
    }
    let roce = matches!(headers.l4, L4::Udp { dst: proto::PORT_ROCE, .. });
    if roce && vif.rdma.is_some() && vif.kind != VifKind::Rdma {
        return Err(DropReason::RdmaOwned);
    }
    Ok(())
}

fn may_send_from<T: Lookup>(tables: &T, vif: &Vif, network: &Network, headers: &Headers, ip: &Ip) -> bool {
    let dhcp = matches!(headers.l4, L4::Udp { src: DHCP_CLIENT, dst: DHCP_SERVER });
    match ip.src {
        IpAddr::V6(src) if src.is_unspecified() => true,
        IpAddr::V4(src) if src.is_unspecified() && dhcp => true,
        _ if vif.addresses.is_empty() => true,
        src => owns(vif, src) || is_free_link_local(tables, vif, network, src),
    }
}

fn may_say<T: Lookup>(
    tables: &T,
    vif: &Vif,
    network: &Network,
    headers: &Headers,
    message: &Message,
) -> bool {
    let eth_src = headers.eth.as_ref().map(|eth| eth.src);
    let own_mac = vif.mac.is_none() || message.mac.is_none_or(|mac| eth_src == Some(mac) || vif.has_mac(mac));
    let other_guest = || tables.guest_by_address(network.vrf, message.sender).is_some_and(|id| id != vif.id);
    let own_address = match message.sender {
        // A probe makes other hosts give up the address if they probe for it too.
        sender if sender.is_unspecified() => {
            message.asks && (vif.addresses.is_empty() || may_probe(tables, vif, network, message.target))
        }
        sender if network.is_gateway(sender) => false,
        sender if vif.addresses.is_empty() => !other_guest() && !is_of_underlay(tables, network, sender),
        sender => owns(vif, sender) || is_free_link_local(tables, vif, network, sender),
    };
    own_mac && own_address
}

/// Returns whether a guest may probe for an address. For IPv6, it must be an address that the guest may have,
/// or one that is answered as taken. Otherwise a host elsewhere that probes for the same address would give
/// it up.
fn may_probe<T: Lookup>(tables: &T, vif: &Vif, network: &Network, target: IpAddr) -> bool {
    let IpAddr::V6(v6) = target else { return true };
    let is_answered = || network.is_gateway(target) || tables.guest_by_address(network.vrf, target).is_some();
    let may_have = v6.is_unicast_link_local() || owns(vif, target) || is_answered();
    may_have && !is_of_anothers_mac(tables, vif, network, target)
}

/// Returns whether an address is link-local and, as far as is known, no other host's.
fn is_free_link_local<T: Lookup>(tables: &T, vif: &Vif, network: &Network, addr: IpAddr) -> bool {
    let link_local = matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let anothers = || tables.guest_by_address(network.vrf, addr).is_some_and(|id| !is_same_guest(vif, id));
    link_local && !network.is_gateway(addr) && !is_of_anothers_mac(tables, vif, network, addr) && !anothers()
}

/// Returns whether an address is the link-local one derived from another MAC of the network, or from the
/// gateway's.
fn is_of_anothers_mac<T: Lookup>(tables: &T, vif: &Vif, network: &Network, addr: IpAddr) -> bool {
    let IpAddr::V6(v6) = addr else { return false };
    let own = |target| matches!(target, BridgeTarget::Vif(id) if is_same_guest(vif, id));
    Mac::of_link_local(v6).filter(|mac| !vif.has_mac(*mac) && !owns(vif, addr)).is_some_and(|mac| {
        mac == GATEWAY_MAC || tables.bridge(network.vrf, mac).is_some_and(|entry| !own(entry.target))
    })
}

/// Returns whether an interface belongs to the guest of `vif`, which may have two.
fn is_same_guest(vif: &Vif, id: VifId) -> bool {
    vif.id == id || vif.rdma == Some(id)
}

/// Returns whether a MAC is the gateway's on the network's wire.
fn is_wires<T: Lookup>(tables: &T, network: &Network, mac: Mac) -> bool {
    network.wire.and_then(|attached| tables.vif(attached.vif)?.mac) == Some(mac)
}

/// Returns whether hosts of the underlay use ARP or ND for an address on a wire that the network shares: this
/// host's, its router's or a peer's.
fn is_of_underlay<T: Lookup>(tables: &T, network: &Network, addr: IpAddr) -> bool {
    let shared = network.wire.filter(|attached| attached.vlan.is_none());
    let wire = shared.and_then(|attached| tables.vif(attached.vif)?.wire.as_ref());
    wire.is_some_and(|wire| {
        wire.addresses.iter().any(|subnet| subnet.addr() == addr)
            || wire.gateways.contains(&addr)
            || tables.is_remote(addr)
            || tables.is_port_remote(addr)
    })
}

/// Returns whether a guest may send from an address.
pub(super) fn owns(vif: &Vif, addr: IpAddr) -> bool {
    vif.addresses.contains(&addr) || vif.allowed.iter().any(|prefix| prefix.contains(&addr))
}

/// Returns whether the packet is RARP (RFC 903). Hypervisors use it to announce, on behalf of guests, that
/// the guests have moved.
pub(super) fn is_rarp(headers: &Headers) -> bool {
    headers.eth.as_ref().is_some_and(|eth| eth.ethertype == proto::ETHERTYPE_RARP)
}

/// Returns whether a RARP request asks for the sender's own MAC. Servers' replies, which give addresses to
/// others, do not count.
fn tells_of(packet: &PacketView<'_>, mac: Mac) -> bool {
    const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 3];
    let body = packet.bytes.get(packet.headers.l3_at.into()..);
    body.and_then(|body| body.first_chunk::<{ proto::ARP_LEN }>())
        .is_some_and(|body| body[..8] == REQUEST && body[8..14] == mac.0 && body[18..24] == mac.0)
}

/// Returns whether the packet is ND that could not be parsed here, and so was not checked, but that another
/// host may accept. Hosts that follow RFC 6980 accept no ND in fragments; others do.
fn is_malformed_nd(headers: &Headers) -> bool {
    let nd = matches!(
        headers.l4,
        L4::Icmp { kind: proto::ND_SOLICITATION | proto::ND_ADVERTISEMENT, code: 0, .. }
    );
    headers.ip().is_some_and(|ip| nd && headers.nd.is_none() && ip.src.is_ipv6() && ip.ttl == 255)
}
