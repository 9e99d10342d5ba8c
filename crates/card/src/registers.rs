//! Written by rtl/generate from rtl/registers.toml.
#![allow(clippy::doc_markdown, reason = "generated")]

/// Version of this description.
pub const VERSION: u32 = 1;

/// Sets bits of a line. `at` is the number of the lowest one.
fn put(line: &mut [u8], at: usize, width: usize, value: u128) {
    for bit in (0..width).filter(|bit| value >> bit & 1 != 0) {
        line[(at + bit) / 8] |= 1 << ((at + bit) % 8);
    }
}

/// Returns bits of a line.
fn get(line: &[u8], at: usize, width: usize) -> u128 {
    let set = |bit: &usize| line[(at + bit) / 8] >> ((at + bit) % 8) & 1 != 0;
    (0..width).filter(set).fold(0, |value, bit| value | 1 << bit)
}

/// The reason why a packet goes to the host. There `decide` answers: with a drop, a reply, a flood, or a flow to be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Punt {
    /// No reason: the packet does not go to the host.
    None = 0,
    /// The host decides all packets of this port (unknown port, meter, mirror, capture).
    HostPort = 1,
    /// The frame ends inside its Ethernet header.
    EthernetTruncated = 2,
    /// More than two VLAN tags.
    TooManyTags = 3,
    /// ARP, or neighbour discovery (ICMPv6 types 133 to 137).
    Neighbour = 4,
    /// The packet ends inside its IP header.
    IpTruncated = 5,
    /// IP version or header length is wrong.
    IpHeader = 6,
    /// The IP length does not fit the frame.
    IpLength = 7,
    /// The IPv4 header checksum is wrong.
    IpChecksum = 8,
    /// The source address is multicast, broadcast or loopback.
    IpSource = 9,
    /// IPv6 extension headers.
    Ipv6Extension = 10,
    /// A fragment: of a tracked connection, or from a guest whose sources are checked.
    Fragment = 11,
    /// The TCP, UDP, SCTP or ICMP header does not fit the packet.
    L4Malformed = 12,
    /// The headers end after the first two beats.
    HeaderTooLong = 13,
    /// The UDP, GRE, MPLS or VXLAN encapsulation is malformed, or has a GRE checksum, key or sequence number.
    TunnelMalformed = 14,
    /// A tunnel packet came in fragments.
    OuterFragment = 15,
    /// A packet from a wire that is not a tunnel packet to one of the wire's addresses.
    NotForUs = 16,
    /// More than one MPLS label.
    LabelStack = 17,
    /// The MPLS payload is not IP.
    TunnelPayload = 18,
    /// No table entry for the label, or an entry that the host serves.
    UnknownLabel = 19,
    /// No table entry for the VXLAN network identifier.
    UnknownVni = 20,
    /// Congestion marked outside a packet that does not do ECN (RFC 6040).
    Ecn = 21,
    /// A group MAC address: the host floods the packet.
    Group = 22,
    /// A VLAN tag on a frame to the gateway, or a tag with only a priority. From an `exact` port, any tag, and any frame to the gateway's MAC.
    Vlan = 23,
    /// The source MAC is not the port's; or it is a group's or the gateway's.
    MacSpoofed = 24,
    /// The source address is not one that the card knows as the port's. The card does not know link-local addresses.
    AddressSpoofed = 25,
    /// RoCEv2 (UDP 4791), which has rules of its own.
    Verbs = 26,
    /// An ICMP packet other than an echo, where connections are tracked or the sender's sources are checked.
    Icmp = 27,
    /// The source MAC is not known to be where the packet came from.
    Learn = 28,
    /// The destination MAC is not in the bridge table.
    BridgeMiss = 29,
    /// A packet that is not IP, but is to be routed or tracked, or is from a guest whose sources are checked.
    NotIp = 30,
    /// A packet that is to be routed, although an address is link-local, multicast, loopback or unspecified.
    NotRoutable = 31,
    /// No route.
    RouteMiss = 32,
    /// The network is not on the card.
    NoVrf = 33,
    /// Connections are tracked, or the port is `exact`, and this flow is not on the card.
    FlowMiss = 34,
    /// A TCP SYN, FIN or RST of a tracked connection.
    FlowTcp = 35,
    /// The flow's entry sends packets to the host.
    FlowHost = 36,
    /// The nexthop is one that the host serves (composite, local, unresolved, mirrored, attached).
    Nexthop = 37,
    /// The destination is where the packet came from (split horizon included).
    SamePort = 38,
    /// TTL or hop limit ran out.
    Ttl = 39,
    /// The packet is too big for the next link.
    Mtu = 40,
    /// Address translation of a packet with IPv4 options.
    Nat = 41,
    /// A tunnel packet from an address that the card does not know as a remote.
    UnknownRemote = 42,
    /// A packet to a DHCP client's port, from a guest whose sources are checked.
    Dhcp = 43,
    /// A tunnel packet over IPv6 without a UDP checksum.
    OuterChecksumMissing = 44,
    /// HBM answered a read for the packet's look-ups with an error, and the readable lines are not enough to decide.
    MemoryError = 45,
}

