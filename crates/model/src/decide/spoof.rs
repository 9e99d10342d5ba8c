//! Anti-spoofing: a guest sends from its own MAC and addresses, and claims no others by ARP or ND.
//!
//! Hosts need a few more sources, which are always allowed: link-local addresses, `::` (RFC 4862, duplicate address
//! detection; RFC 3810, MLD), and 0.0.0.0 in DHCP (RFC 2131) and ARP probes (RFC 5227).

use super::neighbour::Message;
use crate::{DropReason, GATEWAY_MAC, Lookup, Network, Vif, VifKind};
use packet::{Fragment, Headers, Ip, L4, proto};
use std::net::IpAddr;

const DHCP_CLIENT: u16 = 68;
const DHCP_SERVER: u16 = 67;

/// Whether a guest may send this.
pub(super) fn check<T: Lookup>(
    tables: &T,
    vif: &Vif,
    network: &Network,
    headers: &Headers,
) -> Result<(), DropReason> {
    let eth = headers.eth.as_ref().ok_or(DropReason::EthernetTruncated)?;
    let own = vif.mac.is_none_or(|mac| mac == eth.src);
    if !own || eth.src.is_group() || eth.src.is_zero() || eth.src == GATEWAY_MAC {
        return Err(DropReason::MacSpoofed);
    }
    if let Some(ip) = headers.ip()
        && !may_send_from(vif, ip, headers)
    {
        return Err(DropReason::AddressSpoofed);
    }
    match Message::of(headers) {
        Some(message) if !may_say(tables, vif, network, headers, &message) => {
            return Err(DropReason::NeighbourSpoofed);
        }
        None if is_malformed_nd(headers) => return Err(DropReason::NeighbourSpoofed),
        _ => {}
    }
    let roce = matches!(headers.l4, L4::Udp { dst: proto::PORT_ROCE, .. });
    if roce && vif.rdma.is_some() && vif.kind != VifKind::Rdma {
        return Err(DropReason::RdmaOwned);
    }
    Ok(())
}

fn may_send_from(vif: &Vif, ip: &Ip, headers: &Headers) -> bool {
    let dhcp = matches!(headers.l4, L4::Udp { src: DHCP_CLIENT, dst: DHCP_SERVER });
    match ip.src {
        IpAddr::V6(src) if src.is_unspecified() || src.is_unicast_link_local() => true,
        IpAddr::V4(src) if src.is_unspecified() && dhcp => true,
        src => vif.addresses.is_empty() || owns(vif, src),
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
    let own_mac = vif.mac.is_none() || message.mac.is_none() || message.mac == eth_src;
    let other_guest = || tables.guest_by_address(network.vrf, message.sender).is_some_and(|id| id != vif.id);
    let own_address = match message.sender {
        sender if sender.is_unspecified() => message.asks,
        sender if network.is_gateway(sender) => false,
        IpAddr::V6(sender) if sender.is_unicast_link_local() => true,
        _ if vif.addresses.is_empty() => !other_guest(),
        sender => owns(vif, sender),
    };
    own_mac && own_address
}

fn owns(vif: &Vif, addr: IpAddr) -> bool {
    vif.addresses.contains(&addr) || vif.allowed.iter().any(|prefix| prefix.contains(&addr))
}

/// ND that another host may accept though it could not be read here, and so not checked.
fn is_malformed_nd(headers: &Headers) -> bool {
    let nd = matches!(
        headers.l4,
        L4::Icmp { kind: proto::ND_SOLICITATION | proto::ND_ADVERTISEMENT, code: 0, .. }
    );
    headers.ip().is_some_and(|ip| {
        nd && headers.nd.is_none() && ip.src.is_ipv6() && ip.ttl == 255 && ip.fragment == Fragment::Whole
    })
}
