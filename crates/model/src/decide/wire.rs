//! Packets from a wire: the underlay's own traffic, tunnels, and networks attached to the wire.

use super::neighbour::{Answer, Message};
use super::{Frame, Origin, Outcome, Stop, Walk, foreign_tags};
use crate::{
    BridgeTarget, DropReason, EthernetRewrite, Forward, GATEWAY_MAC, Lookup, Nat, NeighbourScope, Network,
    Nexthop, Reply, ReplyKind, Service, Verdict, Vif, WireAttributes,
};
use packet::checksum::{L4Check, verify_l4};
use packet::{Ethernet, Fragment, Headers, Ip, L4, Mac, Tunnel, TunnelKind, ecn_decap, proto};
use std::net::IpAddr;

impl<'a, T: Lookup> Walk<'a, T> {
    pub(super) fn wire(&mut self, vif: &'a Vif) -> Outcome {
        let wire = vif.wire.as_ref().ok_or(DropReason::NotForUs)?;
        let eth = self.packet.headers.eth.as_ref().ok_or(DropReason::EthernetTruncated)?;
        if wire.shared {
            return self.kernels_frame(vif, eth);
        }
        let attached = |vlan| wire.networks.iter().find(|(id, _)| *id == vlan).map(|(_, vrf)| *vrf);
        let tag = eth.tags.first().filter(|tag| !tag.is_priority());
        let foreign_tags = foreign_tags(&self.packet.headers, tag.is_some().into());
        let (vlan, vrf) = match tag {
            None => {
                let vrf = attached(None);
                if eth.tags.len() == usize::from(foreign_tags)
                    && let Some(outcome) = self.underlay_frame(vif, wire, eth, vrf.is_some())
                {
                    return outcome;
                }
                (None, vrf.ok_or(DropReason::NotForUs)?)
            }
            Some(tag) => {
                let vlan = Some(tag.vlan()).filter(|_| !tag.service);
                let vrf = vlan.and_then(|vlan| attached(Some(vlan)));
                (vlan, vrf.ok_or(DropReason::VlanUnexpected)?)
            }
        };
        let network = self.tables.network(vrf).ok_or(DropReason::NoNetwork)?;
        if vif.mac != Some(eth.src) {
            self.learn(network, eth.src, BridgeTarget::Vif(vif.id));
        }
        let headers = self.packet.headers.clone();
        let tos = headers.ip().map_or(0, |ip| ip.tos);
        let origin = Origin::Attached { wire: vif, vlan };
        let frame = Frame { headers, end: self.packet.len as usize, origin, network, tos, foreign_tags };
        self.tenant(&frame)
    }

    /// Handles a frame of a wire that the kernel keeps. Tunnel packets to this host are ours, and what routers say about
    /// such packets; the kernel has and answers all others.
    fn kernels_frame(&mut self, vif: &'a Vif, eth: &Ethernet) -> Outcome {
        let is_tagged = eth.tags.iter().any(|tag| !tag.is_priority());
        match self.packet.headers.ip() {
            Some(ip) if !is_tagged && vif.mac == Some(eth.dst) && self.is_ours(ip.dst) => {
                let ip = *ip;
                self.host(vif, eth, &ip)
            }
            _ => Err(DropReason::NotForUs.into()),
        }
    }

    /// Handles a frame of the underlay. Returns `None` if the frame isn't one. With `shared`, an untagged
    /// network is attached here, and its gateway also has the wire's MAC.
    fn underlay_frame(
        &mut self,
        vif: &'a Vif,
        wire: &WireAttributes,
        eth: &Ethernet,
        shared: bool,
    ) -> Option<Outcome> {
        let to_us = vif.mac == Some(eth.dst);
        if let Some(message) = Message::of(&self.packet.headers) {
            return self.underlay_neighbour(vif, wire, eth, &message, shared);
        }
        match self.packet.headers.ip() {
            _ if !to_us => None,
            Some(ip) if self.is_ours(ip.dst) => Some(self.host(vif, eth, ip)),
            _ => (!shared).then_some(Err(DropReason::NotForUs.into())),
        }
    }

