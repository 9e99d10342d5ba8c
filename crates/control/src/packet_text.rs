//! Packets as operators write them for `explain`: the language of [`model::text`], with abbreviations.
//!
//! `10.1.1.1 > 10.1.1.2 / tcp 40000 > 80 syn` is completed: the IP layer's name follows from the addresses, the
//! Ethernet header from the interface and the tables, TCP flags may be words, `icmp` alone is a ping, `tcp 80` opens a
//! connection to a port, and an IP packet with nothing in it becomes a ping.

use crate::core::View;
use model::{GATEWAY_MAC, NeighbourScope, Network, Nexthop, Vif, VifId};
use packet::Mac;
use std::net::IpAddr;

/// The hint on how to write a packet, for messages.
const HOW: &str = "Write a packet like: 10.1.1.1 > 10.1.1.2 / tcp 40000 > 80 syn; `viaduct explain --help` has the \
     grammar";

/// Makes the frame that a text describes, as it would come in by an interface.
pub(crate) fn frame(view: &View, ingress: VifId, text: &str) -> Result<Vec<u8>, String> {
    let mut layers: Vec<String> = text.split('/').map(|layer| layer.trim().to_owned()).collect();
    complete(view, ingress, &mut layers);
    model::text::parse(&layers.join(" / ")).map_err(|e| format!("{e}\n{HOW}"))
}

fn complete(view: &View, ingress: VifId, layers: &mut Vec<String>) {
    layers.iter_mut().for_each(complete_layer);
    let Some(at) = layers.iter().position(|layer| ends(layer).is_some()) else { return };
    let Some((src, dst)) = ends(&layers[at]) else { return };
    if first_word(&layers[at]).parse::<IpAddr>().is_ok() {
        layers[at] = format!("{} {}", if dst.is_ipv4() { "ip4" } else { "ip6" }, layers[at]);
    }
    if at + 1 == layers.len() {
        layers.push(if dst.is_ipv4() { "icmp echo 1 1" } else { "icmp6 echo 1 1" }.to_owned());
    }
    if at == 0 {
        layers.insert(0, ethernet(view, ingress, src, dst));
    }
}

fn complete_layer(layer: &mut String) {
    let words: Vec<&str> = layer.split_whitespace().collect();
    let is_port = |word: &str| word.parse::<u16>().is_ok();
    match words[..] {
        [name @ ("icmp" | "icmp6")] => *layer = format!("{name} echo 1 1"),
        ["tcp", port] if is_port(port) => *layer = format!("tcp 40000 > {port} S"),
        [name @ ("udp" | "sctp"), port] if is_port(port) => *layer = format!("{name} 40000 > {port}"),
        ["tcp", ..] => *layer = tcp_flags(layer),
        _ => {}
    }
}

fn first_word(layer: &str) -> &str {
    layer.split_whitespace().next().unwrap_or_default()
}

/// Returns the addresses of an IP layer, with or without its name.
fn ends(layer: &str) -> Option<(IpAddr, IpAddr)> {
    let layer = layer.strip_prefix("ip4 ").or_else(|| layer.strip_prefix("ip6 ")).unwrap_or(layer);
    let (src, rest) = layer.split_once('>')?;
    Some((src.trim().parse().ok()?, first_word(rest).parse().ok()?))
}

/// Abbreviates flags: `syn ack` becomes `SA`; `ack 7` stays the acknowledgement number.
fn tcp_flags(layer: &str) -> String {
    const FLAGS: [(&str, &str); 8] = [
        ("fin", "F"),
        ("syn", "S"),
        ("rst", "R"),
        ("psh", "P"),
        ("ack", "A"),
        ("urg", "U"),
        ("ece", "E"),
        ("cwr", "C"),
    ];
    let words: Vec<&str> = layer.split_whitespace().collect();
    let flag = |i: usize| {
        let number_follows = words.get(i + 1).is_some_and(|next| next.parse::<u32>().is_ok());
        FLAGS.iter().find(|(name, _)| *name == words[i] && !number_follows).map(|(_, letter)| *letter)
    };
    let flags: String = (0..words.len()).filter_map(flag).collect();
    let mut rest: Vec<&str> = (0..words.len()).filter(|i| flag(*i).is_none()).map(|i| words[i]).collect();
    // Flags belong behind the ports: `tcp A > B FLAGS`.
    rest.insert(rest.len().min(4), &flags);
    rest.join(" ").trim_end().to_owned()
}

/// The MAC of a sender about whom nothing is known.
const SOMEBODY: Mac = Mac([0x02, 0, 0, 0, 0, 0xfe]);

