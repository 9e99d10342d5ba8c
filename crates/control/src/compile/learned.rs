//! Nexthops of learned routes.

use super::{Compiler, Desired, Ids, Index, Links, User};
use model::{Nexthop, NexthopId, Vrf};
use rib::{Nexthops, Path, PathSet, Rib};
use std::collections::BTreeSet;

impl Compiler<'_> {
    /// Takes the nexthops of all path sets. They keep their numbers, as the others do.
    pub(super) fn path_sets(&mut self, learned: &Rib) {
        for (paths, nexthop) in learned.path_sets() {
            let taken = self.take(paths);
            debug_assert_eq!(taken, nexthop);
        }
    }

    fn path_set(&mut self, paths: &PathSet) -> NexthopId {
        self.user = User::Routes(1);
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
        self.path_set(paths)
    }

    fn put_back(&mut self, paths: &PathSet) {
        self.removing = true;
        self.path_set(paths);
        self.removing = false;
    }
}

fn nexthop(path: Path) -> Nexthop {
    match path {
        Path::Discard => Nexthop::Discard,
        Path::Via(router) => Nexthop::Resolve { via: Some(router) },
        Path::Tunnel(tunnel) => Nexthop::Tunnel(tunnel),
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

    fn put_back(&mut self, _: &PathSet) {}
}

/// Returns tables with nothing but what is learned in others, for networks that are there.
pub(crate) fn kept_learned(of: &Desired, index: &Index) -> Desired {
    let vrfs: BTreeSet<u16> = index.networks().values().map(|network| network.vrf).collect();
    let is_kept = |vrf: Vrf| vrfs.contains(&vrf.0);
    let mut learned = of.learned.clone();
    learned.retain(is_kept, &mut Gone);
    Desired { learned, bridges: of.bridges.of_networks(is_kept), ..Desired::default() }
}
