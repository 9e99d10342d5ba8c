//! The shapes of flows' packets: the packet that a guest sends, and its tunnel.

use packet::{Mac, build, proto};
use std::net::{Ipv4Addr, Ipv6Addr};

const ETHERNET: usize = 14;

/// A kind of flows: their IP version and encapsulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// IPv4, routed into MPLS over UDP.
    Plain,
    /// IPv6, routed into MPLS over UDP.
    Ipv6,
    /// IPv4, routed into MPLS over GRE.
    Gre,
    /// IPv4, routed into VXLAN.
    Vxlan,
    /// IPv4 within a subnet, bridged into VXLAN.
    Bridged,
}

impl Shape {
    /// All shapes, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Plain, Self::Ipv6, Self::Gre, Self::Vxlan, Self::Bridged];

    /// Returns the shape of a flow, which is in its upper bits, and the flow's number among those of this shape.
    pub fn of(flow: u32) -> (Self, u32) {
        (Self::ALL[(flow >> 24) as usize], flow & 0xff_ffff)
    }

    pub const fn flow(self, number: u32) -> u32 {
        (self as u32) << 24 | number
    }

    /// Returns whether the tunnel contains an Ethernet header.
    pub const fn is_vxlan(self) -> bool {
        matches!(self, Self::Vxlan | Self::Bridged)
    }

    /// Returns the bytes in front of the guest's IP packet on a wire: Ethernet, IPv4, then UDP and label, GRE and
    /// label, or UDP, VXLAN and Ethernet.
    pub const fn outer(self) -> usize {
        match self {
            Self::Plain | Self::Ipv6 => 46,
            Self::Gre => 42,
            Self::Vxlan | Self::Bridged => 64,
        }
    }

    /// Returns the beats of a packet with a guest's frame of this size: the larger number of in and out.
    pub fn beats(self, size: usize) -> usize {
        (size - ETHERNET + self.outer()).div_ceil(64).max(size.div_ceil(64))
    }
}

/// Distinguishes a packet from others of its flow.
#[derive(Clone, Copy)]
pub struct Mark {
    /// Counts the packets of the flow.
    pub number: u32,
    /// The clock at which the packet came.
    pub cycle: u32,
}

impl Mark {
    /// Writes the flow and the mark at the start of a payload.
    pub fn write(self, flow: u32, payload: &mut [u8]) {
        for (bytes, word) in payload.chunks_mut(4).zip([flow, self.number, self.cycle]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Reads flow and mark of a packet that left by a wire, or to a guest.
pub fn read_mark(frame: &[u8], by_wire: bool) -> Option<(u32, Mark)> {
    let at = if by_wire { inner_at(frame)? } else { ETHERNET };
    let at = at + if frame.get(at)? >> 4 == 6 { proto::IPV6_LEN } else { proto::IPV4_LEN } + proto::UDP_LEN;
    let word = |n: usize| Some(u32::from_le_bytes(frame.get(at + 4 * n..at + 4 * n + 4)?.try_into().ok()?));
    Some((word(0)?, Mark { number: word(1)?, cycle: word(2)? }))
}

/// Returns the offset of the guest's IP packet in a tunnel packet.
fn inner_at(frame: &[u8]) -> Option<usize> {
    let vxlan = frame.get(36..38)? == proto::PORT_VXLAN.to_be_bytes();
    Some(Shape::outer(match *frame.get(23)? {
        proto::GRE => Shape::Gre,
        _ if vxlan => Shape::Vxlan,
        _ => Shape::Plain,
    }))
}

// ---- Headers

pub fn mac(bits: u64) -> Mac {
    let bytes = bits.to_be_bytes();
    Mac(std::array::from_fn(|at| bytes[at + 2]))
}

pub fn ethernet(out: &mut [u8], dst: Mac, src: Mac, ethertype: u16) -> usize {
    build::ethernet(out, dst, src, ethertype).expect("room for a header")
}

pub fn ipv4(out: &mut [u8], src: u32, dst: u32, protocol: u8, len: usize) -> usize {
    let (src, dst) = (Ipv4Addr::from_bits(src), Ipv4Addr::from_bits(dst));
    let (id, tos, len) = (0, 0, len as u16);
    let header = build::Ipv4 { src, dst, protocol, ttl: 64, tos, id, dont_fragment: true, len };
    build::ipv4(out, &header).expect("room for a header")
}

pub fn ipv6(out: &mut [u8], src: u128, dst: u128, payload_len: usize) -> usize {
    let (src, dst) = (Ipv6Addr::from_bits(src), Ipv6Addr::from_bits(dst));
    let header = build::Ipv6 {
        src,
        dst,
        next_header: proto::UDP,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        payload_len: payload_len as u16,
    };
    build::ipv6(out, &header).expect("room for a header")
}

pub fn udp(out: &mut [u8], src: u16, dst: u16, len: usize) -> usize {
    build::udp(out, src, dst, len as u16, 0).expect("room for a header")
}