impl Punt {
    /// All values, in the order of their numbers.
    pub const ALL: &'static [Self] = &[
        Self::None,
        Self::HostPort,
        Self::EthernetTruncated,
        Self::TooManyTags,
        Self::Neighbour,
        Self::IpTruncated,
        Self::IpHeader,
        Self::IpLength,
        Self::IpChecksum,
        Self::IpSource,
        Self::Ipv6Extension,
        Self::Fragment,
        Self::L4Malformed,
        Self::HeaderTooLong,
        Self::TunnelMalformed,
        Self::OuterFragment,
        Self::NotForUs,
        Self::LabelStack,
        Self::TunnelPayload,
        Self::UnknownLabel,
        Self::UnknownVni,
        Self::Ecn,
        Self::Group,
        Self::Vlan,
        Self::MacSpoofed,
        Self::AddressSpoofed,
        Self::Verbs,
        Self::Icmp,
        Self::Learn,
        Self::BridgeMiss,
        Self::NotIp,
        Self::NotRoutable,
        Self::RouteMiss,
        Self::NoVrf,
        Self::FlowMiss,
        Self::FlowTcp,
        Self::FlowHost,
        Self::Nexthop,
        Self::SamePort,
        Self::Ttl,
        Self::Mtu,
        Self::Nat,
        Self::UnknownRemote,
        Self::Dhcp,
        Self::OuterChecksumMissing,
        Self::MemoryError,
    ];

    /// Returns the name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::HostPort => "host_port",
            Self::EthernetTruncated => "ethernet_truncated",
            Self::TooManyTags => "too_many_tags",
            Self::Neighbour => "neighbour",
            Self::IpTruncated => "ip_truncated",
            Self::IpHeader => "ip_header",
            Self::IpLength => "ip_length",
            Self::IpChecksum => "ip_checksum",
            Self::IpSource => "ip_source",
            Self::Ipv6Extension => "ipv6_extension",
            Self::Fragment => "fragment",
            Self::L4Malformed => "l4_malformed",
            Self::HeaderTooLong => "header_too_long",
            Self::TunnelMalformed => "tunnel_malformed",
            Self::OuterFragment => "outer_fragment",
            Self::NotForUs => "not_for_us",
            Self::LabelStack => "label_stack",
            Self::TunnelPayload => "tunnel_payload",
            Self::UnknownLabel => "unknown_label",
            Self::UnknownVni => "unknown_vni",
            Self::Ecn => "ecn",
            Self::Group => "group",
            Self::Vlan => "vlan",
            Self::MacSpoofed => "mac_spoofed",
            Self::AddressSpoofed => "address_spoofed",
            Self::Verbs => "verbs",
            Self::Icmp => "icmp",
            Self::Learn => "learn",
            Self::BridgeMiss => "bridge_miss",
            Self::NotIp => "not_ip",
            Self::NotRoutable => "not_routable",
            Self::RouteMiss => "route_miss",
            Self::NoVrf => "no_vrf",
            Self::FlowMiss => "flow_miss",
            Self::FlowTcp => "flow_tcp",
            Self::FlowHost => "flow_host",
            Self::Nexthop => "nexthop",
            Self::SamePort => "same_port",
            Self::Ttl => "ttl",
            Self::Mtu => "mtu",
            Self::Nat => "nat",
            Self::UnknownRemote => "unknown_remote",
            Self::Dhcp => "dhcp",
            Self::OuterChecksumMissing => "outer_checksum_missing",
            Self::MemoryError => "memory_error",
        }
    }
}

/// Encapsulations, numbered as `packet::TunnelKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Tunnel {
    /// RFC 7510.
    MplsUdp = 0,
    /// RFC 4023.
    MplsGre = 1,
    /// RFC 7348.
    Vxlan = 2,
}

impl Tunnel {
    /// All values, in the order of their numbers.
    pub const ALL: &'static [Self] = &[Self::MplsUdp, Self::MplsGre, Self::Vxlan];

    /// Returns the name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MplsUdp => "mpls_udp",
            Self::MplsGre => "mpls_gre",
            Self::Vxlan => "vxlan",
        }
    }
}

/// How a packet finds its nexthop. This is part of a flow's key, because rules and translation depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Path {
    /// By its destination MAC.
    Bridged = 0,
    /// By its destination address.
    Routed = 1,
    /// By its MPLS label.
    Labelled = 2,
}

impl Path {
    /// All values, in the order of their numbers.
    pub const ALL: &'static [Self] = &[Self::Bridged, Self::Routed, Self::Labelled];

    /// Returns the name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bridged => "bridged",
            Self::Routed => "routed",
            Self::Labelled => "labelled",
        }
    }
}

/// The contents of a 32-byte line of the flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FlowKind {
    /// Nothing.
    Empty = 0,
    /// An IPv4 flow.
    V4 = 1,
    /// The lower half of an IPv6 flow.
    V6Low = 2,
    /// The upper half of an IPv6 flow.
    V6High = 3,
}

impl FlowKind {
    /// All values, in the order of their numbers.
    pub const ALL: &'static [Self] = &[Self::Empty, Self::V4, Self::V6Low, Self::V6High];

    /// Returns the name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::V4 => "v4",
            Self::V6Low => "v6_low",
            Self::V6High => "v6_high",
        }
    }
}

/// The action for a flow's packets. 8 and more: like `forward`, but packets wait until the hold group in bits 1:0 is released in the turn in bit 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FlowAction {
    /// The host decides each packet.
    Host = 0,
    /// Forwarded by the tables, or by the flow's own nexthop.
    Forward = 1,
    /// Dropped; the reason is in `nexthop`, as `model::DropReason` numbers it.
    Drop = 2,
}

impl FlowAction {
    /// All values, in the order of their numbers.
    pub const ALL: &'static [Self] = &[Self::Host, Self::Forward, Self::Drop];

    /// Returns the name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Forward => "forward",
            Self::Drop => "drop",
        }
    }
}

/// The action for a packet that a table sends to a nexthop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum NexthopKind {
    /// The host decides the packet.
    Host = 0,
    /// The packet is dropped, as `discard_route`.
    Discard = 1,
    /// To a guest, with a new Ethernet header if the packet was routed.
    Guest = 2,
    /// Through a tunnel.
    Tunnel = 3,
    /// To the nexthop in the flow's entry; to the host if it has none.
    Flow = 4,
}

impl NexthopKind {
    /// All values, in the order of their numbers.
    pub const ALL: &'static [Self] = &[Self::Host, Self::Discard, Self::Guest, Self::Tunnel, Self::Flow];

    /// Returns the name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Discard => "discard",
            Self::Guest => "guest",
            Self::Tunnel => "tunnel",
            Self::Flow => "flow",
        }
    }
}

/// The kind of an entry of the IPv4 trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RouteKind {
    /// No route.
    None = 0,
    /// `value` is a nexthop.
    Nexthop = 1,
    /// `value` is a block of 256 entries, in units of 1 KiB.
    Child = 2,
}

