//! Ports that an Open vSwitch programs.
//!
//! ```text
//! port ── its rules ── flow? ── actions in order ── rules of the outputs' ports ── Outputs, Drop
//!                        └── none, or a mark ── the port's OVS side
//! OVS side ── rules of its port ── the port
//! ```
//!
//! The port may be that of a tunnel ([`VifKind::Tunnel`]): then the packet in the tunnel is what comes in, and what is
//! sent by it leaves by a wire, in the tunnel.
//!
//! A guest with [`Vif::rules`] obeys the rules of a network, with connections, as guests of that network do.

use super::egress::mtu_len;
use super::{Frame, Origin, Outcome, Stop, Walk, entropy_of};
use crate::ovs::{Action, Edits, Flow, Key, Output, Wrap};
use crate::{Crossing, DropReason, Forward, Lookup, PacketView, Verdict, Vif, VifId, VifKind, Vrf};
use packet::{Headers, L3, L4, MAX_TAGS, Tag, Tunnel, ecn_decap, ecn_encap, proto};
use std::net::IpAddr;

impl<'a, T: Lookup> Walk<'a, T> {
    /// Decides about a packet from a port that an Open vSwitch programs, or from its OVS side. `other` is the
    /// other one of the two.
    #[cold]
    #[inline(never)]
    pub(super) fn enter_ovs(&mut self, vif: &'a Vif, other: VifId) -> Outcome {
        if vif.kind == VifKind::Ovs {
            self.sent_by_ovs(vif, other)
        } else {
            self.ovs_port(vif, other, Came::default())
        }
    }

    /// Forwards a packet that OVS sends by a port, unchanged.
    fn sent_by_ovs(&mut self, side: &'a Vif, port: VifId) -> Outcome {
        let port = self.tables.vif(port).ok_or(DropReason::NexthopInvalid)?;
        if let Some(vrf) = port.rules {
            self.obey(side, vrf)?;
        }
        if port.tunnel().is_some() {
            return self.send_all(vec![Output {
                port: port.id,
                strip: 0,
                edits: Edits::default(),
                wrap: None,
            }]);
        }
        Ok(Verdict::Forward(Forward::unchanged(port.id)))
    }

    /// Decapsulates a packet from a tunnel that has a port of its own. The port gets the packet inside, with
    /// the congestion mark of the tunnel (RFC 6040).
    pub(super) fn out_of_tunnel(&mut self, port: VifId, tunnel: &Tunnel) -> Outcome {
        let port = self.tables.vif(port).ok_or(DropReason::NoNetwork)?;
        let side = port.ovs.ok_or(DropReason::NoNetwork)?;
        let PacketView { bytes, gso_size, .. } = *self.packet;
        let mut headers = Headers::ethernet(bytes, tunnel.inner_at, tunnel.inner_end)?;
        let mut came = Came { strip: headers.at, tos: None };
        if let L3::Ip(ip) = &mut headers.l3 {
            let tos = ecn_decap(ip.tos, tunnel.outer_tos).map_err(|_| DropReason::Ecn)?;
            came.tos = (tos != ip.tos).then_some(tos);
            ip.tos = tos;
        }
        let crossing = Crossing { port: port.id, grown: -(came.strip as i16) };
        self.effects.crossings.get_or_insert_default().came = Some(crossing);
        let inside = PacketView { bytes, len: tunnel.inner_end as u32, gso_size, headers, checked: false };
        let (tables, ingress, now) = (self.tables, self.ingress, self.now);
        let effects = std::mem::take(&mut self.effects);
        let mut walk = Walk { effects, ..Walk::new(tables, &inside, ingress, now) };
        let outcome = walk.ovs_port(port, side, came);
        self.effects = walk.effects;
        outcome
    }

