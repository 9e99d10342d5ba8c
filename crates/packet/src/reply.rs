//! Answers to a packet: ICMP echo replies and errors, TCP resets.
//!
//! Each writer takes a parsed packet and writes a whole frame to its sender, with the same VLAN tags. If the
//! packet has no Ethernet header, the answer has none.

use crate::build::{self, Ipv4, Ipv6};
use crate::parse::be32;
use crate::{Fragment, Headers, L4, Mac, WriteError, checksum, ecn, proto};
use std::net::IpAddr;

const TTL: u8 = 64;
/// Network control (DSCP CS6): the precedence of ICMP errors (RFC 1812, 4.3.2.5).
pub const TOS_ERROR: u8 = 0xc0;
/// Longest ICMP error over IPv4, bytes, IP header included (RFC 1812, 4.3.2.3; RFC 4443, 2.4 c).
const MAX_ERROR_V4: usize = 576;
const MAX_ERROR_V6: usize = 1280;

/// The reason in an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// TTL or hop limit ran out.
    TimeExceeded,
    /// Longer than the next link's MTU: fragmentation needed (IPv4) or packet too big (IPv6).
    TooBig {
        /// MTU of that link, bytes.
        mtu: u16,
    },
    /// No route to the network.
    NoRoute,
    /// The host doesn't answer ARP or ND.
    HostUnreachable,
    /// Nothing listens at that port.
    PortUnreachable,
    /// Forbidden by a rule.
    AdminProhibited,
}

impl IcmpError {
    /// Returns type, code and the header's last four bytes.
    const fn header(self, v6: bool) -> (u8, u8, u32) {
        const UNREACHABLE: u8 = proto::ICMP_UNREACHABLE;
        const UNREACHABLE_V6: u8 = proto::ICMPV6_UNREACHABLE;
        match (self, v6) {
            (Self::TimeExceeded, false) => (proto::ICMP_TIME_EXCEEDED, 0, 0),
            (Self::TooBig { mtu }, false) => (UNREACHABLE, 4, mtu as u32),
            (Self::NoRoute, false) => (UNREACHABLE, 0, 0),
            (Self::HostUnreachable, false) => (UNREACHABLE, 1, 0),
            (Self::PortUnreachable, false) => (UNREACHABLE, 3, 0),
            (Self::AdminProhibited, false) => (UNREACHABLE, 13, 0),
            (Self::TimeExceeded, true) => (proto::ICMPV6_TIME_EXCEEDED, 0, 0),
            (Self::TooBig { mtu }, true) => (proto::ICMPV6_TOO_BIG, 0, mtu as u32),
            (Self::NoRoute, true) => (UNREACHABLE_V6, 0, 0),
            (Self::AdminProhibited, true) => (UNREACHABLE_V6, 1, 0),
            (Self::HostUnreachable, true) => (UNREACHABLE_V6, 3, 0),
            (Self::PortUnreachable, true) => (UNREACHABLE_V6, 4, 0),
        }
    }
}