impl RouteKind {
    /// All values, in the order of their numbers.
    pub const ALL: &'static [Self] = &[Self::None, Self::Nexthop, Self::Child];

    /// Returns the name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Nexthop => "nexthop",
            Self::Child => "child",
        }
    }
}

/// The meaning of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LabelKind {
    /// Unknown to the card.
    Host = 0,
    /// A guest: `nexthop` in the network `vrf`.
    Nexthop = 1,
    /// A network to route in: `vrf`.
    Vrf = 2,
}

impl LabelKind {
    /// All values, in the order of their numbers.
    pub const ALL: &'static [Self] = &[Self::Host, Self::Nexthop, Self::Vrf];

    /// Returns the name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Nexthop => "nexthop",
            Self::Vrf => "vrf",
        }
    }
}

/// The table to which a command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// HBM: 32-byte lines of the flow table: way in bit 31 of the address, bucket in bits 27:1, half in bit 0.
    Flow = 0,
    /// HBM: 32-byte lines of two `bridge` entries.
    Bridge = 1,
    /// HBM: 32-byte lines of eight `route4` entries, or one `route6`.
    Route = 2,
    /// `nexthop`, by number: the first on chip, the others, which do not fit there, in HBM. A command writes all of it.
    Nexthop = 3,
    /// On chip: `port`, by number.
    Port = 4,
    /// On chip: `vrf`, by number.
    Vrf = 5,
    /// On chip: `label`, by label.
    Label = 6,
    /// On chip: `vni`; address = way << 12 | hash.
    Vni = 7,
    /// On chip: one `nexthop`. It replaces the one with this number in HBM while that is written, in two halves. Number 0 replaces none.
    NexthopChange = 8,
    /// On chip: one flow in each place, by number: a `flow4` and zeros, or a `flow6`. A command writes all of it at once.
    Stash = 9,
    /// On chip: `remote`; address = way << 12 | hash.
    Remote = 10,
}

impl Table {
    /// All values, in the order of their numbers.
    pub const ALL: &'static [Self] = &[
        Self::Flow,
        Self::Bridge,
        Self::Route,
        Self::Nexthop,
        Self::Port,
        Self::Vrf,
        Self::Label,
        Self::Vni,
        Self::NexthopChange,
        Self::Stash,
        Self::Remote,
    ];

    /// Returns the name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Bridge => "bridge",
            Self::Route => "route",
            Self::Nexthop => "nexthop",
            Self::Port => "port",
            Self::Vrf => "vrf",
            Self::Label => "label",
            Self::Vni => "vni",
            Self::NexthopChange => "nexthop_change",
            Self::Stash => "stash",
            Self::Remote => "remote",
        }
    }
}

/// Commands of the command block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Command {
    /// Nothing.
    None = 0,
    /// Write `data` to `address` of `table`. Caches forget the line.
    Write = 1,
    /// Done once every later packet sees everything that was written before, and every earlier packet has left.
    Barrier = 2,
    /// Write zeros to as many lines of `table` as the first word of `data` says, from `address` on. Caches forget the lines.
    Clear = 3,
}

impl Command {
    /// All values, in the order of their numbers.
    pub const ALL: &'static [Self] = &[Self::None, Self::Write, Self::Barrier, Self::Clear];

    /// Returns the name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Write => "write",
            Self::Barrier => "barrier",
            Self::Clear => "clear",
        }
    }
}

/// An IPv4 flow. A bucket is two of them: 64 bytes. The key is the lower 128 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow4 {
    /// Source address. Bits 31:0.
    pub src: u32,
    /// Destination address. Bits 63:32.
    pub dst: u32,
    /// Source port, or ICMP echo's identifier; 0 if the protocol has none. Bits 79:64.
    pub sport: u16,
    /// Destination port, or the same identifier. Bits 95:80.
    pub dport: u16,
    /// IPv4 protocol. Bits 103:96.
    pub protocol: u8,
    /// Network of the packet on arrival. Bits 115:104.
    pub vrf: u16,
    /// `path`. Bits 117:116.
    pub path: u8,
    /// Whether the packet came from another host. Bits 118:118.
    pub from_tunnel: bool,
    /// 0. Bits 119:119.
    pub v6: bool,
    /// 0. Bits 127:120.
    pub zone: u8,
    /// `flow_kind`: v4. Bits 131:128.
    pub kind: u8,
    /// `flow_action`. Bits 135:132.
    pub action: u8,
    /// The entry is valid while this is its network's generation. Bits 143:136.
    pub generation: u8,
    /// The flow's counter. Bits 167:144.
    pub index: u32,
    /// Nexthop that replaces the tables', or the reason of a drop. Bits 187:168.
    pub nexthop: u32,
    /// Whether `nexthop` is a nexthop. Bits 188:188.
    pub has_nexthop: bool,
    /// Whether `new_src` replaces the source. Bits 189:189.
    pub nat_src: bool,
    /// Whether `new_dst` replaces the destination. Bits 190:190.
    pub nat_dst: bool,
    /// Whether the flow's routed packets keep their TTL. Packets from VXLAN never do. Bits 191:191.
    pub keep_ttl: bool,
    /// New source address. Bits 223:192.
    pub new_src: u32,
    /// New destination address. Bits 255:224.
    pub new_dst: u32,
}

