//! Link-layer addresses.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// A 48-bit IEEE 802 MAC address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// ff:ff:ff:ff:ff:ff
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns whether the address is a group's (multicast or broadcast).
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether the address is 00:00:00:00:00:00.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }

    /// Returns the address before this one in their order, if there is one.
    #[must_use]
    pub fn before(self) -> Option<Self> {
        let [a, b, c, d, e, f] = self.0;
        let [_, _, before @ ..] = u64::from_be_bytes([0, 0, a, b, c, d, e, f]).checked_sub(1)?.to_be_bytes();
        Some(Self(before))
    }

    /// Returns the IPv6 link-local address derived from this MAC (RFC 4291, 2.5.6 and appendix A).
    #[must_use]
    pub fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Returns the MAC address from which this IPv6 link-local address is derived, if it has that form.
    #[must_use]
    pub const fn of_link_local(addr: Ipv6Addr) -> Option<Self> {
        match addr.octets() {
            [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => {
                Some(Self([a ^ 2, b, c, d, e, f]))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is not six colon-separated hexadecimal bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a MAC address (six hexadecimal bytes, as in 02:00:00:00:00:01)")]
pub struct BadMac(String);

impl FromStr for Mac {
    type Err = BadMac;

    fn from_str(s: &str) -> Result<Self, BadMac> {
        let mut out = [0; 6];
        let mut parts = s.split(':');
        for byte in &mut out {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(|| BadMac(s.into()))?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| BadMac(s.into()))?;
        }
        if parts.next().is_some() {
            return Err(BadMac(s.into()));
        }
        Ok(Self(out))
    }
}
