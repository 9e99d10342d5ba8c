//! Address resolution: whole ARP and ND frames.

use crate::build::{self, Ipv6};
use crate::{Arp, Headers, Mac, WriteError, checksum, proto, reply};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// ff02::1
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// ND messages are valid only with this hop limit: it proves that no router forwarded them (RFC 4861, 3.1).
const HOP_LIMIT: u8 = 255;
/// ICMPv6 header, target address and one link-layer address option.
const BODY_LEN: usize = 32;

/// Writes an untagged frame that asks who has `target`. With `sender` equal to `target` the frame announces that
/// address (RFC 5227, 3).
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn arp_request(
    out: &mut [u8],
    mac: Mac,
    sender: Ipv4Addr,
    target: Ipv4Addr,
) -> Result<usize, WriteError> {
    arp_probe(out, Mac::BROADCAST, mac, sender, target)
}

/// Writes an untagged frame that asks only the host at `at` whether it still has `target` (RFC 1122, 2.3.2.1: unicast
/// poll).
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn arp_probe(
    out: &mut [u8],
    at: Mac,
    mac: Mac,
    sender: Ipv4Addr,
    target: Ipv4Addr,
) -> Result<usize, WriteError> {
    let body = Arp { request: true, sender_mac: mac, sender, target_mac: Mac::default(), target };
    let len = build::ethernet(out, at, mac, proto::ETHERTYPE_ARP)?;
    Ok(len + build::arp(&mut out[len..], &body)?)
}

/// Writes an untagged frame that asks for the link-layer address of `target` (RFC 4861, 4.3).
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn neighbour_solicitation(
    out: &mut [u8],
    mac: Mac,
    sender: Ipv6Addr,
    target: Ipv6Addr,
) -> Result<usize, WriteError> {
    let dst = solicited_node(target);
    let at = build::ethernet(out, multicast_mac(dst), mac, proto::ETHERTYPE_IPV6)?;
    Ok(at + message(&mut out[at..], sender, dst, Message::Solicitation, target, mac)?)
}

/// Writes an untagged frame that asks only the host at `at` whether it still has `target` (RFC 4861, 7.3.3).
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn neighbour_probe(
    out: &mut [u8],
    at: Mac,
    mac: Mac,
    sender: Ipv6Addr,
    target: Ipv6Addr,
) -> Result<usize, WriteError> {
    let len = build::ethernet(out, at, mac, proto::ETHERTYPE_IPV6)?;
    Ok(len + message(&mut out[len..], sender, target, Message::Solicitation, target, mac)?)
}

/// Writes the answer to the solicitation parsed from `request`: the target is at `mac`, and is a router if `router`.
/// VLAN tags are kept.
///
/// A probe from `::` (duplicate address detection) is answered to all nodes (RFC 4861, 7.2.4). If the target is an
/// anycast address, the answer comes from the unicast address `anycast` and overrides no other (RFC 4861, 7.2.7).
///
/// # Errors
/// [`WriteError::TooShort`]; [`WriteError::Mismatch`] if `request` is not a solicitation.
pub fn neighbour_advertisement(
    out: &mut [u8],
    request: &[u8],
    headers: &Headers,
    mac: Mac,
    router: bool,
    anycast: Option<Ipv6Addr>,
) -> Result<usize, WriteError> {
    let (Some(ip), Some(nd)) = (headers.ip(), headers.nd.filter(|nd| nd.solicitation)) else {
        return Err(WriteError::Mismatch);
    };
    let IpAddr::V6(asker) = ip.src else { return Err(WriteError::Mismatch) };
    let at = reply::ethernet(out, request, headers, mac)?;
    let (from, solicited, overrides) =
        (anycast.unwrap_or(nd.target), !asker.is_unspecified(), anycast.is_none());
    let kind = Message::Advertisement { solicited, router, overrides };
    if solicited {
        return Ok(at + message(&mut out[at..], from, asker, kind, nd.target, mac)?);
    }
    if at > 0 {
        build::put(out, multicast_mac(ALL_NODES).0)?;
    }
    Ok(at + message(&mut out[at..], from, ALL_NODES, kind, nd.target, mac)?)
}

/// Writes an untagged frame that tells all nodes that `addr`, a router's if `router`, is now at `mac` (RFC 4861,
/// 7.2.6).
///
/// # Errors
/// [`WriteError::TooShort`].
pub fn unsolicited_advertisement(
    out: &mut [u8],
    mac: Mac,
    addr: Ipv6Addr,
    router: bool,
) -> Result<usize, WriteError> {
    let at = build::ethernet(out, multicast_mac(ALL_NODES), mac, proto::ETHERTYPE_IPV6)?;
    let kind = Message::Advertisement { solicited: false, router, overrides: true };
    Ok(at + message(&mut out[at..], addr, ALL_NODES, kind, addr, mac)?)
}

#[derive(Clone, Copy)]
enum Message {
    Solicitation,
    Advertisement { solicited: bool, router: bool, overrides: bool },
}

fn message(
    out: &mut [u8],
    src: Ipv6Addr,
    dst: Ipv6Addr,
    kind: Message,
    target: Ipv6Addr,
    link_addr: Mac,
) -> Result<usize, WriteError> {
    let (kind, flags, option) = match kind {
        Message::Solicitation => (proto::ND_SOLICITATION, 0, 1),
        Message::Advertisement { solicited, router, overrides } => {
            let flags = u8::from(router) << 7 | u8::from(solicited) << 6 | u8::from(overrides) << 5;
            (proto::ND_ADVERTISEMENT, flags, 2)
        }
    };
    let mut body = [0; BODY_LEN];
    body[0] = kind;
    body[4] = flags;
    body[8..24].copy_from_slice(&target.octets());
    body[24..26].copy_from_slice(&[option, 1]);
    body[26..].copy_from_slice(&link_addr.0);
    let checksum = checksum::l4(src.into(), dst.into(), proto::ICMPV6, &body);
    body[2..4].copy_from_slice(&checksum.to_be_bytes());
    let ip = Ipv6 {
        src,
        dst,
        next_header: proto::ICMPV6,
        hop_limit: HOP_LIMIT,
        traffic_class: 0,
        flow_label: 0,
        payload_len: BODY_LEN as u16,
    };
    let at = build::ipv6(out, &ip)?;
    Ok(at + build::put(&mut out[at..], body)?)
}

/// Returns the solicited-node multicast address of an address (RFC 4291, 2.7.1).
#[must_use]
pub fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = addr.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Returns the group MAC of an IPv6 multicast address (RFC 2464, 7).
#[must_use]
pub fn multicast_mac(addr: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = addr.octets();
    Mac([0x33, 0x33, a, b, c, d])
}