impl Flow4 {
    /// Bytes of a line.
    pub const SIZE: usize = 32;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 32] {
        let mut line = [0; 32];
        put(&mut line, 0, 32, self.src.into());
        put(&mut line, 32, 32, self.dst.into());
        put(&mut line, 64, 16, self.sport.into());
        put(&mut line, 80, 16, self.dport.into());
        put(&mut line, 96, 8, self.protocol.into());
        put(&mut line, 104, 12, self.vrf.into());
        put(&mut line, 116, 2, self.path.into());
        put(&mut line, 118, 1, self.from_tunnel.into());
        put(&mut line, 119, 1, self.v6.into());
        put(&mut line, 120, 8, self.zone.into());
        put(&mut line, 128, 4, self.kind.into());
        put(&mut line, 132, 4, self.action.into());
        put(&mut line, 136, 8, self.generation.into());
        put(&mut line, 144, 24, self.index.into());
        put(&mut line, 168, 20, self.nexthop.into());
        put(&mut line, 188, 1, self.has_nexthop.into());
        put(&mut line, 189, 1, self.nat_src.into());
        put(&mut line, 190, 1, self.nat_dst.into());
        put(&mut line, 191, 1, self.keep_ttl.into());
        put(&mut line, 192, 32, self.new_src.into());
        put(&mut line, 224, 32, self.new_dst.into());
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 32]) -> Self {
        Self {
            src: get(line, 0, 32) as u32,
            dst: get(line, 32, 32) as u32,
            sport: get(line, 64, 16) as u16,
            dport: get(line, 80, 16) as u16,
            protocol: get(line, 96, 8) as u8,
            vrf: get(line, 104, 12) as u16,
            path: get(line, 116, 2) as u8,
            from_tunnel: get(line, 118, 1) != 0,
            v6: get(line, 119, 1) != 0,
            zone: get(line, 120, 8) as u8,
            kind: get(line, 128, 4) as u8,
            action: get(line, 132, 4) as u8,
            generation: get(line, 136, 8) as u8,
            index: get(line, 144, 24) as u32,
            nexthop: get(line, 168, 20) as u32,
            has_nexthop: get(line, 188, 1) != 0,
            nat_src: get(line, 189, 1) != 0,
            nat_dst: get(line, 190, 1) != 0,
            keep_ttl: get(line, 191, 1) != 0,
            new_src: get(line, 192, 32) as u32,
            new_dst: get(line, 224, 32) as u32,
        }
    }
}

/// An IPv6 flow: a whole bucket, two lines. It is valid while both lines have the same `version`. IPv6 flows with address translation stay on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow6 {
    /// Source address. Bits 127:0.
    pub src: u128,
    /// Source port, or ICMPv6 echo's identifier; 0 if the protocol has none. Bits 143:128.
    pub sport: u16,
    /// Destination port, or the same identifier. Bits 159:144.
    pub dport: u16,
    /// Next header. Bits 167:160.
    pub protocol: u8,
    /// Network of the packet on arrival. Bits 179:168.
    pub vrf: u16,
    /// `path`. Bits 181:180.
    pub path: u8,
    /// Whether the packet came from another host. Bits 182:182.
    pub from_tunnel: bool,
    /// 1. Bits 183:183.
    pub v6: bool,
    /// 0. Bits 191:184.
    pub zone: u8,
    /// Version, the same in both lines. Bits 199:192.
    pub version: u8,
    /// The entry is valid while this is its network's generation. Bits 207:200.
    pub generation: u8,
    /// The flow's counter. Bits 231:208.
    pub index: u32,
    /// `flow_action`. Bits 251:248.
    pub action: u8,
    /// `flow_kind`: v6_low. Bits 255:252.
    pub kind: u8,
    /// Destination address. Bits 383:256.
    pub dst: u128,
    /// Nexthop that replaces the tables', or the reason of a drop. Bits 403:384.
    pub nexthop: u32,
    /// Whether `nexthop` is a nexthop. Bits 404:404.
    pub has_nexthop: bool,
    /// Whether the flow's routed packets keep their hop limit. Packets from VXLAN never do. Bits 405:405.
    pub keep_ttl: bool,
    /// Version, the same in both lines. Bits 503:496.
    pub version_high: u8,
    /// `flow_kind`: v6_high. Bits 511:508.
    pub kind_high: u8,
}

impl Flow6 {
    /// Bytes of a line.
    pub const SIZE: usize = 64;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 64] {
        let mut line = [0; 64];
        put(&mut line, 0, 128, self.src);
        put(&mut line, 128, 16, self.sport.into());
        put(&mut line, 144, 16, self.dport.into());
        put(&mut line, 160, 8, self.protocol.into());
        put(&mut line, 168, 12, self.vrf.into());
        put(&mut line, 180, 2, self.path.into());
        put(&mut line, 182, 1, self.from_tunnel.into());
        put(&mut line, 183, 1, self.v6.into());
        put(&mut line, 184, 8, self.zone.into());
        put(&mut line, 192, 8, self.version.into());
        put(&mut line, 200, 8, self.generation.into());
        put(&mut line, 208, 24, self.index.into());
        put(&mut line, 248, 4, self.action.into());
        put(&mut line, 252, 4, self.kind.into());
        put(&mut line, 256, 128, self.dst);
        put(&mut line, 384, 20, self.nexthop.into());
        put(&mut line, 404, 1, self.has_nexthop.into());
        put(&mut line, 405, 1, self.keep_ttl.into());
        put(&mut line, 496, 8, self.version_high.into());
        put(&mut line, 508, 4, self.kind_high.into());
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 64]) -> Self {
        Self {
            src: get(line, 0, 128),
            sport: get(line, 128, 16) as u16,
            dport: get(line, 144, 16) as u16,
            protocol: get(line, 160, 8) as u8,
            vrf: get(line, 168, 12) as u16,
            path: get(line, 180, 2) as u8,
            from_tunnel: get(line, 182, 1) != 0,
            v6: get(line, 183, 1) != 0,
            zone: get(line, 184, 8) as u8,
            version: get(line, 192, 8) as u8,
            generation: get(line, 200, 8) as u8,
            index: get(line, 208, 24) as u32,
            action: get(line, 248, 4) as u8,
            kind: get(line, 252, 4) as u8,
            dst: get(line, 256, 128),
            nexthop: get(line, 384, 20) as u32,
            has_nexthop: get(line, 404, 1) != 0,
            keep_ttl: get(line, 405, 1) != 0,
            version_high: get(line, 496, 8) as u8,
            kind_high: get(line, 508, 4) as u8,
        }
    }
}

