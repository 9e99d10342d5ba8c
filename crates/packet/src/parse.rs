//! Parsing: one pass over the headers, in place.
//!
//! `bytes` holds the bytes that the caller has at hand, as a rule a snapshot of the frame's head; `len` is
//! the length of the whole frame. A header that ends past `len` is malformed, and the error says which
//! header. A header that ends past `bytes` but not past `len` gives [`ParseError::HeaderTooLong`]: the caller
//! may come again with more bytes. After success every header, with its options, lies in `bytes`.

mod arp;
mod ipv4;
mod ipv6;
mod l4;
mod nd;
mod quoted;
mod window;

pub(crate) use window::{Window, be16, be32};

use crate::{Ethernet, Headers, L3, L4, Mac, Nd, ParseError, Tag, proto};
use arrayvec::ArrayVec;

/// Returns the Ethernet header and the tags of a frame, and where they end.
#[inline(always)]
fn link(window: Window<'_>, at: usize) -> Result<(Ethernet, usize), ParseError> {
    let head: &[u8; 14] = window.read(at, ParseError::EthernetTruncated)?;
    let mut tags = ArrayVec::new();
    let mut ethertype = be16(head, 12);
    let mut l3_at = at + proto::ETHERNET_LEN;
    while ethertype == proto::ETHERTYPE_VLAN || ethertype == proto::ETHERTYPE_QINQ {
        let tag: &[u8; 4] = window.read(l3_at, ParseError::EthernetTruncated)?;
        let service = ethertype == proto::ETHERTYPE_QINQ;
        tags.try_push(Tag { service, tci: be16(tag, 0) }).map_err(|_| ParseError::TooManyTags)?;
        ethertype = be16(tag, 2);
        l3_at += proto::VLAN_LEN;
    }
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *head;
    let (dst, src) = (Mac([d0, d1, d2, d3, d4, d5]), Mac([s0, s1, s2, s3, s4, s5]));
    Ok((Ethernet { dst, src, ethertype, tags }, l3_at))
}

impl Headers {
    /// Parses a frame whose Ethernet header starts at `at`.
    ///
    /// # Errors
    /// The first malformation found, or [`ParseError::HeaderTooLong`] if `bytes` holds too little of the
    /// `len` bytes.
    pub fn ethernet(bytes: &[u8], at: usize, len: usize) -> Result<Self, ParseError> {
        let window = Window::new(bytes, len);
        let (eth, l3_at) = link(window, at)?;
        let Parsed { l3, upper } = match eth.ethertype {
            proto::ETHERTYPE_IPV4 => ipv4::parse(window, l3_at)?,
            proto::ETHERTYPE_IPV6 => ipv6::parse(window, l3_at)?,
            proto::ETHERTYPE_ARP => arp::parse(window, l3_at)?,
            _ => Parsed::default(),
        };
        Ok(Self {
            at: offset(at)?,
            eth: Some(eth),
            l3_at: offset(l3_at)?,
            l3,
            l4: upper.l4,
            l4_at: upper.at,
            nd: upper.nd,
        })
    }

    /// Parses the Ethernet header and the tags of a frame, and leaves their content unparsed.
    ///
    /// # Errors
    /// As for [`Headers::ethernet`].
    pub fn ethernet_alone(bytes: &[u8], len: usize) -> Result<Self, ParseError> {
        let (eth, l3_at) = link(Window::new(bytes, len), 0)?;
        Ok(Self { eth: Some(eth), l3_at: offset(l3_at)?, ..Self::default() })
    }

    /// Parses an IPv4 or IPv6 packet that starts at `at`, without an Ethernet header (it came out of an MPLS
    /// tunnel).
    ///
    /// # Errors
    /// As for [`Headers::ethernet`].
    pub fn network(bytes: &[u8], at: usize, len: usize) -> Result<Self, ParseError> {
        let window = Window::new(bytes, len);
        let [version] = window.read::<1>(at, ParseError::IpTruncated)?;
        let Parsed { l3, upper } = match version >> 4 {
            4 => ipv4::parse(window, at)?,
            6 => ipv6::parse(window, at)?,
            _ => return Err(ParseError::IpHeader),
        };
        let at = offset(at)?;
        Ok(Self { at, eth: None, l3_at: at, l3, l4: upper.l4, l4_at: upper.at, nd: upper.nd })
    }
}

/// The part after the Ethernet header. Small values that inlined functions return stay in registers until
/// [`Headers`] is written, once.
#[derive(Default)]
struct Parsed {
    l3: L3,
    upper: Upper,
}

/// The part after the IP header.
#[derive(Clone, Copy, Default)]
struct Upper {
    /// Offset of the L4 header, or 0.
    at: u16,
    l4: L4,
    nd: Option<Nd>,
}

/// Converts an offset to 16 bits, as in [`Headers`]. No snapshot is too long for that.
#[inline(always)]
fn offset(at: usize) -> Result<u16, ParseError> {
    u16::try_from(at).map_err(|_| ParseError::HeaderTooLong)
}