    /// Answers ARP and ND of the underlay for the wire's addresses. Records neighbours on the wire's subnets.
    fn underlay_neighbour(
        &mut self,
        vif: &Vif,
        wire: &WireAttributes,
        eth: &Ethernet,
        message: &Message,
        shared: bool,
    ) -> Option<Outcome> {
        let mac = vif.mac?;
        let scope = NeighbourScope::Wire(vif.id);
        let on_link = wire.addresses.iter().any(|subnet| subnet.contains(&message.sender))
            || wire.gateways.contains(&message.sender);
        let own = |addr: IpAddr| wire.addresses.iter().any(|subnet| subnet.addr() == addr);
        let to_us = eth.dst == mac;
        let asked = message.asks && own(message.target) && (to_us || eth.dst.is_group());
        let answered = !message.asks && to_us && (own(message.target) || !shared);
        let known = self.tables.neighbour(scope, message.sender).is_some();
        if on_link && !own(message.sender) && (asked || answered || known) {
            self.note(scope, message);
        }
        if asked {
            let mut forward = turned(vif, self.packet.headers.l3_at, eth, mac);
            if message.sender.is_unspecified()
                && let Some(ethernet) = &mut forward.ethernet
                && message.sender.is_ipv6()
            {
                ethernet.dst = super::neighbour::ALL_NODES;
            }
            return Some(Ok(Verdict::Reply(Reply {
                kind: message.answer(Answer::host(mac)),
                forward,
                dropped: None,
                asker: None,
            })));
        }
        if answered {
            return Some(Ok(Verdict::Consumed));
        }
        (to_us && !shared).then_some(Err(DropReason::NotForUs.into()))
    }

    /// Handles an IP packet to one of this host's underlay addresses: a tunnel packet, an ICMP error about
    /// one, or a ping.
    fn host(&mut self, vif: &'a Vif, eth: &Ethernet, ip: &Ip) -> Outcome {
        let headers = &self.packet.headers;
        let tunnels = matches!(ip.protocol, proto::UDP | proto::GRE);
        if tunnels && ip.fragment != Fragment::Whole {
            let may = ip.src.is_ipv4() && self.tables.host().tunnel_fragments && self.is_remote(ip.src);
            return if may { Ok(Verdict::Reassemble) } else { Err(DropReason::OuterFragment.into()) };
        }
        if let Some(tunnel) = packet::tunnel(self.packet.bytes, headers, self.packet.len as usize)? {
            let port = self.tables.tunnel_port(tunnel.kind, ip.src, tunnel.id);
            if port.is_none() && !self.is_peer(ip.src) {
                return Err(self.stranger(&tunnel, ip.src).into());
            }
            self.admit_tunnel(&tunnel)?;
            if let Some(port) = port {
                return self.out_of_tunnel(port, &tunnel);
            }
            return match tunnel.kind {
                TunnelKind::Vxlan => self.vxlan(&tunnel, ip.src),
                TunnelKind::MplsUdp | TunnelKind::MplsGre => self.mpls(&tunnel, ip.src),
                TunnelKind::Geneve => Err(DropReason::UnknownVni.into()),
            };
        }
        if let Some(path) = self.too_big(ip)? {
            self.effects.path = Some(path);
            return Ok(Verdict::Consumed);
        }
        if self.tables.host().tunnel_bfd && self.is_bfd(ip)? {
            return Ok(Verdict::Serve { service: Service::Bfd, guest: vif.id });
        }
        let is_kernels = vif.wire.as_ref().is_some_and(|wire| wire.shared);
        let echo = if ip.src.is_ipv4() { proto::ICMP_ECHO_REQUEST } else { proto::ICMPV6_ECHO_REQUEST };
        match headers.l4 {
            L4::Icmp { kind, .. }
                if kind == echo
                    && !is_kernels
                    && ip.fragment == Fragment::Whole
                    && self.is_right(headers)? =>
            {
                let forward = turned(vif, headers.l3_at, eth, eth.dst);
                let kind = ReplyKind::Echo { src: ip.dst };
                Ok(Verdict::Reply(Reply { kind, forward, dropped: None, asker: None }))
            }
            _ => Err(DropReason::NotForUs.into()),
        }
    }