/// A MAC of a network. A line of the bridge table is two of them: 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// The MAC. Bits 47:0.
    pub mac: u64,
    /// The network. Bits 59:48.
    pub vrf: u16,
    /// Whether there is an entry. Bits 60:60.
    pub valid: bool,
    /// Whether the entry is configured: its MAC may be seen anywhere, because learning doesn't move it. Bits 61:61.
    pub fixed: bool,
    /// Nexthop of frames to the MAC. Bits 81:62.
    pub nexthop: u32,
    /// Whether the MAC is behind the tunnel endpoint `at`; otherwise it is behind the port `at`. Bits 82:82.
    pub at_tunnel: bool,
    /// IPv4 address or port. Behind an IPv6 tunnel endpoint all ones, from where no packet comes. Bits 114:83.
    pub at: u32,
}

impl Bridge {
    /// Bytes of a line.
    pub const SIZE: usize = 16;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 16] {
        let mut line = [0; 16];
        put(&mut line, 0, 48, self.mac.into());
        put(&mut line, 48, 12, self.vrf.into());
        put(&mut line, 60, 1, self.valid.into());
        put(&mut line, 61, 1, self.fixed.into());
        put(&mut line, 62, 20, self.nexthop.into());
        put(&mut line, 82, 1, self.at_tunnel.into());
        put(&mut line, 83, 32, self.at.into());
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 16]) -> Self {
        Self {
            mac: get(line, 0, 48) as u64,
            vrf: get(line, 48, 12) as u16,
            valid: get(line, 60, 1) != 0,
            fixed: get(line, 61, 1) != 0,
            nexthop: get(line, 62, 20) as u32,
            at_tunnel: get(line, 82, 1) != 0,
            at: get(line, 83, 32) as u32,
        }
    }
}

/// An entry of a trie of 16, 8 and 8 bits. A line is eight of them: 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route4 {
    /// Nexthop or block, according to `kind`. Bits 29:0.
    pub value: u32,
    /// `route_kind`. Bits 31:30.
    pub kind: u8,
}

impl Route4 {
    /// Bytes of a line.
    pub const SIZE: usize = 4;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 4] {
        let mut line = [0; 4];
        put(&mut line, 0, 30, self.value.into());
        put(&mut line, 30, 2, self.kind.into());
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 4]) -> Self {
        Self { value: get(line, 0, 30) as u32, kind: get(line, 30, 2) as u8 }
    }
}

/// An IPv6 prefix of one of the network's populated lengths, in a hash table of two choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route6 {
    /// The prefix; the bits after its length are 0. Bits 127:0.
    pub prefix: u128,
    /// The network. Bits 139:128.
    pub vrf: u16,
    /// Length of the prefix in bits. Bits 147:140.
    pub length: u8,
    /// Whether there is an entry. Bits 148:148.
    pub valid: bool,
    /// Nexthop of packets. Bits 168:149.
    pub nexthop: u32,
}

impl Route6 {
    /// Bytes of a line.
    pub const SIZE: usize = 32;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 32] {
        let mut line = [0; 32];
        put(&mut line, 0, 128, self.prefix);
        put(&mut line, 128, 12, self.vrf.into());
        put(&mut line, 140, 8, self.length.into());
        put(&mut line, 148, 1, self.valid.into());
        put(&mut line, 149, 20, self.nexthop.into());
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 32]) -> Self {
        Self {
            prefix: get(line, 0, 128),
            vrf: get(line, 128, 12) as u16,
            length: get(line, 140, 8) as u8,
            valid: get(line, 148, 1) != 0,
            nexthop: get(line, 149, 20) as u32,
        }
    }
}

/// A nexthop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nexthop {
    /// `nexthop_kind`. Bits 3:0.
    pub kind: u8,
    /// Whether connections are tracked on the way to this guest. Bits 4:4.
    pub policy: bool,
    /// `tunnel`. Bits 6:5.
    pub tunnel: u8,
    /// Whether the underlay is IPv6. Bits 7:7.
    pub outer_v6: bool,
    /// Port by which packets leave. Bits 17:8.
    pub port: u16,
    /// Bytes of the largest IP packet; through VXLAN less 4 for each VLAN tag. Bits 33:18.
    pub mtu: u16,
    /// MPLS label or VXLAN network identifier; for `discard`, the drop's reason in the numbering of `model::DropReason`. Bits 57:34.
    pub id: u32,
    /// Destination MAC of packets routed to a guest or into VXLAN. For packets from an `exact` port, the only destination MAC they may have. Bits 105:58.
    pub mac: u64,
    /// Outer source address; IPv4 in the lower 32 bits. Bits 233:106.
    pub outer_src: u128,
    /// Outer destination address. Bits 361:234.
    pub outer_dst: u128,
    /// Outer source MAC. For a guest, the only source MAC that packets from an `exact` port may have. Bits 409:362.
    pub outer_src_mac: u64,
    /// Outer destination MAC: the underlay next hop's. Bits 457:410.
    pub outer_dst_mac: u64,
    /// Output that leads to `port`: first the queues to the host, then the wires. Bits 461:458.
    pub egress: u8,
    /// For UDP over IPv6, the one's complement sum of the fields that its checksum covers and that are the same in every packet: addresses, protocol, destination port, label or VXLAN header. Bits 477:462.
    pub checksum: u16,
}

