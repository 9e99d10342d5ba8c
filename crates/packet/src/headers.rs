//! The result of parsing: where a packet's headers lie, and the fields that forwarding needs.

use crate::Mac;
use arrayvec::ArrayVec;
use std::net::IpAddr;

/// Fragmentation of an IP packet (RFC 791; RFC 8200, 4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragment {
    /// Not a fragment.
    #[default]
    Whole,
    /// The first fragment: it carries the L4 header.
    First {
        /// Identification.
        id: u32,
    },
    /// A later fragment: no L4 header.
    Later {
        /// Identification.
        id: u32,
    },
}

/// The IP header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Offset of the IP header in the frame, bytes.
    pub at: u16,
    /// Length of header and options or extension headers up to the L4 header (or to the fragment's data),
    /// bytes.
    pub header_len: u16,
    /// Length of the whole IP packet, bytes (trailing Ethernet padding not counted).
    pub len: u32,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// IPv4 protocol, or the last IPv6 next header.
    pub protocol: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Traffic class: DSCP and ECN.
    pub tos: u8,
    /// Fragmentation.
    pub fragment: Fragment,
    /// IPv4 Don't Fragment; always true for IPv6.
    pub dont_fragment: bool,
}

/// The L4 header's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L4 {
    /// Not parsed: another protocol, or a later fragment.
    #[default]
    Other,
    /// TCP (RFC 9293).
    Tcp {
        /// Source port.
        src: u16,
        /// Destination port.
        dst: u16,
        /// Flags: FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128.
        flags: u8,
        /// Header length with options, bytes.
        header_len: u8,
        /// Sequence number.
        seq: u32,
        /// Acknowledgment number; valid only with the flag ACK.
        ack: u32,
        /// Window as in the header, not scaled.
        window: u16,
        /// The window scale option of a SYN: by how many bits later windows are shifted (RFC 7323, 2); at most 14.
        scale: Option<u8>,
    },
    /// UDP (RFC 768).
    Udp {
        /// Source port.
        src: u16,
        /// Destination port.
        dst: u16,
    },
    /// SCTP (RFC 9260).
    Sctp {
        /// Source port.
        src: u16,
        /// Destination port.
        dst: u16,
    },
    /// ICMP (RFC 792) or ICMPv6 (RFC 4443), as [`Ip::protocol`] says.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// Identifier of echo request and reply; else 0.
        id: u16,
    },
}

/// ARP for IPv4 over Ethernet (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Whether it is a request (operation 1); else a reply (2).
    pub request: bool,
    /// Sender hardware address.
    pub sender_mac: Mac,
    /// Sender protocol address.
    pub sender: std::net::Ipv4Addr,
    /// Target hardware address.
    pub target_mac: Mac,
    /// Target protocol address.
    pub target: std::net::Ipv4Addr,
}

/// Neighbour solicitation or advertisement (RFC 4861, 4.3 and 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nd {
    /// Whether it is a solicitation; else an advertisement.
    pub solicitation: bool,
    /// Target address.
    pub target: std::net::Ipv6Addr,
    /// Source (solicitation) or target (advertisement) link-layer address option.
    pub link_addr: Option<Mac>,
    /// Flag S: the advertisement answers a solicitation, so its sender can be reached.
    pub solicited: bool,
    /// Flag O: the advertisement replaces a known link-layer address.
    pub overrides: bool,
}

/// The part of a packet that follows the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L3 {
    /// Any other EtherType.
    #[default]
    Other,
    /// ARP.
    Arp(Arp),
    /// IPv4 or IPv6.
    Ip(Ip),
}

/// Most VLAN tags of a frame. A frame with more is not parsed.
pub const MAX_TAGS: usize = 2;

/// A VLAN tag (IEEE 802.1Q, 9.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Whether it is a provider's S-tag (EtherType 0x88a8); else a C-tag (0x8100).
    pub service: bool,
    /// Tag control information: priority, drop eligibility, VLAN identifier.
    pub tci: u16,
}

impl Tag {
    /// Returns the VLAN identifier.
    #[must_use]
    pub const fn vlan(self) -> u16 {
        self.tci & 0xfff
    }

    /// Returns whether the tag carries only a priority, so that the frame counts as untagged (IEEE 802.1Q,
    /// 6.9). To a device that knows C-tags, an S-tag is never a priority tag.
    #[must_use]
    pub const fn is_priority(self) -> bool {
        !self.service && self.vlan() == 0
    }
}

/// The Ethernet header. An IP packet from an MPLS tunnel has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// EtherType after all tags.
    pub ethertype: u16,
    /// VLAN tags, outermost first.
    pub tags: ArrayVec<Tag, MAX_TAGS>,
}

/// A parsed packet. Offsets are in bytes from the first byte of the slice that was parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Offset of the Ethernet header. Equal to `l3_at` if there is none.
    pub at: u16,
    /// The Ethernet header, if any.
    pub eth: Option<Ethernet>,
    /// Offset of the part after the Ethernet header and its tags.
    pub l3_at: u16,
    /// The part after the Ethernet header and its tags.
    pub l3: L3,
    /// The L4 header.
    pub l4: L4,
    /// Offset of the part after the IP header, usually the L4 header; 0 in a later fragment and without IP.
    pub l4_at: u16,
    /// ND body, if the packet is a well-formed ICMPv6 message of type 135 or 136 with hop limit 255.
    pub nd: Option<Nd>,
}

impl Headers {
    /// Returns the IP header's fields, if the packet is IP.
    #[must_use]
    pub const fn ip(&self) -> Option<&Ip> {
        match &self.l3 {
            L3::Ip(ip) => Some(ip),
            _ => None,
        }
    }

    /// Returns source and destination port. An ICMP echo's identifier serves as both. The ports are 0 if the
    /// protocol has none.
    #[must_use]
    pub const fn ports(&self) -> (u16, u16) {
        match self.l4 {
            L4::Tcp { src, dst, .. } | L4::Udp { src, dst } | L4::Sctp { src, dst } => (src, dst),
            L4::Icmp { id, .. } => (id, id),
            L4::Other => (0, 0),
        }
    }
}
