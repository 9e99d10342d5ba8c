//! Properties of the model over random tables and packets.

use model::generate::{self, Packet, Rng};
use model::tcp::Edge;
use model::{
    BridgeEntry, Connection, Cut, DropReason, Endpoint, FlowKey, Forward, FragmentKey, Host, KernelPath,
    Lookup, NeighbourScope, Network, Nexthop, NexthopId, OutsidePort, PacketView, RouteEntry, RuleMatch,
    RuleQuery, Seconds, Segment, Tables, Transport, Verdict, Vif, VifId, Vrf, copy_to, decide, explain, ovs,
    rewrite, tcp, text,
};
use packet::{Headers, L4, Mac, TunnelKind, checksum, proto};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;

const WORLDS: u64 = 120;
const PACKETS: usize = 200;

/// Returns tables that know their neighbours.
fn world(rng: &mut Rng) -> Tables {
    let mut tables = Tables::new();
    tables.apply(&generate::tables(rng)).unwrap();
    for packet in generate::warm_up(rng, &tables) {
        step(&mut tables, &packet, 0);
    }
    tables
}

fn step(tables: &mut Tables, packet: &Packet, now: u32) -> Option<Verdict> {
    let view = PacketView::parse(&packet.frame, packet.frame.len() as u32, packet.gso_size).ok()?;
    let decision = decide(tables, &view, packet.ingress, now);
    let _ = tables.commit(&decision.effects, packet.frame.len(), u64::from(now) * 1_000_000_000);
    Some(decision.verdict)
}

#[test]
fn an_answer_is_not_changed_on_its_way() {
    let mut answers = 0_usize;
    for_many(|tables, packet, now| {
        if let Some(Verdict::Reply(reply)) = step(tables, packet, now) {
            assert_eq!((reply.forward.ttl_decrement, reply.forward.tos), (0, None), "{reply:?}");
            answers += 1;
        }
    });
    assert!(answers > 100, "{answers}");
}

/// Calls `check` with many packets and the tables they meet.
fn for_many(mut check: impl FnMut(&mut Tables, &Packet, u32)) {
    for seed in 0..WORLDS {
        let mut rng = Rng::new(seed);
        let mut tables = world(&mut rng);
        for n in 0..PACKETS {
            let packet = generate::packet(&mut rng, &tables);
            check(&mut tables, &packet, n as u32 / 4);
        }
    }
}

#[test]
fn whatever_is_emitted_parses_again() {
    let mut emitted = 0_usize;
    for_many(|tables, packet, now| {
        let Ok(view) = PacketView::parse(&packet.frame, packet.frame.len() as u32, packet.gso_size) else {
            return;
        };
        let decision = decide(tables, &view, packet.ingress, now);
        let _ = tables.commit(&decision.effects, packet.frame.len(), u64::from(now) * 1_000_000_000);
        // Fragments of one delivery; copies of the frame as delivered are cut likewise.
        let pieces = |forward: &Forward| match forward.cut {
            Some(Cut::Tunnel(mtu)) => {
                let encap = forward.encap.unwrap();
                let whole = rewrite::rewrite(forward, &view).unwrap().len() - proto::ETHERNET_LEN;
                assert!(!encap.dont_fragment && whole > mtu.into());
                (whole - proto::IPV4_LEN).div_ceil((usize::from(mtu) - proto::IPV4_LEN) / 8 * 8)
            }
            Some(Cut::Packet(mtu)) if view.gso_size.is_none() => {
                let inner =
                    Headers::network(&packet.frame, forward.strip.into(), packet.frame.len()).unwrap();
                let ip = inner.ip().unwrap();
                let most = (usize::from(mtu) - usize::from(ip.header_len)) / 8 * 8;
                (ip.len as usize - usize::from(ip.header_len)).div_ceil(most)
            }
            _ => 1,
        };
        let deliveries = decision.verdict.deliveries();
        let expected = match &decision.verdict {
            Verdict::Reply(_) => 1,
            other => deliveries.iter().map(pieces).sum::<usize>() + other.outputs().len(),
        };
        let effects = &decision.effects;
        let base = Forward::unchanged(VifId(0));
        let reached = |mirrors: &[VifId]| {
            mirrors.iter().filter_map(|id| copy_to(tables, &view.headers, *id, &base)).count()
        };
        let copies = reached(&effects.mirror_in)
            + reached(&effects.mirror_out)
                * deliveries
                    .first()
                    .filter(|first| matches!(first.cut, Some(Cut::Packet(_))))
                    .map_or(1, pieces);
        let out = rewrite::emit(tables, &decision, &view);
        assert_eq!(out.len(), expected + copies, "{decision} of {}", text::show(&packet.frame));
        for (_, frame) in &out {
            let headers = Headers::ethernet(frame, 0, frame.len());
            let headers =
                headers.unwrap_or_else(|error| panic!("{error}: {decision}: {}", text::show(frame)));
            emitted += 1;
            // Tunnel packets that tenants make themselves are not checked.
            if !headers.ip().is_some_and(|ip| is_own(tables, ip.src)) {
                continue;
            }
            let inner = packet::tunnel(frame, &headers, frame.len()).unwrap();
            match inner {
                Some(tunnel) if tunnel.kind == packet::TunnelKind::Vxlan => {
                    Headers::ethernet(frame, tunnel.inner_at, tunnel.inner_end).unwrap();
                }
                Some(tunnel) => drop(Headers::network(frame, tunnel.inner_at, tunnel.inner_end).unwrap()),
                None => {}
            }
        }
    });
    assert!(emitted > 10_000, "{emitted}");
}

