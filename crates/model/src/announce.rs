//! Unsolicited announcements: the location of an address, and group memberships.

use crate::decide::{self, Origin};
use crate::solicit::attached;
use crate::underlay::{underlay_path, underlay_paths};
use crate::{Forward, GATEWAY_MAC, Lookup, NeighbourScope, PacketView, VifId, Vrf, copy_to};
use packet::{Headers, L4, Mac, WriteError, build, mld, neighbour};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

/// Length of the longest announcement: Ethernet, IPv6, and the advertisement with its option, bytes.
const ANNOUNCEMENT_LEN: usize = 86;

/// A frame that this host sends unasked, and its receivers.
#[derive(Clone, Debug)]
pub struct Unasked {
    /// The frame.
    pub frame: Vec<u8>,
    /// The deliveries of the frame.
    pub to: Vec<Forward>,
    /// An unknown neighbour (a tunnel's next hop) without which a delivery is missing.
    pub missing: Option<(NeighbourScope, IpAddr)>,
}

/// An address that moved to a MAC; its neighbours must forget the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The network of the address.
    pub vrf: Vrf,
    /// The address.
    pub addr: IpAddr,
    /// The guest that has it. `None`: the gateway answers for it (a floating address).
    pub guest: Option<VifId>,
}

/// Returns the announcements of an address to the members of its network except the guest that has it:
/// gratuitous ARP requests (RFC 5227, 3) or unsolicited advertisements (RFC 4861, 7.2.6), one for each MAC
/// that the gateway has. Returns nothing if the network has no other members.
#[must_use]
pub fn announce<T: Lookup>(tables: &T, announced: &Announcement) -> Vec<Unasked> {
    let Some(network) = tables.network(announced.vrf) else { return Vec::new() };
    let among_members = |origin, mac| {
        let frame = announcement(mac, announced.addr, is_router(&origin))?;
        let view = PacketView::parse(&frame, frame.len() as u32, None).ok()?;
        let (to, missing) = decide::bridge_own(tables, network, origin, &view);
        (!to.is_empty() || missing.is_some()).then_some(Unasked { frame, to, missing })
    };
    let on_wire = || {
        let (mac, forward) = attached(tables, network)?;
        Some(Unasked { frame: announcement(mac, announced.addr, false)?, to: vec![forward], missing: None })
    };
    let told = match announced.guest.map(|id| tables.vif(id)) {
        Some(Some(guest)) => [guest.mac.and_then(|mac| among_members(Origin::Guest(guest), mac)), None],
        Some(None) => [None, None],
        None => [among_members(Origin::Gateway, GATEWAY_MAC), on_wire()],
    };
    told.into_iter().flatten().collect()
}

/// Returns the deliveries of a service's answer, a frame without tags: to the guest that asked, and to its mirror.
/// Returns none if the guest is gone.
#[must_use]
pub fn answer<T: Lookup>(tables: &T, guest: VifId, frame: Vec<u8>) -> Option<Unasked> {
    let vif = tables.vif(guest).filter(|vif| vif.vrf.is_some())?;
    let mut to = vec![decide::on_port(Forward::unchanged(vif.id), vif).ok()?];
    if let Some(mirror) = vif.mirror {
        let view = PacketView::parse(&frame, frame.len() as u32, None).ok()?;
        to.extend(copy_to(tables, &view.headers, mirror, &Forward::unchanged(mirror)));
    }
    Some(Unasked { frame, to, missing: None })
}

/// Returns a UDP datagram of this host's own to the remote of a tunnel, by the way of tunnel packets, or by this wire
/// and next hop, if that is one of several ways. `ports`: from and to. Returns none if there is no such way.
#[must_use]
pub fn to_remote<T: Lookup>(
    tables: &T,
    remote: IpAddr,
    by: Option<(VifId, IpAddr)>,
    ports: (u16, u16),
    payload: &[u8],
) -> Option<Unasked> {
    let path = match by {
        None => underlay_path(tables, remote, 0),
        Some(by) => underlay_paths(tables, remote).find(|path| (path.wire.id, path.hop) == by),
    }?;
    let (mac, scope) = (path.hop_mac(tables), path.scope());
    let Some(mac) = mac else {
        let missing = path.kernels.is_none().then_some((scope, path.hop));
        return Some(Unasked { frame: Vec::new(), to: Vec::new(), missing });
    };
    let frame = build::datagram((path.src_mac, mac), (path.src, remote), ports, payload).ok()?;
    Some(Unasked { frame, to: vec![Forward::unchanged(path.wire.id)], missing: None })
}

/// Returns the answer to a UDP datagram that came to this host by a wire, back to who sent the frame there.
#[must_use]
pub fn reflect<T: Lookup>(tables: &T, wire: VifId, frame: &[u8], payload: &[u8]) -> Option<Unasked> {
    let headers = Headers::ethernet(frame, 0, frame.len()).ok()?;
    let (eth, ip) = (headers.eth.as_ref()?, headers.ip()?);
    let L4::Udp { src, dst } = headers.l4 else { return None };
    let wire = tables.vif(wire)?;
    let frame = build::datagram((wire.mac?, eth.src), (ip.dst, ip.src), (dst, src), payload).ok()?;
    Some(Unasked { frame, to: vec![Forward::unchanged(wire.id)], missing: None })
}

/// Returns whether an address of this origin is a router's. A floating address is that of a host.
const fn is_router(origin: &Origin<'_>) -> bool {
    matches!(origin, Origin::Guest(vif) if vif.roles.router)
}

fn announcement(mac: Mac, addr: IpAddr, router: bool) -> Option<Vec<u8>> {
    let mut frame = vec![0; ANNOUNCEMENT_LEN];
    let len = match addr {
        IpAddr::V4(addr) => neighbour::arp_request(&mut frame, mac, addr, addr),
        IpAddr::V6(addr) => neighbour::unsolicited_advertisement(&mut frame, mac, addr, router),
    };
    frame.truncate(len.ok()?);
    Some(frame)
}

/// Returns the MLD reports (RFC 3810, 5.2) by which this host joins the solicited-node groups of these
/// addresses on a wire: a switch with MLD snooping forwards packets to a group only towards hosts that
/// reported it. On the underlay ([`NeighbourScope::Wire`]) the wire itself is the sender; for a network
/// attached to a wire, the network's gateway is. Returns nothing if there is no wire.
#[must_use]
pub fn report<T: Lookup>(tables: &T, scope: NeighbourScope, listening: &[Ipv6Addr]) -> Vec<Unasked> {
    let way = || match scope {
        NeighbourScope::Wire(id) => Some((tables.vif(id)?.mac?, Forward::unchanged(id))),
        NeighbourScope::Network(vrf) => attached(tables, tables.network(vrf)?),
    };
    let Some((mac, forward)) = way() else { return Vec::new() };
    let groups: BTreeSet<_> = listening.iter().copied().map(neighbour::solicited_node).collect();
    let groups: Vec<_> = groups.into_iter().collect();
    let reports = groups.chunks(mld::MAX_GROUPS).map(|groups| {
        let mut frame = vec![0; mld::report_len(groups.len())];
        mld::report(&mut frame, mac, groups)?;
        Ok::<_, WriteError>(Unasked { frame, to: vec![forward.clone()], missing: None })
    });
    reports.filter_map(Result::ok).collect()
}
