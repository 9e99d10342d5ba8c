//! Names of the protocol: families, route distinguishers, route targets, encapsulations.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An address family that the speaker knows (RFC 4760).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Routes of IPv4 networks: 1, 128 (RFC 4364).
    Vpnv4,
    /// Routes of IPv6 networks: 2, 128 (RFC 4659).
    Vpnv6,
    /// Ethernet VPN: 25, 70 (RFC 7432).
    Evpn,
    /// Route target constraint: 1, 132 (RFC 4684).
    Rtc,
    /// Plain IPv4 routes: 1, 1 (RFC 4271).
    Ipv4Unicast,
    /// Plain IPv6 routes: 2, 1 (RFC 2545).
    Ipv6Unicast,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 6] =
        [Self::Vpnv4, Self::Vpnv6, Self::Evpn, Self::Rtc, Self::Ipv4Unicast, Self::Ipv6Unicast];

    /// Returns the name that configuration and output use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vpnv4 => "vpnv4",
            Self::Vpnv6 => "vpnv6",
            Self::Evpn => "evpn",
            Self::Rtc => "rtc",
            Self::Ipv4Unicast => "ipv4-unicast",
            Self::Ipv6Unicast => "ipv6-unicast",
        }
    }
}

/// A tunnel type (RFC 9012, 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Encapsulation {
    /// MPLS over UDP: 13.
    MplsUdp,
    /// MPLS over GRE: 2 is sent, 11 is accepted too.
    MplsGre,
    /// VXLAN: 8.
    Vxlan,
}

impl Encapsulation {
    /// Returns the name that configuration and output use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MplsUdp => "mpls-over-udp",
            Self::MplsGre => "mpls-over-gre",
            Self::Vxlan => "vxlan",
        }
    }

    /// Returns the tunnel type that is announced.
    pub(crate) const fn code(self) -> u16 {
        match self {
            Self::MplsUdp => 13,
            Self::MplsGre => 2,
            Self::Vxlan => 8,
        }
    }

    pub(crate) const fn of_code(code: u16) -> Option<Self> {
        match code {
            13 => Some(Self::MplsUdp),
            2 | 11 => Some(Self::MplsGre),
            8 => Some(Self::Vxlan),
            _ => None,
        }
    }
}

/// The text is no route target or route distinguisher.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' has not the form AS:NUMBER or IPV4:NUMBER, as in 64512:100 or 192.0.2.1:7 (the number after an AS above 65535, or an address, is at most 65535)"
)]
pub struct BadName(String);

/// A route distinguisher (RFC 4364, 4.2), as on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rd(pub [u8; 8]);

/// A route target (RFC 4360, 4), as on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteTarget(pub [u8; 8]);

impl Rd {
    /// Returns the distinguisher of an address and a number (type 1).
    #[must_use]
    pub const fn of_address(address: Ipv4Addr, number: u16) -> Self {
        let ([a, b, c, d], [e, f]) = (address.octets(), number.to_be_bytes());
        Self([0, 1, a, b, c, d, e, f])
    }
}

impl RouteTarget {
    /// Returns the target of an autonomous system and a number, or nothing where they do not fit: the number of an
    /// AS above 65535 has 16 bits.
    #[must_use]
    pub fn of_as(asn: u32, number: u32) -> Option<Self> {
        administrator(asn, number).map(|[_, kind, rest @ ..]| Self::of_parts(kind, rest))
    }

    const fn of_parts(kind: u8, [a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self([kind, 2, a, b, c, d, e, f])
    }

    /// Returns the target that these eight bytes of an extended community are, if they are one.
    #[must_use]
    pub const fn of_community(bytes: [u8; 8]) -> Option<Self> {
        match bytes {
            [0..=2, 2, ..] => Some(Self(bytes)),
            _ => None,
        }
    }
}

/// Returns a type and value as of a route distinguisher: two-octet AS (0) where it fits, else four-octet AS (2).
fn administrator(asn: u32, number: u32) -> Option<[u8; 8]> {
    if let Ok(asn) = u16::try_from(asn) {
        let ([a, b], [c, d, e, f]) = (asn.to_be_bytes(), number.to_be_bytes());
        return Some([0, 0, a, b, c, d, e, f]);
    }
    let ([a, b, c, d], [e, f]) = (asn.to_be_bytes(), u16::try_from(number).ok()?.to_be_bytes());
    Some([0, 2, a, b, c, d, e, f])
}

fn parse(text: &str) -> Option<[u8; 8]> {
    let (before, number) = text.split_once(':')?;
    if let Ok(address) = before.parse() {
        return Some(Rd::of_address(address, number.parse().ok()?).0);
    }
    administrator(before.parse().ok()?, number.parse().ok()?)
}

fn write(f: &mut fmt::Formatter<'_>, kind: u8, [a, b, c, d, e, g]: [u8; 6]) -> fmt::Result {
    let last = u16::from_be_bytes([e, g]);
    match kind {
        0 => write!(f, "{}:{}", u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, g])),
        1 => write!(f, "{}:{last}", Ipv4Addr::from([a, b, c, d])),
        _ => write!(f, "{}:{last}", u32::from_be_bytes([a, b, c, d])),
    }
}

impl FromStr for Rd {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        parse(text).map(Self).ok_or_else(|| BadName(text.into()))
    }
}

impl FromStr for RouteTarget {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let [_, kind, rest @ ..] = parse(text).ok_or_else(|| BadName(text.into()))?;
        Ok(Self::of_parts(kind, rest))
    }
}

impl fmt::Display for Rd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, kind, rest @ ..] = self.0;
        write(f, kind, rest)
    }
}

impl fmt::Display for RouteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kind, _, rest @ ..] = self.0;
        write(f, kind, rest)
    }
}

impl fmt::Debug for Rd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for RouteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