impl Nexthop {
    /// Bytes of a line.
    pub const SIZE: usize = 64;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 64] {
        let mut line = [0; 64];
        put(&mut line, 0, 4, self.kind.into());
        put(&mut line, 4, 1, self.policy.into());
        put(&mut line, 5, 2, self.tunnel.into());
        put(&mut line, 7, 1, self.outer_v6.into());
        put(&mut line, 8, 10, self.port.into());
        put(&mut line, 18, 16, self.mtu.into());
        put(&mut line, 34, 24, self.id.into());
        put(&mut line, 58, 48, self.mac.into());
        put(&mut line, 106, 128, self.outer_src);
        put(&mut line, 234, 128, self.outer_dst);
        put(&mut line, 362, 48, self.outer_src_mac.into());
        put(&mut line, 410, 48, self.outer_dst_mac.into());
        put(&mut line, 458, 4, self.egress.into());
        put(&mut line, 462, 16, self.checksum.into());
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 64]) -> Self {
        Self {
            kind: get(line, 0, 4) as u8,
            policy: get(line, 4, 1) != 0,
            tunnel: get(line, 5, 2) as u8,
            outer_v6: get(line, 7, 1) != 0,
            port: get(line, 8, 10) as u16,
            mtu: get(line, 18, 16) as u16,
            id: get(line, 34, 24) as u32,
            mac: get(line, 58, 48) as u64,
            outer_src: get(line, 106, 128),
            outer_dst: get(line, 234, 128),
            outer_src_mac: get(line, 362, 48) as u64,
            outer_dst_mac: get(line, 410, 48) as u64,
            egress: get(line, 458, 4) as u8,
            checksum: get(line, 462, 16) as u16,
        }
    }
}

/// A port: a guest or a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Whether there is a port. Bits 0:0.
    pub valid: bool,
    /// Whether it is a wire; otherwise it is a guest. Bits 1:1.
    pub is_wire: bool,
    /// Whether the host decides all packets of the port. Bits 2:2.
    pub host: bool,
    /// Whether connections are tracked. Bits 3:3.
    pub policy: bool,
    /// For a guest: whether `mac` is the only source that it may use. Bits 4:4.
    pub check_mac: bool,
    /// For a guest: whether its sources are checked. Then only the addresses here and `::` may be its sources, and the host decides packets that only it can tell apart. Bits 5:5.
    pub check_addresses: bool,
    /// Number of IPv4 addresses that are valid. Bits 7:6.
    pub addresses4: u8,
    /// Number of IPv6 addresses that are valid. Bits 9:8.
    pub addresses6: u8,
    /// A guest's network. Bits 21:10.
    pub vrf: u16,
    /// The port's MAC. Bits 69:22.
    pub mac: u64,
    /// An address of a guest, or an underlay address that ends tunnels. Bits 101:70.
    pub address4_0: u32,
    /// A second such address. Bits 133:102.
    pub address4_1: u32,
    /// An IPv6 address of a guest, or an IPv6 underlay address that ends tunnels. Bits 261:134.
    pub address6_0: u128,
    /// A second such address. Bits 389:262.
    pub address6_1: u128,
    /// For a guest: whether only bridged, untagged packets leave whose flow has a nexthop of its own. They must go from that nexthop's `outer_src_mac` to its `mac`. Bits 390:390.
    pub exact: bool,
}

impl Port {
    /// Bytes of a line.
    pub const SIZE: usize = 64;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 64] {
        let mut line = [0; 64];
        put(&mut line, 0, 1, self.valid.into());
        put(&mut line, 1, 1, self.is_wire.into());
        put(&mut line, 2, 1, self.host.into());
        put(&mut line, 3, 1, self.policy.into());
        put(&mut line, 4, 1, self.check_mac.into());
        put(&mut line, 5, 1, self.check_addresses.into());
        put(&mut line, 6, 2, self.addresses4.into());
        put(&mut line, 8, 2, self.addresses6.into());
        put(&mut line, 10, 12, self.vrf.into());
        put(&mut line, 22, 48, self.mac.into());
        put(&mut line, 70, 32, self.address4_0.into());
        put(&mut line, 102, 32, self.address4_1.into());
        put(&mut line, 134, 128, self.address6_0);
        put(&mut line, 262, 128, self.address6_1);
        put(&mut line, 390, 1, self.exact.into());
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 64]) -> Self {
        Self {
            valid: get(line, 0, 1) != 0,
            is_wire: get(line, 1, 1) != 0,
            host: get(line, 2, 1) != 0,
            policy: get(line, 3, 1) != 0,
            check_mac: get(line, 4, 1) != 0,
            check_addresses: get(line, 5, 1) != 0,
            addresses4: get(line, 6, 2) as u8,
            addresses6: get(line, 8, 2) as u8,
            vrf: get(line, 10, 12) as u16,
            mac: get(line, 22, 48) as u64,
            address4_0: get(line, 70, 32) as u32,
            address4_1: get(line, 102, 32) as u32,
            address6_0: get(line, 134, 128),
            address6_1: get(line, 262, 128),
            exact: get(line, 390, 1) != 0,
        }
    }
}

/// A network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vrf {
    /// Whether there is a network. Bits 0:0.
    pub valid: bool,
    /// Whether source MACs are learned. Bits 1:1.
    pub learning: bool,
    /// Generation of the network's valid flow entries. Bits 9:2.
    pub generation: u8,
    /// First level of the network's IPv4 trie: address in units of 256 KiB. Bits 29:10.
    pub root: u32,
    /// Populated IPv6 prefix lengths, longest first, a byte each; 255 ends them. Bits 157:30.
    pub lengths6: u128,
}

impl Vrf {
    /// Bytes of a line.
    pub const SIZE: usize = 32;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 32] {
        let mut line = [0; 32];
        put(&mut line, 0, 1, self.valid.into());
        put(&mut line, 1, 1, self.learning.into());
        put(&mut line, 2, 8, self.generation.into());
        put(&mut line, 10, 20, self.root.into());
        put(&mut line, 30, 128, self.lengths6);
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 32]) -> Self {
        Self {
            valid: get(line, 0, 1) != 0,
            learning: get(line, 1, 1) != 0,
            generation: get(line, 2, 8) as u8,
            root: get(line, 10, 20) as u32,
            lengths6: get(line, 30, 128),
        }
    }
}

/// An MPLS label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// `label_kind`. Bits 1:0.
    pub kind: u8,
    /// The network. Bits 13:2.
    pub vrf: u16,
    /// The guest's nexthop. Bits 33:14.
    pub nexthop: u32,
}

