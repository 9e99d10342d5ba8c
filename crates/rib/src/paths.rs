//! The paths of routes.

use model::{NexthopId, Tunnel};
use std::net::IpAddr;
use std::sync::Arc;

/// Most places of all paths among which a route's flows are shared.
pub const MAX_PATHS: usize = 64;

/// A way for packets. It refers to nothing that can go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// To nowhere.
    Discard,
    /// To a router of the network itself.
    Via(IpAddr),
    /// To another host.
    Tunnel(Tunnel),
}

/// The paths of a route. Each flow takes one of them, and a path that has several places gets as many shares of the
/// flows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathSet(Arc<[Path]>);

impl PathSet {
    /// Makes a set of one path or more, each as often as its weight. `None`: there is none, or more than [`MAX_PATHS`].
    #[must_use]
    pub fn new(paths: impl IntoIterator<Item = Path>) -> Option<Self> {
        let mut paths: Vec<_> = paths.into_iter().collect();
        paths.sort_unstable();
        if paths.iter().all(|path| *path == paths[0]) {
            paths.truncate(1);
        }
        (1..=MAX_PATHS).contains(&paths.len()).then(|| Self(paths.into()))
    }

    /// Returns the paths in their order, each as often as its weight.
    #[must_use]
    pub fn paths(&self) -> &[Path] {
        &self.0
    }
}

/// Gives nexthops to paths, and counts the routes that have each.
pub trait Nexthops {
    /// Counts one more route with these paths, and returns their nexthop.
    fn take(&mut self, paths: &PathSet) -> NexthopId;
    /// Counts one route less that has a nexthop.
    fn put_back(&mut self, nexthop: NexthopId);
}
