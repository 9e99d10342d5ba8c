//! ICMP errors about known connections: they pass with the connection they are about (RFC 5508, 4).

use super::policy::is_of;
use super::share::Sharing;
use super::spoof::owns;
use super::{Frame, Origin, Walk};
use crate::{Connection, FlowKey, Lookup, Nat, Transport, Vrf};
use packet::{Ip, L4, proto};
use std::net::IpAddr;

impl<'a, T: Lookup> Walk<'a, T> {
    /// Returns the connection that an ICMP error to `dst`, an inside address, is about. The error must quote
    /// a packet of that connection that `dst` sent. Redirects are not errors.
    pub(super) fn refused(&self, frame: &Frame<'a>, ip: &Ip, dst: (Vrf, IpAddr)) -> Option<Connection> {
        let redirects = matches!(frame.headers.l4, L4::Icmp { kind: proto::ICMP_REDIRECT, .. });
        if ip.src.is_ipv4() && redirects {
            return None;
        }
        let quoted = frame.headers.quoted(self.packet.bytes, frame.end).ok()??;
        let refused = quoted.ip()?;
        if refused.src != ip.dst || !may_tell(&frame.origin, ip.src, refused.dst) {
            return None;
        }
        let Transport { protocol, ports } = Transport::of(&quoted)?;
        let (port, other) = ports?;
        let ports = (self.bound.and_then(|bound| bound.inside_port).unwrap_or(port), other);
        let key = FlowKey::new(dst, self.source(frame, refused.dst), protocol, ports);
        let known = self.connection(&key, ports).filter(|(known, reply)| is_of(known, *reply, &quoted));
        known.map(|(connection, _)| connection)
    }

    /// Returns the floating address in the network `outside_vrf` of the destination of the packet that an ICMP error
    /// quotes. `None` if the error comes from there itself: then it is that of its source.
    pub(super) fn quoted_floating(&self, frame: &Frame<'a>, src: IpAddr, outside_vrf: Vrf) -> Option<IpAddr> {
        let quoted = frame.headers.quoted(self.packet.bytes, frame.end).ok()??;
        let (ip, refused) = (frame.headers.ip()?, quoted.ip()?);
        if refused.src != ip.dst || refused.dst == src {
            return None;
        }
        self.tables.floating_of(frame.network.vrf, refused.dst, outside_vrf)
    }

    /// Lets an ICMP error of a router that has no address outside come from the floating address that the refused
    /// packet was sent to (RFC 5508, 4.2).
    pub(super) fn speak_for(
        &self,
        frame: &Frame<'a>,
        to: (Vrf, IpAddr),
        nat: Nat,
        sharing: Sharing,
    ) -> (Nat, Sharing) {
        let ip = frame.headers.ip().filter(|_| nat.src.is_none() && nat.quoted.is_some());
        match ip.and_then(|ip| self.refused(frame, ip, to)) {
            Some(_) => (Nat { src: nat.quoted, ..nat }, Sharing { out: None, ..sharing }),
            None => (nat, sharing),
        }
    }
}

/// Returns whether an error about a packet to `refused` may come from `src` through `origin`: the sender must
/// be the packet's destination or a router on the way. A guest with addresses counts as a router if it may
/// send from `refused`, or if it is configured as one. Other hosts check their own guests.
fn may_tell(origin: &Origin<'_>, src: IpAddr, refused: IpAddr) -> bool {
    match origin {
        Origin::Guest(vif) => {
            src == refused || vif.addresses.is_empty() || vif.roles.router || owns(vif, refused)
        }
        Origin::Attached { .. } | Origin::Tunnel { .. } | Origin::Gateway => true,
    }
}
