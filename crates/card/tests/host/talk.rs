//! Tables without features that only hosts have, and conversations between their guests, which create connections.

use model::generate::{Packet, Rng};
use model::{
    Action, Change, Decision, GATEWAY_MAC, Lookup, PacketView, RuleAction, Tables, Verdict, Vif, VifId,
    VifKind, Vrf, rewrite, text,
};
use packet::{Headers, Mac};
use std::net::IpAddr;

pub trait Carrier {
    fn tables(&self) -> &Tables;
    fn decide(&self, packet: &Packet) -> Option<Decision>;
    fn send(&mut self, packet: &Packet);
}

/// Keeps only those changes that a card can serve.
pub fn tame(rng: &mut Rng, changes: Vec<Change>) -> Vec<Change> {
    changes.into_iter().filter_map(|change| tamed(rng, change)).collect()
}

fn tamed(rng: &mut Rng, change: Change) -> Option<Change> {
    Some(match change {
        Change::SetHost(host) => Change::SetHost(model::Host { tunnel_fragments: false, ..host }),
        Change::PutVif(vif) if vif.is_second() => return None,
        Change::PutVif(vif) => {
            let kind = if vif.kind == VifKind::Rdma { VifKind::Tap } else { vif.kind };
            let policy = vif.policy && rng.percent(60);
            Change::PutVif(Vif { kind, policy, meter: None, mirror: None, rdma: None, mtu: 9000, ..vif })
        }
        Change::PutNetwork(mut network) => {
            (network.default_action, network.mtu) = (Action::Allow, 9000);
            Change::PutNetwork(network)
        }
        Change::PutRule(rule) if rule.action != RuleAction::End(Action::Drop) => return None,
        change => change,
    })
}

/// Sends packets between two ends in alternating directions, as in a connection.
pub fn converse(rng: &mut Rng, host: &mut impl Carrier) {
    let guests: Vec<Vif> = host.tables().vifs().filter(|vif| vif.kind != VifKind::Wire).cloned().collect();
    let (one, other) = (rng.one(&guests), rng.one(&guests));
    let Some(dst) = destination(rng, host, &other) else { return };
    let Some(src) = one.addresses.iter().copied().find(|addr| addr.is_ipv4() == dst.is_ipv4()) else {
        return;
    };
    let near = one.vrf == other.vrf && rng.percent(50);
    let to = other.mac.filter(|_| near).unwrap_or(GATEWAY_MAC);
    let kind = rng.below(4);
    let ports = (2000 + rng.below(3) as u16, 1 + rng.below(60) as u16);
    let from = one.mac.unwrap_or(Mac([2, 0, 0, 0, 0, one.id.0 as u8]));
    let mut flags = ["S", "SA", "A", "PA", "A", "PA", "A", "FA"].into_iter();
    for _ in 0..3 {
        let there = frame(from, to, src, dst, kind, ports, flags.next().unwrap_or("A"));
        let there = Packet { ingress: one.id, frame: there, gso_size: None };
        let back = answer(host, &there, kind, flags.next().unwrap_or("A"));
        host.send(&there);
        if let Some(back) = back.or_else(|| answer(host, &there, kind, "A")) {
            host.send(&back);
        }
    }
}

/// Chooses an address of a guest, its floating address, or an address that is routed somewhere.
fn destination(rng: &mut Rng, host: &impl Carrier, guest: &Vif) -> Option<IpAddr> {
    let mut all = guest.addresses.clone();
    if rng.percent(40) {
        all.extend(host.tables().floating().map(|floating| floating.outside));
    }
    if rng.percent(40) {
        all.extend(host.tables().routes().map(|(_, prefix, _)| prefix.addr()));
    }
    (!all.is_empty()).then(|| rng.one(&all))
}

fn frame(
    from: Mac,
    to: Mac,
    src: IpAddr,
    dst: IpAddr,
    kind: usize,
    ports: (u16, u16),
    flags: &str,
) -> Vec<u8> {
    text::parse(&format!("eth {from} > {to} / {}", ip(src, dst, kind, ports, flags))).unwrap_or_default()
}

fn ip(src: IpAddr, dst: IpAddr, kind: usize, (sport, dport): (u16, u16), flags: &str) -> String {
    let (name, icmp) = if src.is_ipv4() { ("ip4", "icmp") } else { ("ip6", "icmp6") };
    let inside = match kind {
        0 => format!("udp {sport} > {dport}"),
        1 => format!("{icmp} echo {sport} 1"),
        _ => format!("tcp {sport} > {dport} {flags} seq 7"),
    };
    format!("{name} {src} > {dst} ttl 64 / {inside} / payload 64")
}

/// Makes the receiver's answer to a packet.
fn answer(host: &impl Carrier, packet: &Packet, kind: usize, flags: &str) -> Option<Packet> {
    let view = PacketView::parse(&packet.frame, packet.frame.len() as u32, None).ok()?;
    let Verdict::Forward(forward) = host.decide(packet)?.verdict else { return None };
    let sent = rewrite::rewrite(&forward, &view)?;
    let headers = Headers::ethernet(&sent, 0, sent.len()).ok()?;
    if forward.encap.is_none() {
        let (eth, ip) = (headers.eth.as_ref()?, headers.ip()?);
        let (sport, dport) = headers.ports();
        let frame = frame(eth.dst, eth.src, ip.dst, ip.src, kind, (dport, sport), flags);
        return Some(Packet { ingress: forward.port, frame, gso_size: None });
    }
    from_afar(host, &view.headers, forward.port, &headers, kind, flags)
}

/// Makes an answer through a tunnel: with one of the guest's labels if it has one, otherwise by VXLAN to the gateway.
fn from_afar(
    host: &impl Carrier,
    inner: &Headers,
    wire: VifId,
    outer: &Headers,
    kind: usize,
    flags: &str,
) -> Option<Packet> {
    let (eth, way, packet) = (outer.eth.as_ref()?, outer.ip()?, inner.ip()?);
    let owner = host.tables().vifs().find(|vif| vif.addresses.contains(&packet.src))?;
    let label = host.tables().labels().find(|(_, id)| {
        matches!(host.tables().nexthop(*id).as_deref(), Some(model::Nexthop::Encap { vif, .. }) if *vif == owner.id)
    });
    let Vrf(vrf) = owner.vrf?;
    let (sport, dport) = inner.ports();
    let back = ip(packet.dst, packet.src, kind, (dport, sport), flags);
    let name = if way.src.is_ipv4() { "ip4" } else { "ip6" };
    let outside = format!("eth {} > {} / {name} {} > {}", eth.dst, eth.src, way.dst, way.src);
    let inside = match label {
        Some((label, _)) => format!("udp 50000 > 6635 / mpls {label} ttl 64 / {back}"),
        None => {
            let from = Mac([2, 0, 0, 0, 3, 1]);
            format!("udp 50000 > 4789 / vxlan {} / eth {from} > {GATEWAY_MAC} / {back}", 5000 + vrf)
        }
    };
    Some(Packet { ingress: wire, frame: text::parse(&format!("{outside} / {inside}")).ok()?, gso_size: None })
}
