//! IPv6 and its extension headers (RFC 8200).

use super::{Window, be16, be32, l4, offset};
use crate::{Fragment, Headers, Ip, L3, ParseError, proto};
use std::net::{IpAddr, Ipv6Addr};

/// More than this many extension headers are refused: every kind occurs at most once but for destination options.
const MAX_EXTENSIONS: usize = 8;

#[inline]
pub(super) fn parse(window: Window<'_>, at: usize, headers: &mut Headers) -> Result<(), ParseError> {
    let head: &[u8; proto::IPV6_LEN] = window.read(at, ParseError::IpTruncated)?;
    let mut ip = header(head, at)?;
    if at + ip.len as usize > window.end() {
        return Err(ParseError::IpLength);
    }
    if head[8] == 0xff || head[8..24] == Ipv6Addr::LOCALHOST.octets() {
        return Err(ParseError::IpSource);
    }
    let packet = window.until(at + ip.len as usize);
    let mut l4_at = at + proto::IPV6_LEN;
    let mut fragment_header = false;
    if is_extension(ip.protocol) {
        // A payload length of 0 stands for a jumbogram (RFC 2675), which no port carries.
        if be16(head, 4) == 0 {
            return Err(ParseError::IpLength);
        }
        (l4_at, fragment_header) = extensions(packet, l4_at, &mut ip)?;
        ip.header_len = offset(l4_at - at)?;
    }
    headers.l3 = L3::Ip(ip);
    l4::parse(packet, l4_at, &ip, headers)?;
    if fragment_header {
        // Neighbour discovery must not be fragmented, nor carry a fragment header (RFC 6980).
        headers.nd = None;
    }
    Ok(())
}

/// The fields of the fixed header; `protocol` is its next header.
#[inline(always)]
pub(super) fn header(head: &[u8; proto::IPV6_LEN], at: usize) -> Result<Ip, ParseError> {
    let word = be32(head, 0);
    if word >> 28 != 6 {
        return Err(ParseError::IpHeader);
    }
    Ok(Ip {
        at: offset(at)?,
        header_len: proto::IPV6_LEN as u16,
        len: proto::IPV6_LEN as u32 + u32::from(be16(head, 4)),
        src: IpAddr::V6(address(head, 8)),
        dst: IpAddr::V6(address(head, 24)),
        protocol: head[6],
        ttl: head[7],
        tos: (word >> 20) as u8,
        fragment: Fragment::Whole,
        dont_fragment: true,
    })
}

#[inline(always)]
fn address(head: &[u8; proto::IPV6_LEN], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&head[at..at + 16]);
    Ipv6Addr::from(octets)
}

#[inline(always)]
pub(super) const fn is_extension(next: u8) -> bool {
    matches!(
        next,
        proto::HOP_BY_HOP | proto::ROUTING | proto::FRAGMENT | proto::AH | proto::DESTINATION_OPTIONS
    )
}

/// Walks the extension headers from `at`: sets protocol and fragment of `ip`, and returns where the L4 header (or the data
/// of a later fragment) starts and whether there was a fragment header.
pub(super) fn extensions(window: Window<'_>, at: usize, ip: &mut Ip) -> Result<(usize, bool), ParseError> {
    let mut at = at;
    let mut fragment_header = false;
    for index in 0..MAX_EXTENSIONS {
        if !is_extension(ip.protocol) {
            return Ok((at, fragment_header));
        }
        // A first fragment must hold the whole chain (RFC 7112).
        let short = match ip.fragment {
            Fragment::First { .. } => ParseError::Fragment,
            _ => ParseError::Ipv6Extension,
        };
        let head: &[u8; 8] = window.read(at, short)?;
        let len = match ip.protocol {
            proto::HOP_BY_HOP if index > 0 => return Err(ParseError::Ipv6Extension),
            proto::FRAGMENT if fragment_header => return Err(ParseError::Ipv6Extension),
            // Type 0 source routes are deprecated (RFC 5095).
            proto::ROUTING if head[2] == 0 && head[3] != 0 => return Err(ParseError::Ipv6Extension),
            proto::FRAGMENT => 8,
            proto::AH => (usize::from(head[1]) + 2) * 4,
            _ => (usize::from(head[1]) + 1) * 8,
        };
        window.slice(at, len, short)?;
        if ip.protocol == proto::FRAGMENT {
            fragment_header = true;
            ip.fragment = fragment(window, at, head)?;
        }
        ip.protocol = head[0];
        at += len;
        if matches!(ip.fragment, Fragment::Later { .. }) {
            return Ok((at, fragment_header));
        }
    }
    if is_extension(ip.protocol) { Err(ParseError::Ipv6Extension) } else { Ok((at, fragment_header)) }
}

fn fragment(window: Window<'_>, at: usize, head: &[u8; 8]) -> Result<Fragment, ParseError> {
    let field = be16(head, 2);
    let (offset, more) = (u32::from(field & !7), field & 1 != 0);
    let id = be32(head, 4);
    if offset == 0 && !more {
        // An atomic fragment is a whole packet (RFC 6946).
        return Ok(Fragment::Whole);
    }
    l4::check_fragment(head[0], offset, (window.end() - at - 8) as u32, more)?;
    Ok(if offset == 0 { Fragment::First { id } } else { Fragment::Later { id } })
}
