//! Finds the users of objects, nexthops and neighbours: what refers to them.

use crate::core::View;
use config::{Key, Target};
use model::{BridgeTarget, Nexthop, NexthopId};
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

/// Users that are named; the rest is only counted.
const NAMED: usize = 16;

#[derive(Clone, Default)]
pub(super) struct Users {
    pub(super) names: Vec<String>,
    pub(super) count: u64,
}

fn note<K: Hash + Eq>(users: &mut HashMap<K, Users>, thing: K, user: impl FnOnce() -> String) {
    let users = users.entry(thing).or_default();
    users.count += 1;
    if users.names.len() < NAMED {
        users.names.push(user());
    }
}

/// Returns the users of objects, by key.
pub(super) fn of_objects(view: &View) -> HashMap<Key, Users> {
    let mut users = HashMap::new();
    for listed in view.objects.in_order() {
        let owned = listed.owned();
        let mut keys = owned.object.refers_to();
        keys.sort();
        keys.dedup();
        keys.into_iter().for_each(|key| note(&mut users, key, || owned.object.key().to_string()));
    }
    users
}

/// Returns the users of neighbours, by address.
pub(super) fn of_neighbours(view: &View) -> HashMap<IpAddr, Users> {
    let mut users = HashMap::new();
    for listed in view.objects.in_order() {
        let next_hops = listed.owned();
        let next_hops = next_hops.object.next_hops();
        next_hops.for_each(|addr| note(&mut users, addr, || listed.key().to_string()));
    }
    users
}

/// Returns the users of nexthops, by number.
pub(super) fn of_nexthops(view: &View) -> HashMap<NexthopId, Users> {
    let tables = &view.tables;
    let mut users = HashMap::new();
    for ((vrf, prefix), id) in tables.routes_in_force() {
        note(&mut users, id, || format!("route \"{prefix}\" of network \"{}\"", view.network_name(vrf)));
    }
    for (label, &id) in &tables.mpls {
        note(&mut users, id, || format!("mpls \"{label}\""));
    }
    for ((vrf, mac), target) in tables.macs_in_force() {
        if let BridgeTarget::Nexthop(id) = target {
            note(&mut users, id, || format!("mac \"{mac}\" of network \"{}\"", view.network_name(vrf)));
        }
    }
    for network in tables.networks.values() {
        network
            .flood
            .iter()
            .for_each(|&id| note(&mut users, id, || format!("flood of network \"{}\"", network.name)));
    }
    for (group, nexthop) in tables.nexthops.others() {
        if let Nexthop::Ecmp(members) = nexthop {
            let members = model::weights(members).into_iter();
            members.for_each(|(id, _)| note(&mut users, id, || format!("nexthop {group}")));
        }
    }
    users
}

/// Returns the names of the `[[nexthop]]`s from which nexthops in use come.
pub(super) fn nexthop_names(view: &View) -> HashMap<NexthopId, Vec<String>> {
    let mut names: HashMap<NexthopId, Vec<String>> = HashMap::new();
    for route in view.objects.routes().iter() {
        let to = route.to();
        let [Target::Nexthop(name)] = &*to else { continue };
        let network = view.network(route.network);
        let id = network.and_then(|network| view.tables.routes.get(&(network.vrf, route.prefix)));
        if let Some(id) = id {
            let names = names.entry(*id).or_default();
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    names
}
