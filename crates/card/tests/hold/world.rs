//! Two guests, another host behind a wire, and flows between them with numbered packets.

use ipnet::IpNet;
use model::{
    Change, GATEWAY_MAC, Host, NeighbourFound, NeighbourScope, Network, Nexthop, NexthopId, Tunnel, Vif,
    VifId, VifKind, Vrf, WireAttributes, text,
};
use packet::{Mac, TunnelKind};

pub const ONE: VifId = VifId(1);
pub const TWO: VifId = VifId(2);
pub const WIRE: VifId = VifId(10);

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// From one guest to the other.
    Bridged,
    /// From one guest to the other over TCP. The last packet is a FIN.
    Tcp,
    /// From a guest to another host.
    Out,
    /// From another host to a guest.
    In,
}

pub struct Flow {
    way: Way,
    number: u16,
    next: u32,
    /// Number of packets that the flow has.
    length: u32,
}

impl Flow {
    pub fn new(number: u16, length: u32) -> Self {
        let way = [Way::Bridged, Way::Tcp, Way::Out, Way::In][usize::from(number % 4)];
        Self { way, number, next: 0, length }
    }

    /// Returns the packets that make the flow's connection.
    pub fn handshake(&self) -> Vec<(VifId, Vec<u8>)> {
        if self.way != Way::Tcp {
            return Vec::new();
        }
        let packet = |from: VifId, to: VifId, ports, flags| {
            (from, frame(&format!("{} / tcp {ports} {flags} / payload 0", between(from, to))))
        };
        let (there, back) = (format!("{} > 80", self.port()), format!("80 > {}", self.port()));
        vec![packet(ONE, TWO, &there, "S"), packet(TWO, ONE, &back, "SA"), packet(ONE, TWO, &there, "A")]
    }

    const fn port(&self) -> u16 {
        1024 + self.number
    }

    /// Returns the input at which the flow's packets arrive.
    pub const fn input(&self) -> usize {
        match self.way {
            Way::In => 1,
            _ => 0,
        }
    }

    /// Returns the flow's next packet: the port, the frame, and whether it is the last.
    pub fn packet(&mut self, payload: usize) -> (u16, Vec<u8>, bool) {
        let (port, number) = (self.port(), self.next);
        self.next += 1;
        let last = self.next == self.length;
        let udp = format!("udp {port} > 9 nosum / payload {payload}");
        let flags = if last { "FA" } else { "A" };
        let (vif, text) = match self.way {
            Way::Bridged => (ONE, format!("{} / {udp}", between(ONE, TWO))),
            Way::Tcp => (ONE, format!("{} / tcp {port} > 80 {flags} / payload {payload}", between(ONE, TWO))),
            Way::Out => (ONE, format!("eth {} > {GATEWAY_MAC} / ip4 10.1.1.1 > 10.2.0.5 / {udp}", mac(ONE))),
            Way::In => {
                let outer = "eth 02:bb:00:00:00:09 > 02:00:00:00:00:0a / ip4 192.0.2.9 > 192.0.2.1";
                let tunnel = "udp 50000 > 6635 nosum / mpls 42";
                (WIRE, format!("{outer} / {tunnel} / ip4 10.2.0.5 > 10.1.1.2 / {udp}"))
            }
        };
        let mut bytes = frame(&text);
        let at = bytes.len() - 6;
        bytes[at..at + 2].copy_from_slice(&self.number.to_be_bytes());
        bytes[at + 2..].copy_from_slice(&number.to_be_bytes());
        (vif.0, bytes, last)
    }

    /// Returns the flow and the number of a frame.
    pub fn told(frame: &[u8]) -> (u16, u32) {
        let [.., a, b, c, d, e, f] = *frame else { panic!("short") };
        (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f]))
    }
}

fn frame(text: &str) -> Vec<u8> {
    text::parse(text).unwrap()
}

fn mac(id: VifId) -> Mac {
    Mac([2, 0, 0, 0, 0, id.0 as u8])
}

fn between(from: VifId, to: VifId) -> String {
    format!("eth {} > {} / ip4 10.1.1.{from} > 10.1.1.{to}", mac(from), mac(to))
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn vif(id: VifId, kind: VifKind) -> Vif {
    let guest = kind != VifKind::Wire;
    let addresses = [format!("10.1.1.{id}"), format!("fd00:1::{id}")];
    let underlay = WireAttributes { addresses: vec![net("192.0.2.1/24")], ..WireAttributes::default() };
    Vif {
        vrf: guest.then_some(Vrf(1)),
        mac: Some(mac(id)),
        addresses: if guest { addresses.map(|addr| addr.parse().unwrap()).into() } else { Vec::new() },
        mtu: 1600,
        policy: guest,
        wire: (!guest).then_some(underlay),
        ..Vif::new(id, &format!("vif{id}"), kind)
    }
}

/// Returns the tables, and the other host's MAC.
pub fn tables() -> (Vec<Change>, NeighbourFound) {
    let network = Network {
        gateways: vec![net("10.1.1.254/24"), net("fd00:1::fe/64")],
        members: vec![ONE, TWO],
        ..Network::new(Vrf(1), "net")
    };
    let tunnel =
        Tunnel { kind: TunnelKind::MplsUdp, remote: "192.0.2.9".parse().unwrap(), id: 77, mac: None };
    let two = Nexthop::Encap { vif: TWO, mac: mac(TWO) };
    let changes = vec![
        Change::SetHost(Host { tunnel_source: vec!["192.0.2.1".parse().unwrap()], ..Host::default() }),
        Change::PutNetwork(network),
        Change::PutVif(vif(ONE, VifKind::Tap)),
        Change::PutVif(vif(TWO, VifKind::Tap)),
        Change::PutVif(vif(WIRE, VifKind::Wire)),
        Change::PutNexthop(NexthopId(2), two),
        Change::PutNexthop(NexthopId(9), Nexthop::Tunnel(tunnel)),
        Change::PutRoute { vrf: Vrf(1), prefix: net("10.1.1.2/32"), nexthop: NexthopId(2) },
        Change::PutRoute { vrf: Vrf(1), prefix: net("10.2.0.0/16"), nexthop: NexthopId(9) },
        Change::PutRoute { vrf: Vrf(1), prefix: net("fd00:2::/64"), nexthop: NexthopId(9) },
        Change::PutMpls { label: 42, nexthop: NexthopId(2) },
    ];
    let scope = NeighbourScope::Wire(WIRE);
    let neighbour =
        NeighbourFound { scope, addr: "192.0.2.9".parse().unwrap(), mac: Mac([2, 0xbb, 0, 0, 0, 9]) };
    (changes, neighbour)
}
