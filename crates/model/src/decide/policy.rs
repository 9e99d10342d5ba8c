//! Rules and connections.
//!
//! Rules run for traffic from or to a guest with `policy`. They see inside addresses: before source and after
//! destination translation. Connections are keyed by the same addresses. Rules evaluate packets of both directions as
//! if they went in the connection's first direction, so a change of rules cuts both.

use super::route::MAX_TRANSLATIONS;
use super::spoof::is_rarp;
use super::{Frame, Origin, Stop, Walk, push_new};
use crate::transport::{Query, is_icmp, query};
use crate::{
    Action, Connection, DropReason, Effects, Endpoint, FlowChange, FlowKey, FlowState, Follow, FragmentKey,
    GATEWAY_MAC, Lookup, Midstream, Modifier, Nexthop, RuleMatch, RuleQuery, Segment, TcpPaths, Transport,
    Vif, Vrf,
};
use packet::{Fragment, Headers, IcmpError, Ip, L3, L4, proto};
use std::net::IpAddr;

impl<'a, T: Lookup> Walk<'a, T> {
    /// Asks the rules, if the sender or the receiving guest has any, whether a packet may go to `dst` in `vrf`. Also
    /// tracks the connection if it is known by a shared address.
    pub(super) fn admit(
        &mut self,
        frame: &Frame<'a>,
        to: Option<&Vif>,
        vrf: Vrf,
        dst: Option<IpAddr>,
    ) -> Result<(), Stop> {
        let ruled = frame.origin.policy() || to.is_some_and(|vif| vif.policy);
        if ruled || self.bound.is_some() {
            self.unruled = !ruled;
            self.judge(frame, vrf, dst)
        } else {
            Ok(())
        }
    }

    /// Asks the rules and tracks the connection.
    pub(super) fn judge(&mut self, frame: &Frame<'a>, vrf: Vrf, dst: Option<IpAddr>) -> Result<(), Stop> {
        let headers = &frame.headers;
        let resolution = matches!(headers.l3, L3::Arp(_)) || headers.nd.is_some() || is_rarp(headers);
        if resolution {
            return Ok(());
        }
        let (Some(ip), Some(dst)) = (frame.headers.ip(), dst) else {
            return self.default_alone(&[frame.network.vrf, vrf]);
        };
        let src = self.source(frame, ip.src);
        let Some(transport) = self.transport(frame, ip) else {
            return self.default_alone(&[src.0, vrf]);
        };
        let inside = |ports| self.bound.map_or(ports, |bound| bound.inside_ports(ports));
        let transport_ports = transport.ports.map(inside);
        let ports = transport_ports.unwrap_or_default();
        let key = FlowKey::new(src, (vrf, dst), transport.protocol, ports);
        if let Some(connection) = self.refused(frame, ip, (vrf, dst)) {
            let passes = self.rules(&connection.original, &frame.origin);
            return passes.map(|_| ()).map_err(|refusal| refusal.stop(ip, &frame.headers));
        }
        let found = transport_ports.and_then(|ports| self.connection(&key, ports));
        let known = found.filter(|(c, reply)| is_of(c, *reply, &frame.headers));
        if self.bound.is_some_and(|bound| known.is_some_and(|(connection, _)| bound.clashes(&connection))) {
            return Err(DropReason::SnatUnknown.into());
        }
        let mut original = known.map_or(key, |(connection, _)| connection.original);
        let noted = self.noted();
        let mut rule = self.rules(&original, &frame.origin);
        let unruled = matches!(rule, Err(Refusal { by_rule: false, .. }));
        let answers = unruled && is_dhcp_answer(frame, &key);
        if answers {
            rule = self.rules(&key.reverse(), &frame.origin);
        }
        let paths = if known.is_none() { self.tcp_paths(&key, &frame.headers) } else { TcpPaths::default() };
        let turns = paths.midstream == Midstream::Reverse && is_midstream(&frame.headers);
        if rule.is_err() && found.is_none() && turns {
            (original, rule) = self.turn(&key, noted, &frame.origin);
        }
        let rule = rule.map_err(|refusal| refusal.stop(ip, &frame.headers))?;
        if paths.midstream == Midstream::Never && !begins(&frame.headers, paths) {
            return Err(DropReason::TcpMidstream.into());
        }
        if matches!(ip.fragment, Fragment::First { .. }) && needs_first(ip) {
            self.effects.fragment = Some((self.fragment_key(frame, ip), transport));
        }
        self.effects.flow = match known {
            Some((connection, reply)) => match connection.follow(reply, &frame.headers) {
                Follow::Moves(connection) if self.binds() => self.create(connection, reply, rule),
                Follow::Moves(connection) => Some(FlowChange::Update { connection, reply }),
                Follow::Reopens(connection) => self.create(connection, reply, rule),
                Follow::Stray => None,
                Follow::Outside => return Err(DropReason::TcpReset.into()),
            },
            None if answers || transport.ports.is_none() || found.is_some_and(|(c, _)| is_open(&c)) => None,
            None => Connection::first(original, original != key, &frame.headers, paths.asymmetric)
                .and_then(|connection| self.create(connection, original != key, rule)),
        };
        if self.effects.flow.is_none() && self.binds() {
            return Err(DropReason::SnatUnknown.into());
        }
        let may_belong = answers || is_icmp(transport.protocol) || transport.protocol == proto::TCP;
        self.effects.once = may_belong && self.effects.flow.is_none();
        Ok(())
    }