/// Returns whether the host has an address on the underlay.
fn is_own(tables: &Tables, addr: IpAddr) -> bool {
    let wires = tables.vifs().filter_map(|vif| vif.wire.as_ref());
    let mut own = wires.flat_map(|wire| wire.addresses.iter().map(|subnet| subnet.addr()));
    tables.host().tunnel_source.contains(&addr) || own.any(|own| own == addr)
}

#[test]
fn rewriting_keeps_checksums_right() {
    let mut checked = 0_usize;
    for_many(|tables, packet, now| {
        if !checksums_valid_inside(&packet.frame) {
            return;
        }
        let Ok(view) = PacketView::parse(&packet.frame, packet.frame.len() as u32, packet.gso_size) else {
            return;
        };
        let decision = decide(tables, &view, packet.ingress, now);
        for (_, frame) in rewrite::emit(tables, &decision, &view) {
            assert!(checksums_valid_inside(&frame), "{decision} of {}", text::show(&packet.frame));
            checked += 1;
        }
    });
    assert!(checked > 10_000, "{checked}");
}

/// Returns whether a frame, and the packet in a tunnel, have right checksums.
fn checksums_valid_inside(frame: &[u8]) -> bool {
    let Ok(headers) = Headers::ethernet(frame, 0, frame.len()) else { return false };
    let inner = match packet::tunnel(frame, &headers, frame.len()) {
        Ok(Some(tunnel)) if tunnel.kind == packet::TunnelKind::Vxlan => {
            Headers::ethernet(frame, tunnel.inner_at, tunnel.inner_end)
        }
        Ok(Some(tunnel)) => Headers::network(frame, tunnel.inner_at, tunnel.inner_end),
        Ok(None) => return sum_is_right(frame, &headers),
        Err(error) => Err(error),
    };
    sum_is_right(frame, &headers) && inner.is_ok_and(|inner| sum_is_right(frame, &inner))
}

fn sum_is_right(frame: &[u8], headers: &Headers) -> bool {
    let Some(ip) = headers.ip().filter(|ip| ip.fragment == packet::Fragment::Whole) else { return true };
    let segment = &frame[usize::from(headers.l4_at)..usize::from(ip.at) + ip.len as usize];
    let segment = match headers.l4 {
        L4::Udp { .. } if segment[6..8] == [0, 0] => return ip.src.is_ipv4(),
        L4::Udp { .. } => &segment[..usize::from(u16::from_be_bytes([segment[4], segment[5]]))],
        L4::Tcp { .. } | L4::Icmp { .. } => segment,
        _ => return true,
    };
    let mut sum = match ip.protocol {
        proto::ICMP => checksum::Sum::default(),
        _ => checksum::pseudo_header(ip.src, ip.dst, ip.protocol, segment.len() as u32),
    };
    sum.add(segment);
    sum.fold() == 0xffff
}

#[test]
fn a_decision_is_the_same_each_time_and_when_explained() {
    for_many(|tables, packet, now| {
        let Ok(view) = PacketView::parse(&packet.frame, packet.frame.len() as u32, packet.gso_size) else {
            return;
        };
        let decision = decide(tables, &view, packet.ingress, now);
        assert_eq!(decision, decide(tables, &view, packet.ingress, now));
        let explained = explain(tables, &view, packet.ingress, now);
        assert_eq!(decision, explained.decision);
        assert!(!explained.steps.is_empty());
        step(tables, packet, now);
    });
}

#[test]
fn nothing_goes_back_to_where_it_came_from_by_bridging() {
    for_many(|tables, packet, now| {
        let verdict = step(tables, packet, now);
        let from_wire = packet.ingress.0 <= 2;
        let bridged = |forward: &&model::Forward| forward.ttl_decrement == 0 && forward.encap.is_none();
        let same = match &verdict {
            Some(Verdict::Forward(forward)) => {
                [forward].into_iter().filter(bridged).any(|f| f.port == packet.ingress)
            }
            Some(Verdict::Flood(flood)) => flood.to.iter().filter(bridged).any(|f| f.port == packet.ingress),
            _ => false,
        };
        // A packet from a tunnel into a network attached to the same wire does not go back.
        assert!(!same || from_wire, "{}", text::show(&packet.frame));
    });
}

