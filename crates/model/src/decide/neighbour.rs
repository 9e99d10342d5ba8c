//! ARP (RFC 826) and neighbour discovery (RFC 4861) of tenants: answered if the answer is known, bridged otherwise.
//!
//! Known are gateways and floating addresses (with the gateway's MAC), guests of this host and, by BGP, of others (with
//! their own), and addresses that a host route leads out of the subnet (with the gateway's MAC again: proxy ARP,
//! RFC 1027). On an attached wire the gateway's MAC is the wire's own: other hosts on that wire are gateways too, and a
//! switch keeps one port for a MAC (IEEE 802.1Q, 8.8).

use super::serve::is_router;
use super::{Frame, Origin, Outcome, Stop, Walk};
use crate::routing::is_router_anycast;
use crate::{
    BridgeTarget, DropReason, GATEWAY_MAC, Lookup, NeighbourFound, NeighbourScope, Nexthop, Reply, ReplyKind,
    RouteEntry, UnderlayPath, Verdict,
};
use packet::{Ethernet, Headers, IcmpError, L3, Mac};
use std::net::{IpAddr, Ipv6Addr};

/// An ARP or ND message, in one form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// A request or solicitation; else a reply or advertisement.
    pub asks: bool,
    /// The address whose MAC it announces: the asker's or the answerer's.
    pub sender: IpAddr,
    /// The MAC of `sender`.
    pub mac: Option<Mac>,
    /// The address asked for.
    pub target: IpAddr,
    /// Whether it proves that `sender` is at the MAC that is known for it (RFC 4861, 7.2.5: flag S).
    pub confirms: bool,
    /// Whether its MAC replaces a different one that is known (RFC 4861, 7.2.5: flag O).
    pub overrides: bool,
}

impl Message {
    /// Returns the ARP or ND message in a packet.
    pub fn of(headers: &Headers) -> Option<Self> {
        match (&headers.l3, &headers.nd) {
            (L3::Arp(arp), _) => Some(Self {
                asks: arp.request,
                sender: arp.sender.into(),
                mac: Some(arp.sender_mac),
                target: arp.target.into(),
                confirms: true,
                overrides: true,
            }),
            (L3::Ip(ip), Some(nd)) if nd.solicitation => Some(Self {
                asks: true,
                sender: ip.src,
                mac: nd.link_addr,
                target: nd.target.into(),
                confirms: nd.link_addr.is_some(),
                overrides: true,
            }),
            (L3::Ip(ip), Some(nd)) => Some(Self {
                asks: false,
                sender: nd.target.into(),
                mac: nd.link_addr,
                target: ip.dst,
                confirms: nd.solicited,
                overrides: nd.overrides,
            }),
            _ => None,
        }
    }

    /// Returns the answer to this question.
    pub fn answer(&self, answer: Answer) -> ReplyKind {
        let Answer { mac, router, anycast } = answer;
        match self.target {
            IpAddr::V4(_) => ReplyKind::Arp { mac },
            IpAddr::V6(_) => ReplyKind::NeighbourAdvertisement { mac, router, anycast },
        }
    }

    /// Returns whether it announces a link-local address that does not show the MAC of its owner (RFC 7217). Such an
    /// address is noted: it belongs to who has it first.
    fn is_of_chosen_address(&self) -> bool {
        let IpAddr::V6(sender) = self.sender else { return false };
        sender.is_unicast_link_local() && self.mac.is_some() && Mac::of_link_local(sender) != self.mac
    }
}

/// The content of an answer.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    pub mac: Mac,
    /// Whether the address is a router's.
    pub router: bool,
    /// For an anycast address: the unicast address from which the answer comes.
    pub anycast: Option<Ipv6Addr>,
}

impl Answer {
    pub const fn host(mac: Mac) -> Self {
        Self { mac, router: false, anycast: None }
    }
}