impl Label {
    /// Bytes of a line.
    pub const SIZE: usize = 5;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 5] {
        let mut line = [0; 5];
        put(&mut line, 0, 2, self.kind.into());
        put(&mut line, 2, 12, self.vrf.into());
        put(&mut line, 14, 20, self.nexthop.into());
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 5]) -> Self {
        Self { kind: get(line, 0, 2) as u8, vrf: get(line, 2, 12) as u16, nexthop: get(line, 14, 20) as u32 }
    }
}

/// A VXLAN network identifier, in a table of two ways: way 0 by its lower 12 bits, way 1 by those exclusive-ored with its upper 12.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vni {
    /// The identifier. Bits 23:0.
    pub vni: u32,
    /// The network. Bits 35:24.
    pub vrf: u16,
    /// Whether there is an entry. Bits 36:36.
    pub valid: bool,
}

impl Vni {
    /// Bytes of a line.
    pub const SIZE: usize = 5;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 5] {
        let mut line = [0; 5];
        put(&mut line, 0, 24, self.vni.into());
        put(&mut line, 24, 12, self.vrf.into());
        put(&mut line, 36, 1, self.valid.into());
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 5]) -> Self {
        Self { vni: get(line, 0, 24) as u32, vrf: get(line, 24, 12) as u16, valid: get(line, 36, 1) != 0 }
    }
}

/// An address from which tunnel packets are accepted, in a table of two ways: way 0 by its lower 12 bits, way 1 by those exclusive-ored with the next 12.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The address; IPv4 in the lower 32 bits. Bits 127:0.
    pub address: u128,
    /// Whether the address is IPv6. Bits 128:128.
    pub v6: bool,
    /// Whether there is an entry. Bits 129:129.
    pub valid: bool,
}

impl Remote {
    /// Bytes of a line.
    pub const SIZE: usize = 17;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 17] {
        let mut line = [0; 17];
        put(&mut line, 0, 128, self.address);
        put(&mut line, 128, 1, self.v6.into());
        put(&mut line, 129, 1, self.valid.into());
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 17]) -> Self {
        Self { address: get(line, 0, 128), v6: get(line, 128, 1) != 0, valid: get(line, 129, 1) != 0 }
    }
}

/// Metadata of a packet to or from the host, in a beat of its own in front of it. For a packet from the host that is to be sent unchanged, only `port`, `size` and `egress` matter. Without a frame after it, a beat from the host releases a hold group, or comes out unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PuntMeta {
    /// `punt`. Bits 5:0.
    pub reason: u8,
    /// Port by which the packet came in; from the host, the port by which it leaves. Bits 15:6.
    pub port: u16,
    /// Bytes of the frame after it. Bits 31:16.
    pub size: u16,
    /// Counts the packets from this pipe to the host: a gap is a loss. Bits 63:32.
    pub count: u32,
    /// Counter of the flow, if the flow's entry sent the packet to the host. Bits 87:64.
    pub index: u32,
    /// Network. Bits 99:88.
    pub vrf: u16,
    /// `path`. Bits 101:100.
    pub path: u8,
    /// Whether the packet came from another host. Bits 102:102.
    pub from_tunnel: bool,
    /// The packet's tag in the pipe. Bits 112:103.
    pub tag: u16,
    /// From the host: output that leads to `port`, as in `nexthop`. In OpenNIC's box, 15 stands for none: the guest at `port` sent the frame. Bits 116:113.
    pub egress: u8,
    /// From the host, without a frame: `hold` is released at `egress`, once this has come through each pipe. Bits 117:117.
    pub release_hold: bool,
    /// Hold group in bits 1:0, its turn in bit 2. Bits 120:118.
    pub hold: u8,
}

impl PuntMeta {
    /// Bytes of a line.
    pub const SIZE: usize = 64;

    /// Encodes a line. Bit 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn encode(&self) -> [u8; 64] {
        let mut line = [0; 64];
        put(&mut line, 0, 6, self.reason.into());
        put(&mut line, 6, 10, self.port.into());
        put(&mut line, 16, 16, self.size.into());
        put(&mut line, 32, 32, self.count.into());
        put(&mut line, 64, 24, self.index.into());
        put(&mut line, 88, 12, self.vrf.into());
        put(&mut line, 100, 2, self.path.into());
        put(&mut line, 102, 1, self.from_tunnel.into());
        put(&mut line, 103, 10, self.tag.into());
        put(&mut line, 113, 4, self.egress.into());
        put(&mut line, 117, 1, self.release_hold.into());
        put(&mut line, 118, 3, self.hold.into());
        line
    }

    /// Decodes a line.
    #[must_use]
    pub fn decode(line: &[u8; 64]) -> Self {
        Self {
            reason: get(line, 0, 6) as u8,
            port: get(line, 6, 10) as u16,
            size: get(line, 16, 16) as u16,
            count: get(line, 32, 32) as u32,
            index: get(line, 64, 24) as u32,
            vrf: get(line, 88, 12) as u16,
            path: get(line, 100, 2) as u8,
            from_tunnel: get(line, 102, 1) != 0,
            tag: get(line, 103, 10) as u16,
            egress: get(line, 113, 4) as u8,
            release_hold: get(line, 117, 1) != 0,
            hold: get(line, 118, 3) as u8,
        }
    }
}

