//! Bridging within a network (IEEE 802.1Q), and the turn-off to routing.

use super::egress::Exit;
use super::neighbour::Message;
use super::serve::serve;
use super::{Frame, Origin, Outcome, Stop, Walk};
use crate::{BridgeTarget, DropReason, Flood, Forward, Lookup, Network, Nexthop, Tunnel, Verdict, VifKind};
use packet::{Ethernet, Mac, TunnelKind};
use std::net::IpAddr;

/// Returns whether bridges must not forward to a MAC: the link-local group addresses 01:80:c2:00:00:00 to 0f
/// (IEEE 802.1Q, 8.6.3).
const fn is_reserved(mac: Mac) -> bool {
    matches!(mac.0, [0x01, 0x80, 0xc2, 0, 0, 0x00..=0x0f])
}

impl<'a, T: Lookup> Walk<'a, T> {
    /// Takes a frame to the gateway if the gateway is its destination, otherwise across the bridge.
    pub(super) fn switch(&mut self, frame: &Frame<'a>) -> Outcome {
        let eth = frame.headers.eth.as_ref().ok_or(DropReason::EthernetTruncated)?;
        if is_reserved(eth.dst) {
            return Err(DropReason::ReservedMulticast.into());
        }
        let tagged = !frame.tags().is_empty();
        if !tagged
            && let Some(message) = Message::of(&frame.headers)
            && let Some(outcome) = self.neighbour(frame, eth, &message)
        {
            return outcome;
        }
        if let Some(verdict) = serve(frame, eth) {
            return Ok(verdict);
        }
        if !frame.is_gateways(eth.dst) {
            return self.bridge(frame, eth);
        }
        if tagged {
            return Err(DropReason::VlanUnexpected.into());
        }
        self.route(frame)
    }

    /// Takes a frame to the location of its MAC, or to all members.
    pub(super) fn bridge(&mut self, frame: &Frame<'a>, eth: &Ethernet) -> Outcome {
        let network = frame.network;
        if matches!(frame.origin, Origin::Tunnel { .. }) && !network.bridges_tunnels() {
            return Err(DropReason::NotL2Gateway.into());
        }
        let dst = frame.headers.ip().map(|ip| ip.dst);
        let entry = if eth.dst.is_group() { None } else { self.tables.bridge(network.vrf, eth.dst) };
        let Some(entry) = entry else {
            return match dst {
                Some(dst) if self.is_routed_instead(frame, eth, dst) => self.route(frame),
                _ => self.flood(frame, network, &frame.bridged(), dst),
            };
        };
        let exit = self.behind(network, entry.target)?;
        let back = match &exit {
            Exit::Guest(vif) | Exit::Attached { wire: vif, .. } => frame.origin.is_of(vif),
            Exit::Tunnel(_) if !network.bridges_tunnels() => return Err(DropReason::NotL2Gateway.into()),
            Exit::Tunnel(_) => matches!(frame.origin, Origin::Tunnel { .. }),
        };
        if back {
            return Err(DropReason::SamePort.into());
        }
        self.admit(frame, exit.guest(), network.vrf, dst)?;
        self.leave(frame, frame.bridged(), network, exit).map(Verdict::Forward)
    }

    /// Returns whether a guest's frame to an unknown MAC is routed. In a network of routes, which reaches other hosts
    /// by routes alone, the guest may know the MAC of a neighbour from when both were on one host.
    fn is_routed_instead(&self, frame: &Frame<'a>, eth: &Ethernet, dst: IpAddr) -> bool {
        let network = frame.network;
        let by_routes = network.flood.is_empty() && network.wire.is_none();
        let message = Message::of(&frame.headers).is_some();
        if !by_routes || !frame.origin.is_guest() || eth.dst.is_group() || message || !frame.tags().is_empty()
        {
            return false;
        }
        let route = self.tables.route(network.vrf, dst);
        let nexthop = route.and_then(|route| self.tables.nexthop(route.nexthop));
        nexthop.is_some_and(|nexthop| !matches!(*nexthop, Nexthop::Resolve { via: None }))
    }

    /// Returns the exit to which a bridge entry leads.
    pub(super) fn behind(&mut self, network: &'a Network, target: BridgeTarget) -> Result<Exit<'a>, Stop> {
        match target {
            BridgeTarget::Vif(id) => self.port(network, id),
            BridgeTarget::Nexthop(id) => {
                self.effects.nexthop = Some(id);
                match self.tables.nexthop(id).as_deref() {
                    Some(crate::Nexthop::Tunnel(tunnel)) if tunnel.kind == TunnelKind::Vxlan => {
                        Ok(Exit::Tunnel(*tunnel))
                    }
                    _ => Err(DropReason::NexthopInvalid.into()),
                }
            }
            BridgeTarget::Vtep { remote, vni } => {
                let id = network.vni_at(remote, vni);
                Ok(Exit::Tunnel(Tunnel { kind: TunnelKind::Vxlan, remote, id, mac: None }))
            }
        }
    }

    /// Returns the exit for this interface as a port of the network: a guest, or the wire the network is
    /// attached to.
    fn port(&self, network: &Network, id: crate::VifId) -> Result<Exit<'a>, Stop> {
        let vif = self.tables.vif(id).ok_or(DropReason::NexthopInvalid)?;
        match network.wire {
            Some(attached) if attached.vif == id => Ok(Exit::Attached { wire: vif, vlan: attached.vlan }),
            _ if vif.vrf == Some(network.vrf) => Ok(Exit::Guest(vif)),
            _ => Err(DropReason::NexthopInvalid.into()),
        }
    }