impl<'a, T: Lookup> Walk<'a, T> {
    /// Handles an ARP or ND message. Returns `None` if the message is to be bridged like any other frame.
    pub(super) fn neighbour(
        &mut self,
        frame: &Frame<'a>,
        eth: &Ethernet,
        message: &Message,
    ) -> Option<Outcome> {
        let to_gateway = frame.is_gateways(eth.dst);
        let scope = NeighbourScope::Network(frame.network.vrf);
        if message.asks
            && let Some(answer) = self.gateways_answer(frame, message.target)
        {
            self.found(frame, scope, message);
            return Some(self.answer(frame, message, answer));
        }
        if !message.asks && to_gateway {
            self.found(frame, scope, message);
            let all_have_it = eth.dst == GATEWAY_MAC;
            return Some(if all_have_it { self.relay(frame) } else { Ok(Verdict::Consumed) });
        }
        if message.is_of_chosen_address() || self.tables.neighbour(scope, message.sender).is_some() {
            self.found(frame, scope, message);
        }
        if !message.asks {
            return None;
        }
        match self.known(frame, message).or_else(|| self.of_owner(frame, eth, message)) {
            Some(answer) => Some(self.answer(frame, message, answer)),
            None if is_other_hosts(frame, eth) => Some(self.ask_for_other(frame, scope, message)),
            None => to_gateway.then_some(Err(DropReason::GatewayNoService.into())),
        }
    }

    /// Asks on behalf of another host's gateway, which has a different MAC on the wire here. Meanwhile the
    /// gateway's own question waits.
    fn ask_for_other(&mut self, frame: &Frame<'a>, scope: NeighbourScope, message: &Message) -> Outcome {
        let mac = self.neighbour_mac(scope, message.target)?;
        let entry = self.tables.bridge(frame.network.vrf, mac);
        match entry.map(|entry| entry.target) {
            Some(BridgeTarget::Vif(_)) => self.answer(frame, message, Answer::host(mac)),
            _ => Err(DropReason::SamePort.into()),
        }
    }

    /// Returns the gateway's answer, if the address is its own or a router anycast address of its subnets.
    fn gateways_answer(&self, frame: &Frame<'a>, addr: IpAddr) -> Option<Answer> {
        let own = Answer { router: true, ..Answer::host(frame.gateway_mac()) };
        let is_guest = frame.origin.is_guest();
        if frame.network.is_gateway(addr) && (is_guest || !frame.network.is_metadata(addr))
            || is_guest && is_router(frame.network, addr)
        {
            return Some(own);
        }
        let anycast = is_router_anycast(self.tables, frame.network, addr);
        match frame.network.gateway_for(addr).filter(|_| anycast)? {
            IpAddr::V6(gateway) => Some(Answer { anycast: Some(gateway), ..own }),
            IpAddr::V4(_) => None,
        }
    }

    /// Returns the answer, if the owner of the address need not or must not be asked.
    fn known(&self, frame: &Frame<'a>, message: &Message) -> Option<Answer> {
        let (vrf, target) = (frame.network.vrf, message.target);
        if message.sender == target {
            return None;
        }
        if let Some(guest) = self.tables.guest_by_address(vrf, target) {
            // A guest that asks for its own address probes for a duplicate.
            let guest = self.tables.vif(guest).filter(|_| frame.origin.port() != Some(guest))?;
            return Some(Answer { router: guest.roles.router, ..Answer::host(guest.mac?) });
        }
        let floating =
            self.tables.inside_of(vrf, target).is_some() || self.tables.shared_by(vrf, target).is_some();
        (floating || self.leads_away(frame, message)).then(|| Answer::host(frame.gateway_mac()))
    }

    /// Returns the answer on behalf of the address's owner on another host (RFC 9161). Only guests are answered:
    /// otherwise each host on an attached wire would. The owner's own probes for a duplicate get no answer, even if the
    /// owner has moved here meanwhile. Link-local addresses are left to their owners, because an answer says whether
    /// its sender is a router.
    fn of_owner(&self, frame: &Frame<'a>, eth: &Ethernet, message: &Message) -> Option<Answer> {
        let is_link_local = matches!(message.target, IpAddr::V6(target) if target.is_unicast_link_local());
        let asks = frame.origin.is_guest() && message.sender != message.target && !is_link_local;
        let mac = asks.then(|| self.tables.owner(frame.network.vrf, message.target))??;
        (mac != eth.src && message.mac != Some(mac)).then(|| Answer::host(mac))
    }

