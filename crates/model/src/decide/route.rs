//! Routing between subnets, networks and hosts.

use super::egress::Exit;
use super::reply::on_port;
use super::share::Sharing;
use super::{Frame, Origin, Outcome, Stop, Walk, is_roce};
use crate::{
    Destination, DropReason, Forward, Lookup, Nat, NeighbourScope, Network, Nexthop, NexthopId, Reply,
    ReplyKind, Transport, Verdict, Vrf, ecmp_member,
};
use packet::checksum::{L4Check, verify_l4};
use packet::{Fragment, Headers, IcmpError, Ip, L4, Mac, TunnelKind, proto};
use std::borrow::Cow;
use std::net::IpAddr;

/// Most changes of network (by a route or a floating address) for one packet.
pub(super) const MAX_TRANSLATIONS: usize = 4;

/// The result of routing.
pub(super) enum Found<'a> {
    /// To one of Viaduct's own gateway addresses, in this network.
    Local(&'a Network),
    /// To a nexthop, from the last network on the path.
    Nexthop { network: &'a Network, dst: IpAddr, nat: Nat, sharing: Sharing, nexthop: Cow<'a, Nexthop> },
}

impl<'a, T: Lookup> Walk<'a, T> {
    /// Routes a packet from the network that it is in.
    pub(super) fn route(&mut self, frame: &Frame<'a>) -> Outcome {
        let shared = is_kernels_too(frame);
        let no_ip = if shared { DropReason::NotForUs } else { DropReason::GatewayNoService };
        let ip = frame.headers.ip().ok_or(no_ip)?;
        let found = match self.find(frame, ip.src, ip.dst) {
            Err(Stop::Refuse(IcmpError::NoRoute, _)) if shared => return Err(DropReason::NotForUs.into()),
            found => found?,
        };
        match found {
            Found::Local(network) => self.serve(frame, ip, network),
            Found::Nexthop { network, ref nexthop, .. }
                if shared
                    && network.vrf == frame.network.vrf
                    && matches!(**nexthop, Nexthop::Resolve { .. }) =>
            {
                Err(DropReason::NotForUs.into())
            }
            Found::Nexthop { network, dst, nat, sharing, nexthop } => {
                if !is_routable(ip.src) {
                    return Err(DropReason::NotRoutable.into());
                }
                if nat != Nat::default() && is_roce(&frame.headers.l4) {
                    return Err(DropReason::RoceNat.into());
                }
                self.send(frame, (network, dst), nat, sharing, &nexthop)
            }
        }
    }

    /// Follows the routes from network to network, and translates addresses on the way: the destination on entering a
    /// floating address's network, the source on leaving its guest's network.
    pub(super) fn find(&mut self, frame: &Frame<'a>, src: IpAddr, dst: IpAddr) -> Result<Found<'a>, Stop> {
        let (mut network, mut dst, mut nat) = (frame.network, dst, Nat::default());
        let mut sharing = Sharing::default();
        for _ in 0..=MAX_TRANSLATIONS {
            match Destination::of(self.tables, network, dst) {
                Destination::Gateway => return Ok(Found::Local(network)),
                Destination::Floating(vrf, inside) => {
                    (dst, nat.dst) = (inside, Some(inside));
                    network = self.network(vrf)?;
                    continue;
                }
                Destination::Shared(vrf) => match self.inward(frame, (src, dst), vrf)? {
                    Some(inward) => {
                        (dst, nat.dst) = (inward.to.addr, Some(inward.to.addr));
                        sharing.inward = Some(inward);
                        network = self.network(inward.to.vrf)?;
                        continue;
                    }
                    None => return Ok(Found::Local(network)),
                },
                Destination::Routed => {}
            }
            if !is_routable(dst) {
                return Err(DropReason::NotRoutable.into());
            }
            let Some(route) = self.tables.route(network.vrf, dst) else {
                return if is_on_link(frame, network, dst) {
                    Ok(Found::Nexthop { network, dst, nat, sharing, nexthop: Cow::Borrowed(&ON_LINK) })
                } else {
                    Err(Stop::Refuse(IcmpError::NoRoute, DropReason::NoRoute))
                };
            };
            let (id, nexthop) = self.pick(route.nexthop, self.choice(&frame.headers, frame.end))?;
            self.effects.nexthop = Some(id);
            match *nexthop {
                Nexthop::VrfTranslate { vrf } => {
                    nat.src = self.tables.floating_of(frame.network.vrf, src, vrf).or(nat.src);
                    nat.quoted = self.quoted_floating(frame, src, vrf).or(nat.quoted);
                    if nat.src.is_none()
                        && network.vrf == frame.network.vrf
                        && network.sharing.hides(src, vrf)
                    {
                        sharing.out = Some(vrf);
                    }
                    network = self.network(vrf)?;
                }
                Nexthop::Receive => return Ok(Found::Local(network)),
                Nexthop::Discard => return Err(DropReason::DiscardRoute.into()),
                _ => return Ok(Found::Nexthop { network, dst, nat, sharing, nexthop }),
            }
        }
        Err(DropReason::RouteLoop.into())
    }

    /// Returns the nexthop with this id, or the member of its group that the flow uses.
    pub(super) fn pick(
        &self,
        id: NexthopId,
        entropy: u32,
    ) -> Result<(NexthopId, Cow<'a, Nexthop>), DropReason> {
        ecmp_member(self.tables, id, entropy).ok_or(DropReason::NexthopInvalid)
    }

    fn network(&self, vrf: Vrf) -> Result<&'a Network, DropReason> {
        self.tables.network(vrf).ok_or(DropReason::NoNetwork)
    }

