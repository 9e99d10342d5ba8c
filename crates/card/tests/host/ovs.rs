//! Random ports and flows of an Open vSwitch of which a card can serve many, and packets that meet them.

use model::generate::{self, OVS_PORTS, Packet, Rng};
use model::ovs::{Action, Change, Flow, FlowId, Key, Match};
use model::{PacketView, Tables, Vif, VifKind, text};
use std::sync::Arc;

/// Makes ports, mostly guests'. Some have a small MTU.
pub fn ports(rng: &mut Rng) -> Vec<model::Change> {
    let mut changes = generate::ovs_ports(rng);
    for change in &mut changes {
        if let model::Change::PutVif(vif) = change
            && vif.kind == VifKind::Wire
            && rng.percent(60)
        {
            *vif = Vif { kind: VifKind::Tap, wire: None, ..vif.clone() };
        }
    }
    changes
}

/// Makes a packet of one of few 5-tuples, with random values in all other fields at which a flow may look, so that a
/// flow's packets differ.
pub fn near(rng: &mut Rng) -> Packet {
    let macs = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:01:01", "00:00:5e:00:01:00"];
    let (src, dst) = (rng.one(&macs[..2]), rng.one(&macs));
    let tags = rng.one(&["", "", "", "", " vlan 5", " vlan 0", " vlan 5 vlan 6"]);
    let (ip, a, b) = rng.one(&[("ip4", "10.0.0.1", "10.0.0.2"), ("ip6", "fd00::1", "fd00::2")]);
    let (ttl, tos) = (rng.one(&[64, 64, 63, 1]), rng.one(&[0, 0, 2, 0x28]));
    let icmp = if ip == "ip4" { "icmp" } else { "icmp6" };
    let l4 = match rng.below(5) {
        0 | 1 => format!("{icmp} {} 1 1", rng.one(&["echo", "reply"])),
        2 => format!("tcp 80 > 1000 {}", rng.one(&["A", "A", "PA", "S", "FA"])),
        _ => format!("udp {} > 53", rng.one(&[80, 1000])),
    };
    let payload = rng.one(&[0, 5, 60, 200]);
    let text =
        format!("eth {src} > {dst}{tags} / {ip} {a} > {b} ttl {ttl} tos {tos} / {l4} / payload {payload}");
    Packet { ingress: rng.one(&OVS_PORTS), frame: text::parse(&text).unwrap(), gso_size: None }
}

/// Makes a flow that matches packets from [`near`], often one that may go onto the card.
fn flow(rng: &mut Rng, id: u64) -> Flow {
    let near = near(rng);
    let view = PacketView::parse(&near.frame, near.frame.len() as u32, None).unwrap();
    let mut some = |percent: usize| if rng.percent(percent) { u16::MAX } else { 0 };
    let mac = |bits: u16| packet::Mac([bits as u8; 6]);
    let mask = Key {
        eth_dst: mac(some(70)),
        eth_src: mac(some(50)),
        eth_type: some(60),
        vlan_tci: some(30),
        ip_src: some(20).into(),
        ip_proto: some(20) as u8,
        ip_fragment: some(80) as u8 & 3,
        ip_tos: some(8) as u8,
        ip_ttl: some(8) as u8 & 1,
        tcp_flags: some(5) as u8,
        l4_src: some(30),
        ..Key::default()
    };
    let to = rng.one(&OVS_PORTS);
    let mut actions = vec![Action::Output(to)];
    match rng.below(10) {
        0 => actions.insert(0, Action::SetTtl(9)),
        1 => actions.push(Action::Output(rng.one(&OVS_PORTS))),
        2 => actions.clear(),
        _ => {}
    }
    let matching = Match::new(&Key::of(&view).unwrap(), &mask);
    Flow { id: FlowId(id), counter: (id % 64) as u32, port: near.ingress, matching, actions }
}

/// Makes a change of flows. `next` is the number of the next flow.
pub fn change(rng: &mut Rng, tables: &Tables, next: &mut u64) -> Change {
    if rng.percent(40) {
        return generate::ovs_change(rng, tables, next);
    }
    *next += 1;
    // A flow that is older than others breaks the rules, but must do no harm.
    let id = if rng.percent(20) { *next / 2 } else { *next };
    Change::Add(Arc::new(flow(rng, id)))
}
