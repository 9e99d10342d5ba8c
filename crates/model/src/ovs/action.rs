//! The actions of flows.

use crate::VifId;
use packet::{Mac, proto};
use std::net::IpAddr;
use std::sync::Arc;

/// One action of a flow. Actions are done in order, and each output sends the packet as the actions before it
/// made it.
///
/// A flow with an action that does not fit a packet, such as an IPv6 address for an IPv4 packet, leaves that
/// packet to OVS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a copy by this interface, which may be the one by which the packet came in.
    Output(VifId),
    /// Do nothing: a flow with this action drops.
    Drop,
    /// Send the packet to OVS, and say to which flow it belongs: OVS carries that flow out itself and need
    /// not look it up. A flow with this action has no other.
    Mark,
    /// Set the source MAC.
    SetMacSrc(Mac),
    /// Set the destination MAC.
    SetMacDst(Mac),
    /// Set the IP source address.
    SetIpSrc(IpAddr),
    /// Set the IP destination address.
    SetIpDst(IpAddr),
    /// Set TTL or hop limit.
    SetTtl(u8),
    /// Set the DSCP, six bits; ECN stays.
    SetDscp(u8),
    /// Set the source port of TCP or UDP.
    SetPortSrc(u16),
    /// Set the destination port of TCP or UDP.
    SetPortDst(u16),
    /// Push a VLAN tag with this EtherType, 0x8100 or 0x88a8 (`true`), and a TCI of zero.
    PushVlan {
        /// Whether the tag is a provider's S-tag.
        service: bool,
    },
    /// Set the VLAN identifier of the outermost tag, twelve bits.
    SetVlanVid(u16),
    /// Set the priority of the outermost tag, three bits.
    SetVlanPcp(u8),
    /// Remove the outermost tag. A frame without tags stays as it is.
    PopVlan,
    /// Put tunnel headers in front, for the next output alone.
    Encap(Outer),
}

/// Greatest length of tunnel headers, bytes: executors have room for no more.
pub const MAX_OUTER: usize = 96;

/// Tunnel headers as OVS makes them: Ethernet, IPv4 or IPv6, UDP or GRE and the rest. Fields that depend on
/// the packet are completed for each packet: IP lengths, the IPv4 checksum, UDP length and source port, the
/// UDP checksum over IPv6, the IPv6 flow label, and, if OVS asks for it, the UDP checksum over IPv4.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outer {
    bytes: Arc<[u8]>,
    /// Whether the headers are IPv6.
    v6: bool,
    /// Whether the tunnel is over UDP; else it is over GRE.
    udp: bool,
    /// Whether the UDP header gets a checksum.
    sum: bool,
}

/// The reason why headers can't be put in front of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOuter {
    /// They end inside a header.
    #[error("the headers end inside one of them")]
    Short,
    /// More than [`MAX_OUTER`].
    #[error("the headers are longer than {MAX_OUTER} bytes")]
    Long,
    /// Not IP in Ethernet without tags.
    #[error("the outer frame is neither IPv4 nor IPv6, or has a VLAN tag")]
    NotIp,
    /// Options, extension headers or fragmentation.
    #[error("the outer IP header has options or extension headers, or is a fragment's")]
    IpOptions,
    /// Neither UDP nor GRE.
    #[error("the outer protocol is neither UDP nor GRE")]
    Protocol,
    /// GRE's checksum.
    #[error("the tunnel asks for GRE checksums")]
    Checksum,
    /// GRE sequence numbers.
    #[error("the tunnel asks for sequence numbers")]
    Sequence,
}

/// Flags of a GRE header's first two bytes (RFC 2784; RFC 2890).
const GRE_CHECKSUM: u8 = 0x80;
const GRE_SEQUENCE: u8 = 0x10;

impl Outer {
    /// Takes headers that are put in front of Ethernet frames. Lengths and the IPv4 checksum in them are ignored.
    ///
    /// # Errors
    /// [`BadOuter`].
    pub fn new(bytes: &[u8]) -> Result<Self, BadOuter> {
        if bytes.len() > MAX_OUTER {
            return Err(BadOuter::Long);
        }
        let (v6, protocol, l4) =
            match *bytes.get(12..).and_then(|b| b.first_chunk()).ok_or(BadOuter::Short)? {
                [0x08, 0x00] => {
                    let ip: &[u8; proto::IPV4_LEN] =
                        bytes[proto::ETHERNET_LEN..].first_chunk().ok_or(BadOuter::Short)?;
                    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
                    if ip[0] != 0x45 || fragment {
                        return Err(BadOuter::IpOptions);
                    }
                    (false, ip[9], proto::ETHERNET_LEN + proto::IPV4_LEN)
                }
                [0x86, 0xdd] => {
                    let ip: &[u8; proto::IPV6_LEN] =
                        bytes[proto::ETHERNET_LEN..].first_chunk().ok_or(BadOuter::Short)?;
                    if ip[0] >> 4 != 6 {
                        return Err(BadOuter::IpOptions);
                    }
                    (true, ip[6], proto::ETHERNET_LEN + proto::IPV6_LEN)
                }
                _ => return Err(BadOuter::NotIp),
            };
        let header = &bytes[l4..];
        let mut sum = false;
        match protocol {
            proto::UDP => {
                let udp: &[u8; proto::UDP_LEN] = header.first_chunk().ok_or(BadOuter::Short)?;
                sum = v6 || udp[6..] != [0, 0];
            }
            proto::GRE => match *header.first_chunk::<{ proto::GRE_LEN }>().ok_or(BadOuter::Short)? {
                [flags, ..] if flags & GRE_CHECKSUM != 0 => return Err(BadOuter::Checksum),
                [flags, ..] if flags & GRE_SEQUENCE != 0 => return Err(BadOuter::Sequence),
                _ => {}
            },
            _ => return Err(BadOuter::Protocol),
        }
        Ok(Self { bytes: clean(bytes, v6, l4, protocol).into(), v6, udp: protocol == proto::UDP, sum })
    }

    /// Returns the headers. Lengths, checksums except IPv4's, and fields that depend on the flow are zero;
    /// the IPv4 checksum is right for these zeros.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether the outer packet is IPv6.
    #[must_use]
    pub const fn is_v6(&self) -> bool {
        self.v6
    }

    /// Returns whether the tunnel is over UDP; else it is over GRE.
    #[must_use]
    pub const fn is_udp(&self) -> bool {
        self.udp
    }

    /// Returns whether the UDP header gets a checksum.
    #[must_use]
    pub const fn has_sum(&self) -> bool {
        self.sum
    }

    /// Returns the offset of the UDP or GRE header.
    #[must_use]
    pub const fn l4(&self) -> usize {
        proto::ETHERNET_LEN + if self.v6 { proto::IPV6_LEN } else { proto::IPV4_LEN }
    }
}

/// Returns these headers with zeros in the fields that are completed for each packet.
fn clean(bytes: &[u8], v6: bool, l4: usize, protocol: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let ip = &mut bytes[proto::ETHERNET_LEN..l4];
    if v6 {
        ip[1] &= 0xf0;
        ip[2..6].fill(0);
    } else {
        ip[2..4].fill(0);
        ip[10..12].fill(0);
        let checksum = packet::checksum::sum(ip).finish();
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    if protocol == proto::UDP {
        bytes[l4..l4 + 2].fill(0);
        bytes[l4 + 4..l4 + proto::UDP_LEN].fill(0);
    }
    bytes
}
