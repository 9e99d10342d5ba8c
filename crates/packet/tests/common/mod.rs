//! Packets to test with.
#![allow(dead_code, reason = "every test binary uses some of it")]

pub mod exercise;

use packet::build::{self, Ipv4, Ipv6};
use packet::{Mac, checksum, proto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const B: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub const GATEWAY: Mac = Mac([0, 0, 0x5e, 0, 1, 0]);
pub const A4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 1, 1));
pub const B4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 1, 2));
pub const A6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1));
pub const B6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 2));

/// Returns bytes from hexadecimal text.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Returns the bytes that a writer writes.
pub fn written<E: std::fmt::Debug>(write: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Vec<u8> {
    let mut out = vec![0; 2048];
    let len = write(&mut out).unwrap();
    out.truncate(len);
    out
}

/// Returns an Ethernet header from A to B with tags.
pub fn ethernet(tags: &[u16], ethertype: u16) -> Vec<u8> {
    let first = if tags.is_empty() { ethertype } else { proto::ETHERTYPE_VLAN };
    let mut frame = written(|out| build::ethernet(out, B, A, first));
    for (index, tci) in tags.iter().enumerate() {
        let next = if index + 1 < tags.len() { proto::ETHERTYPE_VLAN } else { ethertype };
        frame.extend(written(|out| build::vlan(out, *tci, next)));
    }
    frame
}

/// Returns an IP packet without options.
pub fn ip(src: IpAddr, dst: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => written(|out| {
            let len = (proto::IPV4_LEN + payload.len()) as u16;
            build::ipv4(out, &Ipv4 { src, dst, protocol, ttl: 64, tos: 0, id: 7, dont_fragment: true, len })
        }),
        (IpAddr::V6(src), IpAddr::V6(dst)) => written(|out| {
            let ip = Ipv6 {
                src,
                dst,
                next_header: protocol,
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
                payload_len: payload.len() as u16,
            };
            build::ipv6(out, &ip)
        }),
        _ => panic!("{src} and {dst}"),
    };
    packet.extend(payload);
    packet
}

/// Returns the IP packet that [`ip`] makes, behind an untagged Ethernet header.
pub fn frame(src: IpAddr, dst: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let ethertype = if src.is_ipv4() { proto::ETHERTYPE_IPV4 } else { proto::ETHERTYPE_IPV6 };
    let mut frame = ethernet(&[], ethertype);
    frame.extend(ip(src, dst, protocol, payload));
    frame
}

/// Returns a UDP datagram with its checksum.
pub fn udp(src: IpAddr, dst: IpAddr, sport: u16, dport: u16, payload: &[u8]) -> Vec<u8> {
    let len = (proto::UDP_LEN + payload.len()) as u16;
    let mut segment = written(|out| build::udp(out, sport, dport, len, 0));
    segment.extend(payload);
    let checksum = checksum::l4(src, dst, proto::UDP, &segment);
    segment[6..8].copy_from_slice(&checksum.to_be_bytes());
    segment
}

/// Returns a TCP segment from port 1000 to 80 with its checksum.
pub fn tcp(src: IpAddr, dst: IpAddr, flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut segment = hex("03e8 0050 00000001 00000002 5000 ffff 0000 0000");
    segment[12] = (((20 + options.len()) / 4) << 4) as u8;
    segment[13] = flags;
    segment.extend(options);
    segment.extend(payload);
    let checksum = checksum::l4(src, dst, proto::TCP, &segment);
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    segment
}

/// Returns an ICMP or ICMPv6 message with its checksum.
pub fn icmp(src: IpAddr, dst: IpAddr, kind: u8, code: u8, rest: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest);
    let protocol = if src.is_ipv4() { proto::ICMP } else { proto::ICMPV6 };
    let checksum = checksum::l4(src, dst, protocol, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// Returns one well-formed frame of every kind.
pub fn samples() -> Vec<Vec<u8>> {
    let mut samples = vec![
        frame(A4, B4, proto::UDP, &udp(A4, B4, 5000, 53, b"question")),
        frame(A6, B6, proto::UDP, &udp(A6, B6, 5000, 53, b"question")),
        frame(A4, B4, proto::TCP, &tcp(A4, B4, 0x18, &[1; 12], b"data")),
        frame(A6, B6, proto::TCP, &tcp(A6, B6, 0x02, &[2, 4, 5, 0xb4], b"")),
        frame(A4, B4, proto::ICMP, &icmp(A4, B4, 8, 0, b"\x12\x34\0\x01ping")),
        frame(A6, B6, proto::ICMPV6, &icmp(A6, B6, 128, 0, b"\x12\x34\0\x01ping")),
        frame(A4, B4, proto::SCTP, &hex("0007 0008 00000000 00000000 00000004")),
        frame(A4, B4, proto::GRE, &hex("b000 8847 0000 0000 00000001 00000002 00064140 45")),
        frame(
            A6,
            B6,
            proto::HOP_BY_HOP,
            &hex("2b00 050200000100 3c02 0400 00000000 00000000000000000000000000000000
                 1100 010400000000 0001 0002 0008 0000"),
        ),
        frame(A6, B6, proto::FRAGMENT, &hex("1100 0001 0000abcd 0001 0002 0010 0000 0102030405060708")),
        written(|out| {
            packet::neighbour::arp_request(out, A, Ipv4Addr::new(10, 1, 1, 1), Ipv4Addr::new(10, 1, 1, 2))
        }),
        written(|out| packet::neighbour::neighbour_solicitation(out, A, v6(A6), v6(B6))),
    ];
    for inner in samples.clone() {
        let mut quoted = hex("00000000");
        quoted.extend(&inner[14..]);
        let (src, dst) = if inner[12] == 8 { (B4, A4) } else { (B6, A6) };
        let (protocol, kind) = if inner[12] == 8 { (proto::ICMP, 3) } else { (proto::ICMPV6, 1) };
        if inner[13] != 6 {
            samples.push(frame(src, dst, protocol, &icmp(src, dst, kind, 1, &quoted)));
        }
        let mut vxlan = hex("0800000000138900");
        vxlan.extend(&inner);
        samples.push(frame(A4, B4, proto::UDP, &udp(A4, B4, 50000, 4789, &vxlan)));
        let mut mpls = hex("00064140");
        mpls.extend(&inner[14..]);
        samples.push(frame(A6, B6, proto::UDP, &udp(A6, B6, 50000, 6635, &mpls)));
        let mut tagged = ethernet(&[7, 0xa008], u16::from_be_bytes([inner[12], inner[13]]));
        tagged.extend(&inner[14..]);
        samples.push(tagged);
    }
    samples
}

pub fn v4(addr: IpAddr) -> Ipv4Addr {
    match addr {
        IpAddr::V4(addr) => addr,
        IpAddr::V6(_) => panic!("{addr}"),
    }
}

pub fn v6(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V6(addr) => addr,
        IpAddr::V4(_) => panic!("{addr}"),
    }
}
