//! ARP for IPv4 over Ethernet (RFC 826).

use super::{Parsed, Window, be16};
use crate::{Arp, L3, Mac, ParseError, proto};
use std::net::Ipv4Addr;

/// Hardware type Ethernet, protocol type IPv4, their address lengths.
const IPV4_OVER_ETHERNET: [u8; 6] = [0, 1, 8, 0, 6, 4];

pub(super) fn parse(window: Window<'_>, at: usize) -> Result<Parsed, ParseError> {
    let body: &[u8; proto::ARP_LEN] = window.read(at, ParseError::ArpMalformed)?;
    let request = match be16(body, 6) {
        1 => true,
        2 => false,
        _ => return Err(ParseError::ArpMalformed),
    };
    if body[..6] != IPV4_OVER_ETHERNET {
        return Err(ParseError::ArpMalformed);
    }
    let arp = Arp {
        request,
        sender_mac: mac(body, 8),
        sender: ipv4(body, 14),
        target_mac: mac(body, 18),
        target: ipv4(body, 24),
    };
    Ok(Parsed { l3: L3::Arp(arp), ..Parsed::default() })
}

const fn mac(body: &[u8; proto::ARP_LEN], at: usize) -> Mac {
    Mac([body[at], body[at + 1], body[at + 2], body[at + 3], body[at + 4], body[at + 5]])
}

const fn ipv4(body: &[u8; proto::ARP_LEN], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(body[at], body[at + 1], body[at + 2], body[at + 3])
}
