//! TCP, UDP, SCTP, ICMP and ICMPv6.

use super::{Upper, Window, be16, be32, nd, offset};
use crate::{Fragment, Ip, L4, ParseError, proto};

/// Checks a fragment's position in its datagram, in bytes.
///
/// Every fragment but the last holds a multiple of 8 bytes, none ends past byte 65535, and none overwrites the flags
/// of the TCP header in the first one (RFC 3128).
pub(super) fn check_fragment(protocol: u8, offset: u32, data: u32, more: bool) -> Result<(), ParseError> {
    let overflows = offset + data > 0xffff;
    let ragged = more && (!data.is_multiple_of(8) || data == 0);
    let overwrites = protocol == proto::TCP && offset == 8;
    if overflows || ragged || overwrites { Err(ParseError::Fragment) } else { Ok(()) }
}

/// Parses the L4 header at `at` of the packet `ip`. `window` ends where the packet does.
#[inline(always)]
pub(super) fn parse(window: Window<'_>, at: usize, ip: &Ip) -> Result<Upper, ParseError> {
    let short = match ip.fragment {
        Fragment::Whole => ParseError::L4Malformed,
        Fragment::First { .. } => ParseError::Fragment,
        Fragment::Later { .. } => return Ok(Upper::default()),
    };
    let mut nd = None;
    let l4 = match ip.protocol {
        proto::TCP => tcp(window, at, short)?,
        proto::UDP => udp(window, at, ip, short)?,
        proto::SCTP => {
            let head: &[u8; proto::SCTP_LEN] = window.read(at, short)?;
            L4::Sctp { src: be16(head, 0), dst: be16(head, 2) }
        }
        proto::ICMP if ip.src.is_ipv4() => icmp(window.read(at, short)?, false),
        proto::ICMPV6 if ip.src.is_ipv6() => {
            let l4 = icmp(window.read(at, short)?, true);
            if ip.fragment == Fragment::Whole {
                nd = nd::parse(window, at, ip)?;
            }
            l4
        }
        _ => L4::Other,
    };
    Ok(Upper { at: offset(at)?, l4, nd })
}

#[inline(always)]
fn tcp(window: Window<'_>, at: usize, short: ParseError) -> Result<L4, ParseError> {
    let head: &[u8; proto::TCP_LEN] = window.read(at, short)?;
    let header_len = (head[12] >> 4) * 4;
    if usize::from(header_len) < proto::TCP_LEN {
        return Err(ParseError::L4Malformed);
    }
    let header = window.slice(at, usize::from(header_len), short)?;
    let flags = head[13];
    let scale = if flags & proto::TCP_SYN == 0 { None } else { window_scale(&header[proto::TCP_LEN..]) };
    Ok(L4::Tcp {
        src: be16(head, 0),
        dst: be16(head, 2),
        flags,
        header_len,
        seq: be32(head, 4),
        ack: be32(head, 8),
        window: be16(head, 14),
        scale,
    })
}

/// Returns the window scale among a SYN's options (RFC 9293, 3.1; RFC 7323, 2.2). Parsing stops at a
/// malformed option.
#[cold]
fn window_scale(mut options: &[u8]) -> Option<u8> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const SCALE: u8 = 3;
    const MOST: u8 = 14;
    loop {
        options = match *options {
            [NOTHING, ref rest @ ..] => rest,
            [] | [END, ..] => return None,
            [SCALE, 3, shift, ..] => return Some(shift.min(MOST)),
            [_, len, ..] => options.get(usize::from(len.max(2))..)?,
            [_] => return None,
        };
    }
}

#[inline(always)]
fn udp(window: Window<'_>, at: usize, ip: &Ip, short: ParseError) -> Result<L4, ParseError> {
    let head: &[u8; proto::UDP_LEN] = window.read(at, short)?;
    let len = usize::from(be16(head, 4));
    // A first fragment's UDP header gives the length of the whole datagram.
    let too_long = ip.fragment == Fragment::Whole && len > window.end() - at;
    if len < proto::UDP_LEN || too_long {
        return Err(ParseError::L4Malformed);
    }
    Ok(L4::Udp { src: be16(head, 0), dst: be16(head, 2) })
}

#[inline(always)]
pub(super) fn icmp(head: &[u8; proto::ICMP_LEN], v6: bool) -> L4 {
    let (kind, code) = (head[0], head[1]);
    let echo = if v6 {
        matches!(kind, proto::ICMPV6_ECHO_REQUEST | proto::ICMPV6_ECHO_REPLY)
    } else {
        matches!(kind, proto::ICMP_ECHO_REQUEST | proto::ICMP_ECHO_REPLY)
    };
    L4::Icmp { kind, code, id: if echo { be16(head, 4) } else { 0 } }
}
