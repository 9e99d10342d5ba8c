//! Routes and targets that the host announces.

use crate::names::{Family, RouteTarget};
use crate::route::{Announcement, Nlri};
use ipnet::IpNet;
use std::collections::BTreeMap;

/// A name among what is announced. Targets come first, so that a peer knows what to send before it gets the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Own {
    /// A target that the host imports (RFC 4684).
    Target(RouteTarget),
    /// A route of the host.
    Route(Nlri),
}

impl Own {
    pub(crate) const fn family(&self) -> Family {
        match self {
            Self::Target(_) => Family::Rtc,
            Self::Route(Nlri::Vpn { prefix: IpNet::V4(_), .. }) => Family::Vpnv4,
            Self::Route(Nlri::Vpn { prefix: IpNet::V6(_), .. }) => Family::Vpnv6,
            Self::Route(Nlri::Unicast { prefix: IpNet::V4(_) }) => Family::Ipv4Unicast,
            Self::Route(Nlri::Unicast { prefix: IpNet::V6(_) }) => Family::Ipv6Unicast,
            Self::Route(Nlri::Prefix { .. } | Nlri::Mac { .. } | Nlri::Flood { .. }) => Family::Evpn,
        }
    }
}

/// The routes of the host.
pub(crate) type Routes = BTreeMap<Nlri, Announcement>;
