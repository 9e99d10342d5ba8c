//! The match of flows: the fields of a packet as OVS reads them, and masks over them.

use crate::PacketView;
use packet::{Ethernet, Fragment, Headers, L4, Mac, proto};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// The fields of a packet, or a mask over them. A field that a packet does not have is zero.
///
/// As in OVS with its default `vlan-limit`, there is only one VLAN tag: behind a second tag, neither IP nor
/// L4 fields are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Destination MAC.
    pub eth_dst: Mac,
    /// Source MAC.
    pub eth_src: Mac,
    /// EtherType, behind the VLAN tag if there is one; [`Key::NO_TYPE`] for IEEE 802.3 frames.
    pub eth_type: u16,
    /// EtherType of the VLAN tag.
    pub vlan_type: u16,
    /// The tag's priority and VLAN identifier. In place of the bit for drop eligibility, [`Key::TAGGED`].
    pub vlan_tci: u16,
    /// IP source address; IPv4 in the lower 32 bits.
    pub ip_src: u128,
    /// IP destination address.
    pub ip_dst: u128,
    /// IP protocol; the last next header of IPv6.
    pub ip_proto: u8,
    /// Traffic class: DSCP and ECN.
    pub ip_tos: u8,
    /// TTL or hop limit.
    pub ip_ttl: u8,
    /// [`Key::FRAGMENT`] for all fragments, with [`Key::LATER`] for all but the first.
    pub ip_fragment: u8,
    /// Source port of TCP, UDP and SCTP; type of ICMP and ICMPv6.
    pub l4_src: u16,
    /// Destination port; code of ICMP and ICMPv6.
    pub l4_dst: u16,
    /// TCP flags from FIN (1) to CWR (128).
    pub tcp_flags: u8,
}

/// Applies an operation to each field.
macro_rules! each_field {
    ($a:expr, $b:expr, $mac:expr, $and:expr) => {
        Key {
            eth_dst: $mac($a.eth_dst, $b.eth_dst),
            eth_src: $mac($a.eth_src, $b.eth_src),
            eth_type: $and($a.eth_type.into(), $b.eth_type.into()) as u16,
            vlan_type: $and($a.vlan_type.into(), $b.vlan_type.into()) as u16,
            vlan_tci: $and($a.vlan_tci.into(), $b.vlan_tci.into()) as u16,
            ip_src: $and($a.ip_src, $b.ip_src),
            ip_dst: $and($a.ip_dst, $b.ip_dst),
            ip_proto: $and($a.ip_proto.into(), $b.ip_proto.into()) as u8,
            ip_tos: $and($a.ip_tos.into(), $b.ip_tos.into()) as u8,
            ip_ttl: $and($a.ip_ttl.into(), $b.ip_ttl.into()) as u8,
            ip_fragment: $and($a.ip_fragment.into(), $b.ip_fragment.into()) as u8,
            l4_src: $and($a.l4_src.into(), $b.l4_src.into()) as u16,
            l4_dst: $and($a.l4_dst.into(), $b.l4_dst.into()) as u16,
            tcp_flags: $and($a.tcp_flags.into(), $b.tcp_flags.into()) as u8,
        }
    };
}

impl Key {
    /// In [`Key::vlan_tci`]: the packet has a tag.
    pub const TAGGED: u16 = 0x1000;
    /// In [`Key::ip_fragment`]: the packet is a fragment.
    pub const FRAGMENT: u8 = 1;
    /// In [`Key::ip_fragment`]: the packet is a fragment without L4 header.
    pub const LATER: u8 = 2;
    /// The EtherType of frames that have a length in its place.
    pub const NO_TYPE: u16 = 0x05ff;

    /// Returns the fields of a packet. `None` if OVS reads more of the frame than Viaduct: frames with a SNAP
    /// header (RFC 1042).
    #[must_use]
    pub fn of(packet: &PacketView<'_>) -> Option<Self> {
        let headers = &packet.headers;
        let eth = headers.eth.as_ref()?;
        let mut key = Self { eth_dst: eth.dst, eth_src: eth.src, ..Self::default() };
        key.set_type(eth, packet)?;
        if eth.tags.len() < 2 {
            key.set_ip(headers);
            key.set_l4(headers);
        }
        Some(key)
    }

    fn set_type(&mut self, eth: &Ethernet, packet: &PacketView<'_>) -> Option<()> {
        /// Lower values in the EtherType field are lengths (IEEE 802.3, 3.2.6).
        const FIRST_TYPE: u16 = 0x0600;
        /// Both of LLC's service access points (IEEE 802.2).
        const SNAP: [u8; 2] = [0xaa, 0xaa];
        let tag_type = |service| if service { proto::ETHERTYPE_QINQ } else { proto::ETHERTYPE_VLAN };
        if let Some(tag) = eth.tags.first() {
            self.vlan_type = tag_type(tag.service);
            self.vlan_tci = tag.tci | Self::TAGGED;
        }
        self.eth_type = match eth.tags.get(1) {
            Some(second) => tag_type(second.service),
            None if eth.ethertype >= FIRST_TYPE => eth.ethertype,
            None => {
                let llc = packet.bytes.get(packet.headers.l3_at.into()..).unwrap_or_default();
                if llc.starts_with(&SNAP) {
                    return None;
                }
                Self::NO_TYPE
            }
        };
        Some(())
    }