    /// Returns whether a packet to this host is BFD of a tunnel's remote.
    fn is_bfd(&self, ip: &Ip) -> Result<bool, DropReason> {
        let headers = &self.packet.headers;
        let is_its = matches!(headers.l4, L4::Udp { dst: proto::PORT_BFD_MULTIHOP | proto::PORT_SBFD, .. });
        let is_right = || if self.packet.checked { Ok(true) } else { self.is_right(headers) };
        Ok(is_its && self.tables.is_remote(ip.src) && is_right()?)
    }

    /// Returns the reason to drop a tunnel packet that comes from no peer. The remote of a tunnel's port
    /// sends to this port alone.
    fn stranger(&self, tunnel: &Tunnel, remote: IpAddr) -> DropReason {
        if tunnel.kind.has_ethernet() && self.tables.is_port_remote(remote) {
            DropReason::UnknownVni
        } else {
            DropReason::UnknownRemote
        }
    }

    /// Checks that a remote's tunnel packet may be decapsulated: its UDP checksum must be right (RFC 768;
    /// over IPv6, RFC 8200, 8.1).
    fn admit_tunnel(&self, tunnel: &Tunnel) -> Result<(), DropReason> {
        if tunnel.lacks_checksum && !self.tables.host().udp6_zero_checksum {
            return Err(DropReason::OuterChecksumMissing);
        }
        if self.packet.checked || tunnel.kind == TunnelKind::MplsGre {
            return Ok(());
        }
        match verify_l4(self.packet.bytes, &self.packet.headers) {
            L4Check::Right | L4Check::Absent => Ok(()),
            L4Check::Wrong => Err(DropReason::OuterChecksumWrong),
            L4Check::TooShort => Err(DropReason::HeaderTooLong),
        }
    }

    fn vxlan(&mut self, tunnel: &Tunnel, remote: IpAddr) -> Outcome {
        let vrf = self.tables.vxlan(tunnel.id).ok_or(DropReason::UnknownVni)?;
        let network = self.tables.network(vrf).ok_or(DropReason::NoNetwork)?;
        let headers = Headers::ethernet(self.packet.bytes, tunnel.inner_at, tunnel.inner_end)?;
        if network.l3vni == Some(tunnel.id) {
            return self.routed_here(tunnel, remote, headers, network);
        }
        let frame = self.decapsulated(tunnel, remote, headers, network)?;
        if let Some(eth) = &frame.headers.eth {
            self.learn(network, eth.src, BridgeTarget::Vtep { remote, vni: tunnel.id });
        }
        self.tenant(&frame)
    }

    /// Handles a packet that another host routed to this one, by a network's `l3vni`. Its MACs only say that: from here on
    /// it has no Ethernet header, like a packet of MPLS.
    fn routed_here(
        &mut self,
        tunnel: &Tunnel,
        remote: IpAddr,
        mut headers: Headers,
        network: &'a Network,
    ) -> Outcome {
        let eth = headers.eth.take().ok_or(DropReason::EthernetTruncated)?;
        if eth.dst != GATEWAY_MAC && Some(eth.dst) != self.tables.host().router_mac {
            return Err(DropReason::NotForUs.into());
        }
        if !eth.tags.is_empty() {
            return Err(DropReason::VlanUnexpected.into());
        }
        if headers.ip().is_none() {
            return Err(DropReason::TunnelPayload.into());
        }
        let frame = self.decapsulated(tunnel, remote, headers, network)?;
        Ok(self.route(&frame).unwrap_or_else(|stop| self.stopped(&frame, stop)))
    }

