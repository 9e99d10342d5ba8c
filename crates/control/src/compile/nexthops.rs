//! Numbers of nexthops. A million tunnels may differ in their label alone, so the rest of a tunnel is kept once.

use super::ids::{Pool, User};
use executor::Tunnels;
use model::Nexthop;
use std::sync::Arc;

/// Nexthops with their numbers and uses. A clone is cheap.
#[derive(Clone, Default)]
pub(super) struct NexthopIds {
    tunnels: Tunnels,
    pool: Pool<Small>,
}

/// A nexthop, where a tunnel is the number that it has without its label, and the label.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Small {
    Tunnel(u32, u32),
    Other(Arc<Nexthop>),
}

impl NexthopIds {
    /// Returns the small form, if a nexthop with this tunnel has a number.
    fn small(&self, nexthop: Nexthop) -> Option<Small> {
        match nexthop {
            Nexthop::Tunnel(tunnel) => {
                self.tunnels.number(&tunnel).map(|number| Small::Tunnel(number, tunnel.id))
            }
            other => Some(Small::Other(Arc::new(other))),
        }
    }

    pub(super) fn get(&self, nexthop: Nexthop) -> Option<u32> {
        self.pool.get(&self.small(nexthop)?)
    }

    /// Counts one more use of a nexthop, or one less if `removing`, and returns its number.
    pub(super) fn number(&mut self, nexthop: &Nexthop, (by, removing): (User, bool)) -> u32 {
        let small = self.small(nexthop.clone()).filter(|small| self.pool.get(small).is_some());
        match (small, nexthop) {
            (Some(small), _) => super::number(&mut self.pool, small, (by, removing)),
            (None, Nexthop::Tunnel(tunnel)) => {
                let number = self.tunnels.take(tunnel);
                self.pool.take(Small::Tunnel(number, tunnel.id), by)
            }
            (None, other) => self.pool.take(Small::Other(Arc::new(other.clone())), by),
        }
    }

    pub(super) fn reset(&mut self) {
        self.pool.reset();
    }

    pub(super) fn reset_others(&mut self) {
        self.pool.reset_others();
    }

    /// Frees the numbers of nexthops that nothing uses any more, and returns these.
    pub(super) fn sweep(&mut self) -> Vec<u32> {
        let freed = |(small, id): (Small, u32)| {
            if let Small::Tunnel(number, _) = small {
                self.tunnels.put_back(number);
            }
            id
        };
        self.pool.sweep().into_iter().map(freed).collect()
    }
}
