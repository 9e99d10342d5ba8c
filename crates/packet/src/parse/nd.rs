//! Neighbour solicitations and advertisements (RFC 4861).

use super::Window;
use crate::checksum::pseudo_header;
use crate::{Ip, Mac, Nd, ParseError, proto};
use std::net::{IpAddr, Ipv6Addr};

/// Length of the ICMPv6 header and the target address.
const BODY_LEN: usize = 24;
const MAX_OPTIONS: usize = 8;
const SOURCE_LINK_ADDR: u8 = 1;
const TARGET_LINK_ADDR: u8 = 2;
const FLAG_SOLICITED: u8 = 0x40;
const FLAG_OVERRIDE: u8 = 0x20;

/// Returns the ND body of the ICMPv6 message at `at`. `None` if the message has a different type or breaks
/// the rules of RFC 4861, 7.1, among them the checksum.
#[inline(always)]
pub(super) fn parse(window: Window<'_>, at: usize, ip: &Ip) -> Result<Option<Nd>, ParseError> {
    let [kind, code] = *window.read(at, ParseError::L4Malformed)?;
    if !matches!(kind, proto::ND_SOLICITATION | proto::ND_ADVERTISEMENT) || code != 0 || ip.ttl != 255 {
        return Ok(None);
    }
    let nd = body(window, at, ip, kind == proto::ND_SOLICITATION)?;
    let message = window.slice(at, window.end() - at, ParseError::L4Malformed)?;
    let mut sum = pseudo_header(ip.src, ip.dst, ip.protocol, message.len() as u32);
    sum.add(message);
    Ok(nd.filter(|_| sum.fold() == 0xffff))
}

fn body(window: Window<'_>, at: usize, ip: &Ip, solicitation: bool) -> Result<Option<Nd>, ParseError> {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (ip.src, ip.dst) else { return Ok(None) };
    if window.end() - at < BODY_LEN {
        return Ok(None);
    }
    let body: &[u8; BODY_LEN] = window.read(at, ParseError::L4Malformed)?;
    let mut octets = [0; 16];
    octets.copy_from_slice(&body[8..]);
    let target = Ipv6Addr::from(octets);
    let wanted = if solicitation { SOURCE_LINK_ADDR } else { TARGET_LINK_ADDR };
    let Some(link_addr) = options(window, at + BODY_LEN, wanted)? else { return Ok(None) };
    let valid = if solicitation {
        !src.is_unspecified() || (link_addr.is_none() && is_solicited_node(dst))
    } else {
        body[4] & FLAG_SOLICITED == 0 || !dst.is_multicast()
    };
    let flag = |bit| !solicitation && body[4] & bit != 0;
    let (solicited, overrides) = (flag(FLAG_SOLICITED), flag(FLAG_OVERRIDE));
    let nd = Nd { solicitation, target, link_addr, solicited, overrides };
    Ok((valid && !target.is_multicast()).then_some(nd))
}

/// Returns the link-layer address among the options from `at`; `None` if an option is malformed or there are
/// too many.
#[allow(clippy::option_option, reason = "malformed and absent differ")]
fn options(window: Window<'_>, at: usize, wanted: u8) -> Result<Option<Option<Mac>>, ParseError> {
    let mut at = at;
    let mut link_addr = None;
    for _ in 0..MAX_OPTIONS {
        let left = window.end() - at;
        if left == 0 {
            return Ok(Some(link_addr));
        }
        if left < 8 {
            return Ok(None);
        }
        let option: &[u8; 8] = window.read(at, ParseError::L4Malformed)?;
        let len = usize::from(option[1]) * 8;
        if len == 0 || len > left {
            return Ok(None);
        }
        if option[0] == wanted && link_addr.is_none() {
            if len != 8 {
                return Ok(None);
            }
            let [_, _, mac @ ..] = *option;
            link_addr = Some(Mac(mac));
        }
        at += len;
    }
    Ok((at == window.end()).then_some(link_addr))
}

/// Returns whether an address is in ff02::1:ff00:0/104.
fn is_solicited_node(addr: Ipv6Addr) -> bool {
    addr.octets()[..13] == [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff]
}