    /// Handles an MPLS packet. Its label stands for a guest, or for a network to route in (RFC 3031; RFC
    /// 4364).
    fn mpls(&mut self, tunnel: &Tunnel, remote: IpAddr) -> Outcome {
        if !tunnel.bottom {
            return Err(DropReason::LabelStack.into());
        }
        let id = self.tables.mpls(tunnel.id).ok_or(DropReason::UnknownLabel)?;
        if tunnel.mpls_ttl == 0 {
            return Err(DropReason::TtlExpired.into());
        }
        if !matches!(self.packet.bytes.get(tunnel.inner_at).map(|byte| byte >> 4), Some(4 | 6)) {
            return Err(DropReason::TunnelPayload.into());
        }
        let headers = Headers::network(self.packet.bytes, tunnel.inner_at, tunnel.inner_end)?;
        let (id, nexthop) = self.pick(id, self.choice(&headers, tunnel.inner_end))?;
        self.effects.nexthop = Some(id);
        match *nexthop {
            Nexthop::Encap { vif, mac } => {
                let vif = self.tables.vif(vif).ok_or(DropReason::NexthopInvalid)?;
                let network =
                    vif.vrf.and_then(|vrf| self.tables.network(vrf)).ok_or(DropReason::NoNetwork)?;
                let frame = self.decapsulated(tunnel, remote, headers, network)?;
                Ok(self.labelled(&frame, vif, mac).unwrap_or_else(|stop| self.stopped(&frame, stop)))
            }
            Nexthop::VrfTranslate { vrf } => {
                let network = self.tables.network(vrf).ok_or(DropReason::NoNetwork)?;
                let frame = self.decapsulated(tunnel, remote, headers, network)?;
                Ok(self.route(&frame).unwrap_or_else(|stop| self.stopped(&frame, stop)))
            }
            Nexthop::Discard => Err(DropReason::DiscardRoute.into()),
            _ => Err(DropReason::TunnelPayload.into()),
        }
    }

    /// Delivers a packet that came with a guest's label.
    fn labelled(&mut self, frame: &Frame<'a>, vif: &'a Vif, mac: Mac) -> Outcome {
        let dst = frame.headers.ip().map(|ip| ip.dst);
        self.admit(frame, Some(vif), frame.network.vrf, dst)?;
        let base = self.hop(frame, frame.routed(Nat::default(), Some(mac)))?;
        self.leave(frame, base, frame.network, super::egress::Exit::Guest(vif)).map(Verdict::Forward)
    }

    /// Returns the packet in a tunnel. It gets the congestion mark of the tunnel (RFC 6040) and keeps its own
    /// DSCP (RFC 2983).
    fn decapsulated(
        &self,
        tunnel: &Tunnel,
        remote: IpAddr,
        mut headers: Headers,
        network: &'a Network,
    ) -> Result<Frame<'a>, Stop> {
        let tos = match headers.ip() {
            Some(ip) => ecn_decap(ip.tos, tunnel.outer_tos).map_err(|_| DropReason::Ecn)?,
            None => 0,
        };
        // All that follows knows one MAC of the gateway.
        let router_mac = self.tables.host().router_mac;
        if let Some(eth) = headers.eth.as_mut().filter(|eth| Some(eth.dst) == router_mac) {
            eth.dst = GATEWAY_MAC;
        }
        let origin = Origin::Tunnel { remote, id: tunnel.id };
        let foreign_tags = foreign_tags(&headers, 0);
        Ok(Frame { headers, end: tunnel.inner_end, origin, network, tos, foreign_tags })
    }
}

/// Returns the delivery of an answer from `mac`, back by the wire from which the frame came.
fn turned(vif: &Vif, l3_at: u16, eth: &Ethernet, mac: Mac) -> Forward {
    let ethernet = EthernetRewrite { dst: eth.src, src: mac, ethertype: eth.ethertype };
    Forward { strip: l3_at, ethernet: Some(ethernet), ..Forward::unchanged(vif.id) }
}