    /// Sends a packet to where routing leads.
    fn send(
        &mut self,
        frame: &Frame<'a>,
        (network, dst): (&'a Network, IpAddr),
        nat: Nat,
        sharing: Sharing,
        nexthop: &Nexthop,
    ) -> Outcome {
        let (exit, mac) = match self.exit(network, dst, nexthop) {
            Ok((Some(exit), mac)) => (exit, mac),
            Err(stop @ Stop::Refuse(..)) => {
                // A sender that may not send there must not learn who is there.
                self.share(frame, (network, dst), nat, sharing)?;
                self.admit(frame, None, network.vrf, Some(dst))?;
                self.live(frame)?;
                return Err(stop);
            }
            Err(stop) => return Err(stop),
            Ok((None, mac)) => {
                // The neighbour is known, but its port is not.
                let nat = self.share(frame, (network, dst), nat, sharing)?;
                if self.bound.is_some() {
                    self.admit(frame, None, network.vrf, Some(dst))?;
                }
                self.may_leave(frame, network, nat, network.wire.is_some())?;
                self.live(frame)?;
                return self.flood(frame, network, &frame.routed(nat, mac), Some(dst));
            }
        };
        let network = exit.guest().and_then(|vif| self.tables.network(vif.vrf?)).unwrap_or(network);
        let nat = self.share(frame, (network, dst), nat, sharing)?;
        self.admit(frame, exit.guest(), network.vrf, Some(dst))?;
        self.may_leave(frame, network, nat, matches!(exit, Exit::Attached { .. }))?;
        let base = frame.routed(nat, mac);
        let base = if nat == Nat::default() && network.vrf == frame.network.vrf && is_link(frame, &exit) {
            self.hop(frame, base)?
        } else {
            self.live(frame)?;
            base
        };
        self.leave(frame, base, network, exit).map(Verdict::Forward)
    }

    /// Checks that a packet may leave by a wire, if it does (`by_wire`): hosts outside know no way back to an address of
    /// a different network, so such a packet is translated or its network is routed there.
    fn may_leave(
        &self,
        frame: &Frame<'_>,
        network: &Network,
        nat: Nat,
        by_wire: bool,
    ) -> Result<(), DropReason> {
        let is_foreign = network.vrf != frame.network.vrf && nat.src.is_none();
        let may = !by_wire || !is_foreign || network.routed_outside;
        may.then_some(()).ok_or(DropReason::RoutedOutside)
    }

    /// Counts a hop between guests by MPLS down, at either of its ends. Within a subnet the hop is a link,
    /// which costs no TTL: BGP (RFC 4271), single-hop BFD (RFC 5881) and other protocols bound to the link
    /// rely on that. A packet that circles between hosts is routed by them, and so loses a TTL with each hop.
    pub(super) fn hop(&self, frame: &Frame<'a>, base: Forward) -> Result<Forward, Stop> {
        if frame.headers.ip().is_some_and(|ip| frame.network.is_one_subnet(ip.src, ip.dst)) {
            return Ok(Forward { ttl_decrement: 0, ..base });
        }
        self.live(frame)?;
        Ok(base)
    }

    /// Returns where a nexthop's packets leave, and the destination MAC if they have a frame. There is no
    /// exit if the MAC's port is unknown.
    pub(super) fn exit(
        &mut self,
        network: &'a Network,
        dst: IpAddr,
        nexthop: &Nexthop,
    ) -> Result<(Option<Exit<'a>>, Option<Mac>), Stop> {
        match nexthop {
            Nexthop::Encap { vif, mac } => {
                let vif = self.tables.vif(*vif).filter(|vif| vif.vrf.is_some());
                Ok((Some(Exit::Guest(vif.ok_or(DropReason::NexthopInvalid)?)), Some(*mac)))
            }
            Nexthop::Tunnel(tunnel) => Ok((Some(Exit::Tunnel(*tunnel)), tunnel.inner_mac())),
            Nexthop::Resolve { via } => {
                let hop = via.unwrap_or(dst);
                if is_subnet_broadcast(network, hop) {
                    return Err(DropReason::NotRoutable.into());
                }
                let mac = self.neighbour_mac(NeighbourScope::Network(network.vrf), hop)?;
                let entry = self.tables.bridge(network.vrf, mac);
                let id = self.effects.nexthop;
                let exit = entry.map(|entry| self.behind(network, entry.target)).transpose()?;
                self.effects.nexthop = id;
                Ok((exit, Some(mac)))
            }
            _ => Err(DropReason::NexthopInvalid.into()),
        }
    }

    /// Checks the TTL: a packet can be forwarded only with at least two left (RFC 1812, 5.3.1; RFC 8200, 3).
    pub(super) fn live(&self, frame: &Frame<'_>) -> Result<(), Stop> {
        match frame.headers.ip() {
            Some(ip) if ip.ttl <= 1 => Err(Stop::Refuse(IcmpError::TimeExceeded, DropReason::TtlExpired)),
            _ => Ok(()),
        }
    }

    /// Serves a packet to a gateway address: answers pings, and refuses the rest. A ping in fragments is answered
    /// fragment by fragment, each after the first one.
    fn serve(&mut self, frame: &Frame<'a>, ip: &Ip, network: &Network) -> Outcome {
        // An answer comes from a unicast address (RFC 4291, 2.6).
        let src = if network.is_router_anycast(ip.dst) { network.gateway_for(ip.dst) } else { None };
        match ip.fragment {
            Fragment::First { .. } if asks_echo(ip, &frame.headers.l4) => {
                let transport = Transport::of(&frame.headers);
                self.effects.fragment = transport.map(|known| (self.fragment_key(frame, ip), known));
                self.echo(frame, ip, src.unwrap_or(ip.dst))
            }
            Fragment::Later { .. } if self.transport(frame, ip).is_some() => {
                self.echo(frame, ip, src.unwrap_or(ip.dst))
            }
            Fragment::First { .. } | Fragment::Later { .. } => Err(DropReason::GatewayNoService.into()),
            Fragment::Whole => match frame.headers.l4 {
                _ if is_ping(ip, &frame.headers.l4) => self.echo(frame, ip, src.unwrap_or(ip.dst)),
                L4::Udp { .. } => Err(Stop::Refuse(IcmpError::PortUnreachable, DropReason::GatewayNoService)),
                _ => Err(DropReason::GatewayNoService.into()),
            },
        }
    }

    /// Answers a ping from the MAC to which it was sent, unless its checksum is wrong.
    pub(super) fn echo(&mut self, frame: &Frame<'a>, ip: &Ip, src: IpAddr) -> Outcome {
        if !self.is_right(&frame.headers)? {
            return Err(DropReason::GatewayNoService.into());
        }
        let asked = frame.headers.eth.as_ref().map_or(crate::GATEWAY_MAC, |eth| eth.dst);
        let forward = self.back(frame, asked, ip.tos)?;
        Ok(Verdict::Reply(Reply { kind: ReplyKind::Echo { src }, forward, dropped: None, asker: None }))
    }

    /// Returns whether the checksum of a packet to this host is right. That of a fragment is left to who puts the
    /// fragments together.
    pub(super) fn is_right(&self, headers: &Headers) -> Result<bool, DropReason> {
        match verify_l4(self.packet.bytes, headers) {
            L4Check::Right | L4Check::Absent => Ok(true),
            L4Check::Wrong => Ok(false),
            L4Check::TooShort => Err(DropReason::HeaderTooLong),
        }
    }

    /// Routes an answer to `frame` back to its sender. This is for packets without an Ethernet header to turn
    /// round.
    pub(super) fn route_back(&mut self, frame: &Frame<'a>, tos: u8) -> Result<Forward, Stop> {
        let ip = frame.headers.ip().ok_or(DropReason::NoRoute)?;
        let used = self.effects.nexthop;
        let found = self.find(frame, ip.dst, ip.src);
        self.effects.nexthop = used;
        let Found::Nexthop { network, dst, nexthop, .. } = found? else {
            return Err(DropReason::NoRoute.into());
        };
        let (exit, mac) = self.exit(network, dst, &nexthop)?;
        let base = Forward { ttl_decrement: 0, tos: None, ..frame.routed(Nat::default(), mac) };
        self.effects.mirror_out.clear();
        match exit.ok_or(DropReason::NoRoute)? {
            Exit::Guest(vif) => {
                self.show(vif);
                Ok(on_port(base, vif)?)
            }
            Exit::Attached { wire, vlan } => self.onto(frame, base, wire, vlan),
            Exit::Tunnel(tunnel) => self.through(frame, base, &tunnel, tos),
        }
    }
}

/// Returns whether the frame was sent to a MAC that the host's kernel may share: a wire's, untagged. The
/// model does not know the kernel's addresses.
fn is_kernels_too(frame: &Frame<'_>) -> bool {
    let dst = frame.headers.eth.as_ref().map(|eth| eth.dst);
    matches!(frame.origin, Origin::Attached { wire, vlan: None } if dst == wire.mac)
}

/// Returns whether the packet goes from a guest into an MPLS tunnel, or from an MPLS tunnel to a guest.
fn is_link(frame: &Frame<'_>, exit: &Exit<'_>) -> bool {
    match (frame.origin, exit) {
        (Origin::Guest(_), Exit::Tunnel(tunnel)) => tunnel.kind != TunnelKind::Vxlan,
        (Origin::Tunnel { .. }, Exit::Guest(_)) => frame.headers.eth.is_none(),
        _ => false,
    }
}

/// The nexthop of a verbs device's packets in a network without gateways.
static ON_LINK: Nexthop = Nexthop::Resolve { via: None };

/// Returns whether an address without a route belongs to a neighbour. It does for a verbs device, whose
/// packets are routed even in a network that is only a bridge.
fn is_on_link(frame: &Frame<'_>, network: &Network, dst: IpAddr) -> bool {
    frame.origin.is_verbs() && network.vrf == frame.network.vrf && network.gateway_for(dst).is_none()
}

/// Returns whether routers forward to and from an address: it is one host's address, and not link-local or
/// loopback (RFC 1812, 4.2.2.11; RFC 3927, 2.7; RFC 4291, 2.5.2 and 2.5.6).
fn is_routable(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => {
            !(v4.is_multicast()
                || v4.is_broadcast()
                || v4.is_unspecified()
                || v4.is_loopback()
                || v4.is_link_local())
        }
        IpAddr::V6(v6) => {
            !(v6.is_multicast() || v6.is_unspecified() || v6.is_loopback() || v6.is_unicast_link_local())
        }
    }
}

/// Returns whether the packet is an echo request that can be answered.
pub(super) fn is_ping(ip: &Ip, l4: &L4) -> bool {
    ip.fragment == Fragment::Whole && asks_echo(ip, l4)
}

/// Returns whether the packet is an echo request or the first fragment of one.
fn asks_echo(ip: &Ip, l4: &L4) -> bool {
    let echo = if ip.src.is_ipv4() { proto::ICMP_ECHO_REQUEST } else { proto::ICMPV6_ECHO_REQUEST };
    matches!(l4, L4::Icmp { kind, .. } if *kind == echo) && !ip.src.is_unspecified()
}

/// Returns whether an address is the broadcast address of one of the network's subnets, to which routers do
/// not forward (RFC 2644).
fn is_subnet_broadcast(network: &Network, dst: IpAddr) -> bool {
    network.gateways.iter().any(|subnet| {
        matches!(subnet, ipnet::IpNet::V4(v4) if v4.prefix_len() < 31 && IpAddr::V4(v4.broadcast()) == dst)
    })
}