    /// Returns whether a guest reaches an address of its own subnet by routing, because the address has a
    /// route longer than the subnet's prefix. Only guests are answered so: otherwise every host would answer.
    ///
    /// Probes for duplicate addresses (RFC 5227, 2.1.1; RFC 4862, 5.4) are answered only for a host route. A
    /// route for several addresses does not prove that each is in use, and the prober would give up a free
    /// one.
    fn leads_away(&self, frame: &Frame<'a>, message: &Message) -> bool {
        let (target, probes) = (message.target, message.sender.is_unspecified());
        let subnets = frame.network.gateways.iter().filter(|subnet| subnet.contains(&target));
        let (Origin::Guest(_), Some(subnet)) = (frame.origin, subnets.map(|s| s.prefix_len()).max()) else {
            return false;
        };
        let route = self.tables.route(frame.network.vrf, target);
        let is_host =
            |route: &RouteEntry| usize::from(route.prefix_len) == if target.is_ipv4() { 32 } else { 128 };
        route.filter(|route| route.prefix_len > subnet && (!probes || is_host(route))).is_some_and(|route| {
            self.tables
                .nexthop(route.nexthop)
                .is_some_and(|nexthop| !matches!(*nexthop, Nexthop::Resolve { .. }))
        })
    }

    fn answer(&mut self, frame: &Frame<'a>, message: &Message, answer: Answer) -> Outcome {
        let mut forward = self.back(frame, answer.mac, 0)?;
        if let Some(ethernet) = &mut forward.ethernet
            && message.sender.is_unspecified()
            && message.sender.is_ipv6()
        {
            ethernet.dst = ALL_NODES;
        }
        let guest = self.tables.guest_by_address(frame.network.vrf, message.target);
        if let Some(guest) = guest.and_then(|id| self.tables.vif(id)) {
            self.show(guest);
        }
        Ok(Verdict::Reply(Reply { kind: message.answer(answer), forward, dropped: None, asker: None }))
    }

    /// Records a neighbour in a network, unless it claims an address that is not its own.
    fn found(&mut self, frame: &Frame<'_>, scope: NeighbourScope, message: &Message) {
        if !frame.network.is_gateway(message.sender) && message.mac != Some(frame.gateway_mac()) {
            self.note(scope, message);
        }
    }

    /// Notes a neighbour, as the flags of its message allow (RFC 4861, 7.2.5). On the underlay the neighbour may
    /// have [`GATEWAY_MAC`]: if this host is itself a guest of Viaduct, its router has that MAC.
    pub(super) fn note(&mut self, scope: NeighbourScope, message: &Message) {
        let unicast = !message.sender.is_unspecified() && !message.sender.is_multicast();
        let underlay = matches!(scope, NeighbourScope::Wire(_));
        let mac = match self.tables.neighbour(scope, message.sender) {
            Some(known) if message.mac.is_none_or(|mac| mac == known) => {
                Some(known).filter(|_| message.confirms)
            }
            Some(_) => message.mac.filter(|_| message.overrides),
            None => message.mac,
        };
        if let Some(mac) = mac
            && unicast
            && !mac.is_group()
            && !mac.is_zero()
            && (underlay || mac != GATEWAY_MAC)
        {
            self.effects.neighbour = Some(NeighbourFound { scope, addr: message.sender, mac });
        }
    }

    /// Returns the MAC of the next hop on the path to a remote. The kernel asks for neighbours of its wires: if it has no
    /// MAC, the packet does not wait.
    pub(super) fn hop_mac(&self, path: &UnderlayPath<'_>) -> Result<Mac, Stop> {
        match path.kernels {
            None => self.neighbour_mac(path.scope(), path.hop),
            Some(of) => of.mac.ok_or(Stop::Refuse(IcmpError::HostUnreachable, DropReason::NoNeighbour)),
        }
    }

    /// Returns the MAC of a neighbour. If the MAC is unknown, the packet waits. If the neighbour was asked
    /// and did not answer, the router informs the sender that it can't reach the host (RFC 1812, 5.2.7.1; RFC
    /// 4861, 7.2.2).
    pub(super) fn neighbour_mac(&self, scope: NeighbourScope, addr: IpAddr) -> Result<Mac, Stop> {
        self.tables.neighbour(scope, addr).ok_or_else(|| match self.tables.is_unreachable(scope, addr) {
            true => Stop::Refuse(IcmpError::HostUnreachable, DropReason::NoNeighbour),
            false => Stop::Hold { scope, addr },
        })
    }
}

/// Returns whether another host's gateway sends this frame to a destination with an unknown MAC.
fn is_other_hosts(frame: &Frame<'_>, eth: &Ethernet) -> bool {
    let attached = frame.network.wire.is_some() && frame.network.bridges_tunnels();
    attached && matches!(frame.origin, Origin::Tunnel { .. }) && eth.src == GATEWAY_MAC
}

/// The MAC of ff02::1, to which answers to duplicate address probes go (RFC 4861, 7.2.4).
pub(super) const ALL_NODES: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);
