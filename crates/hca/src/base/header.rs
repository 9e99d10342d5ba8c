//! The IP header of a RoCE packet: addresses, and what else an application chooses.

use crate::base::ids::Qpn;
use packet::{WriteError, build, proto};
use std::net::Ipv6Addr;

/// The fields of an IPv4 or IPv6 header that the sender chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetworkHeader {
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub flow_label: u32,
}

impl NetworkHeader {
    pub const fn is_v4(&self) -> bool {
        self.source.to_ipv4_mapped().is_some()
    }

    /// Returns the length of the header, bytes.
    pub const fn len(&self) -> usize {
        if self.is_v4() { proto::IPV4_LEN } else { proto::IPV6_LEN }
    }

    /// Writes the header of a packet with `payload` bytes after it. Returns the header's length.
    pub fn write(&self, out: &mut [u8], payload: usize) -> Result<usize, WriteError> {
        let Self { source, destination, traffic_class, hop_limit, flow_label } = *self;
        let (Some(src), Some(dst)) = (source.to_ipv4_mapped(), destination.to_ipv4_mapped()) else {
            return build::ipv6(
                out,
                &build::Ipv6 {
                    src: source,
                    dst: destination,
                    next_header: proto::UDP,
                    hop_limit,
                    traffic_class,
                    flow_label,
                    payload_len: payload as u16,
                },
            );
        };
        build::ipv4(
            out,
            &build::Ipv4 {
                src,
                dst,
                protocol: proto::UDP,
                ttl: hop_limit,
                tos: traffic_class,
                id: 0,
                dont_fragment: true,
                len: (payload + proto::IPV4_LEN) as u16,
            },
        )
    }

    /// Returns the header as the receiver of a datagram finds it before the payload (IBTA A17.4.4): the IPv6
    /// header, or 20 zeroes and the IPv4 header. `len` is the length of the UDP payload.
    pub fn received(&self, len: usize) -> [u8; rdma::NETWORK_HEADER] {
        let mut received = [0; rdma::NETWORK_HEADER];
        let at = rdma::NETWORK_HEADER - self.len();
        // There is room for both forms.
        let _ = self.write(&mut received[at..], len + proto::UDP_LEN);
        received
    }
}

/// Is true if a GID is a multicast address, IPv6 or mapped IPv4.
pub(crate) fn is_group(gid: Ipv6Addr) -> bool {
    gid.to_ipv4_mapped().map_or(gid.is_multicast(), |v4| v4.is_multicast())
}

/// Is true if both addresses are of the same IP version.
pub(crate) fn same_version(a: Ipv6Addr, b: Ipv6Addr) -> bool {
    a.to_ipv4_mapped().is_some() == b.to_ipv4_mapped().is_some()
}

/// Returns the UDP source port of a connection's packets, computed from the flow label or, without one, from the
/// numbers of both queue pairs (IBTA A17.9.2 requires one port for each flow; Linux computes it this way).
pub(crate) const fn source_port(flow_label: u32, qpn: Qpn, peer: Qpn) -> u16 {
    let label = if flow_label != 0 {
        flow_label
    } else {
        let mut mixed = qpn.0 as u64 * peer.0 as u64;
        mixed ^= mixed >> 20;
        mixed ^= mixed >> 40;
        mixed as u32 & 0xf_ffff
    };
    0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn groups_are_known_by_their_addresses() {
        for (gid, is) in [("::ffff:224.0.0.1", true), ("::ffff:239.1.2.3", true), ("ff0e::1", true)] {
            assert_eq!(is_group(gid.parse().unwrap()), is);
        }
        for gid in ["::ffff:10.0.0.1", "::ffff:255.255.255.255", "fe80::1", "::", "::e000:1"] {
            assert!(!is_group(gid.parse().unwrap()), "{gid}");
        }
    }

    #[test]
    fn source_ports_are_those_of_linux() {
        // Seen in captures: queue pairs 17 and 17.
        let mixed: u32 = 17 * 17;
        assert_eq!(source_port(0, Qpn(17), Qpn(17)), 0xc000 | mixed as u16);
        assert_eq!(source_port(0x4_0001, Qpn(17), Qpn(17)), 0xc000 | (1 ^ 0x10));
    }
}
