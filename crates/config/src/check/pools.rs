//! Checks the pools of networks, and the leases of their addresses.

use super::problem;
use crate::{Guest, Item, Lease, Network, Object, Problem};
use std::collections::HashMap;
use std::net::IpAddr;

/// Checks that pools have room for their guests, and that nobody else has their addresses.
pub(super) fn check(objects: &[Item], problems: &mut Vec<Problem>) {
    let (mut pools, mut guests) = (HashMap::new(), HashMap::new());
    for item in objects {
        match &item.object {
            Object::Network(network) if !network.pool.is_empty() => {
                pools.insert(network.name.as_str(), &**network);
            }
            Object::Guest(guest) => drop(guests.insert(guest.name.as_str(), &**guest)),
            _ => {}
        }
    }
    for item in objects {
        match &item.object {
            Object::Network(network) if !network.pool.is_empty() => {
                let clients = guests.values().filter(|guest| network.leases_to(guest)).count() as u128;
                room(item, network, clients, problems);
            }
            Object::Guest(guest) if !pools.is_empty() => fixed(item, guest, &pools, problems),
            Object::Lease(lease) => fits(item, lease, guests.get(lease.guest.as_str()).copied(), problems),
            _ => {}
        }
    }
}

fn room(item: &Item, network: &Network, clients: u128, problems: &mut Vec<Problem>) {
    for (v4, family) in [(true, "IPv4"), (false, "IPv6")] {
        let of_family = network.pool.iter().filter(|range| range.is_ipv4() == v4);
        let room = of_family.clone().fold(0_u128, |sum, range| sum.saturating_add(range.size()));
        if of_family.count() > 0 && clients > room {
            let message = format!(
                "{clients} guests have no `addresses`, and the pool has {room} of {family}; enlarge it"
            );
            problem(problems, item, "pool", message);
        }
    }
}

fn fixed(item: &Item, guest: &Guest, pools: &HashMap<&str, &Network>, problems: &mut Vec<Problem>) {
    let of = |network: &str, addr: IpAddr| {
        pools.get(network).is_some_and(|network| network.pool.iter().any(|range| range.contains(addr)))
    };
    let own = guest.addresses.iter().map(|addr| ("addresses", guest.network.as_str(), *addr));
    let vlans = guest
        .vlans
        .iter()
        .flat_map(|vlan| vlan.addresses.iter().map(|addr| ("vlans", vlan.network.as_str(), *addr)));
    for (key, network, addr) in own.chain(vlans).filter(|(_, network, addr)| of(network, *addr)) {
        let message = format!(
            "{addr} is in the `pool` of network \"{network}\", which leases it to guests without `addresses`; take one \
             outside the pool"
        );
        problem(problems, item, key, message);
    }
}

fn fits(item: &Item, lease: &Lease, guest: Option<&Guest>, problems: &mut Vec<Problem>) {
    let Some(guest) = guest else { return };
    if guest.network != lease.network {
        let message = format!("guest \"{}\" is of network \"{}\"", guest.name, guest.network);
        problem(problems, item, "network", message);
    }
    if !guest.addresses.is_empty() {
        let message = format!("guest \"{}\" has `addresses` of its own, so it leases none", guest.name);
        problem(problems, item, "addresses", message);
    }
    if let (Some(own), Some(mac)) = (guest.mac, lease.mac) {
        problem(
            problems,
            item,
            "mac",
            format!("guest \"{}\" has the MAC {own}; leave out {mac}", guest.name),
        );
    }
}