    /// Asks the rules of a network whether the packet may pass, and tracks its connection. No sender is told
    /// of a rejection, because the port has no gateway that could tell. Mirrors of the rules make no copies
    /// here: the flows make copies.
    fn obey(&mut self, from: &'a Vif, vrf: Vrf) -> Result<(), Stop> {
        let network = self.tables.network(vrf).ok_or(DropReason::NoNetwork)?;
        let headers = self.packet.headers.clone();
        let (tos, dst) = headers.ip().map_or((0, None), |ip| (ip.tos, Some(ip.dst)));
        let (end, origin) = (self.packet.len as usize, Origin::Guest(from));
        let passes = self.judge(&Frame { headers, end, origin, network, tos, foreign_tags: 0 }, vrf, dst);
        self.effects.mirror_in.clear();
        self.effects.mirror_out.clear();
        passes
    }

    /// Decides about a packet from a port by the port's rules and flows. Sends the packet to the OVS side if
    /// no flow matches.
    fn ovs_port(&mut self, port: &'a Vif, side: VifId, came: Came) -> Outcome {
        if let Some(meter) = port.meter {
            let _ = self.effects.meters.try_push((meter, DropReason::RateLimited));
        }
        if let Some(vrf) = port.rules {
            self.obey(port, vrf)?;
        }
        let flow = Key::of(self.packet).and_then(|key| self.tables.ovs_flow(port.id, &key));
        // The packet goes to OVS with its flow's counter, by which the driver knows the flow.
        self.effects.ovs_counter = flow.filter(|flow| flow.is_mark()).map(|flow| flow.counter);
        if let Some(flow) = flow.filter(|flow| !flow.is_mark())
            && let Some(outputs) = self.outputs(flow, came)
            && let Some(outputs) = self.allowed(port, outputs)?
        {
            self.effects.ovs_counter = Some(flow.counter);
            return self.send_all(outputs);
        }
        let Came { strip, tos } = came;
        Ok(Verdict::Forward(Forward { strip, tos, ..Forward::unchanged(side) }))
    }

    /// Returns the packets that leave according to a flow. `None` if one of its actions does not fit the
    /// packet.
    fn outputs(&self, flow: &Flow, came: Came) -> Option<Vec<Output>> {
        let mut done = Done::new(self, came);
        let mut outputs = Vec::new();
        for action in &flow.actions {
            match action {
                Action::Output(port) => outputs.push(done.output(*port)?),
                other => done.apply(other)?,
            }
        }
        Some(outputs)
    }

    /// Returns the outputs that the rules of their ports allow. Returns `None` if one question about the
    /// packet as it came does not settle that, because several networks or new addresses are involved: then
    /// OVS sends to each of the ports, and each port asks its rules.
    fn allowed(&mut self, from: &'a Vif, mut outputs: Vec<Output>) -> Result<Option<Vec<Output>>, Stop> {
        let tables = self.tables;
        let rules = |output: &Output| tables.vif(output.port).filter(|to| to.takes_flows())?.rules;
        let mut asked = from.rules;
        for (output, vrf) in outputs.iter().filter_map(|output| Some((output, rules(output)?))) {
            if output.readdresses() || asked.is_some_and(|other| other != vrf) {
                return Ok(None);
            }
            asked = Some(vrf);
        }
        if let (Some(vrf), None) = (asked, from.rules)
            && let Err(stop) = self.obey(from, vrf)
        {
            outputs.retain(|output| rules(output).is_none());
            // A similar packet may belong to a connection.
            self.effects.once = true;
            if outputs.is_empty() {
                return Err(stop);
            }
        }
        Ok(Some(outputs))
    }

    /// Sends the outputs that can leave and drops the rest, as OVS does.
    fn send_all(&mut self, outputs: Vec<Output>) -> Outcome {
        if outputs.is_empty() {
            return Err(DropReason::OvsDrop.into());
        }
        let (all, mut to) = (outputs.len(), Vec::with_capacity(outputs.len()));
        let (mut missing, mut refused) = (None, DropReason::NexthopInvalid.into());
        for output in outputs {
            match self.leave_by(output) {
                Ok(output) => to.push(output),
                Err(Stop::Hold { scope, addr }) => missing = missing.or(Some((scope, addr))),
                Err(Stop::Drop(DropReason::NexthopInvalid)) => {}
                Err(stop) => refused = stop,
            }
        }
        // A shorter packet may reach more of the ports.
        self.effects.once |= to.len() < all;
        match (to.is_empty(), missing) {
            (true, Some((scope, addr))) => return Err(Stop::Hold { scope, addr }),
            (true, None) => return Err(refused),
            (false, missing) => self.effects.solicit = missing,
        }
        Ok(Verdict::Outputs(to))
    }