#[test]
fn random_packets_meet_most_of_the_model() {
    let mut seen = BTreeSet::new();
    for_many(|tables, packet, now| {
        let verdict = step(tables, packet, now);
        seen.insert(match verdict {
            None => "unparsed".to_owned(),
            Some(Verdict::Drop(reason)) => reason.to_string(),
            Some(Verdict::Forward(f)) if f.encap.is_some() => "encapsulated".into(),
            Some(Verdict::Forward(f)) if f.nat != model::Nat::default() => "translated".into(),
            Some(Verdict::Outputs(outputs)) if outputs.len() > 1 => "flooded".into(),
            Some(Verdict::Forward(_) | Verdict::Outputs(_)) => "forwarded".into(),
            Some(Verdict::Flood(_)) => "flooded".into(),
            Some(Verdict::Reply(r)) => {
                r.dropped.map_or("answered".into(), |reason| format!("refused {reason}"))
            }
            Some(Verdict::Hold { .. }) => "held".into(),
            Some(Verdict::Reassemble) => "reassembled".into(),
            Some(Verdict::Serve { .. }) => "served".into(),
            Some(Verdict::Consumed) => "consumed".into(),
        });
    });
    for kind in
        ["encapsulated", "translated", "forwarded", "flooded", "answered", "held", "served", "consumed"]
    {
        assert!(seen.contains(kind), "never {kind}: {seen:?}");
    }
    let dropped = DropReason::ALL.iter().filter(|reason| seen.contains(reason.name())).count();
    assert!(dropped >= 20, "{dropped}: {seen:?}");
}

#[test]
fn text_describes_every_frame() {
    for_many(|_, packet, _| assert_eq!(text::parse(&text::show(&packet.frame)).unwrap(), packet.frame));
}

/// Tables in which any look-up may fail, as tables in the middle of a change might.
struct Holes<'a> {
    tables: &'a Tables,
    rng: RefCell<Rng>,
}

impl Holes<'_> {
    fn maybe<R>(&self, result: Option<R>) -> Option<R> {
        result.filter(|_| !self.rng.borrow_mut().percent(10))
    }
}

