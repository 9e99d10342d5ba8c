//! Which network imports which routes.

use super::attributes::{Attributes, Way};
use crate::config::{Import, Link};
use crate::names::RouteTarget;
use crate::route::VrfId;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The networks by route target, and those that take plain routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Imports {
    targets: BTreeMap<RouteTarget, Networks>,
    links: Vec<(VrfId, Link)>,
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
        Self {
            targets: lists.into_iter().map(|(target, lists)| (target, networks(lists))).collect(),
            links: imports.iter().filter_map(|import| Some((import.vrf, import.link.clone()?))).collect(),
        }
    }

    /// Returns all targets, sorted.
    pub(crate) fn targets(&self) -> impl Iterator<Item = RouteTarget> {
        self.targets.keys().copied()
    }

    pub(crate) fn has(&self, target: RouteTarget) -> bool {
        self.targets.contains_key(&target)
    }

    /// Returns the links of networks that take plain routes of this kind from a router: those on which it is. Else a
    /// router of one tenant could lead another one's packets away.
    pub(crate) fn links(&self, is_default: bool, router: IpAddr) -> impl Iterator<Item = &(VrfId, Link)> {
        self.links.iter().filter(move |(_, link)| (link.all || is_default) && link.reaches(router))
    }

    /// Returns whether a network takes plain routes that none of others took.
    pub(crate) fn has_more_links(&self, than: &Self) -> bool {
        self.links.iter().any(|link| !than.links.contains(link))
    }

    /// Returns the networks that import routes with these attributes.
    pub(crate) fn networks(&self, attributes: &Attributes) -> Networks {
        if let Way::Link { is_default, router } = attributes.way {
            let reaches = |(_, link): &&(VrfId, Link)| link.reaches(attributes.next_hop);
            let takers = self.links(is_default, router).filter(reaches);
            return Networks { routes: sorted(takers.map(|(vrf, _)| *vrf).collect()), ..Networks::default() };
        }
        let all = || attributes.targets.iter().filter_map(|target| self.targets.get(target));
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
