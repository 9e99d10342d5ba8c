//! Addresses that may be intended, because some networks have them, but more often are a slip: those that no
//! host of their subnet can have, and those outside all subnets.

use crate::{Item, Network, Object, Problem};
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;

/// Returns warnings about addresses that are allowed, but risky or unusual.
#[must_use]
pub fn warnings(objects: &[Item]) -> Vec<Problem> {
    let networks: HashMap<&str, &[IpNet]> = objects
        .iter()
        .filter_map(|item| match &item.object {
            Object::Network(network) => Some((&*network.name, &*network.gateways)),
            _ => None,
        })
        .collect();
    let network = |item: &Item| match &item.object {
        Object::Network(network) if !network.pool.is_empty() => {
            Some((network.name.clone(), (**network).clone()))
        }
        _ => None,
    };
    let pools: HashMap<String, Network> = objects.iter().filter_map(network).collect();
    // The packets of a guest with a lease are checked.
    let leases = |item: &Item| match &item.object {
        Object::Guest(guest) => pools.get(&guest.network).is_some_and(|network| network.leases_to(guest)),
        _ => false,
    };
    let own = |item: &Item| item.warning().filter(|_| !leases(item));
    let each = objects.iter().flat_map(|item| own(item).into_iter().chain(of_addresses(item, &networks)));
    each.chain(super::services::warnings(objects)).chain(unguarded(objects)).collect()
}

/// Returns a warning for each network with floating addresses that nothing guards.
fn unguarded(objects: &[Item]) -> Vec<Problem> {
    let warnings = super::guards::unguarded(objects.iter().map(|item| &item.object));
    let problem = |(network, message): (String, String)| {
        let its = |item: &&Item| matches!(&item.object, Object::Nat(nat) if nat.network == network);
        let at = format!("network \"{network}\"");
        match objects.iter().find(its) {
            Some(item) => Problem { at, ..item.problem("outside", message) },
            None => Problem::new(None, at, message),
        }
    };
    warnings.into_iter().map(problem).collect()
}

fn of_addresses(item: &Item, networks: &HashMap<&str, &[IpNet]>) -> Vec<Problem> {
    let hosts = |nets: &[IpNet]| nets.iter().map(IpNet::addr).collect::<Vec<_>>();
    let (key, addresses, subnets, network) = match &item.object {
        Object::Network(network) => ("gateways", hosts(&network.gateways), &*network.gateways, None),
        Object::Wire(wire) => {
            let gateways = wire.gateway.iter().copied();
            (
                "addresses",
                hosts(&wire.addresses).into_iter().chain(gateways).collect(),
                &*wire.addresses,
                None,
            )
        }
        Object::Guest(guest) => {
            let subnets = networks.get(&*guest.network).copied().unwrap_or_default();
            ("addresses", guest.addresses.clone(), subnets, Some(&guest.network))
        }
        _ => return Vec::new(),
    };
    let message = |address: &IpAddr| match network {
        _ if subnets.iter().any(|subnet| is_reserved(subnet, *address)) => Some(format!(
            "{address} is the network or broadcast address of its subnet, which no host answers to: is it meant?"
        )),
        Some(network) if is_outside(subnets, *address) => Some(format!(
            "{address} is in none of the subnets of network \"{network}\" (its `gateways`): is it meant?"
        )),
        _ => None,
    };
    let problem = |message| item.problem(key, message);
    addresses.iter().filter_map(message).map(problem).collect()
}

/// Returns whether an address stands for the subnet, or for all hosts in it. The two addresses of a /31 are
/// hosts (RFC 3021).
fn is_reserved(subnet: &IpNet, address: IpAddr) -> bool {
    match subnet {
        IpNet::V4(net) => {
            net.prefix_len() < 31 && [net.network(), net.broadcast()].map(IpAddr::from).contains(&address)
        }
        IpNet::V6(_) => false,
    }
}

/// Returns whether there are subnets of the address's family, but none contains it.
fn is_outside(subnets: &[IpNet], address: IpAddr) -> bool {
    let mut of_family =
        subnets.iter().filter(|subnet| subnet.addr().is_ipv4() == address.is_ipv4()).peekable();
    of_family.peek().is_some() && !of_family.any(|subnet| subnet.contains(&address))
}
