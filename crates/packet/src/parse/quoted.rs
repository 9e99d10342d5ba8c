//! The packet that an ICMP error quotes (RFC 792; RFC 4443, 3; RFC 5508).

use super::{Window, be16, be32, ipv4, ipv6, l4, offset};
use crate::{Fragment, Headers, Ip, L3, L4, ParseError, proto};

impl Headers {
    /// Returns the headers of the packet that this ICMP error quotes, or `None` if this packet isn't an ICMP
    /// error.
    ///
    /// `bytes` and `len` are those that this packet was parsed from. The quote is only the start of a refused
    /// packet: its length fields may exceed the quote, its IPv4 checksum isn't verified, and of a TCP header
    /// only the ports are read (flags and header length are 0).
    ///
    /// # Errors
    /// The first malformation found in the quoted headers; [`ParseError::HeaderTooLong`] as for
    /// [`Headers::ethernet`].
    pub fn quoted(&self, bytes: &[u8], len: usize) -> Result<Option<Self>, ParseError> {
        let (Some(outer), L4::Icmp { kind, .. }) = (self.ip(), self.l4) else { return Ok(None) };
        if !quotes_packet(outer.src.is_ipv6(), kind) {
            return Ok(None);
        }
        let window = Window::new(bytes, len).until(usize::from(outer.at) + outer.len as usize);
        let at = usize::from(self.l4_at) + proto::ICMP_LEN;
        let mut headers = Self { at: offset(at)?, l3_at: offset(at)?, ..Self::default() };
        let (ip, l4_at) = if outer.src.is_ipv4() {
            let ip = ipv4::header(window.read(at, ParseError::IpTruncated)?, at)?;
            window.slice(at, usize::from(ip.header_len), ParseError::IpTruncated)?;
            (ip, at + usize::from(ip.header_len))
        } else {
            let mut ip = ipv6::header(window.read(at, ParseError::IpTruncated)?, at)?;
            let mut l4_at = at + proto::IPV6_LEN;
            if ipv6::is_extension(ip.protocol) {
                let chain = ipv6::extensions(window, l4_at, ip.protocol)?;
                chain.apply(&mut ip)?;
                l4_at = chain.end;
            }
            (ip, l4_at)
        };
        headers.l3 = L3::Ip(ip);
        if !matches!(ip.fragment, Fragment::Later { .. }) {
            headers.l4_at = offset(l4_at)?;
            headers.l4 = quoted_l4(window, l4_at, &ip)?;
        }
        Ok(Some(headers))
    }
}

/// Returns whether an ICMP (or, if `v6`, ICMPv6) type stands for an error that quotes a packet.
const fn quotes_packet(v6: bool, kind: u8) -> bool {
    if v6 {
        matches!(
            kind,
            proto::ICMPV6_UNREACHABLE
                | proto::ICMPV6_TOO_BIG
                | proto::ICMPV6_TIME_EXCEEDED
                | proto::ICMPV6_PARAMETER_PROBLEM
        )
    } else {
        matches!(
            kind,
            proto::ICMP_UNREACHABLE
                | proto::ICMP_SOURCE_QUENCH
                | proto::ICMP_REDIRECT
                | proto::ICMP_TIME_EXCEEDED
                | proto::ICMP_PARAMETER_PROBLEM
        )
    }
}

/// Parses the L4 header in a quote. Errors quote at least 8 bytes of it.
fn quoted_l4(window: Window<'_>, at: usize, ip: &Ip) -> Result<L4, ParseError> {
    let read = || window.read::<8>(at, ParseError::L4Malformed);
    Ok(match ip.protocol {
        proto::TCP => {
            let head = read()?;
            L4::Tcp {
                src: be16(head, 0),
                dst: be16(head, 2),
                flags: 0,
                header_len: 0,
                seq: be32(head, 4),
                ack: 0,
                window: 0,
                scale: None,
            }
        }
        proto::UDP => {
            let head = read()?;
            L4::Udp { src: be16(head, 0), dst: be16(head, 2) }
        }
        proto::SCTP => {
            let head = read()?;
            L4::Sctp { src: be16(head, 0), dst: be16(head, 2) }
        }
        proto::ICMP if ip.src.is_ipv4() => l4::icmp(read()?, false),
        proto::ICMPV6 if ip.src.is_ipv6() => l4::icmp(read()?, true),
        _ => L4::Other,
    })
}