    /// Delivers to every member of a network's bridge except the sender. Members that can't be reached are
    /// left out; if none remains, the packet is dropped for the reason of one of them. `dst` is the packet's
    /// destination, if it is an IP packet.
    pub(super) fn flood(
        &mut self,
        frame: &Frame<'a>,
        network: &'a Network,
        base: &Forward,
        dst: Option<IpAddr>,
    ) -> Outcome {
        let members = self.members(frame, network);
        self.flood_to(frame, network, base, dst, members)
    }

    /// Passes an answer to the gateway on to the gateways of other hosts: they all have the same MAC, and one
    /// of them may have asked.
    pub(super) fn relay(&mut self, frame: &Frame<'a>) -> Outcome {
        let network = frame.network;
        let tunnels = self.tunnels(frame.origin, network);
        match self.flood_to(frame, network, &frame.bridged(), None, tunnels) {
            Err(Stop::Drop(_)) => Ok(Verdict::Consumed),
            outcome => outcome,
        }
    }

    fn flood_to(
        &mut self,
        frame: &Frame<'a>,
        network: &'a Network,
        base: &Forward,
        dst: Option<IpAddr>,
        members: impl Iterator<Item = Exit<'a>>,
    ) -> Outcome {
        self.tables.may_flood(network.vrf)?;
        // Rules see addresses, not members: one result holds for all members that have rules.
        let mut rules = frame.origin.policy().then(|| self.judge(frame, network.vrf, dst));
        if let Some(Err(stop)) = rules {
            return Err(stop);
        }
        let mut to = Vec::new();
        let (mut missing, mut refused) = (None, None);
        for exit in members {
            let judged = match exit.guest() {
                Some(vif) if vif.policy => *rules.get_or_insert_with(|| self.judge(frame, network.vrf, dst)),
                _ => Ok(()),
            };
            match judged.and_then(|()| self.leave(frame, base.clone(), network, exit)) {
                Ok(forward) => to.push(forward),
                Err(Stop::Hold { scope, addr }) => missing = missing.or(Some((scope, addr))),
                Err(stop) => refused = refused.or(Some(stop)),
            }
        }
        match (to.is_empty(), missing, refused) {
            (true, Some((scope, addr)), _) => return Err(Stop::Hold { scope, addr }),
            (true, None, stop) => return Err(stop.unwrap_or(DropReason::NoMember.into())),
            (false, missing, _) => self.effects.solicit = missing,
        }
        Ok(Verdict::Flood(Flood { vrf: network.vrf, to }))
    }

    /// Returns the members of a network's bridge to which a frame may go: guests, the attached wire, tunnels.
    /// A guest that is only a verbs device gets nothing but RoCEv2.
    fn members(
        &self,
        frame: &Frame<'a>,
        network: &'a Network,
    ) -> impl Iterator<Item = Exit<'a>> + use<'a, T> {
        let tables = self.tables;
        let (origin, roce) = (frame.origin, frame.is_roce());
        let guests = network.members.iter().filter_map(move |id| tables.vif(*id));
        let guests = guests.filter(move |vif| roce || vif.kind != VifKind::Rdma).map(Exit::Guest);
        let wire = network.wire.filter(|_| !matches!(origin, Origin::Gateway)).and_then(|attached| {
            Some(Exit::Attached { wire: tables.vif(attached.vif)?, vlan: attached.vlan })
        });
        let ports = guests.chain(wire).filter(move |exit| !exit.vif().is_some_and(|vif| origin.is_of(vif)));
        ports.chain(self.tunnels(origin, network))
    }

    /// Returns the tunnels to which a network floods, if frames from `origin` may go there.
    fn tunnels(
        &self,
        origin: Origin<'a>,
        network: &'a Network,
    ) -> impl Iterator<Item = Exit<'a>> + use<'a, T> {
        let tables = self.tables;
        let tunnels: &[_] = if origin.may_flood_tunnels(network) { &network.flood } else { &[] };
        tunnels.iter().filter_map(move |id| match tables.nexthop(*id).as_deref() {
            Some(crate::Nexthop::Tunnel(tunnel)) if tunnel.kind == TunnelKind::Vxlan => {
                Some(Exit::Tunnel(*tunnel))
            }
            _ => None,
        })
    }
}
