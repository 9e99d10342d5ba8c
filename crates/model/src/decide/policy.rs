//! Rules and connections.
//!
//! Rules run for traffic from or to a guest with `policy`, on inside addresses: those before source and after
//! destination translation. A connection is known by the same addresses. Packets of both its directions are held
//! against the rules as if they went the way of its first one, so that a change of rules cuts both.

use super::route::MAX_TRANSLATIONS;
use super::{Frame, Origin, Stop, Walk, push_new};
use crate::{
    Action, Connection, DropReason, FlowChange, FlowKey, FlowState, FragmentKey, Lookup, Modifier, Nexthop,
    RuleMatch, RuleQuery, Vif, Vrf,
};
use packet::{Fragment, Headers, IcmpError, Ip, L3, L4, proto};
use std::net::IpAddr;

impl<'a, T: Lookup> Walk<'a, T> {
    /// Asks the rules, if the sender or the guest it goes to has any, whether a packet may go to `dst` in `vrf`.
    pub(super) fn admit(
        &mut self,
        frame: &Frame<'a>,
        to: Option<&Vif>,
        vrf: Vrf,
        dst: Option<IpAddr>,
    ) -> Result<(), Stop> {
        if frame.origin.policy() || to.is_some_and(|vif| vif.policy) {
            self.judge(frame, vrf, dst)
        } else {
            Ok(())
        }
    }

    /// Asks the rules, and follows the connection.
    pub(super) fn judge(&mut self, frame: &Frame<'a>, vrf: Vrf, dst: Option<IpAddr>) -> Result<(), Stop> {
        let resolution = matches!(frame.headers.l3, L3::Arp(_)) || frame.headers.nd.is_some();
        if resolution {
            return Ok(());
        }
        let (Some(ip), Some(dst)) = (frame.headers.ip(), dst) else {
            return self.default_alone(&[frame.network.vrf, vrf]);
        };
        let src = self.source(frame, ip.src);
        let fragment = self.fragment_key(frame, ip);
        let ports = match ip.fragment {
            Fragment::Later { .. } if has_ports(ip.protocol) => self.tables.fragment(&fragment, self.now),
            _ => Some(frame.headers.ports()),
        };
        let Some(ports) = ports else {
            return self.default_alone(&[src.0, vrf]);
        };
        let key = FlowKey::new(src, (vrf, dst), ip.protocol, ports);
        if self.is_related(frame, ip, &key) {
            return Ok(());
        }
        let known = self.tables.connection(&key, self.now).filter(|(c, _)| !reopens(c, &frame.headers.l4));
        let (original, reply) = known.map_or((key, false), |(c, reply)| (c.original, reply));
        let rule =
            self.rules(&original, &frame.origin).map_err(|refusal| refusal.stop(ip, &frame.headers))?;
        if matches!(ip.fragment, Fragment::First { .. }) && has_ports(ip.protocol) {
            self.effects.fragment = Some((fragment, ports));
        }
        self.effects.flow = match known {
            Some((connection, _)) => {
                let connection = connection.after(reply, ip.protocol, &frame.headers.l4);
                Some(FlowChange::Update { connection, reply })
            }
            None => Connection::first(original, &frame.headers.l4)
                .map(|connection| FlowChange::Create { connection, rule }),
        };
        Ok(())
    }

    /// What the fragments of a packet's datagram share.
    fn fragment_key(&self, frame: &Frame<'_>, ip: &Ip) -> FragmentKey {
        let id = match ip.fragment {
            Fragment::First { id } | Fragment::Later { id } => id,
            Fragment::Whole => 0,
        };
        let (ingress, vrf) = (self.ingress, frame.network.vrf);
        FragmentKey { ingress, vrf, src: ip.src, dst: ip.dst, protocol: ip.protocol, id }
    }

    /// Asks the rules of both networks; returns the rule that allows.
    fn rules(&mut self, key: &FlowKey, origin: &Origin<'_>) -> Result<Option<crate::RuleId>, Refusal> {
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

    /// Notes what matching rules do beside passing or dropping.
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

    /// What rules can't be asked about passes where the default of both networks is to allow.
    fn default_alone(&self, networks: &[Vrf]) -> Result<(), Stop> {
        let allows = |vrf: &Vrf| self.tables.network(*vrf).is_some_and(|n| n.default_action == Action::Allow);
        if networks.iter().all(allows) { Ok(()) } else { Err(DropReason::DefaultDrop.into()) }
    }

    /// A packet's inside source: its address in the network it came from. But a packet out of a tunnel may come from
    /// another network, that to which the route back to its source leads, and from there have a floating address.
    fn source(&self, frame: &Frame<'_>, src: IpAddr) -> (Vrf, IpAddr) {
        let mut vrf = frame.network.vrf;
        if !matches!(frame.origin, Origin::Tunnel { .. }) {
            return (vrf, src);
        }
        for _ in 0..MAX_TRANSLATIONS {
            let route = self.tables.route(vrf, src);
            match route.and_then(|route| self.tables.nexthop(route.nexthop)) {
                Some(Nexthop::VrfTranslate { vrf: next }) => vrf = *next,
                _ => break,
            }
        }
        self.tables.inside_of(vrf, src).unwrap_or((vrf, src))
    }

    /// Whether it is an ICMP error about a packet of a known connection: that passes with it (RFC 5508, 4).
    fn is_related(&self, frame: &Frame<'_>, ip: &Ip, key: &FlowKey) -> bool {
        let Ok(Some(quoted)) = frame.headers.quoted(self.packet.bytes, frame.end) else { return false };
        let Some(refused) = quoted.ip() else { return false };
        // What was refused came from the one who is told, under the address he is told by.
        let sender = if refused.src == ip.dst { key.dst.addr } else { refused.src };
        let refused =
            FlowKey::new((key.dst.vrf, sender), (key.src.vrf, refused.dst), refused.protocol, quoted.ports());
        self.tables.connection(&refused, self.now).is_some()
    }
}

/// Why rules refuse.
struct Refusal {
    action: Action,
    /// By a rule, not the default.
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

/// Whether packets of a protocol have ports, or an identifier in their place, that later fragments lack.
const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, proto::TCP | proto::UDP | proto::SCTP | proto::ICMP | proto::ICMPV6)
}

/// Whether a segment opens a new connection between the ends of a closed one.
fn reopens(connection: &Connection, l4: &L4) -> bool {
    let syn =
        matches!(l4, L4::Tcp { flags, .. } if flags & (proto::TCP_SYN | proto::TCP_ACK) == proto::TCP_SYN);
    syn && connection.state == FlowState::Closed
}
