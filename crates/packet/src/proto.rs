//! Numbers assigned by IEEE and IANA, and the lengths of fixed headers.

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of RARP (RFC 903).
pub const ETHERTYPE_RARP: u16 = 0x8035;
/// EtherType of an 802.1Q tag (C-VLAN).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Protocol type of Ethernet frames in Geneve ("transparent Ethernet bridging").
pub const ETHERTYPE_TEB: u16 = 0x6558;
/// EtherType of unicast MPLS; also the GRE protocol type (RFC 4023).
pub const ETHERTYPE_MPLS: u16 = 0x8847;
/// EtherType of an 802.1ad tag (S-VLAN).
pub const ETHERTYPE_QINQ: u16 = 0x88a8;

/// IPv6 hop-by-hop options header.
pub const HOP_BY_HOP: u8 = 0;
/// ICMP.
pub const ICMP: u8 = 1;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// DCCP.
pub const DCCP: u8 = 33;
/// IPv6 routing header.
pub const ROUTING: u8 = 43;
/// IPv6 fragment header.
pub const FRAGMENT: u8 = 44;
/// GRE.
pub const GRE: u8 = 47;
/// Authentication header.
pub const AH: u8 = 51;
/// ICMPv6.
pub const ICMPV6: u8 = 58;
/// IPv6 without a next header.
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options header.
pub const DESTINATION_OPTIONS: u8 = 60;
/// SCTP.
pub const SCTP: u8 = 132;
/// UDP-Lite.
pub const UDP_LITE: u8 = 136;

/// UDP port of VXLAN (RFC 7348).
pub const PORT_VXLAN: u16 = 4789;
/// UDP port of Geneve (RFC 8926).
pub const PORT_GENEVE: u16 = 6081;
/// UDP port of BFD with neighbours behind routers (RFC 5883, 5).
pub const PORT_BFD_MULTIHOP: u16 = 4784;
/// UDP port of questions of seamless BFD (RFC 7881, 3).
pub const PORT_SBFD: u16 = 7784;
/// UDP port of RoCEv2.
pub const PORT_ROCE: u16 = 4791;
/// UDP port of MPLS over UDP (RFC 7510).
pub const PORT_MPLS: u16 = 6635;

/// Length of an Ethernet header without tags, bytes.
pub const ETHERNET_LEN: usize = 14;
/// Length of one 802.1Q or 802.1ad tag, bytes.
pub const VLAN_LEN: usize = 4;
/// Length of an ARP body for IPv4 over Ethernet, bytes.
pub const ARP_LEN: usize = 28;
/// Length of an IPv4 header without options, bytes.
pub const IPV4_LEN: usize = 20;
/// Length of an IPv6 header without extension headers, bytes.
pub const IPV6_LEN: usize = 40;
/// Length of a TCP header without options, bytes.
pub const TCP_LEN: usize = 20;
/// Length of a UDP header, bytes.
pub const UDP_LEN: usize = 8;
/// Length of the SCTP common header, bytes.
pub const SCTP_LEN: usize = 12;
/// Length of an ICMP or ICMPv6 header with the four bytes whose meaning depends on the type, bytes.
pub const ICMP_LEN: usize = 8;
/// Length of a GRE header without optional fields, bytes.
pub const GRE_LEN: usize = 4;
/// Length of an MPLS label stack entry, bytes.
pub const MPLS_LEN: usize = 4;
/// Length of a VXLAN header, and of a Geneve header without options, bytes.
pub const VXLAN_LEN: usize = 8;

/// ICMP echo reply.
pub const ICMP_ECHO_REPLY: u8 = 0;
/// ICMP destination unreachable.
pub const ICMP_UNREACHABLE: u8 = 3;
/// ICMP source quench (deprecated by RFC 6633).
pub const ICMP_SOURCE_QUENCH: u8 = 4;
/// ICMP redirect.
pub const ICMP_REDIRECT: u8 = 5;
/// ICMP echo request.
pub const ICMP_ECHO_REQUEST: u8 = 8;
/// ICMP router advertisement (RFC 1256).
pub const ICMP_ROUTER_ADVERTISEMENT: u8 = 9;
/// ICMP time exceeded.
pub const ICMP_TIME_EXCEEDED: u8 = 11;
/// ICMP parameter problem.
pub const ICMP_PARAMETER_PROBLEM: u8 = 12;

/// ICMPv6 destination unreachable.
pub const ICMPV6_UNREACHABLE: u8 = 1;
/// ICMPv6 packet too big.
pub const ICMPV6_TOO_BIG: u8 = 2;
/// ICMPv6 time exceeded.
pub const ICMPV6_TIME_EXCEEDED: u8 = 3;
/// ICMPv6 parameter problem.
pub const ICMPV6_PARAMETER_PROBLEM: u8 = 4;
/// ICMPv6 echo request.
pub const ICMPV6_ECHO_REQUEST: u8 = 128;
/// ICMPv6 echo reply.
pub const ICMPV6_ECHO_REPLY: u8 = 129;
/// ICMPv6 multicast listener report (RFC 2710).
pub const MLD_REPORT: u8 = 131;
/// ICMPv6 multicast listener done (RFC 2710).
pub const MLD_DONE: u8 = 132;
/// ICMPv6 router solicitation.
pub const ND_ROUTER_SOLICITATION: u8 = 133;
/// ICMPv6 router advertisement.
pub const ND_ROUTER_ADVERTISEMENT: u8 = 134;
/// ICMPv6 neighbour solicitation.
pub const ND_SOLICITATION: u8 = 135;
/// ICMPv6 neighbour advertisement.
pub const ND_ADVERTISEMENT: u8 = 136;
/// ICMPv6 redirect.
pub const ND_REDIRECT: u8 = 137;
/// ICMPv6 multicast listener report, version 2 (RFC 3810).
pub const MLD2_REPORT: u8 = 143;

/// TCP flag FIN.
pub const TCP_FIN: u8 = 1;
/// TCP flag SYN.
pub const TCP_SYN: u8 = 2;
/// TCP flag RST.
pub const TCP_RST: u8 = 4;
/// TCP flag PSH.
pub const TCP_PSH: u8 = 8;
/// TCP flag ACK.
pub const TCP_ACK: u8 = 16;
/// TCP flag CWR.
pub const TCP_CWR: u8 = 128;

/// MPLS IPv4 explicit null label (RFC 3032).
pub const MPLS_EXPLICIT_NULL_V4: u32 = 0;
/// MPLS IPv6 explicit null label (RFC 3032).
pub const MPLS_EXPLICIT_NULL_V6: u32 = 2;
