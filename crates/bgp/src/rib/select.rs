//! Which of the learned routes are used (RFC 4271, 9.1.2; RFC 7432, 7.7).
//!
//! A network looks only at routes that it imports. Of what several peers sent of one route, that of the peer with the
//! best counts: one path, or several that are equally good (RFC 7911). Those of different distinguishers then compete
//! as paths: all that are equally good share the traffic.

use super::attributes::{Attributes, Way};
use super::{Key, PeerId, Rib, Route, of_mac, range, range_of};
use crate::bandwidth;
use crate::route::{KnownMac, MAX_FLOOD, MAX_PATHS, MacPath, Mobility, Path, Tunnel, VrfId};
use crate::update::nlri::{Kind, Name, Place};
use ipnet::IpNet;
use packet::Mac;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::{Bound, RangeInclusive};

/// Why one route is worse than another, in the order in which that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// The remote of its tunnel is down.
    Down,
    Preference,
    PathLength,
    Origin,
    Med,
    Internal,
    Identifier,
    Clusters,
    Peer,
}

/// A route that competes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contender<'a> {
    pub(crate) key: Key,
    pub(crate) route: Route,
    pub(crate) attributes: &'a Attributes,
    /// The label by which it would be used.
    pub(crate) label: u32,
}

impl Contender<'_> {
    fn tunnel(&self) -> Option<Tunnel> {
        let Attributes { next_hop: remote, way, .. } = *self.attributes;
        let Way::Tunnel(encapsulation) = way else { return None };
        Some(Tunnel { remote, encapsulation, label: self.label })
    }

    pub(crate) fn path(&self) -> Path {
        let Attributes { next_hop, router_mac, .. } = *self.attributes;
        self.tunnel().map_or(Path::Via(next_hop), |tunnel| Path::Tunnel { tunnel, router_mac })
    }
}

/// A function that is told each loser, with the reason.
pub(crate) type Losers<'a, 'b> = &'a mut dyn FnMut(&Contender<'b>, Rank);

/// Keeps the best, one after the other by each rank: all that are equally good as paths. `alone`: those of one peer.
fn sift<'a>(list: &mut Vec<Contender<'a>>, alone: bool, losers: Losers<'_, 'a>) {
    least(list, Rank::Preference, losers, |one| Reverse(one.attributes.preference));
    least(list, Rank::PathLength, losers, |one| one.attributes.path);
    least(list, Rank::Origin, losers, |one| one.attributes.origin);
    if list.len() > 1 {
        // It compares only what the same neighbour says.
        let mut lowest = HashMap::new();
        for one in &*list {
            let med = one.attributes.med;
            lowest.entry(one.attributes.neighbour).and_modify(|low| *low = med.min(*low)).or_insert(med);
        }
        least(list, Rank::Med, losers, |one| one.attributes.med - lowest[&one.attributes.neighbour]);
    }
    least(list, Rank::Internal, losers, |one| !one.attributes.external);
    if alone {
        keep_one_peer(list, losers);
    }
}

/// Keeps the paths of the peer that has the best of them.
fn keep_one_peer<'a>(list: &mut Vec<Contender<'a>>, losers: Losers<'_, 'a>) {
    let order = |one: &Contender<'_>| (one.attributes.originator, one.attributes.clusters, one.key.peer());
    let Some((originator, clusters, peer)) = list.iter().map(order).min() else { return };
    list.retain(|one| {
        let stays = one.key.peer() == peer;
        if !stays {
            losers(
                one,
                match one.attributes {
                    its if its.originator != originator => Rank::Identifier,
                    its if its.clusters != clusters => Rank::Clusters,
                    _ => Rank::Peer,
                },
            );
        }
        stays
    });
}

/// Keeps those with the least value.
fn least<'a, T: Ord>(
    list: &mut Vec<Contender<'a>>,
    rank: Rank,
    losers: Losers<'_, 'a>,
    value: impl Fn(&Contender<'a>) -> T,
) {
    if list.len() < 2 {
        return;
    }
    let Some(least) = list.iter().map(&value).min() else { return };
    list.retain(|one| {
        let stays = value(one) == least;
        if !stays {
            losers(one, rank);
        }
        stays
    });
}

