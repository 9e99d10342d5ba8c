//! Messages that hosts believe from any sender, so that only guests configured for it may send them: router
//! advertisements and redirects (RA guard, RFC 6105 and RFC 7113), and the answers of DHCP servers (RFC 7610).
//!
//! An ICMP message's type and a datagram's ports are in the first fragment, after all extension headers; otherwise
//! parsing has failed (RFC 7112). So neither extension headers nor fragments hide them, and later fragments are
//! useless without the first.

use crate::{DropReason, PacketView, Vif};
use packet::{Ip, L4, proto};

/// Ports of DHCP clients. Servers and relays send to them from any port.
const DHCP_CLIENT: u16 = 68;
const DHCPV6_CLIENT: u16 = 546;

/// Checks that a guest may send this packet. Guests without configured addresses are not checked.
pub(super) fn check(vif: &Vif, packet: &PacketView<'_>) -> Result<(), DropReason> {
    if vif.addresses.is_empty() {
        return Ok(());
    }
    if is_snap(packet) {
        return Err(DropReason::Snap);
    }
    let Some(ip) = packet.headers.ip() else { return Ok(()) };
    if !vif.roles.router && is_routers(ip, &packet.headers.l4) {
        return Err(DropReason::RouterGuard);
    }
    if !vif.roles.dhcp_server && is_dhcp_servers(ip, &packet.headers.l4) {
        return Err(DropReason::DhcpGuard);
    }
    Ok(())
}

/// Returns whether the packet is a router's message to hosts.
fn is_routers(ip: &Ip, l4: &L4) -> bool {
    let L4::Icmp { kind, .. } = *l4 else { return false };
    if ip.src.is_ipv4() {
        matches!(kind, proto::ICMP_REDIRECT | proto::ICMP_ROUTER_ADVERTISEMENT)
    } else {
        matches!(kind, proto::ND_ROUTER_ADVERTISEMENT | proto::ND_REDIRECT)
    }
}

/// Returns whether the packet is a DHCP server's message to clients.
fn is_dhcp_servers(ip: &Ip, l4: &L4) -> bool {
    let client = if ip.src.is_ipv4() { DHCP_CLIENT } else { DHCPV6_CLIENT };
    matches!(*l4, L4::Udp { dst, .. } if dst == client)
}

/// Returns whether the packet is an IEEE 802.3 frame with a SNAP header (RFC 1042). Some receivers use the
/// EtherType in that header, and Viaduct did not check the packet after it.
fn is_snap(packet: &PacketView<'_>) -> bool {
    /// Lower values in the EtherType field are lengths (IEEE 802.3, 3.2.6).
    const FIRST_ETHERTYPE: u16 = 0x0600;
    /// Both of LLC's service access points (IEEE 802.2).
    const SNAP: [u8; 2] = [0xaa, 0xaa];
    let llc = packet.headers.eth.as_ref().is_some_and(|eth| eth.ethertype < FIRST_ETHERTYPE);
    llc && packet.bytes.get(packet.headers.l3_at.into()..).is_some_and(|llc| llc.starts_with(&SNAP))
}