    /// Returns an output as it leaves. Fails if it does not fit its port.
    fn leave_by(&mut self, output: Output) -> Result<Output, Stop> {
        let port = self.tables.vif(output.port).ok_or(DropReason::NexthopInvalid)?;
        // A port that has become a guest of a network takes no packets past the network's rules.
        if !port.takes_flows() {
            return Err(DropReason::NexthopInvalid.into());
        }
        self.fit_tags(&output)?;
        self.fit_output(&output, port.mtu)?;
        match port.tunnel() {
            Some(tunnel) => self.through_tunnel(output, tunnel),
            None => Ok(output),
        }
    }

    /// Sends the output of a tunnel's port by a wire, in the tunnel.
    fn through_tunnel(&mut self, mut output: Output, tunnel: &crate::Tunnel) -> Result<Output, Stop> {
        let path = self.path(tunnel.remote, entropy_of(&self.packet.headers))?;
        let dst_mac = self.hop_mac(&path).map_err(|stop| match stop {
            Stop::Refuse(_, reason) => reason.into(),
            stop => stop,
        })?;
        let headers = &self.packet.headers;
        let tos = headers.ip().map_or(0, |ip| output.edits.tos(ip.tos));
        let tos = tos & !packet::ecn::ECN_MASK | ecn_encap(tos);
        let encap = path.encap(tunnel, dst_mac, entropy_of(headers), tos);
        let grown = output.grown() as i16;
        let port = std::mem::replace(&mut output.port, path.wire.id);
        output.wrap = Some(Wrap::of(&encap).ok_or(DropReason::NexthopInvalid)?);
        let learned = self.tables.path_mtu(tunnel.remote).unwrap_or(u16::MAX);
        self.fit_output(&output, path.mtu().min(learned))?;
        self.effects.crossings.get_or_insert_default().sent.push(Crossing { port, grown });
        Ok(output)
    }

    /// Checks that the frame has no more tags than a frame may have that comes in by a port. OVS would send
    /// such a frame by its OVS side, where this limit holds.
    fn fit_tags(&self, output: &Output) -> Result<(), DropReason> {
        let Edits { popped, pushed, .. } = &output.edits;
        let own = self.packet.headers.eth.as_ref().map_or(0, |eth| eth.tags.len());
        let tags = own.saturating_sub(usize::from(*popped)) + pushed.len();
        if tags <= MAX_TAGS { Ok(()) } else { Err(DropReason::TooManyTags) }
    }

    /// Checks that an output fits an MTU, bytes. In a tunnel, the whole frame with its Ethernet header
    /// counts.
    fn fit_output(&self, output: &Output, mtu: u16) -> Result<(), DropReason> {
        let headers = &self.packet.headers;
        let packet = mtu_len(headers, self.packet.len as usize, self.packet.gso_size);
        let wrapped = output.wrap.as_ref().map(|wrap| {
            // The outer Ethernet header does not count, but the inner one and its tags do.
            let inner = usize::from(headers.l3_at - headers.at).saturating_add_signed(output.edits.grown());
            wrap.outer.bytes().len() + inner - proto::ETHERNET_LEN
        });
        if packet + wrapped.unwrap_or(0) <= usize::from(mtu) { Ok(()) } else { Err(DropReason::Mtu) }
    }
}

/// Changes that the tunnel makes to a packet which came out of it.
#[derive(Clone, Copy, Default)]
struct Came {
    /// Length of the tunnel's headers, bytes.
    strip: u16,
    /// The packet's new traffic class, if the tunnel changes its ECN field.
    tos: Option<u8>,
}

/// Changes to a packet by the flow's actions so far.
struct Done<'a, T> {
    walk: &'a Walk<'a, T>,
    strip: u16,
    edits: Edits,
    /// The packet's own tags that are left, the innermost first.
    own: Vec<Tag>,
    /// The headers for the next output.
    wrap: Option<Wrap>,
}

