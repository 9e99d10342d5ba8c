//! IPv6 and its extension headers (RFC 8200).

use super::{Parsed, Window, be16, be32, l4, offset};
use crate::{Fragment, Ip, L3, ParseError, proto};
use std::net::{IpAddr, Ipv6Addr};

/// Most extension headers in a packet: every kind but destination options occurs at most once.
const MAX_EXTENSIONS: usize = 8;

#[inline(always)]
pub(super) fn parse(window: Window<'_>, at: usize) -> Result<Parsed, ParseError> {
    let head: &[u8; proto::IPV6_LEN] = window.read(at, ParseError::IpTruncated)?;
    let mut ip = header(head, at)?;
    if at + ip.len as usize > window.end() {
        return Err(ParseError::IpLength);
    }
    if head[8] == 0xff || be128(head, 8) == Ipv6Addr::LOCALHOST.to_bits() {
        return Err(ParseError::IpSource);
    }
    let packet = window.until(at + ip.len as usize);
    if !is_extension(ip.protocol) {
        let upper = l4::parse(packet, at + proto::IPV6_LEN, &ip)?;
        return Ok(Parsed { l3: L3::Ip(ip), upper });
    }
    // A payload length of 0 stands for a jumbogram (RFC 2675), which no port carries.
    if be16(head, 4) == 0 {
        return Err(ParseError::IpLength);
    }
    let chain = extensions(packet, at + proto::IPV6_LEN, ip.protocol)?;
    chain.apply(&mut ip)?;
    let mut upper = l4::parse(packet, chain.end, &ip)?;
    if chain.fragment_header {
        // Neighbour discovery must not be fragmented, nor carry a fragment header (RFC 6980).
        upper.nd = None;
    }
    Ok(Parsed { l3: L3::Ip(ip), upper })
}

/// Returns the fields of the fixed header. `protocol` is the next header that it names.
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
        src: IpAddr::V6(Ipv6Addr::from_bits(be128(head, 8))),
        dst: IpAddr::V6(Ipv6Addr::from_bits(be128(head, 24))),
        protocol: head[6],
        ttl: head[7],
        tos: (word >> 20) as u8,
        fragment: Fragment::Whole,
        dont_fragment: true,
    })
}

#[inline(always)]
fn be128(head: &[u8; proto::IPV6_LEN], at: usize) -> u128 {
    let high = u64::from(be32(head, at)) << 32 | u64::from(be32(head, at + 4));
    let low = u64::from(be32(head, at + 8)) << 32 | u64::from(be32(head, at + 12));
    u128::from(high) << 64 | u128::from(low)
}

#[inline(always)]
pub(super) const fn is_extension(next: u8) -> bool {
    matches!(
        next,
        proto::HOP_BY_HOP | proto::ROUTING | proto::FRAGMENT | proto::AH | proto::DESTINATION_OPTIONS
    )
}

/// A chain of extension headers.
pub(super) struct Chain {
    /// Offset of the L4 header, or of a later fragment's data.
    pub(super) end: usize,
    protocol: u8,
    fragment: Fragment,
    fragment_header: bool,
}

impl Chain {
    /// Completes the header's fields from the chain.
    pub(super) fn apply(&self, ip: &mut Ip) -> Result<(), ParseError> {
        ip.header_len = offset(self.end - usize::from(ip.at))?;
        ip.protocol = self.protocol;
        ip.fragment = self.fragment;
        Ok(())
    }
}

/// Walks the extension headers from `at`; the first is of type `next`.
#[inline(never)]
pub(super) fn extensions(window: Window<'_>, at: usize, next: u8) -> Result<Chain, ParseError> {
    let mut chain = Chain { end: at, protocol: next, fragment: Fragment::Whole, fragment_header: false };
    for index in 0..MAX_EXTENSIONS {
        if !is_extension(chain.protocol) || matches!(chain.fragment, Fragment::Later { .. }) {
            return Ok(chain);
        }
        extension(window, &mut chain, index == 0)?;
    }
    let ended = !is_extension(chain.protocol) || matches!(chain.fragment, Fragment::Later { .. });
    if ended { Ok(chain) } else { Err(ParseError::Ipv6Extension) }
}

/// Steps over the extension header at `chain.end`.
fn extension(window: Window<'_>, chain: &mut Chain, first: bool) -> Result<(), ParseError> {
    // A first fragment must hold the whole chain (RFC 7112).
    let short = match chain.fragment {
        Fragment::First { .. } => ParseError::Fragment,
        _ => ParseError::Ipv6Extension,
    };
    let head: &[u8; 8] = window.read(chain.end, short)?;
    let len = match chain.protocol {
        proto::HOP_BY_HOP if !first => return Err(ParseError::Ipv6Extension),
        proto::FRAGMENT if chain.fragment_header => return Err(ParseError::Ipv6Extension),
        // Type 0 source routes are deprecated (RFC 5095).
        proto::ROUTING if head[2] == 0 && head[3] != 0 => return Err(ParseError::Ipv6Extension),
        proto::FRAGMENT => 8,
        proto::AH => (usize::from(head[1]) + 2) * 4,
        _ => (usize::from(head[1]) + 1) * 8,
    };
    window.slice(chain.end, len, short)?;
    if chain.protocol == proto::FRAGMENT {
        chain.fragment_header = true;
        chain.fragment = fragment(window, chain.end, head)?;
    }
    chain.protocol = head[0];
    chain.end += len;
    Ok(())
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
