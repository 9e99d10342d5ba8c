//! The packets of the workload, as guests and other hosts send them.

use crate::shape::{self, Mark, Shape, ethernet, mac};
use crate::world::{Direction, FAR, HOST, HOST_MAC, LABELS, MACS, VNIS, World, far_mac, guest_mac};
use card::entries::FlowEntry;
use packet::{build, proto};

/// Most bytes in front of a guest's IP packet.
const OUTER: usize = 64;

impl World {
    /// Makes a packet. The frame that a guest sends or gets has `size` bytes. The payload holds the flow and the mark.
    pub fn packet(&self, flow: u32, direction: Direction, size: usize, mark: Mark) -> Vec<u8> {
        let inner = size - proto::ETHERNET_LEN;
        let mut out = vec![0; OUTER + inner];
        let mut at = if direction == 0 {
            self.guest_header(flow, &mut out)
        } else {
            self.tunnel_header(flow, inner, &mut out)
        };
        let end = at + inner;
        let (sport, dport) = match self.entry(flow, direction) {
            FlowEntry::V4(entry) => {
                at += shape::ipv4(&mut out[at..], entry.src, entry.dst, proto::UDP, inner);
                (entry.sport, entry.dport)
            }
            FlowEntry::V6(entry) => {
                at += shape::ipv6(&mut out[at..], entry.src, entry.dst, inner - proto::IPV6_LEN);
                (entry.sport, entry.dport)
            }
        };
        at += shape::udp(&mut out[at..], sport, dport, end - at);
        mark.write(flow, &mut out[at..end]);
        out.truncate(end);
        out
    }

    fn ethertype(flow: u32) -> u16 {
        if Shape::of(flow).0 == Shape::Ipv6 { proto::ETHERTYPE_IPV6 } else { proto::ETHERTYPE_IPV4 }
    }

    /// Writes the header in front of a guest's IP packet as it leaves the guest. Returns its length.
    fn guest_header(&self, flow: u32, out: &mut [u8]) -> usize {
        let vrf = self.vrf(flow);
        let dst = match Shape::of(flow).0 {
            Shape::Bridged => mac(far_mac(vrf, self.far(flow, MACS))),
            _ => model::GATEWAY_MAC,
        };
        ethernet(out, dst, mac(guest_mac(vrf)), Self::ethertype(flow))
    }

    /// Writes the headers in front of a guest's IP packet as it comes from another host. Returns their length.
    fn tunnel_header(&self, flow: u32, inner: usize, out: &mut [u8]) -> usize {
        let (shape, vrf) = (Shape::of(flow).0, self.vrf(flow));
        let len = shape.outer() - proto::ETHERNET_LEN + inner;
        let mut at = ethernet(out, mac(HOST_MAC), mac(0x0200_0001_0000), proto::ETHERTYPE_IPV4);
        let protocol = if shape == Shape::Gre { proto::GRE } else { proto::UDP };
        at += shape::ipv4(&mut out[at..], FAR + self.host(flow), HOST, protocol, len);
        let source = 49152 + Shape::of(flow).1 as u16 % 16384;
        let udp = len - proto::IPV4_LEN;
        let label = |out: &mut [u8]| build::mpls(out, LABELS + vrf, 0, true, 64);
        at += match shape {
            Shape::Plain | Shape::Ipv6 => shape::udp(&mut out[at..], source, proto::PORT_MPLS, udp),
            Shape::Gre => build::gre(&mut out[at..], proto::ETHERTYPE_MPLS).expect("room"),
            Shape::Vxlan | Shape::Bridged => shape::udp(&mut out[at..], source, proto::PORT_VXLAN, udp),
        };
        if !shape.is_vxlan() {
            return at + label(&mut out[at..]).expect("room");
        }
        at += build::vxlan(&mut out[at..], VNIS + vrf).expect("room");
        let (dst, src) = match shape {
            Shape::Bridged => (mac(guest_mac(vrf)), mac(far_mac(vrf, self.far(flow, MACS)))),
            _ => (model::GATEWAY_MAC, mac(0x0200_0004_0000)),
        };
        at + ethernet(&mut out[at..], dst, src, Self::ethertype(flow))
    }
}
