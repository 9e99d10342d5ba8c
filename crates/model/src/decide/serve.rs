//! Packets to the services that the host itself gives the guests of a network.

use super::{Frame, Origin};
use crate::{GATEWAY_MAC, Network, Service, Verdict};
use packet::{Ethernet, Fragment, Ip, L4, Mac, proto};
use std::net::{IpAddr, Ipv6Addr};

/// The ports of DHCP, DNS and HTTP servers, and the group of DHCPv6 servers of the link.
const DHCP_SERVER: u16 = 67;
const DHCPV6_SERVER: u16 = 547;
const DNS_SERVER: u16 = 53;
const HTTP_SERVER: u16 = 80;
const DHCPV6_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// The group of the link's routers.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Messages of neighbour discovery have this hop limit (RFC 4861, 6.1.1).
const LINK_HOPS: u8 = 255;

/// Returns the verdict on a frame to a service: one to all on the link, or to the gateway. Services answer guests only,
/// because the answer goes to the guest's port. A tenant's own VLANs have none.
pub(super) fn serve(frame: &Frame<'_>, eth: &Ethernet) -> Option<Verdict> {
    let Origin::Guest(guest) = frame.origin else { return None };
    let ip = frame.headers.ip().filter(|ip| ip.fragment == Fragment::Whole)?;
    let service = asked(frame, eth, ip).filter(|_| !frame.origin.is_verbs() && frame.tags().is_empty())?;
    Some(Verdict::Serve { service, guest: guest.id })
}

fn asked(frame: &Frame<'_>, eth: &Ethernet, ip: &Ip) -> Option<Service> {
    let (network, l4) = (frame.network, &frame.headers.l4);
    let has_v6 = || network.gateways.iter().any(|gateway| gateway.addr().is_ipv6());
    match (ip.dst, l4) {
        (IpAddr::V4(to), L4::Udp { dst: DHCP_SERVER, .. }) => {
            let is_asked = match eth.dst {
                Mac::BROADCAST => to.is_broadcast(),
                mac => frame.is_gateways(mac) && network.is_gateway(ip.dst),
            };
            (network.services.dhcp && is_asked).then_some(Service::Dhcp)
        }
        (_, L4::Udp { dst: DNS_SERVER, .. } | L4::Tcp { dst: DNS_SERVER, .. }) => {
            let is_asked = || frame.is_gateways(eth.dst) && network.is_gateway(ip.dst);
            (network.services.dns && is_asked()).then_some(Service::Dns)
        }
        (_, L4::Tcp { dst: HTTP_SERVER, .. }) => {
            (network.is_metadata(ip.dst) && frame.is_gateways(eth.dst)).then_some(Service::Metadata)
        }
        (IpAddr::V6(DHCPV6_SERVERS), L4::Udp { dst: DHCPV6_SERVER, .. }) => {
            (network.services.dhcp && has_v6()).then_some(Service::Dhcpv6)
        }
        (IpAddr::V6(ROUTERS), L4::Icmp { kind: proto::ND_ROUTER_SOLICITATION, .. }) => {
            (network.services.ra && ip.ttl == LINK_HOPS).then_some(Service::Router)
        }
        _ => None,
    }
}

/// Returns whether an address is the link-local one from which a network's gateway announces itself.
pub(super) fn is_router(network: &Network, addr: IpAddr) -> bool {
    network.services.ra && addr == IpAddr::V6(GATEWAY_MAC.link_local())
}
