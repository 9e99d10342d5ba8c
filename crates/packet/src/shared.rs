//! Shares of the ports of addresses that many hosts share (RFC 7422): a function of the addresses alone.

use std::net::IpAddr;

/// The first port that is shared out: those below are of well-known services (RFC 6335, 6).
pub const FIRST_SHARED_PORT: u16 = 1024;

/// The ports of a shared address that one host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortBlock {
    /// The position of the address among those that are shared.
    pub address: usize,
    /// The first port.
    pub first: u16,
    /// The number of ports.
    pub ports: u16,
}

impl PortBlock {
    /// Returns the number of blocks of `ports` ports that `addresses` addresses have.
    #[must_use]
    pub fn count(addresses: usize, ports: u16) -> usize {
        addresses * usize::from((u16::MAX - FIRST_SHARED_PORT) / ports.max(1))
    }

    /// Returns the block of a host. Consecutive addresses have consecutive blocks, so as many neighbours as there are
    /// blocks have one each. `None` if there is no block.
    #[must_use]
    pub fn of(host: IpAddr, addresses: usize, ports: u16) -> Option<Self> {
        let bits = match host {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits() as u64,
        };
        let number = bits.checked_rem(Self::count(addresses, ports) as u64)? as usize;
        let first = FIRST_SHARED_PORT + (number / addresses) as u16 * ports;
        Some(Self { address: number % addresses, first, ports })
    }

    /// Returns the last port.
    #[must_use]
    pub const fn last(self) -> u16 {
        self.first + (self.ports - 1)
    }
}

/// Returns a number that stands for a shared address among a few.
#[must_use]
pub fn address_tag(addr: IpAddr) -> u16 {
    let bits =
        match addr {
            IpAddr::V4(v4) => v4.to_bits(),
            IpAddr::V6(v6) => v6.segments().as_chunks::<2>().0.iter().fold(0, |all: u32, [high, low]| {
                all.rotate_left(5) ^ (u32::from(*high) << 16 | u32::from(*low))
            }),
        };
    (bits.wrapping_mul(0x9e37_79b1) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn neighbours_have_blocks_of_their_own() {
        for (addresses, ports) in [(1, 512), (2, 1000), (3, 64), (1, 60_000)] {
            let count = PortBlock::count(addresses, ports);
            let hosts = (0..count as u32).map(|n| IpAddr::from(Ipv4Addr::from_bits(0x0a01_01f0 + n)));
            let blocks: BTreeSet<_> =
                hosts.filter_map(|host| PortBlock::of(host, addresses, ports)).collect();
            assert_eq!(blocks.len(), count);
            assert!(blocks.iter().all(|block| block.address < addresses
                && block.first >= 1024
                && block.last() >= block.first));
        }
        assert_eq!(PortBlock::of(Ipv6Addr::LOCALHOST.into(), 0, 512), None);
    }

    #[test]
    fn neighbouring_addresses_have_different_tags() {
        let v4 = (0..256).map(|n| address_tag(Ipv4Addr::from_bits(0xcb00_7100 + n).into()));
        assert_eq!(v4.collect::<BTreeSet<_>>().len(), 256);
        let v6 = (0..256).map(|n| address_tag(Ipv6Addr::from_bits((0x2001_0db8 << 96) + n).into()));
        assert_eq!(v6.collect::<BTreeSet<_>>().len(), 256);
    }
}