impl Rib {
    /// Returns the best of each route in a range of the table, of those that count: several if one peer sent several
    /// paths.
    fn best<'a>(
        &'a self,
        range: RangeInclusive<Key>,
        counts: impl Fn(&Contender<'_>) -> bool,
        mut losers: impl FnMut(&Contender<'a>, Rank),
    ) -> Vec<Contender<'a>> {
        let (mut best, mut group) = (Vec::new(), Vec::new());
        let mut close = |group: &mut Vec<Contender<'a>>| {
            // Routers that say the same in their own right are as good as distinguishers.
            let alone = group.first().is_some_and(|one| one.key.name.kind != Kind::Plain);
            sift(group, alone, &mut losers);
            best.append(group);
        };
        for (key, route) in self.routes.range(range) {
            let one = self.contender(*key, *route);
            if !counts(&one) {
                continue;
            }
            if group.last().is_some_and(|last: &Contender<'_>| last.key.name != key.name) {
                close(&mut group);
            }
            group.push(one);
        }
        close(&mut group);
        best
    }

    fn contender(&self, key: Key, route: Route) -> Contender<'_> {
        Contender { key, route, attributes: self.store.get(route.attributes), label: route.label }
    }

    fn in_routes(&self, vrf: VrfId, one: &Contender<'_>) -> bool {
        self.store.networks(one.route.attributes).0.binary_search(&vrf).is_ok()
    }

    fn in_macs(&self, vrf: VrfId, one: &Contender<'_>) -> bool {
        self.store.networks(one.route.attributes).1.binary_search(&vrf).is_ok()
    }

    /// Returns the routes that a network uses for a prefix: the best. If all of these are down, the best of others.
    pub(crate) fn used<'a>(
        &'a self,
        vrf: VrfId,
        prefix: IpNet,
        losers: Losers<'_, 'a>,
    ) -> Vec<Contender<'a>> {
        let mut worse = Vec::new();
        let best = self.winners((vrf, prefix), true, &mut |one, why| worse.push((*one, why)));
        let is_down = |one: &Contender<'_>| self.is_down(one);
        if best.iter().all(is_down) {
            let others = self.winners((vrf, prefix), false, losers);
            if !others.is_empty() {
                let down = best.iter().chain(worse.iter().map(|(one, _)| one)).filter(|one| is_down(one));
                down.for_each(|one| losers(one, Rank::Down));
                return others;
            }
        }
        worse.iter().for_each(|(one, why)| losers(one, *why));
        best
    }

    /// Returns the best routes of a prefix: `with_down`: also among those to remotes that are down.
    fn winners<'a>(
        &'a self,
        (vrf, prefix): (VrfId, IpNet),
        with_down: bool,
        losers: Losers<'_, 'a>,
    ) -> Vec<Contender<'a>> {
        let counts = |one: &Contender<'_>| self.in_routes(vrf, one) && (with_down || !self.is_down(one));
        let mut all = self.best(range(Place::Prefix(prefix)), counts, &mut *losers);
        if prefix.prefix_len() == prefix.max_prefix_len() {
            for mac in self.owners(prefix.addr()) {
                // In a network that has the MAC address itself, its subnet leads to its owner.
                let counts =
                    |one: &Contender<'_>| one.route.routed > 0 && counts(one) && !self.in_macs(vrf, one);
                let hosts = self.best(range(Place::Mac(mac, Some(prefix.addr()))), counts, &mut *losers);
                all.extend(hosts.into_iter().map(|one| Contender { label: one.route.routed, ..one }));
            }
        }
        sift(&mut all, false, losers);
        all
    }

    /// Returns the paths of a prefix in a network, each as often as its weight: by bandwidths if all have one.
    pub(crate) fn paths(&self, vrf: VrfId, prefix: IpNet) -> Vec<Path> {
        let mut used = self.used(vrf, prefix, &mut |_, _| {});
        // The tables pass over those that are down only while they have others.
        if used.len() > MAX_PATHS && !used.iter().all(|one| self.is_down(one)) {
            used.retain(|one| !self.is_down(one));
        }
        let mut paths: Vec<_> =
            used.iter().map(|one| (one.path(), Reverse(one.attributes.bandwidth))).collect();
        paths.sort_unstable();
        // Several routes may name one path: the highest bandwidth counts.
        paths.dedup_by_key(|(path, _)| *path);
        paths.truncate(MAX_PATHS);
        let bandwidths: Option<Vec<_>> = paths.iter().map(|(_, Reverse(bandwidth))| *bandwidth).collect();
        let Some(bandwidths) = bandwidths.filter(|_| paths.len() > 1) else {
            return paths.into_iter().map(|(path, _)| path).collect();
        };
        let weighted = paths.into_iter().zip(bandwidth::places(&bandwidths));
        weighted.flat_map(|((path, _), weight)| std::iter::repeat_n(path, weight)).collect()
    }

    pub(super) fn owners(&self, address: IpAddr) -> impl Iterator<Item = Mac> {
        let range = (address, Mac([0; 6]))..=(address, Mac::BROADCAST);
        self.owners.range(range).map(|(_, mac)| *mac)
    }

    /// Returns where a MAC address of a network is.
    pub(crate) fn mac(&self, vrf: VrfId, mac: Mac) -> Option<MacPath> {
        let best = self.choose(|one| one, |with_down| self.best_mac(vrf, of_mac(mac), with_down))?;
        Some(MacPath { tunnel: best.tunnel()?, mobility: best.attributes.mobility })
    }

    /// Returns the last move of a MAC address, also to a remote that is down.
    pub(crate) fn mobility(&self, vrf: VrfId, mac: Mac) -> Option<Mobility> {
        self.best_mac(vrf, of_mac(mac), true).map(|best| best.attributes.mobility)
    }

    fn best_mac(&self, vrf: VrfId, range: RangeInclusive<Key>, with_down: bool) -> Option<Contender<'_>> {
        let counts = |one: &Contender<'_>| self.in_macs(vrf, one) && (with_down || !self.is_down(one));
        self.best(range, counts, |_, _| {}).into_iter().min_by_key(mac_order)
    }

    /// Returns the MAC address that has an IP address of a network.
    pub(crate) fn owner(&self, vrf: VrfId, address: IpAddr) -> Option<Mac> {
        let of = |mac| range(Place::Mac(mac, Some(address)));
        let best = |with_down| {
            let all =
                self.owners(address).filter_map(|mac| Some((self.best_mac(vrf, of(mac), with_down)?, mac)));
            all.min_by_key(|(one, mac)| (mac_order(one), *mac))
        };
        self.choose(|(one, _)| one, best).map(|(_, mac)| mac)
    }

    /// Returns MAC addresses of a network after one, in order: at most so many.
    pub(crate) fn macs(&self, vrf: VrfId, after: Option<Mac>, most: usize) -> Vec<KnownMac> {
        let mut first = after.map_or(*of_mac(Mac([0; 6])).start(), |mac| *of_mac(mac).end());
        let last = *of_mac(Mac::BROADCAST).end();
        let mut found = Vec::new();
        while found.len() < most && first < last {
            let mut keys = self.routes.range((Bound::Excluded(first), Bound::Included(last)));
            let is_its = |(key, route): &(&Key, &Route)| self.in_macs(vrf, &self.contender(**key, **route));
            let Some((Key { name: Name { place: Place::Mac(mac, _), .. }, .. }, _)) = keys.find(is_its)
            else {
                break;
            };
            let its = self.routes.range(of_mac(*mac)).filter(is_its);
            let mut addresses: Vec<_> = its
                .filter_map(|(key, _)| match key.name.place {
                    Place::Mac(_, address) => address,
                    Place::Prefix(_) | Place::Flood(_) => None,
                })
                .collect();
            addresses.dedup();
            found.extend(self.mac(vrf, *mac).map(|path| KnownMac { mac: *mac, addresses, path }));
            first = *of_mac(*mac).end();
        }
        found
    }

    /// Returns the tunnels for the floods of a network, and forgets routes that are not there any more.
    pub(crate) fn flood(&mut self, vrf: VrfId) -> Vec<Tunnel> {
        let (tunnels, gone) = self.floods(vrf);
        for name in gone {
            self.floods.remove(&(vrf, name));
        }
        tunnels
    }

    /// Returns the tunnels for the floods of a network, and the names of routes that are not there any more.
    pub(crate) fn floods(&self, vrf: VrfId) -> (Vec<Tunnel>, Vec<Name>) {
        let (lowest, highest) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::from(u128::MAX).into());
        let limits = range_of(Place::Flood(lowest), Place::Flood(highest));
        let names = (vrf, limits.start().name)..=(vrf, limits.end().name);
        let (mut tunnels, mut gone) = (Vec::new(), Vec::new());
        for (_, name) in self.floods.range(names) {
            let range = Key::new(*name, 0, [0; 4])..=Key::new(*name, PeerId::MAX, [0xff; 4]);
            match self.best(range, |one| self.in_macs(vrf, one), |_, _| {}).first() {
                Some(one) => tunnels.extend(one.tunnel()),
                None => gone.push(*name),
            }
        }
        tunnels.sort_unstable();
        // A host gets one copy, whatever labels it names.
        tunnels.dedup_by_key(|tunnel| tunnel.remote);
        tunnels.truncate(MAX_FLOOD);
        (tunnels, gone)
    }

    /// Returns prefixes after one, in order, with the paths that a network has for each.
    pub(crate) fn page(&self, vrf: VrfId, after: Option<IpNet>, most: usize) -> Vec<(IpNet, Vec<Path>)> {
        let behind = |prefix| Bound::Excluded(*range(Place::Prefix(prefix)).end());
        let mut first = after.map_or(Bound::Unbounded, behind);
        let mut found = Vec::new();
        while found.len() < most {
            // This looks at each key once, and works out paths only where there are some.
            let mut keys = self.routes.range((first, Bound::Unbounded));
            let imported = |(key, route): &(&Key, &Route)| {
                !matches!(key.name.place, Place::Prefix(_))
                    || self.in_routes(vrf, &self.contender(**key, **route))
            };
            let Some((Key { name: Name { place: Place::Prefix(prefix), .. }, .. }, _)) = keys.find(imported)
            else {
                break;
            };
            found.push((*prefix, self.paths(vrf, *prefix)));
            first = behind(*prefix);
        }
        found
    }
}

/// Returns the order of MAC addresses' routes: the one that moved last, then the preferred one, then the lowest address.
fn mac_order(one: &Contender<'_>) -> impl Ord + use<> {
    let Attributes { mobility, preference, path, next_hop, .. } = *one.attributes;
    (Reverse(mobility), Reverse(preference), path, next_hop, one.tunnel())
}
