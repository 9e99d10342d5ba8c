//! Path sets: each is kept once, however many routes have it.

use imbl::OrdMap;
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

/// Gives nexthops to path sets.
pub trait Nexthops {
    /// Returns the nexthop of a path set that comes into use.
    fn take(&mut self, paths: &PathSet) -> NexthopId;
    /// Takes back that of a path set which nothing uses any more.
    fn put_back(&mut self, paths: &PathSet);
}

#[derive(Clone, Debug, PartialEq)]
struct Used {
    paths: PathSet,
    nexthop: NexthopId,
    routes: u32,
}

/// The path sets in use, by number.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Paths {
    numbers: OrdMap<PathSet, u32>,
    used: OrdMap<u32, Used>,
    next: u32,
}

impl Paths {
    /// Counts one more route with these paths, and returns their number.
    pub(crate) fn take(&mut self, paths: &PathSet, nexthops: &mut dyn Nexthops) -> u32 {
        if let Some(number) = self.numbers.get(paths) {
            if let Some(used) = self.used.get_mut(number) {
                used.routes += 1;
            }
            return *number;
        }
        // Numbers in use are few, so one is found at once, also after four billion.
        while self.used.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        let nexthop = nexthops.take(paths);
        self.numbers.insert(paths.clone(), number);
        self.used.insert(number, Used { paths: paths.clone(), nexthop, routes: 1 });
        number
    }

    pub(crate) fn put_back(&mut self, number: u32, nexthops: &mut dyn Nexthops) {
        let Some(used) = self.used.get_mut(&number) else { return };
        used.routes -= 1;
        if used.routes == 0
            && let Some(unused) = self.used.remove(&number)
        {
            self.numbers.remove(&unused.paths);
            nexthops.put_back(&unused.paths);
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&PathSet> {
        self.used.get(&number).map(|used| &used.paths)
    }

    pub(crate) fn nexthop(&self, number: u32) -> Option<NexthopId> {
        self.used.get(&number).map(|used| used.nexthop)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&PathSet, NexthopId)> {
        self.used.values().map(|used| (&used.paths, used.nexthop))
    }
}
