//! The meaning of a key: a memory region or a memory window.

use crate::base::ids::{Key, PdId, Qpn};
use uverbs::{Kind, Region};

/// The memory region or window of a key.
#[derive(Debug)]
pub(crate) struct KeyEntry {
    pub key: Key,
    /// The memory to which the key gives access. `None` for the key of a window that is not bound.
    pub region: Option<Region>,
    pub window: Option<Window>,
    /// How many windows are bound to it.
    pub windows: u32,
}

impl KeyEntry {
    /// Returns the key of the region: its own, or that of the region to which the window is bound.
    pub fn region_key(&self) -> Key {
        self.window.map_or(self.key, |window| window.to)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub pd: PdId,
    pub is_type_2: bool,
    /// The key of the region to which it is bound.
    pub to: Key,
}

/// A queue pair and its protection domain, on which the validity of a key depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpScope {
    pub pd: PdId,
    pub qpn: Qpn,
}

/// The peers that may use a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUsers {
    /// The peer of the queue pair with this number.
    Of(Qpn),
    /// The peers of all queue pairs of this protection domain.
    Domain(PdId),
}

impl KeyUsers {
    pub const fn new(region: &Region) -> Self {
        match region.kind {
            Kind::WindowOf(qpn) => Self::Of(Qpn(qpn)),
            Kind::Region | Kind::Window => Self::Domain(PdId(region.pd)),
        }
    }

    /// Is true if the peer of the queue pair with this number, in this protection domain, may use the key.
    pub fn include(self, qpn: Qpn, pd: PdId) -> bool {
        match self {
            Self::Of(of) => of == qpn,
            Self::Domain(domain) => domain == pd,
        }
    }
}