    /// Returns whether the packet has an end of a shared address that no connection has yet.
    fn binds(&self) -> bool {
        self.bound.is_some_and(|bound| bound.is_new)
    }

    /// Creates a connection, with the end of a shared address that the packet has. `turned`: the packet goes against the
    /// connection's original direction.
    fn create(
        &self,
        connection: Connection,
        turned: bool,
        rule: Option<crate::RuleId>,
    ) -> Option<FlowChange> {
        let bound = self.bound.map(|bound| bound.binding(turned)).filter(|binding| binding.port != 0);
        let connection = Connection { binding: bound.or(connection.binding), ..connection };
        Some(FlowChange::Create { connection, rule })
    }

    /// Returns the fields that rules and connections match on. `None` for a later fragment whose first
    /// fragment was not seen.
    pub(super) fn transport(&self, frame: &Frame<'_>, ip: &Ip) -> Option<Transport> {
        match ip.fragment {
            Fragment::Later { .. } if needs_first(ip) => {
                self.tables.fragment(&self.fragment_key(frame, ip), self.now)
            }
            _ => Transport::of(&frame.headers),
        }
    }

    /// Returns the fields that the fragments of a packet's datagram share. For IPv6 the next header is not
    /// among them: in the first fragment, more extension headers may stand before the upper-layer header (RFC
    /// 8200, 4.5).
    pub(super) fn fragment_key(&self, frame: &Frame<'_>, ip: &Ip) -> FragmentKey {
        let id = match ip.fragment {
            Fragment::First { id } | Fragment::Later { id } => id,
            Fragment::Whole => 0,
        };
        let protocol = ip.src.is_ipv4().then_some(ip.protocol);
        let (ingress, vrf) = (self.ingress, frame.network.vrf);
        FragmentKey { ingress, vrf, src: ip.src, dst: ip.dst, protocol, id }
    }

    /// Returns the connection to which a packet with this key and these ports belongs, and whether the packet
    /// goes in the reply direction. A packet to UDP 4791 may be an answer to a client that uses that port,
    /// not RoCEv2.
    pub(super) fn connection(&self, key: &FlowKey, ports: (u16, u16)) -> Option<(Connection, bool)> {
        let plain = FlowKey { src: Endpoint { port: ports.0, ..key.src }, ..*key };
        let known = self.tables.connection(key, self.now);
        known.or_else(|| if plain == *key { None } else { self.tables.connection(&plain, self.now) })
    }

    /// Returns the TCP settings of the two networks of a packet, combined.
    fn tcp_paths(&self, key: &FlowKey, headers: &Headers) -> TcpPaths {
        let mut paths = TcpPaths::default();
        if matches!(headers.l4, L4::Tcp { .. }) {
            paths.midstream = Midstream::Reverse;
            for network in [key.src.vrf, key.dst.vrf].iter().filter_map(|vrf| self.tables.network(*vrf)) {
                paths.midstream = paths.midstream.min(network.tcp.midstream);
                paths.asymmetric |= network.tcp.asymmetric;
            }
        }
        paths
    }

