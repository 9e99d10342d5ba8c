//! Routes and targets that the host announces.

use crate::names::{Family, RouteTarget};
use crate::route::{Announcement, Nlri};
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
            Self::Route(nlri) => nlri.family(),
        }
    }
}

/// The routes of the host.
pub(crate) type Routes = BTreeMap<Nlri, Announcement>;
