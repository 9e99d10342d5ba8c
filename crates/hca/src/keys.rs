//! What a key stands for: a memory region, or a memory window.

use crate::ids::{Key, PdId, Qpn};
use uverbs::{Kind, Region};

/// What has a key.
#[derive(Debug)]
pub(crate) struct Keyed {
    pub key: Key,
    /// What the key is good for; nothing, where it is that of a window that is not bound.
    pub region: Option<Region>,
    pub window: Option<Window>,
    /// Windows that are bound to it.
    pub windows: u32,
}

impl Keyed {
    /// The key of the region: its own, or the one that it is bound to.
    pub fn region_key(&self) -> Key {
        self.window.map_or(self.key, |window| window.to)
    }
}

/// A memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub pd: PdId,
    pub is_type_2: bool,
    /// The key of the region that it is bound to.
    pub to: Key,
}

/// Whose peers may use a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUsers {
    /// That of the queue pair with this number.
    Of(Qpn),
    /// Those of all queue pairs of this protection domain.
    Domain(PdId),
}

impl KeyUsers {
    pub const fn new(region: &Region) -> Self {
        match region.kind {
            Kind::WindowOf(qpn) => Self::Of(Qpn(qpn)),
            Kind::Region | Kind::Window => Self::Domain(PdId(region.pd)),
        }
    }

    /// Whether the peer of the queue pair with this number, in this protection domain, may use the key.
    pub fn include(self, qpn: Qpn, pd: PdId) -> bool {
        match self {
            Self::Of(of) => of == qpn,
            Self::Domain(domain) => domain == pd,
        }
    }
}
