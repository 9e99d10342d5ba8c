//! Nexthops of learned routes.

use super::{Compiler, Desired, Ids, Index, Links, User};
use model::{Nexthop, NexthopId, Vrf};
use rib::{Nexthops, Path, PathSet, Rib};
use std::collections::{BTreeMap, BTreeSet};

impl Compiler<'_> {
    /// Takes the nexthops of all learned routes, which `nexthops` has. They keep their numbers, as the others do.
    pub(super) fn learned(&mut self, learned: &Rib, nexthops: &executor::Nexthops) {
        let mut counts = BTreeMap::<NexthopId, u32>::new();
        learned.nexthops().for_each(|nexthop| *counts.entry(nexthop).or_default() += 1);
        for (nexthop, routes) in counts {
            let taken = paths_of(nexthops, nexthop).map(|paths| self.path_set(&paths, routes));
            debug_assert_eq!(taken, Some(nexthop));
        }
    }

    /// Takes the nexthop of so many routes with these paths.
    fn path_set(&mut self, paths: &PathSet, routes: u32) -> NexthopId {
        self.user = User::Routes(routes);
        let mut members: Vec<_> = paths.paths().iter().map(|path| self.nexthop(nexthop(*path))).collect();
        let id = match members[..] {
            [one] => one,
            _ => {
                members.sort_unstable();
                self.nexthop(Nexthop::Ecmp(members))
            }
        };
        self.user = User::Other;
        id
    }
}

impl Nexthops for Compiler<'_> {
    fn take(&mut self, paths: &PathSet) -> NexthopId {
        self.path_set(paths, 1)
    }

    fn put_back(&mut self, nexthop: NexthopId) {
        if let Some(paths) = paths_of(&self.out.nexthops, nexthop) {
            self.removing = true;
            self.path_set(&paths, 1);
            self.removing = false;
        }
    }
}

fn nexthop(path: Path) -> Nexthop {
    match path {
        Path::Discard => Nexthop::Discard,
        Path::Via(router) => Nexthop::Resolve { via: Some(router) },
        Path::Tunnel(tunnel) => Nexthop::Tunnel(tunnel),
    }
}

/// Returns the paths of a learned route's nexthop.
pub(crate) fn paths_of(nexthops: &executor::Nexthops, id: NexthopId) -> Option<PathSet> {
    let path = |id: NexthopId| match *nexthops.get(id)? {
        Nexthop::Discard => Some(Path::Discard),
        Nexthop::Resolve { via } => via.map(Path::Via),
        Nexthop::Tunnel(tunnel) => Some(Path::Tunnel(tunnel)),
        _ => None,
    };
    match &*nexthops.get(id)? {
        Nexthop::Ecmp(members) => {
            let paths: Option<Vec<Path>> = members.iter().map(|member| path(*member)).collect();
            PathSet::new(paths?)
        }
        _ => PathSet::new([path(id)?]),
    }
}

/// Changes learned routes in the tables `of`. The cost depends only on their number.
pub(crate) fn learn<T>(
    of: &Desired,
    index: &Index,
    ids: &mut Ids,
    change: impl FnOnce(&mut Rib, &mut dyn Nexthops) -> T,
) -> (Desired, T) {
    let (links, mut learned) = (Links::default(), of.learned.clone());
    let mut compiler = Compiler::new(index, ids, &links, of.clone());
    let result = change(&mut learned, &mut compiler);
    (Desired { learned, ..compiler.finish() }, result)
}

/// Gives no nexthops: what is removed is not in the next tables at all.
struct Gone;

impl Nexthops for Gone {
    fn take(&mut self, _: &PathSet) -> NexthopId {
        NexthopId::default()
    }

    fn put_back(&mut self, _: NexthopId) {}
}

/// Returns tables with nothing but what is learned in others, for networks that are there, and all nexthops.
pub(crate) fn kept_learned(of: &Desired, index: &Index) -> Desired {
    let vrfs: BTreeSet<u16> = index.networks().values().map(|network| network.vrf).collect();
    let is_kept = |vrf: Vrf| vrfs.contains(&vrf.0);
    let mut learned = of.learned.clone();
    learned.retain(is_kept, &mut Gone);
    let (bridges, nexthops) = (of.bridges.of_networks(is_kept), of.nexthops.clone());
    Desired { learned, bridges, nexthops, ..Desired::default() }
}
