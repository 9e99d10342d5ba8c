//! The upper-layer fields that rules and connections use.

use packet::{Headers, L4, proto};

/// The protocol of a packet, and the fields that distinguish connections of that protocol between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// IP protocol.
    pub protocol: u8,
    /// The sender's and the receiver's port; zeros if the protocol has none. For an ICMP query, the
    /// identifier takes the place of the asker's port and the type takes the place of the answerer's, so
    /// replies have the type of their request (RFC 5508, 3). `None` if the packet belongs to no connection,
    /// such as ICMP that is neither a query nor a reply.
    pub ports: Option<(u16, u16)>,
}

/// ICMP that belongs to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    /// A request.
    Request,
    /// An answer to a request of this type.
    Reply(u8),
}

impl Transport {
    /// Returns the transport of a packet that is whole or a first fragment; `None` if the packet isn't IP.
    #[must_use]
    pub fn of(headers: &Headers) -> Option<Self> {
        let ip = headers.ip()?;
        let ports = match headers.l4 {
            L4::Icmp { kind, id, .. } => query(ip.src.is_ipv6(), kind).map(|query| match query {
                Query::Request => (id, kind.into()),
                Query::Reply(request) => (request.into(), id),
            }),
            _ => Some(headers.ports()),
        };
        Some(Self { protocol: ip.protocol, ports })
    }
}

/// Returns whether ICMP of this type is an echo request or reply.
pub(crate) const fn is_echo(kind: u8, protocol: u8) -> bool {
    match protocol {
        proto::ICMP => matches!(kind, proto::ICMP_ECHO_REQUEST | proto::ICMP_ECHO_REPLY),
        _ => matches!(kind, proto::ICMPV6_ECHO_REQUEST | proto::ICMPV6_ECHO_REPLY),
    }
}

/// Returns whether a protocol is ICMP, of either version.
pub(crate) const fn is_icmp(protocol: u8) -> bool {
    matches!(protocol, proto::ICMP | proto::ICMPV6)
}

/// Returns whether ICMP of this type (ICMPv6, if `v6`) asks or answers. Errors, redirects, the messages of
/// routers, of neighbour discovery and of group membership do neither, nor do unknown types.
pub(crate) const fn query(v6: bool, kind: u8) -> Option<Query> {
    use Query::{Reply, Request};
    Some(match (v6, kind) {
        (false, proto::ICMP_ECHO_REQUEST) | (true, proto::ICMPV6_ECHO_REQUEST) => Request,
        (false, proto::ICMP_ECHO_REPLY) => Reply(proto::ICMP_ECHO_REQUEST),
        (true, proto::ICMPV6_ECHO_REPLY) => Reply(proto::ICMPV6_ECHO_REQUEST),
        // Timestamp, information and address mask (RFC 792; RFC 950); extended echo (RFC 8335).
        (false, 13 | 15 | 17 | 42) => Request,
        (false, 14 | 16 | 18 | 43) => Reply(kind - 1),
        // Node information (RFC 4620); extended echo (RFC 8335).
        (true, 139 | 160) => Request,
        (true, 140 | 161) => Reply(kind - 1),
        _ => return None,
    })
}