impl Lookup for Holes<'_> {
    fn host(&self) -> &Host {
        self.tables.host()
    }
    fn vif(&self, id: VifId) -> Option<&Vif> {
        self.maybe(self.tables.vif(id))
    }
    fn wires(&self) -> &[VifId] {
        self.tables.wires()
    }
    fn kernel_paths(&self, remote: IpAddr) -> &[KernelPath] {
        self.tables.kernel_paths(remote)
    }
    fn owner(&self, vrf: Vrf, addr: IpAddr) -> Option<Mac> {
        self.tables.owner(vrf, addr)
    }
    fn is_down(&self, remote: IpAddr) -> bool {
        self.tables.is_down(remote)
    }

    fn is_path_down(&self, remote: IpAddr, wire: VifId, hop: IpAddr) -> bool {
        self.tables.is_path_down(remote, wire, hop)
    }
    fn network(&self, vrf: Vrf) -> Option<&Network> {
        self.maybe(self.tables.network(vrf))
    }
    fn guest_by_address(&self, vrf: Vrf, addr: IpAddr) -> Option<VifId> {
        self.maybe(self.tables.guest_by_address(vrf, addr))
    }
    fn bridge(&self, vrf: Vrf, mac: Mac) -> Option<BridgeEntry> {
        self.maybe(self.tables.bridge(vrf, mac))
    }
    fn route(&self, vrf: Vrf, addr: IpAddr) -> Option<RouteEntry> {
        self.maybe(self.tables.route(vrf, addr))
    }
    fn nexthop(&self, id: NexthopId) -> Option<Cow<'_, Nexthop>> {
        self.maybe(self.tables.nexthop(id))
    }
    fn is_remote(&self, addr: IpAddr) -> bool {
        self.tables.is_remote(addr) && !self.rng.borrow_mut().percent(10)
    }
    fn is_port_remote(&self, addr: IpAddr) -> bool {
        self.tables.is_port_remote(addr) && !self.rng.borrow_mut().percent(10)
    }
    fn tunnel_port(&self, kind: TunnelKind, remote: IpAddr, id: u32) -> Option<VifId> {
        self.maybe(self.tables.tunnel_port(kind, remote, id))
    }

    fn mpls(&self, label: u32) -> Option<NexthopId> {
        self.maybe(self.tables.mpls(label))
    }
    fn vxlan(&self, vni: u32) -> Option<Vrf> {
        self.maybe(self.tables.vxlan(vni))
    }
    fn neighbour(&self, scope: NeighbourScope, addr: IpAddr) -> Option<Mac> {
        self.maybe(self.tables.neighbour(scope, addr))
    }
    fn is_silent(&self, scope: NeighbourScope, addr: IpAddr) -> bool {
        self.tables.is_silent(scope, addr) || self.rng.borrow_mut().percent(10)
    }
    fn any_is_silent(&self) -> bool {
        self.rng.borrow_mut().percent(50)
    }
    fn is_unreachable(&self, _: NeighbourScope, _: IpAddr) -> bool {
        self.rng.borrow_mut().percent(10)
    }
    fn path_mtu(&self, remote: IpAddr) -> Option<u16> {
        self.maybe(self.tables.path_mtu(remote))
    }
    fn floating_of(&self, inside_vrf: Vrf, inside: IpAddr, outside_vrf: Vrf) -> Option<IpAddr> {
        self.maybe(self.tables.floating_of(inside_vrf, inside, outside_vrf))
    }
    fn inside_of(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<(Vrf, IpAddr)> {
        self.maybe(self.tables.inside_of(outside_vrf, outside))
    }
    fn shared_by(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<Vrf> {
        self.maybe(self.tables.shared_by(outside_vrf, outside))
    }
    fn bound(&self, key: &FlowKey, now: Seconds) -> Option<Connection> {
        self.maybe(self.tables.bound(key, now))
    }
    fn mapping(
        &self,
        inside: &Endpoint,
        protocol: u8,
        is_usable: &dyn Fn(OutsidePort) -> bool,
    ) -> Option<OutsidePort> {
        self.maybe(self.tables.mapping(inside, protocol, is_usable))
    }
    fn is_mapped(&self, vrf: Vrf, outside: (IpAddr, u16), protocol: u8) -> bool {
        self.tables.is_mapped(vrf, outside, protocol) || self.rng.borrow_mut().percent(10)
    }
    fn rules(&self, vrf: Vrf, query: &RuleQuery) -> RuleMatch {
        self.tables.rules(vrf, query)
    }
    fn connection(&self, key: &FlowKey, now: Seconds) -> Option<(Connection, bool)> {
        self.maybe(self.tables.connection(key, now))
    }
    fn fragment(&self, key: &FragmentKey, now: Seconds) -> Option<Transport> {
        self.maybe(self.tables.fragment(key, now))
    }
    fn ovs_flow(&self, port: VifId, key: &ovs::Key) -> Option<&ovs::Flow> {
        self.maybe(self.tables.ovs_flow(port, key))
    }
}

#[test]
fn tables_that_contradict_themselves_do_no_harm() {
    let rng = RefCell::new(Rng::new(1));
    for_many(|tables, packet, now| {
        let Ok(view) = PacketView::parse(&packet.frame, packet.frame.len() as u32, packet.gso_size) else {
            return;
        };
        let holes = Holes { tables, rng: RefCell::new(rng.borrow().clone()) };
        let decision = decide(&holes, &view, packet.ingress, now);
        rng.replace(holes.rng.into_inner());
        drop(rewrite::emit(tables, &decision, &view));
    });
}

/// Returns a sequence number close to another, so that numbers in order, old ones and ones outside a window
/// all come up often.
fn sequence_number(rng: &mut Rng, near: u32) -> u32 {
    match rng.below(4) {
        0 => near,
        1 => near.wrapping_add(rng.below(5) as u32).wrapping_sub(2),
        2 => near.wrapping_add(rng.below(1 << 18) as u32).wrapping_sub(1 << 17),
        _ => rng.next_u64() as u32,
    }
}

#[test]
fn a_tcp_segment_in_order_is_followed_as_any_other() {
    let (mut rng, mut followed) = (Rng::new(11), 0);
    for _ in 0..200_000 {
        let start = rng.next_u64() as u32;
        let mut number = |near| sequence_number(&mut rng, near);
        let own = Edge { end: number(start), ack: Some(number(start)) };
        let other = Edge { end: number(start), ack: Some(number(start)) };
        let (seq, ack) = (number(own.end), number(other.end));
        let window = [0, 1, 1000, 1 << 20, 0xffff << 14][rng.below(5)];
        let flags = if rng.percent(90) { proto::TCP_ACK } else { 0 };
        let segment = Segment { flags, seq, len: rng.below(1 << 16) as u32, ack, window: 9, scale: None };
        if let Some(edge) = tcp::advance_in_order(own, other, window, &segment) {
            let any = tcp::advance(Some(own), Some(other), [0, window], false, &segment);
            assert_eq!(any, Some(edge), "{own:?} {other:?} {window} {segment:?}");
            followed += 1;
        }
    }
    assert!(followed > 1000, "{followed}");
}
