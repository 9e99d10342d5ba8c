//! A host with two guests in a network, and a wire with another host behind it; packets between them.

use ipnet::IpNet;
use model::{
    Change, Host, NeighbourFound, NeighbourScope, Network, Nexthop, NexthopId, Tunnel, TunnelKind, Vif,
    VifId, VifKind, Vrf, WireAttributes,
};
use packet::Mac;
use std::net::IpAddr;

pub const WIRE: VifId = VifId(10);
/// MAC of the guest that receives.
pub const GUEST: &str = "02:00:00:00:00:02";
/// MAC of the gateway: packets to it are routed through the tunnel.
pub const GATEWAY: &str = "00:00:5e:00:01:00";

pub fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub fn net(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

/// Returns a guest of the network; its connections are tracked.
pub fn guest(id: u16) -> Vif {
    Vif {
        vrf: Some(Vrf(1)),
        mac: Some(Mac([2, 0, 0, 0, 0, id as u8])),
        policy: true,
        ..Vif::new(VifId(id), &format!("vm{id}"), VifKind::Vhost)
    }
}

/// Returns the change that makes nexthop 1 the tunnel to the other host.
pub fn tunnel(kind: TunnelKind) -> Change {
    let tunnel = Tunnel { kind, remote: addr("192.0.2.2"), id: 100, mac: None };
    Change::PutNexthop(NexthopId(1), Nexthop::Tunnel(tunnel))
}

pub fn tables() -> Vec<Change> {
    let wire = WireAttributes { addresses: vec![net("192.0.2.1/24")], ..WireAttributes::default() };
    let network = Network {
        gateways: vec![net("10.1.0.1/16")],
        members: vec![VifId(1), VifId(2)],
        ..Network::new(Vrf(1), "blue")
    };
    vec![
        Change::SetHost(Host { name: "a".into(), tunnel_source: vec![addr("192.0.2.1")], ..Host::default() }),
        Change::PutVif(guest(1)),
        Change::PutVif(guest(2)),
        Change::PutVif(Vif {
            kind: VifKind::Wire,
            vrf: None,
            policy: false,
            mtu: 1600,
            wire: Some(wire),
            ..guest(WIRE.0)
        }),
        Change::PutNetwork(network),
        tunnel(TunnelKind::MplsUdp),
        Change::PutRoute { vrf: Vrf(1), prefix: net("10.9.0.0/16"), nexthop: NexthopId(1) },
    ]
}

/// Returns what ARP would have found out about the other host.
pub fn neighbour() -> NeighbourFound {
    NeighbourFound {
        scope: NeighbourScope::Wire(WIRE),
        addr: addr("192.0.2.2"),
        mac: Mac([2, 0, 0, 0, 1, 2]),
    }
}

/// Returns frames of `len` bytes each, one for each of `flows` UDP flows from the first guest.
pub fn frames(to: &str, flows: usize, len: usize) -> Vec<Vec<u8>> {
    frames_of(to, flows, &|sport| format!("udp {sport} > 53 nosum / payload {}", len - 42))
}

/// Returns a frame for each of `flows` flows from the first guest; `upper` derives the upper layer from the
/// source port.
pub fn frames_of(to: &str, flows: usize, upper: &dyn Fn(usize) -> String) -> Vec<Vec<u8>> {
    let far = if to.starts_with("02") { "10.1.0.2" } else { "10.9.0.2" };
    let frame = |(near, port)| {
        packet(&format!("eth 02:00:00:00:00:01 > {to} / ip4 {near} > {far} / {}", upper(port)))
    };
    clients(flows).map(frame).collect()
}

/// Returns the addresses and source ports of the first guest's flows.
pub fn clients(flows: usize) -> impl Iterator<Item = (String, usize)> {
    (0..flows).map(|flow| (format!("10.1.0.{}", flow / 50_000 + 5), 1000 + flow % 50_000))
}

/// Parses the text of a packet into its frame.
pub fn packet(text: &str) -> Vec<u8> {
    model::text::parse(text).expect("a packet")
}
