//! Which network imports which routes.

use crate::config::Import;
use crate::names::RouteTarget;
use crate::route::VrfId;
use std::collections::BTreeMap;

/// The networks by route target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Imports {
    targets: BTreeMap<RouteTarget, Networks>,
}

/// Networks, sorted: those that import routes, and those that import MAC addresses and floods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Networks {
    pub(crate) routes: Box<[VrfId]>,
    pub(crate) macs: Box<[VrfId]>,
}

impl Imports {
    pub(crate) fn new(imports: &[Import]) -> Self {
        let mut lists: BTreeMap<RouteTarget, (Vec<VrfId>, Vec<VrfId>)> = BTreeMap::new();
        for import in imports {
            for target in &import.routes {
                lists.entry(*target).or_default().0.push(import.vrf);
            }
            for target in &import.macs {
                lists.entry(*target).or_default().1.push(import.vrf);
            }
        }
        let networks = |(routes, macs)| Networks { routes: sorted(routes), macs: sorted(macs) };
        Self { targets: lists.into_iter().map(|(target, lists)| (target, networks(lists))).collect() }
    }

    /// Returns all targets, sorted.
    pub(crate) fn targets(&self) -> impl Iterator<Item = RouteTarget> {
        self.targets.keys().copied()
    }

    pub(crate) fn has(&self, target: RouteTarget) -> bool {
        self.targets.contains_key(&target)
    }

    /// Returns the networks that import one of these targets.
    pub(crate) fn networks(&self, targets: &[RouteTarget]) -> Networks {
        let all = || targets.iter().filter_map(|target| self.targets.get(target));
        Networks {
            routes: sorted(all().flat_map(|networks| networks.routes.iter().copied()).collect()),
            macs: sorted(all().flat_map(|networks| networks.macs.iter().copied()).collect()),
        }
    }
}

fn sorted(mut vrfs: Vec<VrfId>) -> Box<[VrfId]> {
    vrfs.sort_unstable();
    vrfs.dedup();
    vrfs.into()
}
