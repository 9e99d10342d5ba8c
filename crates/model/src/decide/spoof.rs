//! Anti-spoofing: a guest sends from its own MAC and addresses, and claims no others by ARP or ND.
//!
//! Hosts need a few more sources: `::` (RFC 4862, duplicate address detection; RFC 3810, MLD), 0.0.0.0 in DHCP (RFC
//! 2131) and ARP probes (RFC 5227), and link-local addresses. Hosts choose these at random (RFC 7217) or derive them
//! from their MAC (RFC 4291, appendix A); but they may not take another host's, nor one that another has had first.

use super::neighbour::Message;
use crate::{
    BridgeTarget, DropReason, GATEWAY_MAC, Lookup, NeighbourScope, Network, PacketView, Vif, VifId, VifKind,
};
use ipnet::IpNet;
use packet::{Headers, Ip, L4, Mac, proto};
use std::net::IpAddr;

const DHCP_CLIENT: u16 = 68;
const DHCP_SERVER: u16 = 67;
/// The first 16 bits of groups of the link: ff02::/16 (RFC 4291, 2.7).
const LINK_GROUPS: u16 = 0xff02;
/// Length of fe80::/10, the prefix of link-local addresses.
const LINK_LOCAL_LEN: u8 = 10;

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
    let was_before = |ip: &Ip| !was_first(tables, vif, network, ip.src);
    if !vif.addresses.is_empty() && headers.ip().is_some_and(was_before) {
        return Err(DropReason::AddressSpoofed);
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
        _ if vif.addresses.is_empty() => true,
        IpAddr::V6(src) if src.is_unspecified() => discovers(headers, ip),
        IpAddr::V4(src) if src.is_unspecified() => dhcp,
        src => owns(vif, src) || is_free_link_local(tables, vif, network, src),
    }
}

/// Returns whether a packet may come from `::`: it is a message to the link's groups by which a host without an
/// address discovers routers, duplicates and listeners.
fn discovers(headers: &Headers, ip: &Ip) -> bool {
    let asks = matches!(
        headers.l4,
        L4::Icmp {
            kind: proto::MLD_REPORT
                | proto::MLD_DONE
                | proto::ND_ROUTER_SOLICITATION
                | proto::ND_SOLICITATION
                | proto::MLD2_REPORT,
            ..
        }
    );
    asks && matches!(ip.dst, IpAddr::V6(dst) if dst.segments()[0] == LINK_GROUPS)
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
    let own_address = match message.sender {
        // A probe makes other hosts give up the address if they probe for it too.
        sender if sender.is_unspecified() => {
            message.asks && (vif.addresses.is_empty() || may_probe(tables, vif, network, message.target))
        }
        sender => may_claim(tables, vif, network, sender),
    };
    own_mac && own_address
}

/// Returns whether a guest may say by ARP or ND that it has an address. What others are configured with it may not
/// claim, even if it may forward packets from there.
fn may_claim<T: Lookup>(tables: &T, vif: &Vif, network: &Network, addr: IpAddr) -> bool {
    let may_have = vif.addresses.is_empty() || owns(vif, addr) || is_link_local(addr);
    let free =
        || may_have && !is_anothers(tables, vif, network, addr) && was_first(tables, vif, network, addr);
    !network.is_gateway(addr) && (vif.addresses.contains(&addr) || free())
}

/// Returns whether an address belongs to somebody else: to the gateways, another guest, a floating address, the
/// underlay, or the owner of the MAC that it is made of.
fn is_anothers<T: Lookup>(tables: &T, vif: &Vif, network: &Network, addr: IpAddr) -> bool {
    let guest = || tables.guest_by_address(network.vrf, addr).is_some_and(|id| !is_same_guest(vif, id));
    network.is_gateway(addr)
        || network.is_router_anycast(addr)
        || guest()
        || tables.inside_of(network.vrf, addr).is_some()
        || tables.shared_by(network.vrf, addr).is_some()
        || is_of_underlay(tables, network, addr)
        || is_of_anothers_mac(tables, vif, network, addr)
}