/// Writes an ICMP error about the packet parsed from `request`, from the router at `mac` and `from`.
///
/// Quotes as much of the packet as is at hand and fits: an error has at most 576 bytes for IPv4, 1280 for
/// IPv6.
///
/// # Errors
/// [`WriteError::TooShort`]; [`WriteError::Mismatch`] if `from` is of another family or the packet isn't IP;
/// [`WriteError::Unanswerable`] if no error may be sent about it (RFC 1812, 4.3.2.7; RFC 4443, 2.4 e).
pub fn icmp_error(
    out: &mut [u8],
    request: &[u8],
    headers: &Headers,
    error: IcmpError,
    mac: Mac,
    from: IpAddr,
) -> Result<usize, WriteError> {
    let ip = headers.ip().ok_or(WriteError::Mismatch)?;
    if !may_report(headers, error) {
        return Err(WriteError::Unanswerable);
    }
    let v6 = ip.src.is_ipv6();
    let (max, ip_len) = if v6 { (MAX_ERROR_V6, proto::IPV6_LEN) } else { (MAX_ERROR_V4, proto::IPV4_LEN) };
    let quotable = request.get(usize::from(ip.at)..).ok_or(WriteError::TooShort)?;
    let len = quotable.len().min(ip.len as usize).min(max - ip_len - proto::ICMP_LEN);

    let ip_at = ethernet(out, request, headers, mac)?;
    let at = ip_at + ip_len;
    let message = out.get_mut(at..at + proto::ICMP_LEN + len).ok_or(WriteError::TooShort)?;
    let (kind, code, rest) = error.header(v6);
    message[..4].copy_from_slice(&[kind, code, 0, 0]);
    message[4..8].copy_from_slice(&rest.to_be_bytes());
    message[8..].copy_from_slice(&quotable[..len]);
    let protocol = if v6 { proto::ICMPV6 } else { proto::ICMP };
    let checksum = checksum::l4(from, ip.src, protocol, message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    network(&mut out[ip_at..], from, ip.src, protocol, TOS_ERROR, proto::ICMP_LEN + len)?;
    Ok(at + proto::ICMP_LEN + len)
}

/// Returns whether an ICMP error may be sent about a packet: the packet has one known sender, isn't an error
/// itself, and isn't a later fragment. About a packet to a group, only IPv6's packet too big may be sent.
#[must_use]
pub fn may_report(headers: &Headers, error: IcmpError) -> bool {
    let Some(ip) = headers.ip() else { return false };
    let v6 = ip.src.is_ipv6();
    let is_error = match headers.l4 {
        L4::Icmp { kind, .. } if v6 => kind < 128 || kind == proto::ND_REDIRECT,
        L4::Icmp { kind, .. } => !is_icmp_query(kind),
        _ => false,
    };
    let to_group = is_group(ip.dst) || headers.eth.as_ref().is_some_and(|eth| eth.dst.is_group());
    let group_allowed = v6 && matches!(error, IcmpError::TooBig { .. });
    !is_error
        && (!to_group || group_allowed)
        && !ip.src.is_unspecified()
        && !is_group(ip.src)
        && !matches!(ip.fragment, Fragment::Later { .. })
}

/// Returns whether an ICMP type is that of a query or its reply: echo, router discovery, timestamp,
/// information, address mask (RFC 792, 950, 1256).
const fn is_icmp_query(kind: u8) -> bool {
    matches!(kind, proto::ICMP_ECHO_REPLY | proto::ICMP_ECHO_REQUEST | 9 | 10 | 13..=18)
}

/// Writes the answer from `from` to the ICMP echo request parsed from `request`, which must be at hand whole. A fragment
/// of a request is answered by the same fragment of the answer.
///
/// The checksum is updated, not recomputed: a request with a wrong checksum gets an answer with a wrong one.
///
/// # Errors
/// [`WriteError::TooShort`] if `out` or `request` is too short; [`WriteError::Mismatch`] if the packet is no
/// echo request, or `from` of another family; [`WriteError::Unanswerable`] if it was sent to a group, has no sender's
/// address, or is a fragment with more extension headers.
pub fn echo_reply(
    out: &mut [u8],
    request: &[u8],
    headers: &Headers,
    mac: Mac,
    from: IpAddr,
) -> Result<usize, WriteError> {
    let ip = headers.ip().ok_or(WriteError::Mismatch)?;
    let v6 = ip.src.is_ipv6();
    let (protocol, asked, answer) = if v6 {
        (proto::ICMPV6, proto::ICMPV6_ECHO_REQUEST, proto::ICMPV6_ECHO_REPLY)
    } else {
        (proto::ICMP, proto::ICMP_ECHO_REQUEST, proto::ICMP_ECHO_REPLY)
    };
    let later = matches!(ip.fragment, Fragment::Later { .. });
    let asks = later || matches!(headers.l4, L4::Icmp { kind, .. } if kind == asked);
    if !asks || ip.protocol != protocol {
        return Err(WriteError::Mismatch);
    }
    if is_group(ip.dst) || is_group(ip.src) || ip.src.is_unspecified() {
        return Err(WriteError::Unanswerable);
    }
    let (at, end) = (usize::from(ip.at), usize::from(ip.at) + ip.len as usize);
    let header = request.get(at..end).ok_or(WriteError::TooShort)?;
    let (echo, fragment) = match ip.fragment {
        Fragment::Whole => (request.get(usize::from(headers.l4_at)..end), None),
        _ if v6 => (header.get(proto::IPV6_LEN + FRAGMENT_LEN..), header.get(proto::IPV6_LEN..)),
        _ => (header.get(usize::from(ip.header_len)..), header.get(4..)),
    };
    let echo = echo.ok_or(WriteError::TooShort)?;

    let ip_at = ethernet(out, request, headers, mac)?;
    let tos = ip.tos & !ecn::ECN_MASK;
    let mut at = ip_at + network(&mut out[ip_at..], from, ip.src, protocol, tos, echo.len())?;
    if let Some(fragment) = fragment {
        at = ip_at + as_fragment(&mut out[ip_at..], header, fragment)?;
    }
    let message = out.get_mut(at..at + echo.len()).ok_or(WriteError::TooShort)?;
    message.copy_from_slice(echo);
    if !later {
        let [_, code, a, b, ..] = *message else { return Err(WriteError::TooShort) };
        let mut delta = checksum::Delta::default();
        delta.replace_u16(u16::from_be_bytes([asked, code]), u16::from_be_bytes([answer, code]));
        if let (IpAddr::V6(old), IpAddr::V6(new)) = (ip.dst, from) {
            delta.replace_bytes16(old.octets(), new.octets());
        }
        message[0] = answer;
        message[2..4].copy_from_slice(&delta.apply(u16::from_be_bytes([a, b])).to_be_bytes());
    }
    Ok(at + echo.len())
}

/// Length of IPv6's fragment header.
const FRAGMENT_LEN: usize = 8;

/// Makes the answer whose IP header begins `out` a fragment, as the request with this IP header is one. `fragment` are
/// the fields that say so: IPv4's identification, flags and offset, or IPv6's fragment header, which must directly
/// follow the IP header and precede ICMP. Returns the length of the headers.
fn as_fragment(out: &mut [u8], asked: &[u8], fragment: &[u8]) -> Result<usize, WriteError> {
    if asked.first().is_some_and(|byte| byte >> 4 == 4) {
        let header = out.first_chunk_mut::<{ proto::IPV4_LEN }>().ok_or(WriteError::TooShort)?;
        let fields: &[u8; 4] = fragment.first_chunk().ok_or(WriteError::TooShort)?;
        header[4..8].copy_from_slice(fields);
        header[10..12].fill(0);
        let sum = checksum::sum(header).finish();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        return Ok(proto::IPV4_LEN);
    }
    let fields: &[u8; FRAGMENT_LEN] = fragment.first_chunk().ok_or(WriteError::TooShort)?;
    if asked.get(6) != Some(&proto::FRAGMENT) || fields[0] != proto::ICMPV6 {
        return Err(WriteError::Unanswerable);
    }
    let [len, ..] = out.get_mut(4..).ok_or(WriteError::TooShort)?.as_chunks_mut::<2>().0 else {
        return Err(WriteError::TooShort);
    };
    *len = (u16::from_be_bytes(*len) + FRAGMENT_LEN as u16).to_be_bytes();
    out[6] = proto::FRAGMENT;
    Ok(proto::IPV6_LEN + build::put(&mut out[proto::IPV6_LEN..], *fields)?)
}

/// Writes a reset in answer to the TCP segment parsed from `request`. The segment's destination would send
/// the same if no program listened there (RFC 9293, 3.10.7.1).
///
/// # Errors
/// [`WriteError::TooShort`]; [`WriteError::Mismatch`] if the packet isn't TCP; [`WriteError::Unanswerable`]
/// if it is a reset or a fragment, was sent to a group, or has no sender's address.
pub fn tcp_reset(out: &mut [u8], request: &[u8], headers: &Headers, mac: Mac) -> Result<usize, WriteError> {
    let (Some(ip), L4::Tcp { src, dst, flags, header_len, .. }) = (headers.ip(), headers.l4) else {
        return Err(WriteError::Mismatch);
    };
    if !may_reset(headers) {
        return Err(WriteError::Unanswerable);
    }
    let segment: &[u8; proto::TCP_LEN] = request
        .get(usize::from(headers.l4_at)..)
        .and_then(|rest| rest.first_chunk())
        .ok_or(WriteError::TooShort)?;
    let (seq, ack, answer) = if flags & proto::TCP_ACK != 0 {
        (be32(segment, 8), 0, proto::TCP_RST)
    } else {
        let data = ip.len.wrapping_sub(u32::from(ip.header_len) + u32::from(header_len));
        let controls = (flags & (proto::TCP_SYN | proto::TCP_FIN)).count_ones();
        let next = be32(segment, 4).wrapping_add(data).wrapping_add(controls);
        (0, next, proto::TCP_RST | proto::TCP_ACK)
    };
    let mut reset = [0; proto::TCP_LEN];
    reset[..2].copy_from_slice(&dst.to_be_bytes());
    reset[2..4].copy_from_slice(&src.to_be_bytes());
    reset[4..8].copy_from_slice(&seq.to_be_bytes());
    reset[8..12].copy_from_slice(&ack.to_be_bytes());
    reset[12..14].copy_from_slice(&[5 << 4, answer]);
    let checksum = checksum::l4(ip.dst, ip.src, proto::TCP, &reset);
    reset[16..18].copy_from_slice(&checksum.to_be_bytes());

    let ip_at = ethernet(out, request, headers, mac)?;
    let at = ip_at + network(&mut out[ip_at..], ip.dst, ip.src, proto::TCP, 0, reset.len())?;
    Ok(at + build::put(&mut out[at..], reset)?)
}

/// Returns whether a packet may be answered by a TCP reset: it must be a whole TCP segment between two hosts,
/// and no reset itself.
#[must_use]
pub fn may_reset(headers: &Headers) -> bool {
    let (Some(ip), L4::Tcp { flags, .. }) = (headers.ip(), headers.l4) else { return false };
    let unicast = !is_group(ip.dst) && !is_group(ip.src) && !ip.src.is_unspecified();
    flags & proto::TCP_RST == 0 && ip.fragment == Fragment::Whole && unicast
}

/// Writes the Ethernet header of an answer from `mac` to the request's sender, with the request's tags.
pub(crate) fn ethernet(
    out: &mut [u8],
    request: &[u8],
    headers: &Headers,
    mac: Mac,
) -> Result<usize, WriteError> {
    let Some(eth) = &headers.eth else { return Ok(0) };
    let header = request
        .get(usize::from(headers.at)..usize::from(headers.l3_at))
        .filter(|header| header.len() >= proto::ETHERNET_LEN)
        .ok_or(WriteError::TooShort)?;
    let out = out.get_mut(..header.len()).ok_or(WriteError::TooShort)?;
    out.copy_from_slice(header);
    out[..6].copy_from_slice(&eth.src.0);
    out[6..12].copy_from_slice(&mac.0);
    Ok(header.len())
}

/// Writes the IP header of an answer with `len` bytes of payload.
fn network(
    out: &mut [u8],
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    tos: u8,
    len: usize,
) -> Result<usize, WriteError> {
    let len16 = |len| u16::try_from(len).map_err(|_| WriteError::TooShort);
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let len = len16(proto::IPV4_LEN + len)?;
            let ip = Ipv4 { src, dst, protocol, ttl: TTL, tos, id: 0, dont_fragment: true, len };
            build::ipv4(out, &ip)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let (next_header, hop_limit, traffic_class) = (protocol, TTL, tos);
            let (flow_label, payload_len) = (0, len16(len)?);
            let ip = Ipv6 { src, dst, next_header, hop_limit, traffic_class, flow_label, payload_len };
            build::ipv6(out, &ip)
        }
        _ => Err(WriteError::Mismatch),
    }
}

fn is_group(addr: IpAddr) -> bool {
    addr.is_multicast() || matches!(addr, IpAddr::V4(v4) if v4.is_broadcast())
}