impl<'a, T: Lookup> Done<'a, T> {
    fn new(walk: &'a Walk<'a, T>, Came { strip, tos }: Came) -> Self {
        let tags = walk.packet.headers.eth.as_ref().map_or(&[][..], |eth| &eth.tags);
        let ecn = tos.map(|tos| tos & packet::ecn::ECN_MASK);
        let edits = Edits { ecn, ..Edits::default() };
        Self { walk, strip, edits, own: tags.iter().rev().copied().collect(), wrap: None }
    }

    /// Returns the packet as it is now, for a port. `None` if it would go through two tunnels.
    fn output(&mut self, port: VifId) -> Option<Output> {
        let wrap = self.wrap.take();
        let twice = wrap.is_some() && self.walk.tables.vif(port).is_some_and(|vif| vif.tunnel().is_some());
        (!twice).then(|| Output { port, strip: self.strip, edits: self.edits.clone(), wrap })
    }

    /// Does an action other than an output. Returns `None` if the action does not fit the packet.
    fn apply(&mut self, action: &Action) -> Option<()> {
        let edits = &mut self.edits;
        match action {
            Action::Output(_) | Action::Drop | Action::Mark => {}
            Action::SetMacSrc(mac) => edits.mac_src = Some(*mac),
            Action::SetMacDst(mac) => edits.mac_dst = Some(*mac),
            Action::SetIpSrc(addr) => edits.ip_src = Some(self.walk.of_its_family(*addr)?),
            Action::SetIpDst(addr) => edits.ip_dst = Some(self.walk.of_its_family(*addr)?),
            Action::SetTtl(ttl) => edits.ttl = self.walk.packet.headers.ip().map(|_| Some(*ttl))?,
            Action::SetDscp(dscp) => edits.dscp = self.walk.packet.headers.ip().map(|_| Some(dscp & 0x3f))?,
            Action::SetPortSrc(port) => edits.port_src = self.walk.has_ports().then_some(Some(*port))?,
            Action::SetPortDst(port) => edits.port_dst = self.walk.has_ports().then_some(Some(*port))?,
            Action::PushVlan { service } => {
                edits.pushed.try_push(Tag { service: *service, tci: 0 }).ok()?;
            }
            Action::PopVlan => self.pop(),
            Action::SetVlanVid(vid) => self.set_tag(|tci| tci & 0xf000 | vid & 0xfff)?,
            Action::SetVlanPcp(pcp) => self.set_tag(|tci| tci & 0x1fff | u16::from(*pcp) << 13)?,
            Action::Encap(outer) => {
                let entropy = entropy_of(&self.walk.packet.headers);
                self.wrap = Some(Wrap { outer: outer.clone(), entropy });
            }
        }
        Some(())
    }

    fn pop(&mut self) {
        if self.edits.pushed.pop().is_none() && self.own.pop().is_some() {
            self.edits.popped += 1;
        }
    }

    /// Changes the outermost tag. If that is one of the packet's own, a pushed tag replaces it. A packet
    /// without tags stays as it is.
    fn set_tag(&mut self, change: impl Fn(u16) -> u16) -> Option<()> {
        if self.edits.pushed.is_empty()
            && let Some(tag) = self.own.pop()
        {
            self.edits.popped += 1;
            self.edits.pushed.try_push(tag).ok()?;
        }
        if let Some(tag) = self.edits.pushed.last_mut() {
            tag.tci = change(tag.tci);
        }
        Some(())
    }
}

impl<T: Lookup> Walk<'_, T> {
    /// Returns this address if the packet is IP of the same family.
    fn of_its_family(&self, addr: IpAddr) -> Option<IpAddr> {
        let ip = self.packet.headers.ip()?;
        (ip.src.is_ipv4() == addr.is_ipv4()).then_some(addr)
    }

    /// Returns whether the packet is TCP or UDP with its header.
    fn has_ports(&self) -> bool {
        matches!(self.packet.headers.l4, L4::Tcp { .. } | L4::Udp { .. })
    }
}
