//! Checks values that no two objects may share.

use super::{Index, problem};
use crate::{Connection, Item, Object, Problem, RouteName, Way};
use std::collections::HashMap;

/// A claimed value in words, and the key that claims it.
type Claim = (String, &'static str);

/// Checks that every value is claimed only once.
pub(super) fn check(index: &Index, objects: &[Item], problems: &mut Vec<Problem>) {
    let mut claimed: HashMap<String, &Item> = HashMap::with_capacity(objects.len() * 2);
    for item in objects {
        let own = claims(&item.object);
        let is_taken = own.iter().any(|(what, _)| claimed.contains_key(what));
        // A clash is told once, without its consequences.
        let derived = if is_taken { Vec::new() } else { derived(index, &item.object) };
        for (what, key) in own.into_iter().chain(derived) {
            let Some(first) = claimed.get(&what) else {
                claimed.insert(what, item);
                continue;
            };
            if std::ptr::eq(*first, item) {
                problem(problems, item, key, format!("{what} is there twice"));
                continue;
            }
            let place = first.place.shown(key);
            if first.object.key() == item.object.key() {
                problem(problems, item, key, format!("is there already{place}"));
                break;
            }
            problem(problems, item, key, format!("{what} is already taken by {}{place}", first.object.key()));
        }
    }
    for item in objects {
        shared(item, &claimed, problems);
    }
}

/// Checks values that some objects may share. Guests may share the MACs that are learned, but not those that
/// belong to one guest. Tunnels may share a VXLAN network identifier, but not with a network, which owns the
/// identifier whatever the remote.
fn shared(item: &Item, claimed: &HashMap<String, &Item>, problems: &mut Vec<Problem>) {
    if let Object::Wire(wire) = &item.object
        && let Way::Vxlan { vni, .. } = wire.way
        && let Some(owner) = claimed.get(&format!("vni {vni}"))
    {
        let message = format!(
            "packets with this vni, from whatever host, are those of {}; take another",
            owner.object.key()
        );
        problem(problems, item, "vni", message);
    }
    let Object::Guest(guest) = &item.object else { return };
    for network in guest.vlans.iter().map(|vlan| &vlan.network).chain([&guest.network]) {
        for what in guest.macs.iter().map(|mac| mac_of(*mac, network)) {
            if let Some(owner) = claimed.get(&what) {
                problem(problems, item, "macs", format!("{what} is already taken by {}", owner.object.key()));
            }
        }
    }
}

fn mac_of(mac: packet::Mac, network: &str) -> String {
    format!("{mac} of network \"{network}\"")
}

/// Returns claims that follow from other objects as well.
fn derived(index: &Index, object: &Object) -> Vec<Claim> {
    let mut all = of_bgp(index, object);
    if let Object::Network(network) = object {
        let outside = |addr| index.outside_of(addr).ok().map(|outside| (addr, &outside.name));
        let shared = network.shared_addresses().filter_map(outside);
        all.extend(shared.map(|(addr, name)| (format!("address {addr} of network \"{name}\""), "snat")));
    }
    all
}

/// Returns names by which BGP tells networks apart: who shares one gets the other's packets. Targets that somebody wrote
/// may be shared.
fn of_bgp(index: &Index, object: &Object) -> Vec<Claim> {
    let Object::Network(network) = object else { return Vec::new() };
    let Some(names) = index.route_names(network) else { return Vec::new() };
    let claim = |target: RouteName, key| (format!("the default route target {target}"), key);
    let target = names.target.map(|target| claim(target, "vrf"));
    let l3_target = names.l3_target.map(|target| claim(target, "l3vni"));
    let distinguisher = (format!("route distinguisher {}", names.distinguisher), "rd");
    target.into_iter().chain(l3_target).chain([distinguisher]).collect()
}

fn claims(object: &Object) -> Vec<Claim> {
    let mut claims = Vec::new();
    let mut claim = |what: String, key| claims.push((what, key));
    match object {
        Object::Wire(wire) => {
            claim(format!("interface name \"{}\"", wire.name), "name");
            match &wire.way {
                Way::Vxlan { remote, vni } | Way::Geneve { remote, vni } => {
                    claim(format!("{} tunnel to {remote} with vni {vni}", wire.way.driver()), "vni");
                }
                Way::Vhost(path) => claim(device(true, path), "device"),
                Way::AfPacket(name) | Way::AfXdp(name) | Way::Tap(name) => {
                    claim(device(false, name), "device")
                }
            }
            wire.addresses
                .iter()
                .for_each(|net| claim(format!("underlay address {}", net.addr()), "addresses"));
        }
        Object::Network(network) => {
            claim(format!("network name \"{}\"", network.name), "name");
            claim(format!("vrf {}", network.vrf), "vrf");
            network.vni.iter().for_each(|vni| claim(format!("vni {vni}"), "vni"));
            network.l3vni.iter().for_each(|vni| claim(format!("vni {vni}"), "l3vni"));
            if network.default.is_some() {
                claim(format!("default of network \"{}\"", network.name), "default");
            }
            let name = &network.name;
            for net in &network.gateways {
                claim(format!("address {} of network \"{name}\"", net.addr()), "gateways");
            }
            for addr in network.metadata_addresses() {
                claim(format!("address {addr} of network \"{name}\""), "metadata");
            }
            if let Some(wire) = &network.wire {
                let vlan = network.vlan.map_or("untagged traffic".to_owned(), |vlan| format!("vlan {vlan}"));
                claim(format!("{vlan} of wire \"{wire}\""), "wire");
            }
        }
        Object::Guest(guest) => {
            let network = &guest.network;
            claim(format!("interface name \"{}\"", guest.name), "name");
            match &guest.connection {
                Connection::Vhost(vhost) => claim(device(true, &vhost.socket), "socket"),
                Connection::Tap(tap) | Connection::Host(tap) => claim(device(false, &tap.device), "device"),
                Connection::Rdma => {}
            }
            guest.mac.iter().for_each(|mac| claim(mac_of(*mac, network), "mac"));
            guest.verbs.iter().for_each(|verbs| claim(format!("verbs device \"{}\"", verbs.name), "rdma"));
            guest.label.iter().for_each(|label| claim(format!("label {label}"), "label"));
            for addr in &guest.addresses {
                claim(format!("address {addr} of network \"{network}\""), "addresses");
            }
            for vlan in &guest.vlans {
                let network = &vlan.network;
                guest.mac.iter().for_each(|mac| claim(mac_of(*mac, network), "mac"));
                for addr in &vlan.addresses {
                    claim(format!("address {addr} of network \"{network}\""), "vlans");
                }
            }
        }
        Object::Lease(lease) => {
            claim(format!("lease of guest \"{}\"", lease.guest), "guest");
            let network = &lease.network;
            lease.mac.iter().for_each(|mac| claim(mac_of(*mac, network), "mac"));
            for addr in &lease.addresses {
                claim(format!("address {addr} of network \"{network}\""), "addresses");
            }
        }
        Object::Nexthop(nexthop) => claim(format!("nexthop name \"{}\"", nexthop.name), "name"),
        Object::Route(route) => {
            claim(format!("route {} of network \"{}\"", route.prefix, route.network), "prefix");
        }
        Object::Mac(entry) => claim(mac_of(entry.mac, &entry.network), "mac"),
        Object::Flood(flood) => claim(format!("flood of network \"{}\"", flood.network), "network"),
        Object::Nat(nat) => {
            claim(format!("address {} of network \"{}\"", nat.outside, nat.outside_network), "outside");
            claim(format!("floating address of {} in network \"{}\"", nat.inside, nat.network), "inside");
        }
        Object::Forward(forward) => claim(format!("port {} of the host", forward.name()), "port"),
        Object::Rule(rule) => {
            claim(format!("rule \"{rule}\" of network \"{}\"", rule.network), "priority");
            if let Some(name) = &rule.name {
                claim(format!("rule name \"{name}\" of network \"{}\"", rule.network), "name");
            }
        }
        Object::Default(default) => claim(format!("default of network \"{}\"", default.network), "network"),
        Object::Mpls(mpls) => claim(format!("label {}", mpls.label), "label"),
        Object::Vxlan(vxlan) => claim(format!("vni {}", vxlan.vni), "vni"),
    }
    claims
}

fn device(socket: bool, name: &str) -> String {
    if socket { format!("socket \"{name}\"") } else { format!("device \"{name}\"") }
}