    /// Asks the rules about the other direction of a mid-stream segment that they refuse. If they refuse that
    /// too, asks about the first direction again, so that the effects of that direction remain. `noted` holds
    /// the numbers of effects before the first question.
    fn turn(
        &mut self,
        key: &FlowKey,
        noted: [usize; 4],
        origin: &Origin<'_>,
    ) -> (FlowKey, Result<Option<crate::RuleId>, Refusal>) {
        self.forget(noted);
        let turned = key.reverse();
        let rule = self.rules(&turned, origin);
        if rule.is_ok() {
            return (turned, rule);
        }
        self.forget(noted);
        (*key, self.rules(key, origin))
    }

    /// Counts the effects that rules have recorded so far.
    fn noted(&self) -> [usize; 4] {
        let Effects { rules, meters, mirror_in, mirror_out, .. } = &self.effects;
        [rules.len(), meters.len(), mirror_in.len(), mirror_out.len()]
    }

    /// Removes the effects that rules have recorded after [`Self::noted`] returned these numbers.
    fn forget(&mut self, [rules, meters, mirror_in, mirror_out]: [usize; 4]) {
        self.effects.rules.truncate(rules);
        self.effects.meters.truncate(meters);
        self.effects.mirror_in.truncate(mirror_in);
        self.effects.mirror_out.truncate(mirror_out);
    }

    /// Asks the rules of both networks. Returns the rule that allows the packet.
    fn rules(&mut self, key: &FlowKey, origin: &Origin<'_>) -> Result<Option<crate::RuleId>, Refusal> {
        if self.unruled {
            return Ok(None);
        }
        let query = RuleQuery {
            src: key.src.addr,
            dst: key.dst.addr,
            protocol: key.protocol,
            dst_port: matches!(key.protocol, proto::TCP | proto::UDP | proto::SCTP).then_some(key.dst.port),
        };
        let mut allowed_by = None;
        let second = (key.dst.vrf != key.src.vrf).then_some(key.dst.vrf);
        for vrf in [Some(key.src.vrf), second].into_iter().flatten() {
            let matched = self.tables.rules(vrf, &query);
            self.note_rules(&matched, origin);
            if matched.action != Action::Allow {
                return Err(Refusal { action: matched.action, by_rule: matched.rule.is_some() });
            }
            allowed_by = allowed_by.or(matched.rule);
        }
        Ok(allowed_by)
    }

    /// Records the modifiers of matching rules, and the matching rules themselves for their counters.
    fn note_rules(&mut self, matched: &RuleMatch, origin: &Origin<'_>) {
        for (id, modifier) in &matched.modifiers {
            push_new(&mut self.effects.rules, *id);
            match modifier {
                Modifier::Mirror(vif) if origin.is_guest() => push_new(&mut self.effects.mirror_in, *vif),
                Modifier::Mirror(vif) => push_new(&mut self.effects.mirror_out, *vif),
                Modifier::Police(meter) => {
                    push_new(&mut self.effects.meters, (*meter, DropReason::Policed));
                }
            }
        }
        if let Some(id) = matched.rule {
            push_new(&mut self.effects.rules, id);
        }
    }

    /// Passes a packet to which rules can't apply, if all these networks allow by default.
    fn default_alone(&self, networks: &[Vrf]) -> Result<(), Stop> {
        if self.unruled {
            return Ok(());
        }
        let allows = |vrf: &Vrf| self.tables.network(*vrf).is_some_and(|n| n.default_action == Action::Allow);
        if networks.iter().all(allows) { Ok(()) } else { Err(DropReason::DefaultDrop.into()) }
    }