    fn set_ip(&mut self, headers: &Headers) {
        let Some(ip) = headers.ip() else { return };
        let bits = |addr| match addr {
            IpAddr::V4(addr) => u128::from(addr.to_bits()),
            IpAddr::V6(addr) => addr.to_bits(),
        };
        (self.ip_src, self.ip_dst) = (bits(ip.src), bits(ip.dst));
        (self.ip_proto, self.ip_tos, self.ip_ttl) = (ip.protocol, ip.tos, ip.ttl);
        self.ip_fragment = match ip.fragment {
            Fragment::Whole => 0,
            Fragment::First { .. } => Self::FRAGMENT,
            Fragment::Later { .. } => Self::FRAGMENT | Self::LATER,
        };
    }

    fn set_l4(&mut self, headers: &Headers) {
        (self.l4_src, self.l4_dst) = match headers.l4 {
            L4::Tcp { src, dst, .. } | L4::Udp { src, dst } | L4::Sctp { src, dst } => (src, dst),
            L4::Icmp { kind, code, .. } => (kind.into(), code.into()),
            L4::Other => (0, 0),
        };
        if let L4::Tcp { flags, .. } = headers.l4 {
            self.tcp_flags = flags;
        }
    }

    /// Returns the bits that a mask has too.
    #[must_use]
    pub fn masked(&self, mask: &Self) -> Self {
        let mac = |a: Mac, b: Mac| Mac(std::array::from_fn(|i| a.0[i] & b.0[i]));
        let and = |a: u128, b: u128| a & b;
        each_field!(self, mask, mac, and)
    }

    /// Returns the bits that a mask does not have.
    #[must_use]
    pub fn without(&self, mask: &Self) -> Self {
        let mac = |a: Mac, b: Mac| Mac(std::array::from_fn(|i| a.0[i] & !b.0[i]));
        let and_not = |a: u128, b: u128| a & !b;
        each_field!(self, mask, mac, and_not)
    }

    /// Returns the bits that at least one of two masks has.
    #[must_use]
    pub fn united(&self, other: &Self) -> Self {
        let mac = |a: Mac, b: Mac| Mac(std::array::from_fn(|i| a.0[i] | b.0[i]));
        let or = |a: u128, b: u128| a | b;
        each_field!(self, other, mac, or)
    }
}

impl Hash for Key {
    /// Hashes all fields in one piece: a hasher that is called for each field takes several times as long.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let half = |bits: u128| [(bits >> 64) as u64, bits as u64];
        let mac = |Mac([a, b, c, d, e, f]): Mac, beside: u16| {
            let [x, y] = beside.to_be_bytes();
            u64::from_be_bytes([a, b, c, d, e, f, x, y])
        };
        let ([src, src_low], [dst, dst_low]) = (half(self.ip_src), half(self.ip_dst));
        let ip = u32::from_be_bytes([self.ip_proto, self.ip_tos, self.ip_ttl, self.ip_fragment]);
        let ports = u32::from(self.l4_src) << 16 | u32::from(self.l4_dst);
        let words = [
            mac(self.eth_dst, self.eth_type),
            mac(self.eth_src, self.vlan_type),
            src,
            src_low,
            dst,
            dst_low,
            u64::from(ip) << 32 | u64::from(ports),
            u64::from(self.vlan_tci) << 8 | u64::from(self.tcp_flags),
        ];
        state.write(words.map(u64::to_ne_bytes).as_flattened());
    }
}

/// The packets that a flow matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Match {
    key: Key,
    mask: Key,
}

impl Match {
    /// Returns the match of packets whose fields have the bits of `key` wherever `mask` has ones.
    #[must_use]
    pub fn new(key: &Key, mask: &Key) -> Self {
        Self { key: key.masked(mask), mask: *mask }
    }

    /// Returns the required bits; zero where the mask is.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the mask: ones at the bits that are compared.
    #[must_use]
    pub const fn mask(&self) -> &Key {
        &self.mask
    }

    /// Returns whether the match compares any bit of this mask.
    #[must_use]
    pub fn looks_at(&self, bits: &Key) -> bool {
        self.mask.masked(bits) != Key::default()
    }

    /// Returns whether the flow may match a packet with these fields, whatever it has in the bits `free`.
    #[must_use]
    pub fn may_match(&self, packet: &Key, free: &Key) -> bool {
        let mask = self.mask.without(free);
        packet.masked(&mask) == self.key.masked(&mask)
    }

    /// Returns whether the flow matches a packet with these fields.
    #[must_use]
    pub fn matches(&self, packet: &Key) -> bool {
        packet.masked(&self.mask) == self.key
    }
}
