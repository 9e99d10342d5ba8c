//! What must hold between objects.

mod refers;
mod unique;

use crate::{Guest, Host, Item, Network, Object, Problem, Wire};
use std::collections::HashMap;
use std::net::IpAddr;

/// Checks everything that holds between the objects of a host; what is wrong with one alone was found when it was
/// read. Empty: nothing is wrong.
#[must_use]
pub fn check(host: &Host, objects: &[Item]) -> Vec<Problem> {
    check_beside(&[], host, objects)
}

/// The same, beside objects of these names that could not be read: that they are missing is no problem of others.
pub(crate) fn check_beside(unread: &[String], host: &Host, objects: &[Item]) -> Vec<Problem> {
    let mut problems = Vec::new();
    unique::check(objects, &mut problems);
    refers::check(&Index::new(host, objects, unread), objects, &mut problems);
    problems
}

/// Objects by name.
struct Index<'a> {
    tunnel_sources: Vec<IpAddr>,
    wires: HashMap<&'a str, &'a Wire>,
    networks: HashMap<&'a str, &'a Network>,
    guests: HashMap<&'a str, &'a Guest>,
    nexthops: Vec<&'a str>,
    /// Addresses of guests and gateways, by network.
    own: HashMap<(&'a str, IpAddr), &'a Item>,
    objects: &'a [Item],
    unread: &'a [String],
}

impl<'a> Index<'a> {
    fn new(host: &'a Host, objects: &'a [Item], unread: &'a [String]) -> Self {
        let mut index = Self {
            tunnel_sources: host.tunnel_sources(objects.iter().filter_map(|item| match &item.object {
                Object::Wire(wire) => Some(wire),
                _ => None,
            })),
            wires: HashMap::new(),
            networks: HashMap::new(),
            guests: HashMap::new(),
            nexthops: Vec::new(),
            own: HashMap::new(),
            objects,
            unread,
        };
        for item in objects {
            match &item.object {
                Object::Wire(wire) => drop(index.wires.insert(&wire.name, wire)),
                Object::Network(network) => {
                    index.networks.insert(&network.name, network);
                    let gateways = network.gateways.iter();
                    index.own.extend(gateways.map(|net| ((network.name.as_str(), net.addr()), item)));
                }
                Object::Guest(guest) => {
                    index.guests.insert(&guest.name, guest);
                    let addresses = guest.addresses.iter();
                    index.own.extend(addresses.map(|addr| ((guest.network.as_str(), *addr), item)));
                }
                Object::Nexthop(nexthop) => index.nexthops.push(&nexthop.name),
                _ => {}
            }
        }
        index
    }
}

/// Records a problem of an item at one of its keys.
fn problem(problems: &mut Vec<Problem>, item: &Item, key: &str, message: String) {
    problems.push(Problem::new(item.place.line(key), item.object.key().to_string(), message));
}