/// Completes the Ethernet layer that a sender at this interface would use.
fn ethernet(view: &View, ingress: VifId, src: IpAddr, dst: IpAddr) -> String {
    let Some(vif) = view.tables.vifs.get(&ingress) else { return format!("eth {SOMEBODY} > {GATEWAY_MAC}") };
    if let Some(network) = vif.vrf.and_then(|vrf| view.tables.networks.get(&vrf)) {
        let to = neighbour(view, network, src, dst).unwrap_or(GATEWAY_MAC);
        return format!("eth {} > {to}", vif.mac.unwrap_or(SOMEBODY));
    }
    // On a wire, gateways and floating addresses have the wire's MAC; guests of an attached network have
    // their own.
    let wires = vif.mac.unwrap_or(GATEWAY_MAC);
    let Some((network, vlan)) = attached(view, ingress, dst) else {
        return format!("eth {SOMEBODY} > {wires}");
    };
    let from = known(view, network, src).unwrap_or(SOMEBODY);
    let to = guest(view, network, dst).and_then(|guest| guest.mac).unwrap_or(wires);
    let vlan = vlan.map(|vlan| format!(" vlan {vlan}")).unwrap_or_default();
    format!("eth {from} > {to}{vlan}")
}

/// Finds the network attached to a wire in which an address is, and its VLAN.
fn attached(view: &View, wire: VifId, dst: IpAddr) -> Option<(&Network, Option<u16>)> {
    let attached = view.tables.networks.values().filter_map(|network| {
        network.wire.filter(|attachment| attachment.vif == wire).map(|attachment| (network, attachment.vlan))
    });
    let is_here = |network: &Network| {
        guest(view, network, dst).is_some()
            || network.gateways.iter().any(|subnet| subnet.contains(&dst))
            || view.tables.floating.contains_key(&(network.vrf, dst))
    };
    attached.into_iter().find(|(network, _)| is_here(network))
}

/// Finds the guest of a network that has an address.
fn guest<'a>(view: &'a View, network: &Network, addr: IpAddr) -> Option<&'a Vif> {
    view.tables.vifs.values().find(|vif| vif.vrf == Some(network.vrf) && vif.addresses.contains(&addr))
}

/// Finds the MAC of an address in a network, if it is known.
fn known(view: &View, network: &Network, addr: IpAddr) -> Option<Mac> {
    guest(view, network, addr).and_then(|guest| guest.mac).or_else(|| {
        let scope = NeighbourScope::Network(network.vrf);
        let neighbours = view.executor.neighbours();
        neighbours.iter().find(|n| n.scope == scope && n.addr == addr).and_then(|n| n.mac)
    })
}

/// Finds the MAC to which a guest sends if that is not our gateway: the MAC of a host in its subnet, or, in a
/// network without a gateway of ours, of the router that the route names.
fn neighbour(view: &View, network: &Network, src: IpAddr, dst: IpAddr) -> Option<Mac> {
    let on_link = network.gateways.is_empty() || network.is_one_subnet(src, dst);
    if !on_link || network.is_gateway(dst) {
        return None;
    }
    known(view, network, dst).or_else(|| {
        let routes = view
            .tables
            .routes_in_force()
            .filter(|((vrf, prefix), _)| *vrf == network.vrf && prefix.contains(&dst));
        let (_, nexthop) = routes.max_by_key(|((_, prefix), _)| prefix.prefix_len())?;
        match *view.tables.nexthops.get(nexthop)? {
            Nexthop::Resolve { via: Some(router) } => known(view, network, router),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_may_be_words() {
        assert_eq!(tcp_flags("tcp 40000 > 80 syn"), "tcp 40000 > 80 S");
        assert_eq!(tcp_flags("tcp 1 > 2 syn ack seq 7"), "tcp 1 > 2 SA seq 7");
        assert!(
            tcp_flags("tcp 1 > 2 A seq 7 ack 9").split_whitespace().eq("tcp 1 > 2 A seq 7 ack 9".split(' '))
        );
        assert_eq!(tcp_flags("tcp 1 > 2"), "tcp 1 > 2");
    }

    #[test]
    fn short_layers_are_completed() {
        let completed = |layer: &str| {
            let mut layer = layer.to_owned();
            complete_layer(&mut layer);
            layer
        };
        assert_eq!(completed("icmp"), "icmp echo 1 1");
        assert_eq!(completed("icmp6"), "icmp6 echo 1 1");
        assert_eq!(completed("tcp 443"), "tcp 40000 > 443 S");
        assert_eq!(completed("udp 53"), "udp 40000 > 53");
        for whole in ["icmp echo 7 8", "udp 1 > 53", "arp request", "payload 20"] {
            assert_eq!(completed(whole), whole);
        }
    }

    #[test]
    fn ip_layers_are_known_by_their_addresses() {
        assert!(ends("10.1.1.1 > 10.1.1.2").is_some());
        assert!(ends("ip6 fd00::1 > fd00::2 ttl 3").is_some());
        assert!(ends("udp 1 > 53").is_none());
        assert!(ends("eth 02:00:00:00:00:01 > 02:00:00:00:00:02").is_none());
    }
}
