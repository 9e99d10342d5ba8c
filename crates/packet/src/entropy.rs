//! The entropy hash, which spreads flows over equal-cost paths and over source ports of tunnels.
//!
//! It is specified to the bit, so that every executor sends a flow the same way: CRC-32C (polynomial
//! 0x1edc6f41, reflected, initial value and final complement all ones) over a fixed layout. It is linear and
//! has no key: whoever chooses the fields chooses the hash. So it must not index a table, because a guest
//! could overload an entry of the table.

use crate::Mac;
use crate::crc32c::crc32c;
use std::net::IpAddr;

/// First of the 16384 source ports of tunnels: the dynamic ports (RFC 6335; RFC 7510, 3).
pub const FIRST_PORT: u16 = 49152;

/// Returns the entropy hash of an IP flow.
///
/// CRC-32C over 37 bytes, all numbers big-endian:
///
///
/// | offset | length | field |
/// |---|---|---|
/// | 0 | 16 | source address; IPv4 as ::ffff:a.b.c.d |
/// | 16 | 16 | destination address, in the same form |
/// | 32 | 1 | IPv4 protocol or last IPv6 next header |
/// | 33 | 2 | source port |
/// | 35 | 2 | destination port |
///
/// Ports are 0 if the protocol has none. The caller passes 0 for a first fragment too; otherwise the
/// fragments of a datagram take different paths.
#[must_use]
pub fn entropy(src: IpAddr, dst: IpAddr, protocol: u8, sport: u16, dport: u16) -> u32 {
    let mut layout = [0; 37];
    layout[..16].copy_from_slice(&mapped(src));
    layout[16..32].copy_from_slice(&mapped(dst));
    layout[32] = protocol;
    layout[33..35].copy_from_slice(&sport.to_be_bytes());
    layout[35..].copy_from_slice(&dport.to_be_bytes());
    crc32c(&layout)
}

/// Returns the entropy hash of a frame that isn't IP: CRC-32C over source (6 bytes), destination (6),
/// EtherType (2, big-endian).
#[must_use]
pub fn entropy_l2(src: Mac, dst: Mac, ethertype: u16) -> u32 {
    let mut layout = [0; 14];
    layout[..6].copy_from_slice(&src.0);
    layout[6..12].copy_from_slice(&dst.0);
    layout[12..].copy_from_slice(&ethertype.to_be_bytes());
    crc32c(&layout)
}

/// Returns the UDP source port of a tunnel packet: [`FIRST_PORT`] plus the hash's lower 14 bits.
#[must_use]
pub const fn entropy_port(hash: u32) -> u16 {
    FIRST_PORT + (hash & 0x3fff) as u16
}

fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
