//! IPv4 (RFC 791).

use super::{Parsed, Window, be16, be32, l4, offset};
use crate::{Fragment, Ip, L3, ParseError, checksum, proto};
use std::net::{IpAddr, Ipv4Addr};

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

#[inline(always)]
pub(super) fn parse(window: Window<'_>, at: usize) -> Result<Parsed, ParseError> {
    let head: &[u8; proto::IPV4_LEN] = window.read(at, ParseError::IpTruncated)?;
    let ip = header(head, at)?;
    let header_len = usize::from(ip.header_len);
    if (ip.len as usize) < header_len || at + ip.len as usize > window.end() {
        return Err(ParseError::IpLength);
    }
    let right = if header_len == proto::IPV4_LEN {
        checksum::sum_ipv4_header(head) == 0xffff
    } else {
        let whole = window.slice(at, header_len, ParseError::IpTruncated)?;
        checksum::sum(whole).fold() == 0xffff
    };
    if !right {
        return Err(ParseError::IpChecksum);
    }
    let src = be32(head, 12);
    if src >> 28 == 0xe || src >> 24 == 127 || src == u32::MAX {
        return Err(ParseError::IpSource);
    }
    check_fragment(head, &ip)?;
    let packet = window.until(at + ip.len as usize);
    Ok(Parsed { l3: L3::Ip(ip), upper: l4::parse(packet, at + header_len, &ip)? })
}

/// Returns the fields of the fixed header. Makes only the checks that need no other bytes of the packet.
#[inline(always)]
pub(super) fn header(head: &[u8; proto::IPV4_LEN], at: usize) -> Result<Ip, ParseError> {
    if head[0] >> 4 != 4 || head[0] & 0xf < 5 {
        return Err(ParseError::IpHeader);
    }
    let flags = be16(head, 6);
    let id = u32::from(be16(head, 4));
    let fragment = if flags & (MORE_FRAGMENTS | OFFSET_MASK) == 0 {
        Fragment::Whole
    } else if flags & OFFSET_MASK == 0 {
        Fragment::First { id }
    } else {
        Fragment::Later { id }
    };
    Ok(Ip {
        at: offset(at)?,
        header_len: u16::from(head[0] & 0xf) * 4,
        len: u32::from(be16(head, 2)),
        src: IpAddr::V4(Ipv4Addr::from_bits(be32(head, 12))),
        dst: IpAddr::V4(Ipv4Addr::from_bits(be32(head, 16))),
        protocol: head[9],
        ttl: head[8],
        tos: head[1],
        fragment,
        dont_fragment: flags & DONT_FRAGMENT != 0,
    })
}

#[inline(always)]
fn check_fragment(head: &[u8; proto::IPV4_LEN], ip: &Ip) -> Result<(), ParseError> {
    if ip.fragment == Fragment::Whole {
        return Ok(());
    }
    let flags = be16(head, 6);
    let data = ip.len - u32::from(ip.header_len);
    super::l4::check_fragment(
        ip.protocol,
        u32::from(flags & OFFSET_MASK) * 8,
        data,
        flags & MORE_FRAGMENTS != 0,
    )
}