/// Returns whether a guest may probe for an address. For IPv6, it must be an address that the guest may have,
/// or one that is answered as taken. Otherwise a host elsewhere that probes for the same address would give
/// it up.
fn may_probe<T: Lookup>(tables: &T, vif: &Vif, network: &Network, target: IpAddr) -> bool {
    let IpAddr::V6(v6) = target else { return true };
    let is_answered = || network.is_gateway(target) || tables.guest_by_address(network.vrf, target).is_some();
    let may_forward = || owns(vif, target) && !is_of_underlay(tables, network, target);
    let may_have = v6.is_unicast_link_local() || may_forward() || is_answered();
    may_have && !is_of_anothers_mac(tables, vif, network, target)
}

/// Returns whether an address is link-local and nobody else's.
fn is_free_link_local<T: Lookup>(tables: &T, vif: &Vif, network: &Network, addr: IpAddr) -> bool {
    is_link_local(addr) && !is_anothers(tables, vif, network, addr)
}

/// Returns whether no other host had this address before the guest, as far as is known. That counts for link-local
/// addresses that hosts choose themselves (RFC 6620); others are configured. A guest whose addresses are not checked
/// may stand for many hosts: only guests with a configured MAC were before it.
fn was_first<T: Lookup>(tables: &T, vif: &Vif, network: &Network, addr: IpAddr) -> bool {
    if !is_link_local(addr) || owns(vif, addr) {
        return true;
    }
    let Some(mac) = tables.neighbour(NeighbourScope::Network(network.vrf), addr) else { return true };
    // The MAC of a guest without a configured one is where it was learned.
    let entry = || tables.bridge(network.vrf, mac);
    let here = || entry().is_none_or(|entry| is_at(vif, entry.target));
    let by_many = || entry().is_none_or(|entry| !entry.is_static);
    vif.has_mac(mac) || vif.mac.is_none() && here() || vif.addresses.is_empty() && by_many()
}

fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns whether an address is the link-local one derived from another MAC of the network, or from the
/// gateway's. To a guest whose addresses are not checked, only configured MACs are another's.
fn is_of_anothers_mac<T: Lookup>(tables: &T, vif: &Vif, network: &Network, addr: IpAddr) -> bool {
    let IpAddr::V6(v6) = addr else { return false };
    let checked = !vif.addresses.is_empty();
    let made_of = Mac::of_link_local(v6).filter(|mac| !vif.has_mac(*mac) && !vif.addresses.contains(&addr));
    made_of.is_some_and(|mac| {
        let entry = || tables.bridge(network.vrf, mac).filter(|entry| checked || entry.is_static);
        mac == GATEWAY_MAC || entry().is_some_and(|entry| !is_at(vif, entry.target))
    })
}

/// Returns whether an interface belongs to the guest of `vif`, which may have two.
fn is_same_guest(vif: &Vif, id: VifId) -> bool {
    vif.id == id || vif.rdma == Some(id)
}

/// Returns whether a bridge entry leads to the guest of `vif`.
fn is_at(vif: &Vif, target: BridgeTarget) -> bool {
    matches!(target, BridgeTarget::Vif(id) if is_same_guest(vif, id))
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
            || tables.host().tunnel_source.contains(&addr)
            || wire.gateways.contains(&addr)
            || tables.is_remote(addr)
            || tables.is_port_remote(addr)
    })
}

/// Returns whether a guest may send from an address. Nobody forwards from link-local addresses, so for these only
/// prefixes of their own count.
pub(super) fn owns(vif: &Vif, addr: IpAddr) -> bool {
    let least = if is_link_local(addr) { LINK_LOCAL_LEN } else { 0 };
    let allows = |prefix: &IpNet| prefix.prefix_len() >= least && prefix.contains(&addr);
    vif.addresses.contains(&addr) || vif.allowed.iter().any(allows)
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
