//! What a key stands for: a memory region, or a memory window.

use uverbs::{Kind, Region};

/// What has a key.
#[derive(Debug)]
pub(crate) struct Keyed {
    pub key: u32,
    /// What the key is good for; nothing, where it is that of a window that is not bound.
    pub region: Option<Region>,
    pub window: Option<Window>,
    /// Windows that are bound to it.
    pub windows: u32,
}

/// What a key is known by that stays while a window's changes: all of it but its lowest byte, which the application
/// chooses.
pub(crate) const fn index(key: u32) -> u32 {
    key >> 8
}

impl Keyed {
    /// The key of the region: its own, or the one that it is bound to.
    pub fn region_key(&self) -> u32 {
        self.window.map_or(self.key, |window| window.to)
    }
}

/// A memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub pd: u32,
    pub is_type_2: bool,
    /// The key of the region that it is bound to.
    pub to: u32,
}

/// Whose peers may use a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUsers {
    /// That of the queue pair with this number.
    Of(u32),
    /// Those of all queue pairs of this protection domain.
    Domain(u32),
}

impl KeyUsers {
    pub const fn new(region: &Region) -> Self {
        match region.kind {
            Kind::WindowOf(qpn) => Self::Of(qpn),
            Kind::Region | Kind::Window => Self::Domain(region.pd),
        }
    }

    /// Whether the peer of the queue pair with this number, in this protection domain, may use the key.
    pub const fn include(self, qpn: u32, pd: u32) -> bool {
        match self {
            Self::Of(of) => of == qpn,
            Self::Domain(domain) => domain == pd,
        }
    }
}
