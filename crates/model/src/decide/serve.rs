//! Packets to the services that the host itself gives the guests of a network.

use super::{Frame, Origin};
use crate::{Service, Verdict};
use packet::{Ethernet, Fragment, L4, Mac};
use std::net::IpAddr;

/// The port of DHCP servers.
const DHCP_SERVER: u16 = 67;

/// Returns the verdict on a frame to a service: one to all on the link, or to the gateway. Services answer guests only,
/// because the answer goes to the guest's port. A tenant's own VLANs have none.
pub(super) fn serve(frame: &Frame<'_>, eth: &Ethernet) -> Option<Verdict> {
    let Origin::Guest(guest) = frame.origin else { return None };
    let may_ask = frame.network.services.dhcp && !frame.origin.is_verbs() && frame.tags().is_empty();
    let ip = frame.headers.ip().filter(|ip| may_ask && ip.fragment == Fragment::Whole)?;
    let L4::Udp { dst: DHCP_SERVER, .. } = frame.headers.l4 else { return None };
    let IpAddr::V4(to) = ip.dst else { return None };
    let is_asked = match eth.dst {
        Mac::BROADCAST => to.is_broadcast(),
        mac => frame.is_gateways(mac) && frame.network.is_gateway(ip.dst),
    };
    is_asked.then_some(Verdict::Serve { service: Service::Dhcp, guest: guest.id })
}