    /// Returns a packet's inside source: its address in the network that it comes from. A packet from a
    /// tunnel may come from another network, to which the route back to its source leads, and may have a
    /// floating address there.
    pub(super) fn source(&self, frame: &Frame<'_>, src: IpAddr) -> (Vrf, IpAddr) {
        let mut vrf = frame.network.vrf;
        if !matches!(frame.origin, Origin::Tunnel { .. }) {
            return (vrf, src);
        }
        for _ in 0..MAX_TRANSLATIONS {
            let route = self.tables.route(vrf, src);
            match route.and_then(|route| self.tables.nexthop(route.nexthop)).as_deref() {
                Some(Nexthop::VrfTranslate { vrf: next }) => vrf = *next,
                _ => break,
            }
        }
        self.tables.inside_of(vrf, src).unwrap_or((vrf, src))
    }
}

/// A refusal by rules.
struct Refusal {
    action: Action,
    /// Whether a rule refused, not the default.
    by_rule: bool,
}

impl Refusal {
    fn stop(&self, ip: &Ip, headers: &Headers) -> Stop {
        let reason = match (self.by_rule, self.action) {
            (false, _) => DropReason::DefaultDrop,
            (true, Action::Reject) => DropReason::RuleReject,
            (true, _) => DropReason::RuleDrop,
        };
        match self.action {
            Action::Reject if ip.protocol == proto::TCP && matches!(headers.l4, L4::Tcp { .. }) => {
                Stop::Reset(reason)
            }
            Action::Reject => Stop::Refuse(IcmpError::AdminProhibited, reason),
            _ => reason.into(),
        }
    }
}

/// Returns whether a later fragment lacks fields of the first one: ports or their substitute; for IPv6 also
/// the protocol.
const fn needs_first(ip: &Ip) -> bool {
    let has_ports =
        matches!(ip.protocol, proto::TCP | proto::UDP | proto::SCTP | proto::ICMP | proto::ICMPV6);
    has_ports || ip.src.is_ipv6()
}

/// Returns whether a packet belongs to the connection with its key. It does not if it opens a new connection
/// between the ends of a closed one, or if it asks in the direction in which only answers go.
pub(super) fn is_of(connection: &Connection, reply: bool, headers: &Headers) -> bool {
    let v6 = connection.original.src.addr.is_ipv6();
    match headers.l4 {
        L4::Tcp { .. } => {
            let opens = Segment::of(headers).is_some_and(|segment| segment.opens());
            // Both ends may open a connection at the same time (RFC 9293, 3.5).
            let asked = connection.tcp.edges[0].is_some_and(|edge| edge.ack.is_none());
            let at_once = connection.state == FlowState::New && asked;
            !opens || connection.state != FlowState::Closed && (!reply || at_once)
        }
        L4::Icmp { kind, .. } => matches!(query(v6, kind), Some(Query::Reply(_))) == reply,
        _ => true,
    }
}

/// Returns whether this is a TCP connection that a SYN does not replace.
const fn is_open(connection: &Connection) -> bool {
    let established = matches!(connection.state, FlowState::Established | FlowState::Closing);
    established && connection.original.protocol == proto::TCP
}

/// Returns whether the packet is a TCP segment that may belong to a connection whose SYN was not seen.
fn is_midstream(headers: &Headers) -> bool {
    const MARKS: u8 = proto::TCP_SYN | proto::TCP_RST | proto::TCP_ACK;
    matches!(headers.l4, L4::Tcp { flags, .. } if flags & MARKS == proto::TCP_ACK)
}

/// Returns whether a packet of no known connection may pass if connections are not picked up in mid-stream.
/// It may if it is not TCP, or a SYN, or the answer to a SYN that may have taken another path.
fn begins(headers: &Headers, paths: TcpPaths) -> bool {
    Segment::of(headers).is_none_or(|segment| {
        segment.opens() || segment.has(proto::TCP_SYN | proto::TCP_ACK) && paths.asymmetric
    })
}

/// Returns whether the packet is an answer of a DHCP server or relay in the network. The request went to a
/// group or came from no address, so no connection is known. A request to a server elsewhere goes by unicast,
/// which makes a connection.
fn is_dhcp_answer(frame: &Frame<'_>, key: &FlowKey) -> bool {
    let is_bridged = frame.headers.eth.as_ref().is_some_and(|eth| eth.dst != GATEWAY_MAC);
    let ports = matches!((key.src.port, key.dst.port), (67, 68) | (547, 546));
    is_bridged && key.src.vrf == key.dst.vrf && key.protocol == proto::UDP && ports
}
