//! Why a packet is dropped. Every drop has one of these and a counter; there is no silent drop.

mod advice;

use packet::ParseError;

macro_rules! reasons {
    ($($variant:ident = $name:literal, $help:literal;)*) => {
        /// The reason for a drop.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $help] $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the name that operators see.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the meaning, in a sentence.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }
        }
    };
}

reasons! {
    EthernetTruncated = "ethernet_truncated", "The frame ends inside its Ethernet header.";
    TooManyTags = "too_many_tags", "The frame has more than two VLAN tags, or would get more.";
    ArpMalformed = "arp_malformed", "ARP that is not IPv4 over Ethernet, or too short.";
    IpTruncated = "ip_truncated", "The packet ends inside its IP header.";
    IpHeader = "ip_header", "IP version or header length is wrong.";
    IpLength = "ip_length", "The IP length does not fit the frame.";
    IpChecksum = "ip_checksum", "The IPv4 header checksum is wrong.";
    IpSource = "ip_source", "The source address is multicast, broadcast or loopback.";
    Ipv6Extension = "ipv6_extension", "IPv6 extension headers are malformed or too many.";
    FragmentMalformed = "fragment_malformed", "A fragment overflows, or a first one lacks its L4 header.";
    L4Malformed = "l4_malformed", "The TCP, UDP, SCTP or ICMP header does not fit the packet.";
    HeaderTooLong = "header_too_long", "The headers are longer than Viaduct looks at.";
    TunnelMalformed = "tunnel_malformed", "The UDP, GRE, MPLS, VXLAN or Geneve encapsulation is malformed.";
    OffloadMalformed = "offload_malformed", "The sender's checksum or segmentation request does not fit the packet.";
    MacSpoofed = "mac_spoofed", "A guest used a source MAC that is not its own, or a group address.";
    AddressSpoofed = "address_spoofed", "A guest used a source address that is neither its own nor allowed.";
    NeighbourSpoofed = "neighbour_spoofed", "A guest claimed an address of another by ARP or ND.";
    RouterGuard = "router_guard", "A guest without `router = true` sent a router advertisement or a redirect.";
    DhcpGuard = "dhcp_guard", "A guest without `dhcp_server = true` sent a DHCP server message.";
    Snap = "snap", "A guest sent an LLC/SNAP header, behind which Viaduct checks nothing.";
    RdmaOwned = "rdma_owned", "UDP 4791 of this guest belongs to its verbs device.";
    VerbsOnly = "verbs_only", "The guest is only a verbs device, which takes UDP 4791 and answers ping.";
    ReservedMulticast = "reserved_multicast", "Link-local Ethernet group (01:80:c2:00:00:0x), which bridges do not forward.";
    SamePort = "same_port", "The destination is where the frame came from: behind the same port, or behind a tunnel as well (split horizon).";
    NoMember = "no_member", "A flood in a network where nobody else is connected (yet).";
    VlanUnexpected = "vlan_unexpected", "An unexpected VLAN tag: to a gateway, unknown on the wire, or a tenant's own tag from an attached network to the wire.";
    UnderlayTunnel = "underlay_tunnel", "A tenant's own tunnel packet, or its word on what fits such packets, leaving an attached network from or to an address of the underlay.";
    NoNetwork = "no_network", "The interface is in no network, or the network is gone.";
    NoRoute = "no_route", "No route to the destination.";
    DiscardRoute = "discard_route", "The route's target is drop.";
    NotRoutable = "not_routable", "A packet to be routed has a link-local, multicast or unspecified address.";
    RouteLoop = "route_loop", "Networks route to each other in a circle.";
    NexthopInvalid = "nexthop_invalid", "The nexthop or its interface is gone.";
    NoUnderlay = "no_underlay", "No wire, tunnel source or gateway reaches the tunnel's remote.";
    TtlExpired = "ttl_expired", "TTL or hop limit ran out.";
    Mtu = "mtu", "The packet is too big for the next link, and has Don't Fragment or is only bridged.";
    NotFragmented = "not_fragmented", "The packet is too big for the next link and may be fragmented, but no fragment fits. The sender is informed.";
    GatewayNoService = "gateway_no_service", "A packet other than ping to a gateway address.";
    NotForUs = "not_for_us", "A packet on the wire that is neither for this host nor for an attached network, or one with an `l3vni` to a MAC that is not this host's.";
    OuterFragment = "outer_fragment", "A tunnel packet came in fragments, over IPv6 or on a host with `tunnel_df = true`.";
    ReassemblyTimeout = "reassembly_timeout", "The other fragments of a tunnel packet did not come within a second.";
    ReassemblyFull = "reassembly_full", "Too many tunnel packets of a remote, or of all, wait for fragments.";
    ReassemblyFailed = "reassembly_failed", "The fragments of a tunnel packet do not fit together.";
    UnknownRemote = "unknown_remote", "A tunnel packet from an address that no nexthop and no `tunnel_peers` names, nor a wire's `remote` for its encapsulation.";
    UnknownLabel = "unknown_label", "No guest or network has this MPLS label.";
    LabelStack = "label_stack", "More MPLS labels than the one expected.";
    UnknownVni = "unknown_vni", "No wire has this network identifier with this remote and encapsulation, and no network has it that takes packets from there.";
    Ecn = "ecn", "Congestion marked outside a packet that does not do ECN (RFC 6040).";
    TunnelPayload = "tunnel_payload", "The payload behind an MPLS label or an `l3vni` is not IP, or the label is not for IP.";
    HoldFull = "hold_full", "Too many packets wait for a neighbour, or for their flow to move to the card.";
    NoNeighbour = "no_neighbour", "The next hop did not answer ARP or ND.";
    RuleDrop = "rule_drop", "A rule with the action drop matched.";
    RuleReject = "rule_reject", "A rule with the action reject matched.";
    DefaultDrop = "default_drop", "No rule matched, and the network's default is not allow.";
    TcpReset = "tcp_reset", "A TCP reset outside its receiver's window.";
    TcpMidstream = "tcp_midstream", "A TCP segment of a connection without a seen SYN, in a network with `tcp_midstream = false`.";
    Policed = "policed", "Over the rate of a police rule.";
    RateLimited = "rate_limited", "Over the guest's own rate.";
    RoceNat = "roce_nat", "RoCEv2's checksum (ICRC) covers addresses, so NAT would break it.";
    FlowQuota = "flow_quota", "The guest, or hosts behind a wire, have as many connections as their limit allows, or open too many in a second.";
    FlowTableFull = "flow_table_full", "The flow table is full, and no entry may be displaced by this flow; or the run-dir has no memory for its entry.";
    ReplyLimited = "reply_limited", "An answer or ICMP error was over its rate limit.";
    RxFull = "rx_full", "The kernel's buffer for the interface was full before Viaduct took the packet.";
    TxFull = "tx_full", "The receiver has no free buffers, or the kernel's queue is full.";
    TxTooLong = "tx_too_long", "The receiver's buffers, or the MTU of its device, are too small.";
    TxDown = "tx_down", "The receiver is not connected.";
    TxBusy = "tx_busy", "Another worker held the receiver's queue for too long.";
    SegmentFailed = "segment_failed", "A large packet could not be segmented for its receiver.";
    PuntBudget = "punt_budget", "The port sent more packets for the host (unknown flows, broadcasts, host-only features) than the card's budget allows.";
    SegmentTooSmall = "segment_too_small", "A large send asked for many segments of less than 64 bytes.";
    FloodLimited = "flood_limited", "The interface exceeded its limit of copies per second of broadcasts, multicasts and frames to unknown MACs.";
    TurnBudget = "turn_budget", "The interface's packets caused more work than one turn allows: copies of floods and mirrors, segments.";
    NotL2Gateway = "not_l2_gateway", "A frame between the tunnels and the wire of a network, on a host that is not its `l2_gateway`.";
    OuterChecksumMissing = "outer_checksum_missing", "A tunnel packet over IPv6 without a UDP checksum, on a host without `udp6_zero_checksum = true`.";
    OuterChecksumWrong = "outer_checksum_wrong", "A tunnel packet whose outer UDP checksum is wrong.";
    TunnelRefused = "tunnel_refused", "A Geneve packet with a critical option (Viaduct knows none), a control packet, or one without an Ethernet frame.";
    OvsDrop = "ovs_drop", "A flow of Open vSwitch drops it, or Open vSwitch has set its port or its destination down.";
    OvsAbsent = "ovs_absent", "No flow matches it, and no Open vSwitch has the port open and up.";
    RoutedOutside = "routed_outside", "Routed from another network to a wire without address translation, in a network without `routed_outside = true`.";
    ServiceFull = "service_full", "The guest asked a service of its network (DHCP, DNS) more quickly than it is served.";
    Shaped = "shaped", "Too many packets towards the guest wait for the rate of its `shape.in`.";
    Codel = "codel", "Packets towards the guest waited too long for the rate of its `shape.in`, so that their senders must slow down (CoDel, RFC 8289).";
    SnatPorts = "snat_ports", "The ports that were tried for the guest (64, of its block of an outside address) are all in use: to this destination or, with `snat_mapping = \"endpoint-independent\"`, to any.";
    SnatProtocol = "snat_protocol", "By an outside address that guests share, and neither TCP, UDP nor ping.";
    SnatUnknown = "snat_unknown", "By an outside address that guests share, and of no connection, nor to a forwarded port.";
}

impl From<ParseError> for DropReason {
    fn from(e: ParseError) -> Self {
        match e {
            ParseError::EthernetTruncated => Self::EthernetTruncated,
            ParseError::TooManyTags => Self::TooManyTags,
            ParseError::ArpMalformed => Self::ArpMalformed,
            ParseError::IpTruncated => Self::IpTruncated,
            ParseError::IpHeader => Self::IpHeader,
            ParseError::IpLength => Self::IpLength,
            ParseError::IpChecksum => Self::IpChecksum,
            ParseError::IpSource => Self::IpSource,
            ParseError::Ipv6Extension => Self::Ipv6Extension,
            ParseError::Fragment => Self::FragmentMalformed,
            ParseError::L4Malformed => Self::L4Malformed,
            ParseError::HeaderTooLong => Self::HeaderTooLong,
            ParseError::TunnelMalformed => Self::TunnelMalformed,
            ParseError::TunnelRefused => Self::TunnelRefused,
        }
    }
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