/// Properties of the card, and the directory of its blocks.
pub mod identity {
    /// The block's type in the directory.
    pub const TYPE: u8 = 1;
    /// The version that this driver knows.
    pub const VERSION: u8 = 1;
    /// `VDCT` (0x56444354). (ro)
    pub const MAGIC: u32 = 0x000;
    /// Version of this description. The driver refuses other versions. (ro)
    pub const REVISION: u32 = 0x004;
    /// Downstream pipes in bits 7:0, upstream pipes in bits 15:8. (ro)
    pub const PIPES: u32 = 0x008;
    /// HBM channels: of the flow table in bits 7:0, bridge 15:8, route 23:16, nexthop 31:24. (ro)
    pub const CHANNELS: u32 = 0x00c;
    /// Clock of the pipes in MHz. (ro)
    pub const CLOCK: u32 = 0x010;
    /// Number of nexthops for which there is room. (ro)
    pub const NEXTHOPS: u32 = 0x014;
    /// Binary logarithm of the number of buckets in a way of the flow table. (ro)
    pub const FLOW_BUCKETS: u32 = 0x018;
    /// Binary logarithm of the number of lines in a way of the bridge table. (ro)
    pub const BRIDGE_LINES: u32 = 0x01c;
    /// Binary logarithm of the number of lines in a way of the table of IPv6 prefixes. (ro)
    pub const ROUTE6_LINES: u32 = 0x028;
    /// Number of nexthops on chip: those with the lowest numbers. (ro)
    pub const NEXTHOPS_ON_CHIP: u32 = 0x02c;
    /// Number of flows that have counters: those with the lowest numbers. (ro)
    pub const FLOW_COUNTERS: u32 = 0x040;
    /// Number of flows that have a seen bit, which shows whether packets came. A multiple of 64. (ro)
    pub const FLOWS_SEEN: u32 = 0x044;
    /// Number of flows for which the stash has room. (ro)
    pub const STASH_FLOWS: u32 = 0x050;
    /// Keeps the written value: shows that writes arrive. (rw)
    pub const SCRATCH: u32 = 0x020;
    /// Number of blocks in the directory. (ro)
    pub const BLOCKS: u32 = 0x024;
    /// One block in each: type in bits 31:24, version in bits 23:16, offset in units of 4 KiB in bits 15:0. There are 16, 4 bytes apart. (ro)
    pub const DIRECTORY: u32 = 0x100;
}

/// Commands, with which the host writes tables. It writes data, table, address, then the command. One command runs at a time; `done` counts them. The next data, table and address may be written while a command runs.
pub mod command {
    /// The block's type in the directory.
    pub const TYPE: u8 = 2;
    /// The version that this driver knows.
    pub const VERSION: u8 = 1;
    /// Data to write, bits 31:0 first. There are 16, 4 bytes apart. (rw)
    pub const DATA: u32 = 0x000;
    /// `table`. (rw)
    pub const TABLE: u32 = 0x040;
    /// Line or number in the table. (rw)
    pub const ADDRESS: u32 = 0x044;
    /// `command`: writing it begins the command. (wo)
    pub const COMMAND: u32 = 0x048;
    /// 1 while a command runs. (ro)
    pub const BUSY: u32 = 0x04c;
    /// Number of commands done since reset, in bits 30:0. Bit 31: HBM answered a write with an error since reset, so tables may have old lines. (ro)
    pub const DONE: u32 = 0x050;
}

/// The pipes.
pub mod engine {
    /// The block's type in the directory.
    pub const TYPE: u8 = 3;
    /// The version that this driver knows.
    pub const VERSION: u8 = 1;
    /// 1: packets are forwarded; 0: all go to the host. (rw)
    pub const ENABLE: u32 = 0x000;
    /// The turn in which each hold group was released last: for group g at output e, bit 4 * e + g. (ro)
    pub const RELEASED: u32 = 0x004;
    /// Packets that had to wait for a release, at all outputs. (ro)
    pub const HELD: u32 = 0x008;
    /// Packets dropped because their hold group's ring had no room, at all outputs. (ro)
    pub const HOLD_FULL: u32 = 0x00c;
    /// HBM's error responses since reset: beats of reads, and writes. No cache keeps such a line. (ro)
    pub const MEMORY_ERRORS: u32 = 0x010;
    /// HBM channels that answered with an error since reset, one bit each: those of the flow, bridge, route and nexthop tables. (ro)
    pub const FAILING_CHANNELS: u32 = 0x014;
    /// Packets that each guest's port may send to the host in a window of 2^18 clocks, about 1 ms. Further ones are dropped. 0: any number. (rw)
    pub const GUEST_BUDGET: u32 = 0x020;
    /// Packets that each wire's port may send to the host in such a window. (rw)
    pub const WIRE_BUDGET: u32 = 0x024;
    /// The reason of such a drop, in the numbering of `model::DropReason`. (rw)
    pub const BUDGET_REASON: u32 = 0x028;
    /// Secret of the flow and bridge tables' hash, 320 bits, bits 31:0 first. It must be set while the tables are empty. There are 10, 4 bytes apart. (rw)
    pub const SECRET: u32 = 0x040;
}

/// Counters, 64 bits, read one at a time: writing `select` takes a snapshot into `low` and `high`.
pub mod counters {
    /// The block's type in the directory.
    pub const TYPE: u8 = 4;
    /// The version that this driver knows.
    pub const VERSION: u8 = 1;
    /// Kind in bits 31:24: 0 packets received by a port, 1 bytes received, 2 packets sent, 3 bytes sent, 4 packets punted by reason, 5 packets dropped by reason, 6 packets of a flow, 7 bytes of a flow (each the sum of pipes' counters of 36 and 44 bits), 8 bytes punted by reason, 9 bytes dropped by reason. Number in bits 23:0. (rw)
    pub const SELECT: u32 = 0x000;
    /// Bits 31:0. (ro)
    pub const LOW: u32 = 0x004;
    /// Bits 63:32. (ro)
    pub const HIGH: u32 = 0x008;
    /// Number of a word of 64 flows. Writing it moves their seen bits into `seen_low` and `seen_high`, and clears them. A packet sets the bit of its flow if the flow's entry forwards or drops it. (wo)
    pub const SEEN: u32 = 0x010;
    /// Bits 31:0: the first 32 flows, from 64 times the word's number on. (ro)
    pub const SEEN_LOW: u32 = 0x014;
    /// Bits 63:32. (ro)
    pub const SEEN_HIGH: u32 = 0x018;
    /// Writing takes the next event of flows' counters. Bit 31: there is an event. Bits 23:0: a flow whose count of packets (bit 24) or bytes (bit 25) passed a further eighth of its range (2^36 packets, 2^44 bytes, in each pipe); after the last eighth, the count begins anew. Bit 30: events were lost since the last was taken, so counts of any flow may have passed one. (rw)
    pub const FLOW_EVENT: u32 = 0x01c;
}
