//! The reasons why a packet can't be parsed or written.

/// An error in a packet. Each error has its own drop reason and counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum ParseError {
    /// The frame ends inside the Ethernet header or a tag.
    #[error("frame ends inside the Ethernet header")]
    EthernetTruncated,
    /// More than two VLAN tags.
    #[error("more than two VLAN tags")]
    TooManyTags,
    /// ARP body too short or not IPv4 over Ethernet, or an unknown operation.
    #[error("malformed ARP")]
    ArpMalformed,
    /// Shorter than the IP header.
    #[error("packet ends inside the IP header")]
    IpTruncated,
    /// Version field does not fit the EtherType, or IHL below 5.
    #[error("bad IP version or header length")]
    IpHeader,
    /// Total length below the header's or above the frame's.
    #[error("IP length does not fit the frame")]
    IpLength,
    /// IPv4 header checksum wrong.
    #[error("wrong IPv4 header checksum")]
    IpChecksum,
    /// A source address that no host may use (multicast, broadcast, loopback).
    #[error("invalid source address")]
    IpSource,
    /// IPv6 extension headers that are malformed, out of place, or too many.
    #[error("malformed IPv6 extension headers")]
    Ipv6Extension,
    /// A fragment that ends past byte 65535, that is not the last but whose length is no multiple of 8, or that could
    /// overwrite the TCP header in the first one (RFC 3128); or a first fragment without the whole L4 header.
    #[error("malformed fragment")]
    Fragment,
    /// L4 header ends past the packet, or its length field is impossible.
    #[error("malformed L4 header")]
    L4Malformed,
    /// The headers end within the packet but past the bytes that the caller has at hand.
    #[error("headers longer than the snapshot")]
    HeaderTooLong,
    /// UDP, GRE, MPLS, VXLAN or Geneve encapsulation malformed (flags, bottom of stack, length).
    #[error("malformed tunnel header")]
    TunnelMalformed,
    /// Geneve with a critical option, a control packet, or a payload that is no Ethernet frame.
    #[error("Geneve with critical options, for control, or without an Ethernet frame")]
    TunnelRefused,
}

/// The reason why a packet can't be written or edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum WriteError {
    /// The buffer is too short.
    #[error("buffer too short")]
    TooShort,
    /// The packet has no such header, or the header has another address family.
    #[error("the packet has no such header, or one of another address family")]
    Mismatch,
    /// No host may answer this packet in this way.
    #[error("the packet must not be answered")]
    Unanswerable,
}
