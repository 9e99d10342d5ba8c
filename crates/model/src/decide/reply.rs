//! Answers to a packet's sender.

use super::{Frame, Origin, Stop, Walk, push_new};
use crate::{Asker, DropReason, Forward, Lookup, Nat, Reply, ReplyKind, Tunnel, Verdict, Vif};
use packet::{IcmpError, Mac, TunnelKind, reply};

/// Returns the delivery of an answer to a guest, on the port from which the guest asked.
pub(crate) fn on_port(base: Forward, vif: &Vif) -> Result<Forward, DropReason> {
    match vif.trunk {
        Some(_) if base.push_vlan.is_some() => Err(DropReason::VlanUnexpected),
        Some((port, vlan)) => Ok(Forward { port, push_vlan: Some(vlan), ..base }),
        None => Ok(Forward { port: vif.id, ..base }),
    }
}

impl<'a, T: Lookup> Walk<'a, T> {
    /// Returns the verdict on a packet that a step stopped.
    pub(super) fn stopped(&mut self, frame: &Frame<'a>, stop: Stop) -> Verdict {
        let (answer, reason) = match stop {
            Stop::Hold { scope, addr } => return Verdict::Hold { scope, addr },
            Stop::Drop(reason) => (None, reason),
            Stop::Refuse(error, reason) => (self.error(frame, error), reason),
            Stop::Reset(reason) => (self.reset(frame), reason),
            Stop::Echo => {
                let ip = frame.headers.ip().ok_or(Stop::Drop(DropReason::VerbsOnly));
                return match ip.and_then(|ip| self.echo(frame, ip, ip.dst)) {
                    Ok(verdict) => verdict,
                    Err(Stop::Hold { scope, addr }) => Verdict::Hold { scope, addr },
                    Err(Stop::Drop(reason @ DropReason::HeaderTooLong)) => Verdict::Drop(reason),
                    Err(_) => Verdict::Drop(DropReason::VerbsOnly),
                };
            }
        };
        match answer {
            Some((kind, forward)) => {
                let asker = frame.headers.ip().map(|ip| Asker { vrf: frame.network.vrf, addr: ip.src });
                Verdict::Reply(Reply { kind, forward, dropped: Some(reason), asker })
            }
            None => Verdict::Drop(reason),
        }
    }

    /// Returns an ICMP error from the network's gateway, if the network has one of this family and the packet
    /// may be answered with an error. Without a gateway, a packet that is too big is refused in its
    /// destination's name.
    fn error(&mut self, frame: &Frame<'a>, error: IcmpError) -> Option<(ReplyKind, Forward)> {
        let ip = frame.headers.ip()?;
        let to = frame.headers.eth.as_ref().map(|eth| eth.dst).filter(|mac| !mac.is_group());
        let stands_in = matches!(error, IcmpError::TooBig { .. }) && !ip.dst.is_multicast();
        let (src, mac) = match frame.network.gateway_for(ip.src) {
            Some(gateway) => (gateway, frame.gateway_mac()),
            None => (ip.dst, to.filter(|_| stands_in)?),
        };
        if !reply::may_report(&frame.headers, error) {
            return None;
        }
        let forward = self.back(frame, mac, reply::TOS_ERROR).ok()?;
        Some((ReplyKind::IcmpError { src, error }, forward))
    }

    /// Returns a TCP reset, as if from the packet's destination.
    fn reset(&mut self, frame: &Frame<'a>) -> Option<(ReplyKind, Forward)> {
        if !reply::may_reset(&frame.headers) {
            return None;
        }
        let host = frame.headers.eth.as_ref().map(|eth| eth.dst).filter(|mac| !mac.is_group());
        let forward = self.back(frame, host.unwrap_or(frame.gateway_mac()), 0).ok()?;
        Some((ReplyKind::TcpReset, forward))
    }

    /// Copies an answer to a guest's mirror, if the guest receives it or it is given in the guest's name.
    pub(super) fn show(&mut self, guest: &Vif) {
        if let Some(mirror) = guest.mirror {
            push_new(&mut self.effects.mirror_out, mirror);
        }
    }

    /// Returns the way back to the sender, for an answer from `mac` with the traffic class `tos`.
    pub(super) fn back(&mut self, frame: &Frame<'a>, mac: Mac, tos: u8) -> Result<Forward, Stop> {
        let Some(eth) = &frame.headers.eth else { return self.route_back(frame, tos) };
        let mut base = Forward {
            tos: None,
            ttl_decrement: 0,
            ethernet: Some(frame.ethernet(eth.src, mac)),
            ..frame.routed(Nat::default(), None)
        };
        base.push_vlan = match frame.tags() {
            [] => None,
            [tag] if !tag.service => Some(tag.vlan()),
            [_] => return Err(DropReason::VlanUnexpected.into()),
            _ => return Err(DropReason::TooManyTags.into()),
        };
        self.effects.mirror_out.clear();
        match frame.origin {
            Origin::Guest(vif) => {
                self.show(vif);
                Ok(on_port(base, vif)?)
            }
            Origin::Attached { .. } if base.push_vlan.is_some() => Err(DropReason::VlanUnexpected.into()),
            Origin::Attached { wire, vlan, .. } => self.onto(frame, base, wire, vlan),
            Origin::Gateway => Err(DropReason::NotForUs.into()),
            Origin::Tunnel { remote, id } => {
                let id = frame.network.vni_at(remote, id);
                self.through(frame, base, &Tunnel { kind: TunnelKind::Vxlan, remote, id, mac: None }, tos)
            }
        }
    }
}
